"""tools/setup.sh on systems it was not made for: one sentence each. Its commands are stand-ins."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "tools/setup.sh"
USED = ("bash", "grep", "id", "sed", "sort")


class Setup(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        for name in USED:
            (self.folder / name).symlink_to(shutil.which(name))
        self.stand_in("uname", "echo Linux")
        self.stand_in("cmake", "echo cmake version 3.25.1")
        self.stand_in("apt-get", "exit 9")
        self.stand_in("dpkg-query", "echo install ok installed")

    def stand_in(self, name, line):
        (self.folder / name).write_text(f"#!{self.folder}/bash\n{line}\n")
        (self.folder / name).chmod(0o755)

    def check(self, code, sentence, *packages):
        done = subprocess.run(["bash", SCRIPT, *packages], env={**os.environ, "PATH": str(self.folder)}, capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stderr)
        self.assertRegex(done.stderr, sentence)
        self.assertEqual(done.stderr.count("\n"), 1 if sentence != "^$" else 0)

    def test_where_all_is_there_nothing_is_said(self):
        self.check(0, "^$")

    def test_an_old_cmake(self):
        self.stand_in("cmake", "echo cmake version 3.22.1")
        self.check(1, "cmake 3.22.1 is too old, 3.25 or later is needed: pip install cmake")

    def test_no_apt_get(self):
        (self.folder / "apt-get").unlink()
        self.check(0, "no apt-get here; what Debian calls g.. cmake .* libopenmpi-dev .* must be there")
        self.check(0, "python3-venv dpkg-dev file must be there", "dpkg-dev", "file")

    def test_another_kernel(self):
        self.stand_in("uname", "echo Darwin")
        self.check(1, "Darwin is not supported: Outrider needs Linux")


if __name__ == "__main__":
    unittest.main()
