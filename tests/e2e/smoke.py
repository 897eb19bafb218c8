"""The program as it is built for tools/smoke.sh (no optimisation, or sanitizers): verify, served requests and a batch,
in one process and under mpirun. What a sanitizer says fails it."""

import json
import os
import pathlib
import re
import tempfile
import unittest

from cluster import DRAFTED_PAIR, ENVIRONMENT, PROGRAM, Server, mpirun, run

# Open MPI keeps memory until the end.
ENVIRONMENT.setdefault("ASAN_OPTIONS", "detect_leaks=0:abort_on_error=1")
ENVIRONMENT.setdefault("UBSAN_OPTIONS", "print_stacktrace=1:halt_on_error=1")
REPORT = re.compile(r"ERROR: \w+Sanitizer|runtime error:|internal error:|_GLIBCXX|Segmentation")


class Smoke(unittest.TestCase):
    def check_log(self, log):
        self.assertIsNone(REPORT.search(log), log[-4000:])

    def test_verify(self):
        code, out, log = run([PROGRAM, "verify", "--quick", *DRAFTED_PAIR], timeout_s=1500)
        self.check_log(log)
        self.assertEqual(code, 0, out[-4000:] + log[-4000:])

    def test_served_requests(self):
        for num_ranks in (0, 3):
            with Server(num_ranks, *DRAFTED_PAIR, recovery=False, wait_s=300) as server:
                body = {"prompt": "Once upon a time", "max_tokens": 40, "logprobs": 3, "echo": True}
                status, answer = server.post("/v1/completions", {**body, "seed": 1, "n": 2})
                self.assertEqual(status, 200, answer)
                chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40, "temperature": 0.7}
                self.assertGreater(len(list(server.events("/v1/chat/completions", chat))), 2)
                self.assertEqual(server.post("/v1/completions", {"prompt": 5})[0], 400)
                self.assertIn("outrider:rounds_total", server.get("/metrics"))
                self.assertEqual(server.stop(60), 0, server.text_of_log())
                self.check_log(server.text_of_log())

    def test_batch(self):
        with tempfile.TemporaryDirectory() as folder:
            lines = pathlib.Path(folder) / "in.jsonl"
            lines.write_text("".join(
                json.dumps({"custom_id": str(i), "method": "POST", "url": "/v1/completions",
                            "body": {"prompt": "The king " * (i + 1), "max_tokens": 20, "seed": i}}) + "\n"
                for i in range(20)))
            for launcher in ([], mpirun(3, recovery=False)):
                out = pathlib.Path(folder) / f"out{len(launcher)}.jsonl"
                code, _, log = run([*launcher, PROGRAM, "batch", *DRAFTED_PAIR, "-i", lines, "-o", out], timeout_s=600)
                self.check_log(log)
                self.assertEqual(code, 0, log[-4000:])
                self.assertEqual(len(out.read_text().splitlines()), 20)


if __name__ == "__main__":
    assert os.path.exists(PROGRAM), PROGRAM
    unittest.main()
