"""The CUDA shared object shows one function and needs no CUDA library: the runtime is inside it, the driver is found
when it is asked for.

    shared_object_test.py FILE
"""

import re
import subprocess
import sys
import unittest

FILE = sys.argv.pop()


def said(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class SharedObject(unittest.TestCase):
    def test_one_function_is_shown(self):
        shown = [line.split()[-1] for line in said("nm", "-D", "--defined-only", FILE).splitlines()]
        self.assertEqual(shown, ["outrider_gpu_backend"])

    def test_it_needs_no_cuda_library(self):
        needed = re.findall(r"NEEDED.*\[(.*)\]", said("readelf", "-d", FILE))
        self.assertIn("libc.so.6", needed)
        self.assertEqual([name for name in needed if re.match(r"lib(cu|nv|nccl)", name)], [])


if __name__ == "__main__":
    unittest.main()
