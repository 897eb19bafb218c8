"""The user's own check, from outside: `outrider verify` on the embedded pair, and that it can fail."""

import json
import os
import re
import tempfile
import unittest

from cluster import PAIR, PROGRAM, mpirun, run


class Verify(unittest.TestCase):
    def verify(self, num_ranks, *options):
        """Returns (code, table, stderr, JSON)."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "verify.json")
            launcher = mpirun(num_ranks, recovery=False) if num_ranks else []
            code, out, errors = run([*launcher, PROGRAM, "verify", "--quick", "--log-level", "warning", "--json", path,
                                     *options], timeout_s=500)
            result = None
            if os.path.exists(path):
                with open(path) as file:
                    result = json.load(file)
        return code, out, errors, result

    def check_good(self, out, result):
        self.assertRegex(out, r"verdict: EXACT\. \d+ checks passed, 12 controls were caught")
        self.assertTrue(result["passed"])
        rows = result["checks"]
        for part, modes in (("toy", {"standard", "block", "coupled"}),
                            ("pair", {"direct", "standard", "block", "coupled"}), ("text", {"greedy", "seeded"})):
            self.assertEqual({row["mode"] for row in rows if row["check"].startswith(part)}, modes)
        controls = {row["check"] for row in rows if row["kind"] == "control"}
        for word in ("shared noise", "position keyed noise", "off by one bonus", "bonus draft by value"):
            self.assertTrue(any(word in control for control in controls), word)
        for row in rows:
            self.assertTrue(row["passed"], row)
            if "num_examined" in row:
                self.assertGreater(row["num_accepted"], 0, row)
            if row["check"].startswith("pair") and row["mode"] != "direct":
                self.assertLess(row["num_accepted"], row["num_examined"], row)
                # The draft worked asynchronously: some of what was judged were bonus drafts.
                self.assertEqual(row["num_bonus_drafts"] > 0, row["mode"] in ("standard", "block"), row)
            if row["kind"] == "law":
                self.assertLess(row["found_distance"], 0.2, row)
            if row["kind"] == "equality":
                self.assertGreater(row["num_tokens"], 100, row)
                self.assertEqual(row["num_tokens"], row["num_equal_tokens"], row)

    def test_the_embedded_pair_is_exact_in_one_process(self):
        code, out, errors, result = self.verify(0)
        self.assertEqual(code, 0, out + errors)
        self.check_good(out, result)
        self.assertEqual(result["num_target_ranks"], 1)
        self.assertIn("verify ", errors)  # progress

    def test_and_under_mpirun_with_two_target_ranks(self):
        code, out, errors, result = self.verify(3, *PAIR)
        self.assertEqual(code, 0, out + errors)
        self.check_good(out, result)
        self.assertEqual(result["num_target_ranks"], 2)
        self.assertEqual(len(re.findall("^verdict:", out, re.M)), 1)

    def test_a_broken_rule_gives_code_1(self):
        code, out, _, result = self.verify(0, "--break", "off_by_one_bonus", "--pair-samples", "500")
        self.assertEqual(code, 1)
        self.assertIn("verdict: NOT PROVED", out)
        self.assertFalse(result["passed"])
        failed = [row["check"] for row in result["checks"] if row["verdict"] == "FAIL"]
        self.assertGreater(len(failed), 5)
        self.assertTrue(all(check.startswith("toy") for check in failed), failed)

    def test_wrong_options_give_code_2(self):
        for options, word in ((["--break", "everything"], "off_by_one_bonus"), (["--samples", "many"], "samples"),
                              (["--samples", "300"], "verify needs at least "),
                              (["--model", "synth:tinyllama-1.1b"], "tokenizer"), (["--quik"], "--quick"),
                              (["--speculative-config.method", "none"], "speculative-config")):
            code, out, errors, _ = self.verify(0, *options)
            self.assertEqual(code, 2, errors)
            self.assertIn(word, errors)
            self.assertEqual(out, "")


if __name__ == "__main__":
    unittest.main(verbosity=2)
