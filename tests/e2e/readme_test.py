"""Runs the commands of README.md and of the tutorials as they stand, with models in place of TARGET_DIR and DRAFT_DIR."""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

from cluster import ENVIRONMENT, PROGRAM, children

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent

# Of a command that is not run here: how it begins, and why.
NOT_RUN = {
    "make ": "this test is part of make test",
    "mpirun --hostfile": "wants several machines",
    "build/outrider synth": "takes minutes; synth_e2e_test runs a smaller one",
    "build/outrider verify": "verify_e2e_test runs it",
    "build/outrider quantize": "its folder would be synth's; quantize is tested elsewhere",
}
# Of a command that is made smaller: what stands in README, and what is run.
SMALLER = {
    "--num-prompts 64": "--num-prompts 4",
    "pair/target": "models/embedded/target",  # what synth would have made
}


def commands_of(readme):
    """The command lines of its code blocks; lines that end in a backslash are one."""
    blocks = re.findall(r"^```(?:sh|bash)?\n(.*?)^```", readme, re.M | re.S)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    commands = [re.sub(r"\s+#.*", "", line).strip() for line in lines if not line.startswith(("#", "("))]
    return [line for line in commands if re.match(r"(build/|make|mpirun|curl|echo|tools/|python3|git|sudo)", line)]


class Readme(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        for name in ("configs", "tools", "models"):
            (self.folder / name).symlink_to(SOURCE / name)
        (self.folder / "build").mkdir()
        (self.folder / "build/outrider").symlink_to(PROGRAM)
        (self.folder / "in.jsonl").write_text(
            '{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "A", "max_tokens": 4}}\n')

    def prepared(self, command):
        command = command.replace("TARGET_DIR", str(SOURCE / "models/embedded/target"))
        command = command.replace("DRAFT_DIR", str(SOURCE / "models/embedded/draft"))
        for given, smaller in SMALLER.items():
            if re.search(rf"(^|\s){re.escape(given)}(\s|$)", command):
                command = command.replace(given, smaller)
        return command

    def run_to_end(self, command):
        done = subprocess.run(["bash", "-c", command], cwd=self.folder, env=ENVIRONMENT, capture_output=True, text=True,
                              timeout=600)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")

    def serve(self, command):
        """A server of README is started, reached at the address that README says, and stopped."""
        process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=self.folder, env=ENVIRONMENT,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            for _ in range(600):
                self.assertIsNone(process.poll(), command)
                try:
                    with urllib.request.urlopen("http://127.0.0.1:8000/readyz", timeout=2):
                        return process
                except OSError:
                    time.sleep(0.1)
            self.fail(f"not ready: {command}")
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise

    def stop(self, process):
        is_mpirun = any(" serve " in line for line in children(process.pid).values())
        process.send_signal(signal.SIGUSR1 if is_mpirun else signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        process.stderr.close()

    def test_every_command(self):
        with urllib.request.socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", 8000)) == 0:
                self.skipTest("port 8000, which README names, is taken")
        server = None
        pages = [SOURCE / "README.md", *sorted((SOURCE / "docs/tutorials").glob("*.md"))]
        commands = [command for page in pages for command in commands_of(page.read_text())]
        self.assertGreater(len(commands), 15)
        for command in dict.fromkeys(commands):
            if any(command.startswith(beginning) for beginning in NOT_RUN):
                continue
            with self.subTest(command=command):
                prepared = self.prepared(command)
                if " serve " in f"{prepared} " and "bench" not in prepared:
                    if server:
                        self.stop(server)
                    server = self.serve(prepared)
                else:
                    self.run_to_end(prepared)
        if server:
            self.stop(server)


if __name__ == "__main__":
    if not shutil.which("curl"):
        print("curl is not here: skipped", file=sys.stderr)
        sys.exit(77)
    unittest.main()
