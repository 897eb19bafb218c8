"""/v1/files and /v1/batches as the openai package uses them, over stops and kills of the server. Skipped where it is not
installed."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from cluster import ENVIRONMENT, PAIR, PROGRAM, Server

try:
    import openai
except ImportError:
    print("skipped: the openai package is not installed")
    sys.exit(77)

SLOW = ["--model", "sim:step_ms=20", "--max-num-seqs", "4"]


def line(number, **body):
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions",
            "body": {"prompt": f"The number {number} and the king", "max_tokens": 16, "seed": 7,
                     "temperature": 0.8, **body}}


def text_of(lines):
    return "".join(json.dumps(entry) + "\n" for entry in lines).encode()


class Batches(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def serve(self, *options):
        server = Server(0, *options, "--batch-dir", os.path.join(self.folder, "batches"))
        self.addCleanup(server.kill)
        key = options[options.index("--api-key") + 1] if "--api-key" in options else "none"
        return server, openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0, timeout=60)

    def begin(self, client, lines, **fields):
        file = client.files.create(file=("in.jsonl", text_of(lines)), purpose="batch")
        return client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h", **fields)

    def wait(self, client, batch, *statuses, timeout_s=90):
        end = time.time() + timeout_s
        while time.time() < end:
            found = client.batches.retrieve(batch.id)
            if found.status in (statuses or ("completed", "failed", "cancelled")):
                return found
            time.sleep(0.05)
        self.fail(f"the batch is {found}")

    def answers(self, client, file_id):
        """custom_id -> line; each is there once."""
        lines = [json.loads(entry) for entry in client.files.content(file_id).text.splitlines()]
        found = {entry["custom_id"]: entry for entry in lines}
        self.assertEqual(len(found), len(lines))
        return found

    def wait_for_answers(self, client, batch, count):
        end = time.time() + 60
        while client.batches.retrieve(batch.id).request_counts.completed < count and time.time() < end:
            time.sleep(0.02)

    def test_a_batch_from_upload_to_deletion(self):
        server, client = self.serve(*PAIR, "--api-key", "secret")
        lines = [*(line(number) for number in range(8)), line("long", max_tokens=9999)]
        file = client.files.create(file=("requests.jsonl", text_of(lines)), purpose="batch")
        self.assertEqual((file.filename, file.purpose, file.bytes), ("requests.jsonl", "batch", len(text_of(lines))))
        self.assertEqual(client.files.retrieve(file.id), file)
        self.assertEqual(client.files.content(file.id).read(), text_of(lines))
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h",
                                      metadata={"for": "a test"})
        self.assertEqual((batch.object, batch.endpoint, batch.metadata), ("batch", "/v1/completions", {"for": "a test"}))
        done = self.wait(client, batch)
        self.assertEqual(done.status, "completed", done)
        counts = done.request_counts
        self.assertEqual((counts.total, counts.completed, counts.failed), (9, 8, 1))
        answers = self.answers(client, done.output_file_id)
        self.assertEqual(set(answers), {f"line-{number}" for number in range(8)})
        errors = self.answers(client, done.error_file_id)
        self.assertEqual(errors["line-long"]["response"]["status_code"], 400)
        self.assertEqual(errors["line-long"]["error"]["code"], "context_length_exceeded")
        self.assertEqual({entry.id for entry in client.files.list()}, {file.id, done.output_file_id, done.error_file_id})
        self.assertEqual([entry.id for entry in client.batches.list(limit=1)], [batch.id])
        self.assertEqual([entry.id for entry in client.files.list(limit=1, order="asc")],
                         [entry.id for entry in client.files.list(order="asc")])
        self.check_same_as_the_command(lines[:8], answers)
        self.assertTrue(client.files.delete(file.id).deleted)
        with self.assertRaises(openai.NotFoundError):
            client.files.retrieve(file.id)
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0).files.list()
        self.assertEqual(server.stop(), 0, server.text_of_log())

    def check_same_as_the_command(self, lines, answers):
        source, output = (os.path.join(self.folder, name) for name in ("in.jsonl", "out.jsonl"))
        with open(source, "wb") as file:
            file.write(text_of(lines))
        subprocess.run([PROGRAM, "batch", *PAIR, "-i", source, "-o", output], check=True, env=ENVIRONMENT,
                       capture_output=True, timeout=120)
        with open(output) as file:
            for entry in map(json.loads, file):
                self.assertEqual(entry["response"]["body"]["choices"],
                                 answers[entry["custom_id"]]["response"]["body"]["choices"])

    def test_a_server_without_priorities_has_batches_too(self):
        _, client = self.serve("--model", "sim:step_ms=1", "--scheduling-policy", "fcfs")
        done = self.wait(client, self.begin(client, [line(1), line(2)]))
        self.assertEqual((done.status, done.request_counts.completed), ("completed", 2), done)

    def test_wrong_lines_are_named(self):
        _, client = self.serve(*PAIR)
        failed = self.wait(client, self.begin(client, [line(1), line(1), line(2, temperature=7)]))
        self.assertEqual(failed.status, "failed")
        self.assertEqual([(error.line, error.code, error.param) for error in failed.errors.data],
                         [(2, "duplicate_custom_id", "custom_id"), (3, "invalid_request", "temperature")])
        for bad in (lambda: client.files.create(file=("x", b"{}"), purpose="fine-tune"),
                    lambda: client.batches.create(input_file_id="file-none", endpoint="/v1/completions",
                                                  completion_window="24h"),
                    lambda: client.batches.create(input_file_id="file-none", endpoint="/v1/embeddings",
                                                  completion_window="24h")):
            with self.assertRaises(openai.BadRequestError):
                bad()

    def test_cancelled(self):
        _, client = self.serve(*SLOW)
        batch = self.begin(client, [line(number) for number in range(400)])  # a minute's work
        second = self.begin(client, [line(1)])
        self.wait_for_answers(client, batch, 2)
        self.assertEqual(client.batches.cancel(second.id).status, "cancelling")
        self.assertEqual(client.batches.cancel(batch.id).status, "cancelling")
        done = self.wait(client, batch, timeout_s=60)
        self.assertEqual(done.status, "cancelled")
        self.assertEqual(len(self.answers(client, done.output_file_id)), done.request_counts.completed)
        self.assertLess(done.request_counts.completed, 400)
        with self.assertRaises(openai.ConflictError):
            client.batches.cancel(batch.id)

    def test_it_goes_on_after_a_stop_and_after_a_kill(self):
        server, client = self.serve(*SLOW)
        batch = self.begin(client, [line(number) for number in range(30)])
        waiting = self.begin(client, [line("last")])
        for end in (lambda: self.assertEqual(server.stop(), 0, server.text_of_log()), lambda: server.kill()):
            before = client.batches.retrieve(batch.id).request_counts.completed
            self.wait_for_answers(client, batch, before + 4)
            end()
            server, client = self.serve(*SLOW)
            self.assertEqual(client.batches.retrieve(batch.id).status, "in_progress")
        for one, count in ((batch, 30), (waiting, 1)):
            done = self.wait(client, one)
            self.assertEqual((done.status, done.request_counts.completed), ("completed", count), done)
            self.assertEqual(len(self.answers(client, done.output_file_id)), count)

    def test_others_are_answered_meanwhile(self):
        server, client = self.serve(*SLOW)
        # 18 s a line: who waits for one waits long.
        batch = self.begin(client, [line(number, max_tokens=900, ignore_eos=True) for number in range(12)])
        self.wait(client, batch, "in_progress")
        start = time.time()
        server.post("/v1/completions", {"prompt": "a", "max_tokens": 8})
        self.assertLess(time.time() - start, 10)
        self.assertEqual(client.batches.retrieve(batch.id).request_counts.completed, 0)
        server.process.send_signal(signal.SIGKILL)

    def test_one_folder_is_one_servers(self):
        folder = os.path.join(self.folder, "batches")
        self.serve(*PAIR)
        done = subprocess.run([PROGRAM, "serve", *PAIR, "--port", "0", "--batch-dir", folder], env=ENVIRONMENT,
                              capture_output=True, text=True, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("another server keeps its batches in", done.stderr)

    def test_broken_forms_are_refused_and_the_server_lives(self):
        server, client = self.serve(*PAIR)
        part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nx\r\n'
        good = part + b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--b--\r\n'
        form = "multipart/form-data; boundary=b"
        for media, body in ((form, good[:-5]), (form, part), (form, b"--b"), (form, b""), (form, part * 1000 + b"--b--"),
                            (form, b"--b\r\n" + b"A: b\r\n" * 100000 + b"\r\n--b--"), (form, b"\0" * 1000000),
                            (form, b"\r\n--" * 200000), ("multipart/form-data", good), (form + "x", good),
                            ('multipart/form-data; boundary="', good), ("application/json", good), ("text/plain", good)):
            request = urllib.request.Request(server.url + "/v1/files", body, {"Content-Type": media})
            with self.assertRaises(urllib.error.HTTPError, msg=body[:50]) as refused:
                urllib.request.urlopen(request, timeout=10)
            self.assertEqual(refused.exception.code, 400)
            self.assertTrue(json.load(refused.exception)["error"]["message"])
        for path in ("/v1/files/..%2f..%2flock", "/v1/files/%2e%2e", "/v1/files/../lock/content", "/v1/batches/" + "x" * 5000):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(server.url + path, timeout=10)
            self.assertEqual(refused.exception.code, 404)
        self.assertEqual(list(client.files.list()), [])
        with urllib.request.urlopen(urllib.request.Request(server.url + "/v1/files", good, {"Content-Type": form})) as reply:
            self.assertEqual(json.load(reply)["bytes"], 1)
        self.assertEqual(server.stop(), 0, server.text_of_log())

    def test_large_files_and_none(self):
        server, client = self.serve(*PAIR, "--max-batch-file-bytes", "12M")
        big = b'{"x": "' + b"y" * (11 << 20) + b'"}\n'
        file = client.files.create(file=("big", big), purpose="batch")
        self.assertEqual(client.files.content(file.id).read(), big)
        with self.assertRaises(openai.APIStatusError) as refused:
            client.files.create(file=("big", big * 2), purpose="batch")
        self.assertEqual(refused.exception.status_code, 413)
        self.assertEqual(server.stop(), 0)
        with Server(0, *PAIR) as without:
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(without.url + "/v1/files", timeout=10)
            self.assertIn("--batch-dir", refused.exception.read().decode())


if __name__ == "__main__":
    unittest.main(verbosity=2)
