"""tools/gpu/first_run.sh without a GPU: on a build folder of stand-ins, every part becomes a line of the page as it
ends, in the order of importance; one that fails or hangs costs only itself; whenever the script is killed, what had ended
is there and nothing goes on running. What says that there is no GPU, and what does not.
"""

import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

SCRIPT = pathlib.Path(__file__).parents[2] / "tools/gpu/first_run.sh"

# Writes what the real one would into the folder behind --out, under the probes' names.
PROBE = """#!/bin/bash
names=() out=.
while [ $# -gt 0 ]; do
  if [ "$1" = --out ]; then out=$2; shift; else names+=("$1"); fi
  shift
done
mkdir -p "$out"
printf '## %s\\n' "${names[-1]}" >"$out/${names[-1]}.md"
printf '{"probe":\\n"%s"}' "${names[-1]}" >"$out/${names[-1]}.json"
echo "said by the probe" >"$out/${names[-1]}.log"
"""
NO_GPU = "#!/bin/bash\necho 'gpu_probe: no GPU can be used here: none' >&2\nexit 3\n"
# As the loader does it where the C library is older than the one of the build.
NOT_STARTED = "#!/bin/bash\necho \"gpu_probe: version 'GLIBC_2.36' not found\" >&2\nexit 1\n"


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def runs(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, limit_s=60):
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


class FirstRun(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        self.build, self.out = self.folder / "build", self.folder / "out"
        program(self.build / "tools/gpu/probe/gpu_probe", PROBE)

    def put_test(self, name, text):
        program(self.build / "tests/gpu" / name, "#!/bin/bash\n" + text)

    def start_script(self, out=None, **environment):
        command = [str(SCRIPT), str(out or self.out), str(self.build)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, **environment})

    def run_script(self, code=0, **environment):
        script = self.start_script(**environment)
        _, said = script.communicate(timeout=250)
        self.assertEqual(script.returncode, code, said)
        return said

    def page(self):
        return (self.out / "first_run.md").read_text()

    def results(self):
        parts = [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]
        return {part["part"]: part["result"] for part in parts}

    def parts_of_page(self):
        return [line.split(" | ")[0][2:] for line in self.page().splitlines() if line.startswith("| ")][1:]

    def test_every_part_is_a_line(self):
        self.put_test("a_gpu_test", "echo fine $OUTRIDER_REQUIRE_GPU\n")
        self.put_test("b_gpu_test", "echo broken; exit 1\n")
        self.put_test("c_gpu_test", "exit 77\n")
        self.run_script(FIRST_RUN_PARTS="tests probe")
        for line in (r"a_gpu_test \| done", r"b_gpu_test \| exit code 1", r"c_gpu_test \| skipped",
                     r"gpu_probe: bandwidth \| done", r"## launch_gap"):
            self.assertRegex(self.page(), line)
        self.assertEqual(self.results()["gpu_probe: launch_gap"], {"probe": "launch_gap"})
        log = (self.out / "first_run.log").read_text()
        for said in ("fine 1", "broken", "said by the probe"):
            self.assertIn(said, log)
        self.assertLessEqual(len(list(self.out.iterdir())), 5)

    def test_the_order_is_that_of_importance(self):
        for name in ("product", "nccl_processes", "zebra", "device", "many_ranks", "kv"):
            self.put_test(f"{name}_gpu_test", "")
        program(self.build / "outrider", "#!/bin/bash\n")
        self.run_script(PATH=f"{self.folder}:{os.environ['PATH']}")
        parts = self.parts_of_page()
        order = ["gpu_probe: device", "gpu_probe: bandwidth", "gpu_probe: launch_gap", "device_gpu_test",
                 "product_gpu_test", "kv_gpu_test", "1B steps by rows, overlap 1", "8B steps by rows, overlap 1",
                 "1B steps by rows, overlap 0", "8B steps by rows, overlap 0", "one rank's share of a 70B on 8",
                 "8B and its first layers as draft, async_drafting cache",
                 "8B and its first layers as draft, async_drafting off", "a step of an 8B under ncu", "zebra_gpu_test",
                 "many_ranks_gpu_test", "nccl_processes_gpu_test"]
        self.assertEqual([part for part in parts if part in order], order)
        self.assertEqual(parts[-1], "nccl_processes_gpu_test")

    def test_nccl_of_a_wheel_is_found_for_the_tests(self):
        wheel = self.build / "site/nvidia/nccl/lib/libnccl.so.2"
        wheel.parent.mkdir(parents=True)
        wheel.touch()
        self.put_test("a_gpu_test", 'echo "takes [$OUTRIDER_NCCL]"\n')
        for asked, taken in (("", str(wheel)), ("mine.so", "mine.so")):
            self.run_script(FIRST_RUN_PARTS="tests", PYTHONPATH=str(self.build / "site"), OUTRIDER_NCCL=asked)
            self.assertIn(f"takes [{taken}]", (self.out / "first_run.log").read_text())

    def test_benchmarks_arrive(self):
        program(self.build / "outrider", """#!/bin/bash
echo "table of $2 on $4, overlap $OUTRIDER_GPU_OVERLAP"
case "$*" in *verify-curve*8b*) printf '{"half' >"$6" ;; *verify-curve*) printf '{"kind":\\n "%s"}' "$2" >"$6" ;; *) exit 1 ;; esac
""")
        self.run_script(FIRST_RUN_PARTS="decode pair")
        for line in ("1B steps by rows, overlap 0 \\| done", "the embedded pair \\| exit code 1",
                     "table of verify-curve on cuda, overlap 0", "table of verify-curve on cuda, overlap 1",
                     "table of decode on cuda, overlap \n"):
            self.assertRegex(self.page(), line)
        self.assertEqual(self.results(), {f"1B steps by rows, overlap {i}": {"kind": "verify-curve"} for i in (0, 1)})

    def test_kernels_made_on_the_machine_are_measured_beside_the_packs(self):
        library = 'liboutrider_cuda.so'
        program(self.build / "outrider", f'#!/bin/bash\ncat "$(dirname "$0")/{library}"\n')
        (self.build / library).write_text("kernels of the pack")
        for name in ("deep", "shallow"):
            (self.folder / name).mkdir()
            (self.folder / name / library).write_text(f"{name} kernels")
        self.run_script(FIRST_RUN_PARTS="decode", FIRST_RUN_KERNELS=f"{self.folder}/deep {self.folder}/shallow")
        for name, kernels in (("", "kernels of the pack"), (", kernels deep", "deep kernels"),
                              (", kernels shallow", "shallow kernels")):
            self.assertRegex(self.page(), f"## 8B steps by rows, overlap 1{name}\n\n```\n{kernels}")
        self.assertIn("has no liboutrider_cuda.so",
                      self.run_script(code=2, FIRST_RUN_PARTS="decode", FIRST_RUN_KERNELS=str(self.out)))

    def test_a_profile_and_one_ranks_share(self):
        program(self.build / "outrider", '#!/bin/bash\necho "$*"\n')
        program(self.folder / "bin/ncu", '#!/bin/bash\necho "ncu of $*"\n')
        self.run_script(FIRST_RUN_PARTS="profile shard", PATH=f"{self.folder}/bin:{os.environ['PATH']}")
        self.assertRegex(self.page(), "\nncu of .*--clock-control none .*outrider bench verify-curve")
        self.assertRegex(self.page(), "\nplan --model synth:llama-3.1-70b .*--device cuda --tp-emulate 8\n")

    def test_tests_of_overlap_and_their_control(self):
        name = "[  FAILED  ] GraphTest.OverlappingLaunchesGiveTheSameBits"
        for fails_unwaited in (True, False):
            said = f"case $LD_LIBRARY_PATH in *unwaited*) echo '{name if fails_unwaited else 'fine'}';; esac\n"
            self.put_test("device_gpu_test", said)
            self.run_script(FIRST_RUN_PARTS="late")
            self.assertRegex(self.page(), r"device_gpu_test, every kernel late \| done")
            self.assertRegex(self.page(), r"control: [^|]* \| " + ("done" if fails_unwaited else "exit code 1"))

    def run_on_a_small_budget(self, begun, code):
        """So small that only the first part is begun; a larger one where the machine is too slow even for that one."""
        for budget_s in ("11", "20", "40"):
            script = self.start_script(FIRST_RUN_PARTS="tests", FIRST_RUN_BUDGET_S=budget_s)
            _, said = script.communicate(timeout=250)
            if begun.exists():
                break
        self.assertEqual(script.returncode, code, said)

    def test_a_part_that_hangs_is_ended_and_no_more_is_begun_than_fits(self):
        pids = self.folder / "pids"
        self.put_test("a_gpu_test", f"(trap '' TERM; sleep 100) & echo $! >>{pids}; sleep 100\n")
        self.put_test("b_gpu_test", "echo never; exit 1\n")
        self.run_on_a_small_budget(pids, code=0)
        self.assertRegex(self.page(), r"a_gpu_test \| out of time")
        self.assertRegex(self.page(), r"b_gpu_test \| not begun: no time left")
        self.assertTrue(wait_until(lambda: not runs(pids.read_text().strip()), 30))

    def test_behind_a_hang_the_gpu_is_asked_whether_it_lives(self):
        hangs = self.folder / "hangs"
        program(self.build / "tools/gpu/probe/gpu_probe", PROBE + f"[ ! -e {hangs} ]\n")
        self.put_test("a_gpu_test", f"touch {hangs}; sleep 100\n")
        self.put_test("b_gpu_test", "")
        self.run_on_a_small_budget(hangs, code=4)
        self.assertEqual(self.parts_of_page(), ["a_gpu_test", "the GPU"])

    def test_killed_at_any_second_it_has_left_what_had_ended(self):
        program(self.build / "outrider", """#!/bin/bash
n=$(wc -l <"$ENDED")
sleep 0.2
echo "table $n"
printf '{"n":\\n%d}' $n >"$6"
echo >>"$ENDED"
""")
        most_ended = 0
        for at, word in enumerate((signal.SIGKILL, signal.SIGTERM) * 5):
            ended = self.folder / f"ended_{at}"  # one that still ends has the file of its own try
            ended.write_text("")
            out = self.folder / f"out_{at}"
            script = self.start_script(out, FIRST_RUN_PARTS="decode pair", ENDED=str(ended))
            self.assertTrue(wait_until((out / "first_run.md").exists))
            time.sleep(0.37 * at)
            if at >= 8:  # however slow the machine is
                self.assertTrue(wait_until(lambda: len(ended.read_text().splitlines()) > 3))
            script.send_signal(word)
            script.communicate(timeout=60)
            num_ended = len(ended.read_text().splitlines())
            most_ended = max(most_ended, num_ended)
            self.out = out
            # The one that ended last may just be on its way onto the page.
            numbers = [part["n"] for part in self.results().values()]
            self.assertIn(numbers, (list(range(num_ended)), list(range(num_ended - 1))))
            for n in range(num_ended - 1):
                self.assertIn(f"\n```\ntable {n}\n```", self.page())
            self.assertIn(self.page().count("| done |"), (num_ended - 1, num_ended) if num_ended else (0,))
        self.assertGreater(most_ended, 3)

    def test_its_part_dies_with_it(self):
        for word in (signal.SIGKILL, signal.SIGTERM):
            pids = self.folder / f"pids_{word}"
            self.put_test("a_gpu_test", f"sleep 100 & echo $! >{pids}.new; mv {pids}.new {pids}; wait\n")
            script = self.start_script(FIRST_RUN_PARTS="tests")
            self.assertTrue(wait_until(pids.exists))
            script.send_signal(word)
            script.communicate(timeout=60)
            self.assertTrue(wait_until(lambda: not runs(pids.read_text().strip()), 30))

    def test_a_pack_is_unpacked(self):
        self.put_test("a_gpu_test", "echo fine\n")
        (self.build / "COMMIT").write_text("c0ffee\n")
        pack = self.build.with_name("pack")
        pack.mkdir()
        subprocess.run(["tar", "-C", self.build, "-cJf", pack / "pack.tar.xz", "."], check=True)
        self.build = pack
        self.run_script(FIRST_RUN_PARTS="tests")
        self.assertRegex(self.page(), r"commit c0ffee,")
        self.assertRegex(self.page(), r"a_gpu_test \| done")
        (pack / "pack.tar.xz").write_bytes(b"no archive")
        self.assertIn("pack.tar.xz is damaged", self.run_script(code=2, FIRST_RUN_PARTS="tests"))

    def test_without_a_gpu(self):
        program(self.build / "tools/gpu/probe/gpu_probe", NO_GPU)
        self.assertEqual(self.run_script(code=3), "gpu_probe: no GPU can be used here: none\n")

    def test_a_probe_that_does_not_start_is_not_a_missing_gpu(self):
        program(self.build / "tools/gpu/probe/gpu_probe", NOT_STARTED)
        said = self.run_script(code=2)
        self.assertRegex(said, r"gpu_probe does not start or fails, which says nothing of a GPU: .*GLIBC_2.36")

    def test_without_a_build(self):
        (self.build / "tools/gpu/probe/gpu_probe").unlink()
        self.assertIn("build it", self.run_script(code=2))

    def test_a_part_that_there_is_not(self):
        self.assertIn("no part is called 'bench'", self.run_script(code=2, FIRST_RUN_PARTS="tests bench"))


class Pack(unittest.TestCase):
    """tools/gpu/pack.sh on stand-ins: what it holds, and that it must be small enough to travel."""

    def test_it_names_its_commit_and_has_a_largest_size(self):
        with tempfile.TemporaryDirectory() as holder:
            folder = pathlib.Path(holder)
            true = pathlib.Path("/bin/true").read_bytes()
            for name in ("outrider", "liboutrider_cuda.so", "late/liboutrider_cuda.so", "unwaited/liboutrider_cuda.so",
                         "tools/gpu/probe/gpu_probe", "tests/gpu/a_gpu_test"):
                path = folder / "build" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(true)
                path.chmod(0o755)
            program(folder / "bin/cmake", "#!/bin/bash\n")

            def pack(**environment):
                environment = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", **environment}
                return subprocess.run([SCRIPT.with_name("pack.sh"), folder / "pack", folder / "build"], text=True,
                                      capture_output=True, env=environment, timeout=100, check=False)

            done = pack()
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stdout, r"packed 1 GPU tests, commit \w+")
            listed = subprocess.run(["tar", "-tf", folder / "pack/pack.tar.xz"], capture_output=True, text=True, check=True)
            self.assertIn("./COMMIT\n", listed.stdout)
            self.assertIn("./tests/gpu/a_gpu_test\n", listed.stdout)
            done = pack(PACK_LIMIT_MIB="0")
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"pack: .* MiB, more than the 0 MiB that travel")


if __name__ == "__main__":
    unittest.main()
