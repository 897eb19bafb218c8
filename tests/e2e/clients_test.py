"""The real openai package and the attack suite against the real server under mpirun."""

import os
import subprocess
import sys
import unittest

from cluster import PAIR, Server

HERE = os.path.dirname(os.path.abspath(__file__))
SKIPPED = 77


def run_client(script, server):
    done = subprocess.run([sys.executable, os.path.join(HERE, script), "--base-url", server.url],
                          capture_output=True, text=True, timeout=300)
    print(done.stdout, end="")
    return done.returncode, done.stdout + done.stderr + server.text_of_log()


class Clients(unittest.TestCase):
    def test_openai_package(self):
        with Server(3, *PAIR, "--generation-config", "vllm") as server:
            code, output = run_client("openai_client.py", server)
            if code == SKIPPED:
                self.skipTest("the openai package is not installed")
            self.assertEqual(code, 0, output)

    def test_responses_and_messages(self):
        with Server(3, *PAIR, "--generation-config", "vllm") as server:
            code, output = run_client("dialects_client.py", server)
            if code == SKIPPED:
                self.skipTest("neither the openai nor the anthropic package is installed")
            self.assertEqual(code, 0, output)

    def test_attacks(self):
        with Server(3, *PAIR) as server:
            code, output = run_client("http_attacks.py", server)
            self.assertEqual(code, 0, output)
            self.assertEqual(server.stop(), 0, server.text_of_log())


if __name__ == "__main__":
    unittest.main(verbosity=2)
