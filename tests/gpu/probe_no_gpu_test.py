"""gpu_probe where no GPU can be used: one clear sentence and exit code 3, and probes that start other processes end
cleanly. Also shown on machines with a GPU, which is hidden.

    probe_no_gpu_test.py PROGRAM
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop()


def run(*arguments):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, env=environment, timeout=100,
                          check=False)


class NoGpu(unittest.TestCase):
    def test_one_sentence_and_exit_code_3(self):
        with tempfile.TemporaryDirectory() as folder:
            for names in ((), ("nccl",), ("bandwidth", "ipc")):
                done = run(*names, "--out", folder)
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertRegex(done.stderr, r"\Agpu_probe: no GPU can be used here: [^\n]+\(CUDA error (35|100)\)\n\Z")
                self.assertEqual(done.stdout, "")
                self.assertEqual(os.listdir(folder), [])

    def test_probes_of_two_processes_say_what_failed(self):
        for name in ("nccl", "ipc"):
            with tempfile.TemporaryDirectory() as folder:
                done = run("--run", name, "--out", folder)
                self.assertEqual(done.returncode, 1, done.stderr)
                report = json.loads(pathlib.Path(folder, f"{name}.json").read_text())
                self.assertIn("CUDA error", report["status"])

    def test_a_missing_library_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            run("--run", "nccl", "--out", folder, "--nccl", "no/such/file.so")
            self.assertIn("no/such/file.so", json.loads(pathlib.Path(folder, "nccl.json").read_text())["status"])

    def test_words_that_are_not_understood(self):
        for words in (("--no-such",), ("no_such_probe",), ("--out",)):
            done = run(*words)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_the_list_names_every_probe(self):
        listed = run("--list").stdout
        for name in ("device", "bandwidth", "cublaslt", "launch_gap", "latency", "ipc", "nccl"):
            self.assertRegex(listed, rf"(?m)^{name} ")


if __name__ == "__main__":
    unittest.main()
