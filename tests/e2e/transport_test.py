"""The server over TLS, on a Unix socket, below a root path and on an IPv6 address."""

import contextlib
import http.client
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.request

import certificate
from cluster import PAIR, PROGRAM, Server, free_port, mpirun, run, unix_handler

STREAMED = {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0}
ENDLESS = {"prompt": "word", "max_tokens": 4000, "ignore_eos": True}
# Rounds of 20 ms: an answer takes its time.
SLOW = ["--model", "sim:step_ms=20"]


def text_of(events):
    return "".join(event["choices"][0]["text"] for event in events if event["choices"])


def head(path, version="1.1", body=None):
    lines = f"{'GET' if body is None else 'POST'} {path} HTTP/{version}\r\nHost: localhost\r\n"
    if body is None:
        return (lines + "\r\n").encode()
    data = json.dumps(body)
    return f"{lines}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n{data}".encode()


class InFolder(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def refused(self, *options, launcher=()):
        """What a server that must not start says."""
        code, _, errors = run([*launcher, PROGRAM, "serve", *options], timeout_s=60)
        self.assertEqual(code, 2, errors)
        self.assertNotIn("ready: ", errors)
        return errors


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.files = certificate.make(folder.name)
        cls.context = ssl.create_default_context(cafile=cls.files[0])
        cls.server = cls.serve(*SLOW)
        cls.addClassCleanup(cls.server.kill)

    @classmethod
    def serve(cls, *options):
        return Server(0, *options, "--ssl-certfile", cls.files[0], "--ssl-keyfile", cls.files[1], scheme="https",
                      handlers=[urllib.request.HTTPSHandler(context=cls.context)])

    def plain(self, timeout=20):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=timeout)

    def secure(self, context=None, **options):
        return (context or self.context).wrap_socket(self.plain(), server_hostname="localhost", **options)

    def test_answers_and_streams_are_those_of_plain_http(self):
        with Server(0, *PAIR) as server:
            _, expected = server.post("/v1/completions", STREAMED)
        with self.serve(*PAIR) as server:
            self.assertEqual(server.post("/v1/completions", STREAMED)[1]["choices"], expected["choices"])
            self.assertEqual(text_of(server.events("/v1/completions", STREAMED)), expected["choices"][0]["text"])
            log = server.text_of_log()
            self.assertIn(f"listening on https://127.0.0.1:{server.port}\n", log)
            self.assertIn(f"ready: https://127.0.0.1:{server.port}/v1 serves", log)
            self.assertEqual(server.stop(), 0, server.text_of_log())

    def test_several_requests_of_one_connection_and_a_large_body(self):
        connection = http.client.HTTPSConnection("127.0.0.1", self.server.port, context=self.context, timeout=20)
        with contextlib.closing(connection):
            for words in (1, 400_000, 1):
                body = json.dumps({"prompt": "word " * words, "max_tokens": 2})
                connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                content = json.loads(answer.read())
                self.assertEqual(answer.status, 200 if words == 1 else 400, content)
                self.assertEqual(answer.headers["Connection"], "keep-alive")

    def test_pieces_come_while_they_are_made(self):
        spreads = []
        for _ in range(5):  # this process may have stood still meanwhile: then what has come is read at once
            times = [time.monotonic() for _ in self.server.events("/v1/completions", {**STREAMED, "prompt": "word"})]
            self.assertGreater(len(times), 20)
            spreads.append(times[-1] - times[0])
            if spreads[-1] > 0.4:  # of 0.8 s
                break
        self.assertGreater(max(spreads), 0.4, spreads)

    def test_a_stream_to_http_1_0_ends_and_is_not_cut(self):
        with self.secure(suppress_ragged_eofs=False) as sock:
            sock.sendall(head("/v1/completions", "1.0", {"prompt": "word", "max_tokens": 5, "stream": True}))
            received = b""
            while piece := sock.recv(65536):  # raises SSLEOFError without an end of TLS's own
                received += piece
        self.assertTrue(received.endswith(b"data: [DONE]\n\n"), received)

    def test_versions(self):
        for version, is_taken in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True),
                                  (ssl.TLSVersion.TLSv1_3, True)):
            context = ssl.create_default_context(cafile=self.files[0])
            context.set_ciphers("DEFAULT@SECLEVEL=0")  # the client's part; else it would not offer 1.1
            with self.subTest(version), self.assertWarns(DeprecationWarning) if not is_taken else contextlib.nullcontext():
                context.minimum_version = context.maximum_version = version
                if is_taken:
                    self.secure(context).close()
                else:
                    with self.assertRaisesRegex(ssl.SSLError, "(?i)alert protocol version"):
                        self.secure(context)

    def test_what_is_not_tls_ends_its_connection_only(self):
        with self.secure() as streaming:
            streaming.sendall(head("/v1/completions", body={**ENDLESS, "stream": True}))
            streaming.recv(1)
            with self.plain() as sock:
                sock.sendall(head("/v1/models"))
                answer = sock.recv(65536)
                self.assertTrue(answer.startswith(b"HTTP/1.1 400 "), answer)
                self.assertIn(b"this port speaks TLS: use https://", answer)
            for noise in (b"\0", b"x" * 100, b"\x16\x03\x01\x40\x00" + b"\xff" * 100, os.urandom(5000)):
                with self.plain() as sock:
                    with contextlib.suppress(OSError):  # the server may be faster
                        sock.sendall(noise)
                        sock.shutdown(socket.SHUT_WR)
                        sock.recv(65536)
            self.assertIn("simulated", self.server.get("/v1/models"))
            self.assertTrue(streaming.recv(65536))

    def test_a_handshake_that_does_not_come_is_ended(self):
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(self.plain()) for _ in range(20)]
            for sock in silent[10:]:
                sock.sendall(b"\x16\x03\x01\x02\x00\x01")  # how a ClientHello begins
            start = time.monotonic()
            self.server.get("/health")
            self.assertLess(time.monotonic() - start, 4)  # they are ended after 5 s
            for sock in silent:
                self.assertEqual(sock.recv(1), b"")  # or it raises after 20 s

    def test_a_client_that_leaves_ends_its_request(self):
        for way in ("unwrap", "close"):
            sock = self.secure()
            sock.sendall(head("/v1/completions", body={**ENDLESS, "stream": True}))
            sock.recv(1)
            self.assertNotEqual(json.loads(self.server.get("/load"))["server_load"], 0)
            if way == "unwrap":
                with contextlib.suppress(OSError):  # what was still being sent is in its way
                    sock.unwrap()
            sock.close()
            end = time.monotonic() + 30
            while json.loads(self.server.get("/load"))["server_load"] and time.monotonic() < end:
                time.sleep(0.02)
            self.assertEqual(json.loads(self.server.get("/load"))["server_load"], 0)

    def test_many_at_once(self):
        texts = set()

        def ask():
            texts.add(text_of(self.server.events("/v1/completions", {**STREAMED, "prompt": "word", "max_tokens": 10})))

        threads = [threading.Thread(target=ask) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(texts), 1, texts)
        self.assertTrue(texts.pop())


class TlsFiles(InFolder):
    """One sentence each before a model is loaded."""

    def check(self, sentence, *options, **more):
        errors = self.refused("--model", "embedded", *options, **more)
        self.assertRegex(errors, sentence)
        self.assertEqual(sum("ssl_" in line or "cannot be opened" in line for line in errors.splitlines()), 1, errors)
        self.assertNotIn("loaded", errors)

    def test_files_that_will_not_do(self):
        certificate_file, key = certificate.make(self.folder)
        _, other_key = certificate.make(self.folder, "other")
        rsa_key, secret_key, text = (f"{self.folder}/{name}" for name in ("rsa.pem", "secret.pem", "text"))
        subprocess.run(["openssl", "genrsa", "-out", rsa_key, "2048"], check=True, capture_output=True)
        subprocess.run(["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:x", "-out", secret_key], check=True)
        with open(text, "w") as file:
            file.write("text\n")
        both = ["--ssl-certfile", certificate_file, "--ssl-keyfile"]
        self.check(f"{self.folder}/none: cannot be opened: No such file", "--ssl-certfile", f"{self.folder}/none")
        self.check(f"{self.folder}/none: cannot be opened: No such file", *both, f"{self.folder}/none")
        self.check(f"ssl_certfile {text}: holds no usable certificate in PEM", "--ssl-certfile", text, "--ssl-keyfile", key)
        self.check(f"ssl_keyfile {text}: holds no private key in PEM", *both, text)
        self.check(f"ssl_keyfile {certificate_file}: holds no private key in PEM", "--ssl-certfile", certificate_file)
        self.check(f"ssl_keyfile {secret_key}: has a password", *both, secret_key)
        for another in (other_key, rsa_key):
            self.check(f"ssl_keyfile {another}: is not the key of the certificate {certificate_file}", *both, another)
        self.check("ssl_keyfile: needs ssl_certfile too", "--ssl-keyfile", key)
        self.check("rank 0 .*ssl_keyfile: needs ssl_certfile too", "--ssl-keyfile", key, launcher=mpirun(2, recovery=False))

    def test_key_and_certificate_in_one_file(self):
        files = certificate.make(self.folder)
        both = f"{self.folder}/both.pem"
        pathlib.Path(both).write_text("".join(pathlib.Path(name).read_text() for name in files))
        context = ssl.create_default_context(cafile=files[0])
        with Server(0, *SLOW, "--ssl-cert-file", both, scheme="https",
                    handlers=[urllib.request.HTTPSHandler(context=context)]) as server:
            self.assertIn("simulated", server.get("/v1/models"))


class UnixSocket(InFolder):
    def setUp(self):
        super().setUp()
        self.path = f"{self.folder}/socket"

    def serve(self, *options):
        return Server(0, *options, "--uds", self.path, handlers=[unix_handler(self.path)])

    def test_answers_streams_and_the_end(self):
        with self.serve(*PAIR, "--host", "0.0.0.0") as server:
            _, answer = server.post("/v1/completions", STREAMED)
            self.assertEqual(text_of(server.events("/v1/completions", STREAMED)), answer["choices"][0]["text"])
            done = subprocess.run(["curl", "-s", "--unix-socket", self.path, "http://localhost/v1/models"],
                                  capture_output=True, text=True) if os.path.exists("/usr/bin/curl") else None
            if done:
                self.assertIn("outrider-embedded", done.stdout)
            with self.assertRaises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.1", server.port))
            self.assertEqual(server.stop(), 0, server.text_of_log())
            log = server.text_of_log()
            self.assertIn(f"ready: unix:{self.path} serves", log)
            self.assertNotIn("everyone", log)
        self.assertFalse(os.path.exists(self.path))

    def test_its_clients_are_local(self):
        with self.serve(*SLOW) as server, contextlib.ExitStack() as stack:
            for _ in range(80):  # 64 would be the most from one other host
                sock = stack.enter_context(socket.socket(socket.AF_UNIX))
                sock.settimeout(10)
                sock.connect(self.path)
                sock.sendall(head("/v1/models"))
                self.assertTrue(sock.recv(65536).startswith(b"HTTP/1.1 200 "))
            self.assertIn("simulated", server.get("/v1/models"))

    def test_the_file_of_a_killed_server_is_replaced_and_a_live_one_is_not(self):
        with self.serve(*SLOW) as server:
            self.assertIn(f"uds: a running server listens on {self.path}", self.refused(*SLOW, "--uds", self.path))
            server.get("/v1/models")
            server.process.send_signal(signal.SIGKILL)
            server.process.wait()
        self.assertTrue(os.path.exists(self.path))
        with self.serve(*SLOW) as server:
            server.get("/v1/models")

    def test_what_cannot_be(self):
        with open(self.path, "w") as file:
            file.write("text")
        self.assertIn(f"uds: {self.path} is there and is no socket", self.refused(*SLOW, "--uds", self.path))
        self.assertEqual(os.path.getsize(self.path), 4)
        self.assertIn("No such file or directory", self.refused(*SLOW, "--uds", f"{self.folder}/none/socket"))

    def test_the_file_is_removed_when_the_model_cannot_be_loaded(self):
        folder = f"{self.folder}/model"
        os.mkdir(folder)
        self.refused("--model", folder, "--uds", self.path)
        self.assertFalse(os.path.exists(self.path))


class Addresses(unittest.TestCase):
    def test_root_path(self):
        with Server(0, *SLOW, "--root-path", "/llm/") as server:
            self.assertIn(f"ready: {server.url}/llm/v1 serves", server.text_of_log())
            self.assertEqual(server.get("/llm/v1/models"), server.get("/v1/models"))
            _, answer = server.post("/llm/v1/completions", {"prompt": "word", "max_tokens": 3})
            self.assertEqual(answer["usage"]["completion_tokens"], 3)
            self.assertIn("<html", server.get("/llm"))  # by way of /llm/
        for wrong in ("llm", "/llm?a"):
            code, _, errors = run([PROGRAM, "serve", *SLOW, "--root-path", wrong])
            self.assertEqual(code, 2)
            self.assertIn(f"root_path: '{wrong}' is no path like /llm", errors)

    def test_ipv6(self):
        try:
            with socket.socket(socket.AF_INET6) as sock:
                sock.bind(("::1", 0))
        except OSError:
            self.skipTest("no IPv6 here")
        port = free_port()
        process = subprocess.Popen([PROGRAM, "serve", *SLOW, "--host", "::1", "--port", str(port)],
                                   stderr=subprocess.PIPE, text=True)
        try:
            for line in process.stderr:
                if "listening on" in line:
                    self.assertIn(f"listening on http://[::1]:{port}", line)
                if "ready: http" in line:
                    self.assertIn(f"ready: http://[::1]:{port}/v1 serves", line)
                    break
            with urllib.request.urlopen(f"http://[::1]:{port}/health", timeout=10) as answer:
                self.assertEqual(answer.status, 200)
        finally:
            process.kill()
            process.communicate()


if __name__ == "__main__":
    unittest.main(verbosity=2)
