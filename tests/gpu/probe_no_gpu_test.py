"""gpu_probe where no GPU can be used: one clear sentence and exit code 3. Also shown on machines with a GPU, which is
hidden.

    probe_no_gpu_test.py PROGRAM
"""

import os
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
            for names in ((), ("launch_gap",), ("bandwidth", "device")):
                done = run(*names, "--out", folder)
                self.assertEqual(done.returncode, 3, done.stderr)
                self.assertRegex(done.stderr, r"\Agpu_probe: no GPU can be used here: [^\n]+\(CUDA error (35|100)\)\n\Z")
                self.assertEqual(done.stdout, "")
                self.assertEqual(os.listdir(folder), [])

    def test_words_that_are_not_understood(self):
        for words in (("--no-such",), ("no_such_probe",), ("--out",)):
            done = run(*words)
            self.assertEqual(done.returncode, 2)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_the_list_names_every_probe(self):
        listed = run("--list").stdout
        for name in ("device", "bandwidth", "launch_gap"):
            self.assertRegex(listed, rf"(?m)^{name} ")


if __name__ == "__main__":
    unittest.main()
