"""The synthetic pair as a user makes it: outrider synth, check-pair, and one text of the pair."""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["OUTRIDER_PROGRAM"]
SHAPE = "tinyllama-1.1b@2"


def outrider(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)


class Synth(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.pair = pathlib.Path(cls.folder.name) / "pair"
        made = outrider("synth", "--shape", SHAPE, "--draft-layers", 1, "--epsilon", 0.3, "-o", cls.pair)
        assert made.returncode == 0, made.stdout + made.stderr
        cls.told = made.stdout

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_says_the_acceptance_it_measured(self):
        record = json.loads((self.pair / "synthetic.json").read_text())
        acceptance = record["measured"]["acceptance"]
        self.assertGreater(acceptance, 0.05)
        self.assertLess(acceptance, 0.95)
        self.assertIn(f"acceptance {acceptance:.4f}", self.told)

    def test_the_pair_fits_together(self):
        checked = outrider("check-pair", self.pair / "target", self.pair / "draft")
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        self.assertTrue(checked.stdout.startswith("compatible"))

    def test_speculation_changes_nothing(self):
        options = ["--model", self.pair / "target", "--speculative-config.model", self.pair / "draft"]
        options += ["--max-model-len", 256, "--num-prompts", 2, "--max-tokens", 48, "--repeat", 1]
        run = outrider("bench", "decode", *options)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("2 of 2", run.stdout)

    def test_refuses_what_it_cannot_do(self):
        cases = [
            (("synth", "--shape", "gpt-9", "--epsilon", 0.1, "-o", self.pair / "x"), "gpt-9"),
            (("synth", "--shape", SHAPE, "--epsilon", 0.1, "-o", self.pair), str(self.pair)),
            (("synth", "--shape", SHAPE, "--alpha", 1.5, "-o", self.pair / "x"), "alpha"),
            (("synth", "--shape", SHAPE, "--draft-layers", 2, "--epsilon", 0.1, "-o", self.pair / "x"), "draft_layers"),
        ]
        for arguments, named in cases:
            refused = outrider(*arguments)
            self.assertEqual(refused.returncode, 2, f"{arguments}: {refused.stderr}")
            self.assertIn(named, refused.stderr.splitlines()[-1])
        self.assertFalse((self.pair / "x").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
