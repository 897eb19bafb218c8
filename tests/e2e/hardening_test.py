"""What the released program is protected by, read from its file as an attacker would."""

import os
import re
import subprocess
import unittest

PROGRAM = os.environ["OUTRIDER_PROGRAM"]


def read_elf(*options):
    return subprocess.run(["readelf", "--wide", *options, PROGRAM], capture_output=True, text=True, check=True).stdout


class Hardening(unittest.TestCase):
    def test_addresses_are_drawn(self):
        self.assertRegex(read_elf("--file-header"), r"Type:\s+DYN")

    def test_the_table_of_calls_cannot_be_written(self):
        self.assertIn("GNU_RELRO", read_elf("--program-headers"))
        self.assertRegex(read_elf("--dynamic"), r"BIND_NOW|FLAGS_1.*NOW")

    def test_the_stack_is_no_code(self):
        self.assertRegex(read_elf("--program-headers"), r"GNU_STACK.* RW ")

    def test_stacks_and_copies_are_checked(self):
        symbols = read_elf("--dyn-syms")
        self.assertIn("__stack_chk_fail", symbols)
        self.assertTrue(re.search(r"__mem(cpy|move)_chk|__[a-z]+printf_chk|__read_chk|__fread_chk", symbols))
        self.assertIn("__glibcxx_assert_fail", symbols)  # of containers


if __name__ == "__main__":
    unittest.main()
