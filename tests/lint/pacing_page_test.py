"""docs/pacing.md's table has every constant of scheduler/pacing/constants.h with its value, and there are at most 40."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).parent.parent.parent


class PacingPage(unittest.TestCase):
    def test_the_table_has_the_constants_of_the_program(self):
        header = (ROOT / "scheduler/pacing/constants.h").read_text()
        page = (ROOT / "docs/pacing.md").read_text()
        constants = re.findall(r"^  double (\w+) = ([0-9.e-]+);", header, re.M)
        rows = re.findall(r"^\| `(\w+)` \| ([0-9.e-]+) \|", page, re.M)
        self.assertEqual([(name, float(value)) for name, value in constants],
                         [(name, float(value)) for name, value in rows])
        self.assertLessEqual(len(constants), 40)
        self.assertGreater(len(constants), 20)


if __name__ == "__main__":
    unittest.main()
