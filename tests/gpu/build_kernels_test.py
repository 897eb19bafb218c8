"""tools/gpu/build_kernels.sh with nvcc and none of our libraries: a dry run names every file of kernels, for sm_90a alone
and with the definitions that were asked for, and nothing else.

    build_kernels_test.py
"""

import pathlib
import re
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
SCRIPT = ROOT / "tools/gpu/build_kernels.sh"


def run(*arguments):
    return subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, timeout=250, check=False)


class BuildKernels(unittest.TestCase):
    def test_what_would_be_compiled(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(folder, "-DOUTRIDER_DEPTH=16", "-DOUTRIDER_OTHER", "--", "-n", "-v")
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        compiles = [line for line in done.stdout.splitlines() if re.search(r" -c \S+\.(cu|cpp|c) ", line + " ")]
        compiled = {re.search(r"-c (\S+)", line).group(1) for line in compiles}
        kernels = re.findall(r"CURRENT_LIST_DIR\}/(\S+\.cu)", (ROOT / "runtime/ops/cuda/kernels.cmake").read_text())
        host_side = ["cuda_backend.cu", "cuda_device.cu", "peer_memory.cu"]
        self.assertEqual(compiled, {str(ROOT / "runtime/ops/cuda" / name) for name in kernels + host_side})
        for line in compiles:
            self.assertIn(" -DOUTRIDER_DEPTH=16 -DOUTRIDER_OTHER ", line)
            self.assertIn("sm_90a", line)
            self.assertNotIn("sm_80", line)
            self.assertIn(" -O3 ", line)
        self.assertRegex(done.stdout, r"-shared .*-o liboutrider_cuda\.so ")

    def test_other_words_are_refused(self):
        done = run("/nowhere", "depth=16")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr, "build_kernels: 'depth=16' is no -DNAME[=VALUE]\n")


if __name__ == "__main__":
    unittest.main()
