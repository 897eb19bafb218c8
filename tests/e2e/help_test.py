"""What the program says about itself: docs/options.md is its output, bash completes its options, man reads its page,
and --version and the server's /version name the same build."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from cluster import ENVIRONMENT, PAIR, PROGRAM, Server, run

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(PROGRAM).resolve().parent


def said(*words):
    code, out, errors = run([PROGRAM, *words])
    assert (code, errors) == (0, ""), (words, code, errors)
    return out


class Page(unittest.TestCase):
    def test_the_page_is_what_the_program_says(self):
        page = (SOURCE / "docs/options.md").read_text()
        self.assertEqual(page, said("help", "markdown"), "renew it: build/outrider help markdown > docs/options.md")

    def test_cells_are_short(self):
        cells = [cell for line in said("help", "markdown").splitlines() if line.startswith("|")
                 for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        self.assertGreater(len(cells), 500)
        self.assertLessEqual(max(len(cell.strip()) for cell in cells), 120)

    def test_help_of_a_command_is_its_own(self):
        for command in ("serve", "synth", "bench", "bench decode", "help"):
            self.assertEqual(said("help", *command.split()), said(*command.split(), "--help"))
        self.assertTrue(said("bench", "decode", "--help").startswith("outrider bench decode: "))
        self.assertIn("\n  verify-curve ", said("bench", "--help"))
        self.assertEqual(said("help"), said("--help"))
        code, out, errors = run([PROGRAM, "help", "bench", "decoder"])
        self.assertEqual((code, out), (2, ""))
        self.assertIn("'bench decoder'", errors)

    def test_a_default_stands_once(self):
        row, = re.findall(r"^  --gpus .*$", said("plan", "--help"), re.M)
        self.assertRegex(row, r"^  --gpus 1\.\.64 +a node's for the target \[8\]$")


class Completion(unittest.TestCase):
    def complete(self, *words, folder="."):
        """What bash offers for the last of the words."""
        script = f"""source {BUILD}/outrider.bash && COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) && _outrider
                     printf '%s\\n' "${{COMPREPLY[@]}}" """
        done = subprocess.run(["bash", "--norc", "-c", script, "outrider", "outrider", *words], cwd=folder,
                              capture_output=True, text=True, timeout=60)
        self.assertEqual(done.stderr, "")
        return set(done.stdout.split())

    def test_commands(self):
        self.assertEqual(self.complete("ver"), {"verify"})
        self.assertLess({"serve", "batch", "bench", "help"}, self.complete(""))
        self.assertEqual(self.complete("bench", "pre"), {"prefill"})
        self.assertEqual(self.complete("help", "mar"), {"markdown"})

    def test_options(self):
        self.assertEqual(self.complete("serve", "--max-num-s"), {"--max-num-seqs"})
        self.assertEqual(self.complete("bench", "sim", "--step"), {"--step-ms"})
        self.assertEqual(self.complete("serve", "--step"), set())
        self.assertEqual(self.complete("batch", "--in"), {"--input", "--input-file"})

    def test_choices(self):
        self.assertEqual(self.complete("serve", "--isa", ""), {"auto", "scalar", "avx2", "avx512"})
        self.assertEqual(self.complete("serve", "--isa", "=", "avx"), {"avx2", "avx512"})
        self.assertEqual(self.complete("serve", "--isa", "="), {"auto", "scalar", "avx2", "avx512"})
        self.assertEqual(self.complete("synth", "--dtype", "bf"), {"bfloat16"})
        self.assertEqual(self.complete("plan", "--dtype", ""), {"bfloat16", "fp8"})
        self.assertEqual(self.complete("serve", "--port", ""), set())

    def test_files(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "prompts.jsonl").touch()
            os.mkdir(os.path.join(folder, "model"))
            self.assertEqual(self.complete("batch", "-i", "pro", folder=folder), {"prompts.jsonl"})
            self.assertEqual(self.complete("serve", "", folder=folder), {"prompts.jsonl", "model"})
            self.assertEqual(self.complete("serve", "--isa", "pro", folder=folder), set())
            # A file follows "--json", anything a flag.
            self.assertEqual(self.complete("bench", "decode", "--json", "mo", folder=folder), {"model"})
            self.assertIn("--port", self.complete("bench", "load", "--cold", "--po", folder=folder))


class ManPage(unittest.TestCase):
    def test_man_reads_it_without_a_warning(self):
        page = BUILD / "outrider.1"
        self.assertEqual(page.read_text(), said("help", "man"))
        if shutil.which("mandoc"):
            command = ["mandoc", "-Tlint", "-Wwarning", page]
        elif shutil.which("groff") and list(pathlib.Path("/usr/share/groff").glob("*/tmac/an.tmac")):
            command = ["groff", "-man", "-ww", "-Tutf8", page]
        else:
            self.skipTest("neither mandoc nor groff with its man macros is here")
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue("mandoc" in command or "sequences running at once" in done.stdout)


class Version(unittest.TestCase):
    def test_the_program_and_the_server_name_the_same_build(self):
        lines = dict(line.split(None, 1) for line in said("--version").splitlines())
        self.assertEqual(set(lines), {"outrider", "commit", "compiler", "mpi", "cuda", "xgrammar"})
        self.assertRegex(lines["commit"], r"^([0-9a-f]{40}(\+dirty)?|unknown)$")
        self.assertRegex(lines["compiler"], r"^(g\+\+|clang) \d+\.")
        self.assertRegex(lines["cuda"], r"^(none|\d+\.[0-9.]+)$")
        launcher = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, env=ENVIRONMENT).stdout
        self.assertIn(re.search(r"\d+\.\d+\.\d+", launcher).group(), lines["mpi"])
        with Server(0, *PAIR) as server:
            answer = json.loads(server.get("/version"))
            self.assertEqual(server.stop(), 0, server.text_of_log())
        self.assertEqual(answer.pop("version"), lines.pop("outrider"))
        self.assertEqual(answer, lines)


if __name__ == "__main__":
    unittest.main()
