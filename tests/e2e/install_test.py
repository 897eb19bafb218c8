"""cmake --install and the Debian package: what they hold, that the installed program finds its models, and that the
systemd unit and the image name what is installed."""

import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from cluster import ENVIRONMENT, PROGRAM

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(PROGRAM).resolve().parent
INSTALLED = ("bin/outrider", "share/outrider/models/embedded/target/model.safetensors",
             "share/outrider/models/embedded/draft/tokenizer.json", "share/outrider/configs/one-process.yaml",
             "share/outrider/configs/grafana.json",
             "lib/systemd/system/outrider.service", "share/doc/outrider/copyright",
             "share/bash-completion/completions/outrider", "share/man/man1/outrider.1")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


class Install(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def test_installed_program_has_its_models_beside_it(self):
        done = run("cmake", "--install", BUILD, "--prefix", self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in INSTALLED:
            self.assertTrue((self.folder / name).is_file(), name)
        program = self.folder / "bin/outrider"
        target = self.folder / "share/outrider/models/embedded/target"
        done = run(program, "tokenize", "--model", "embedded", input='{"text": "Hello"}', env=ENVIRONMENT)
        self.assertEqual(done.returncode, 0, done.stderr)
        # The pair that is found is the installed one: without its tokenizer nothing is tokenized.
        (target / "tokenizer.json").unlink()
        done = run(program, "tokenize", "--model", "embedded", input='{"text": "Hello"}', env=ENVIRONMENT)
        self.assertIn(str(target), done.stderr)
        self.assertNotEqual(done.returncode, 0)

    @unittest.skipUnless(shutil.which("systemd-analyze"), "no systemd here")
    def test_systemd_understands_the_unit(self):
        done = run("cmake", "--install", BUILD, "--prefix", self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        unit = self.folder / "lib/systemd/system/outrider.service"
        unit.write_text(unit.read_text().replace("/usr/", f"{self.folder}/"))
        done = run("systemd-analyze", "verify", unit)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    @unittest.skipUnless(all(map(shutil.which, ("dpkg-deb", "dpkg-shlibdeps", "file"))), "no Debian packages here")
    def test_debian_package(self):
        done = run("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", self.folder, cwd=BUILD)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        package, = self.folder.glob("*.deb")
        content = run("dpkg-deb", "--contents", package).stdout
        for name in INSTALLED:
            self.assertIn(f" ./usr/{name}\n", content)
        for file in ("tools/package/outrider.service", "Containerfile"):
            named = re.findall(r'/usr/[^\s"]+', (SOURCE / file).read_text())
            self.assertTrue(named, file)
            for name in named:
                self.assertIn(f" .{name}\n", content, file)
        depends = run("dpkg-deb", "--field", package, "Depends").stdout
        for name in ("openmpi-bin", "libopenmpi", "libyaml-cpp", "libssl"):
            self.assertIn(name, depends)


if __name__ == "__main__":
    unittest.main()
