"""The configurations of docs/how-to/put-behind-a-proxy.md in nginx and haproxy. Skipped where neither is installed nor
unpacked by tools/proxies_for_tests.sh."""

import glob
import json
import os
import pathlib
import re
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import certificate
from cluster import PROGRAM, Server, free_port
from transport_test import unix_handler

SKIPPED = 77
UNPACKED = os.path.join(os.path.dirname(os.path.abspath(PROGRAM)), "proxies")
PATH = f"{os.environ['PATH']}:/usr/sbin:{UNPACKED}/usr/sbin"
NGINX, HAPROXY = (shutil.which(name, path=PATH) for name in ("nginx", "haproxy"))
PAGE = (pathlib.Path(__file__).resolve().parents[2] / "docs/how-to/put-behind-a-proxy.md").read_text()
# Rounds of 10 ms.
OPTIONS = ["--model", "sim:step_ms=10", "--allowed-origins", "https://ui.example"]
PROMPT = {"prompt": "word", "max_tokens": 50, "temperature": 0}
# What nginx would write where only an installed one may.
NGINX_FRAME = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr; {user}
events {{}}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  {servers}
}}
"""


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def wait_listening(port, process):
    end = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise
            time.sleep(0.02)


class Behind(unittest.TestCase):
    """Four servers (TCP, TCP with a root path, TLS, Unix socket) and one proxy with a port for each configuration."""

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.certificate, key = certificate.make(cls.folder)
        context = ssl.create_default_context(cafile=cls.certificate)
        cls.socket = f"{cls.folder}/socket"
        cls.tcp = cls.start(*OPTIONS)
        cls.below = cls.start(*OPTIONS, "--root-path", "/llm")
        cls.tls = cls.start(*OPTIONS, "--ssl-certfile", cls.certificate, "--ssl-keyfile", key, scheme="https",
                            handlers=[urllib.request.HTTPSHandler(context=context)])
        cls.unix = cls.start(*OPTIONS, "--uds", cls.socket, handlers=[unix_handler(cls.socket)])

    @classmethod
    def start(cls, *options, **more):
        server = Server(0, *options, **more)
        cls.addClassCleanup(server.kill)
        return server

    @classmethod
    def run_proxy(cls, command, ports):
        libraries = ":".join(glob.glob(f"{UNPACKED}/usr/lib/*-linux-gnu"))
        cls.log = open(f"{cls.folder}/proxy.log", "w+")
        cls.addClassCleanup(cls.log.close)
        process = subprocess.Popen(command, stdout=cls.log, stderr=cls.log, env={**os.environ, "LD_LIBRARY_PATH": libraries})
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.terminate)
        for port in ports:
            wait_listening(port, process)

    @classmethod
    def with_our_names(cls, text, server):
        return (text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}").replace("/run/outrider/socket", cls.socket)
                .replace("/etc/ssl/outrider.pem", cls.certificate))

    def ask(self, url, body=None, headers=(), method=None):
        request = urllib.request.Request(url, json.dumps(body).encode() if body else None, method=method,
                                         headers={"Content-Type": "application/json", **dict(headers)})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.headers, error.read().decode()

    def check(self, url, server):
        """JSON, a stream in pieces, one that is left, the proxy's own page and a foreign one, and the chat page."""
        status, _, answer = self.ask(url + "/v1/completions", PROMPT)
        self.assertEqual(status, 200, answer)
        text = json.loads(answer)["choices"][0]["text"]
        self.check_stream(url, text)
        self.check_leaving(url, server)
        self.check_origins(url)
        for page in (url, url + "/"):
            status, _, answer = self.ask(page)
            self.assertEqual(status, 200, answer)
            self.assertIn("<html", answer)
            self.assertEqual(re.findall(r"""(?:call\(|href=|src=)["'`]/[^"'`]*""", answer), [])
        status, _, answer = self.ask(url + "/nowhere")
        self.assertEqual((status, list(json.loads(answer))), (404, ["error"]))

    def check_stream(self, url, text):
        for _ in range(5):  # this process may have stood still meanwhile: then what has come is read at once
            spread = self.spread_of_stream(url, text)
            if spread > 0.25:  # of 0.5 s
                return
        self.fail(f"all pieces came within {spread:.3f} s")

    def spread_of_stream(self, url, text):
        """Seconds from the first piece to the last."""
        pieces, times = [], []
        request = urllib.request.Request(url + "/v1/completions", json.dumps({**PROMPT, "stream": True}).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    pieces.append(json.loads(line[6:])["choices"][0]["text"])
                    times.append(time.monotonic())
        self.assertEqual(line, b"\n")
        self.assertEqual("".join(pieces), text)
        self.assertGreater(len(times), 20)
        return times[-1] - times[0]

    def check_leaving(self, url, server):
        request = urllib.request.Request(url + "/v1/completions", json.dumps(
            {**PROMPT, "max_tokens": 4000, "ignore_eos": True, "stream": True}).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.readline()
            self.wait_load(server, 1)  # when the call before has ended at the server too
        self.wait_load(server, 0)

    def wait_load(self, server, expected):
        end = time.monotonic() + 20
        while (found := json.loads(server.get("/load"))["server_load"]) != expected and time.monotonic() < end:
            time.sleep(0.02)
        self.assertEqual(found, expected)

    def check_origins(self, url):
        own = re.match("http://[^/]*", url)[0]
        for origin, expected in ((own, 200), ("https://ui.example", 200), ("https://evil.example", 403)):
            status, headers, answer = self.ask(url + "/v1/completions", {**PROMPT, "max_tokens": 1}, {"Origin": origin})
            self.assertEqual(status, expected, answer)
            status, headers, answer = self.ask(url + "/v1/completions", method="OPTIONS", headers={
                "Origin": origin, "Access-Control-Request-Method": "POST"})
            self.assertEqual(status, expected, answer)
            allowed = origin if origin == "https://ui.example" else None
            self.assertEqual(headers["Access-Control-Allow-Origin"], allowed)


@unittest.skipUnless(NGINX, "no nginx here")
class Nginx(Behind):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # In the order of the page.
        cls.places = [("plain", cls.tcp), ("path", cls.tcp), ("root_path", cls.below), ("tls", cls.tls),
                      ("unix", cls.unix)]
        cls.ports = {name: free_port() for name, _ in cls.places}
        servers = [f"server {{ listen 127.0.0.1:{cls.ports[name]}; {cls.with_our_names(block, server)} }}"
                   for (name, server), block in zip(cls.places, blocks("nginx"), strict=True)]
        user = "user root root;" if os.getuid() == 0 else ""
        with open(f"{cls.folder}/nginx.conf", "w") as file:
            file.write(NGINX_FRAME.format(folder=cls.folder, user=user, servers="\n".join(servers)))
        cls.run_proxy([NGINX, "-e", "stderr", "-p", cls.folder, "-c", f"{cls.folder}/nginx.conf"], cls.ports.values())

    def url(self, name):
        return f"http://127.0.0.1:{self.ports[name]}"

    def test_plain(self):
        self.check(self.url("plain"), self.tcp)

    def test_a_path_that_is_taken_away(self):
        self.check(self.url("path") + "/llm", self.tcp)

    def test_a_path_that_is_left(self):
        self.check(self.url("root_path") + "/llm", self.below)

    def test_tls(self):
        self.check(self.url("tls"), self.tls)

    def test_a_unix_socket(self):
        self.check(self.url("unix"), self.unix)


@unittest.skipUnless(HAPROXY, "no haproxy here")
class Haproxy(Behind):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        whole, lines = blocks("haproxy")
        defaults, _, rest = whole.partition("frontend")
        plain = rest.splitlines()[-1]
        backends = dict(zip(("plain", "tls", "unix"), [plain, *lines.splitlines()], strict=True))
        backends["path"] = plain + "\n    " + re.search("`(http-request replace-path .*?)`", PAGE)[1]
        backends["root_path"] = plain
        servers = {"tls": cls.tls, "root_path": cls.below}
        cls.ports = {name: free_port() for name in backends}
        text = defaults
        for name, line in backends.items():
            section = "frontend" + rest.replace("web", f"web-{name}").replace("outrider\n", f"{name}\n")
            section = section.replace(":80\n", f"127.0.0.1:{cls.ports[name]}\n").replace(plain, line)
            text += cls.with_our_names(section, servers.get(name, cls.tcp))
        with open(f"{cls.folder}/haproxy.cfg", "w") as file:
            file.write(text)
        cls.run_proxy([HAPROXY, "-db", "-f", f"{cls.folder}/haproxy.cfg"], cls.ports.values())

    def url(self, name):
        return f"http://127.0.0.1:{self.ports[name]}"

    def test_plain(self):
        self.check(self.url("plain"), self.tcp)

    def test_a_path_that_is_left(self):
        self.check(self.url("root_path") + "/llm", self.below)

    def test_a_path_that_is_taken_away(self):
        status, _, answer = self.ask(self.url("path") + "/llm/v1/models")
        self.assertEqual(status, 200, answer)

    def test_tls(self):
        self.check(self.url("tls"), self.tls)

    def test_a_unix_socket(self):
        self.check(self.url("unix"), self.unix)


if __name__ == "__main__":
    if not NGINX and not HAPROXY:
        print("SKIPPED: neither nginx nor haproxy is here; tools/proxies_for_tests.sh fetches them")
        raise SystemExit(SKIPPED)
    unittest.main(verbosity=2)
