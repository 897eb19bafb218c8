"""tools/gpu/first_run.sh without a GPU: on a build folder of stand-ins, every part becomes a line of the page, one that
fails or hangs stops nothing, and the numbers arrive; without a GPU it says so and ends with 3.
"""

import json
import os
import pathlib
import subprocess
import tempfile
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
printf '# GPU probe\\n\\n## %s\\n' "${names[*]}" >"$out/gpu_probe.md"
printf '{"probes": [{"probe": "%s"}]}' "${names[-1]}" >"$out/gpu_probe.json"
echo "said by the probe" >"$out/${names[-1]}.log"
"""
NO_GPU = "#!/bin/bash\necho 'gpu_probe: no GPU can be used here: none' >&2\nexit 3\n"


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class FirstRun(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.build, self.out = pathlib.Path(holder.name, "build"), pathlib.Path(holder.name, "out")
        program(self.build / "tools/gpu/probe/gpu_probe", PROBE)

    def put_test(self, name, text):
        program(self.build / "tests/gpu" / name, "#!/bin/bash\n" + text)

    def run_script(self, **environment):
        return subprocess.run([str(SCRIPT), str(self.out), str(self.build)], capture_output=True, text=True, timeout=250,
                              env={**os.environ, **environment}, check=False)

    def page(self):
        return (self.out / "first_run.md").read_text()

    def test_every_part_is_a_line(self):
        self.put_test("a_gpu_test", "echo fine $OUTRIDER_REQUIRE_GPU\n")
        self.put_test("b_gpu_test", "echo broken; exit 1\n")
        self.put_test("c_gpu_test", "exit 77\n")
        done = self.run_script(FIRST_RUN_PARTS="tests probe pairs")
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in (r"a_gpu_test \| done", r"b_gpu_test \| exit code 1", r"c_gpu_test \| skipped",
                     r"gpu_probe: what kernels must know \| done", r"gpu_probe: two processes \| done",
                     r"## device bandwidth cublaslt launch_gap latency", r"## ipc nccl"):
            self.assertRegex(self.page(), line)
        self.assertEqual(json.loads((self.out / "first_run.json").read_text()),
                         {"probes": [{"probe": "latency"}, {"probe": "nccl"}]})
        log = (self.out / "first_run.log").read_text()
        for said in ("fine 1", "broken", "said by the probe"):
            self.assertIn(said, log)
        self.assertLessEqual(len(list(self.out.iterdir())), 5)

    def test_nccl_of_a_wheel_is_found_for_the_tests(self):
        wheel = self.build / "site/nvidia/nccl/lib/libnccl.so.2"
        wheel.parent.mkdir(parents=True)
        wheel.touch()
        self.put_test("a_gpu_test", 'echo "takes [$OUTRIDER_NCCL]"\n')
        for asked, taken in (("", str(wheel)), ("mine.so", "mine.so")):
            done = self.run_script(FIRST_RUN_PARTS="tests", PYTHONPATH=str(self.build / "site"), OUTRIDER_NCCL=asked)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"takes [{taken}]", (self.out / "first_run.log").read_text())

    def test_benchmarks_arrive(self):
        program(self.build / "outrider", """#!/bin/bash
echo "table of $2 on $4"
case "$*" in *verify-curve*) printf '{"kind": "%s"}' "$2" >"$6" ;; *) exit 1 ;; esac
""")
        self.assertEqual(self.run_script(FIRST_RUN_PARTS="bench").returncode, 0)
        for line in ("8B steps by rows \\| done", "the embedded pair \\| exit code 1", "table of verify-curve on cuda",
                     "table of decode on cuda"):
            self.assertRegex(self.page(), line)
        self.assertEqual(json.loads((self.out / "bench.json").read_text()),
                         {"8b_curve": {"kind": "verify-curve"}, "1b_curve": {"kind": "verify-curve"}})

    def test_prompts_stand_beside_cublaslt(self):
        program(self.build / "outrider", """#!/bin/bash
case "$2" in
  prefill) echo '{"figures": [{"name": "chunked", "x": 512, "value": 1}, {"name": "in one step", "x": 512, "value": 25600}]}' >"$6" ;;
  *) printf '{"half' >"$6" ;;
esac
""")
        values = """'{"probes": [{"probe": "cublaslt", "values": {"prompt_8b_ms_512": 12.5, "prompt_8b_ms_2048": 50}}]}'"""
        program(self.build / "tools/gpu/probe/gpu_probe",
                PROBE + f'echo {values} >"$out/gpu_probe.json"\n')
        self.assertEqual(self.run_script(FIRST_RUN_PARTS="bench probe").returncode, 0)
        for line in (r"\| 128 \| not measured \| not measured \|", r"\| 512 \| 20.000 \| 12.500 \|",
                     r"\| 2048 \| not measured \| 50.000 \|"):
            self.assertRegex(self.page(), line)

    def test_tests_of_overlap_and_their_control(self):
        name = "[  FAILED  ] GraphTest.OverlappingLaunchesGiveTheSameBits"
        for fails_unwaited in (True, False):
            said = f"case $LD_LIBRARY_PATH in *unwaited*) echo '{name if fails_unwaited else 'fine'}';; esac\n"
            self.put_test("device_gpu_test", said)
            self.assertEqual(self.run_script(FIRST_RUN_PARTS="overlap").returncode, 0)
            self.assertRegex(self.page(), r"device_gpu_test, every kernel late \| done")
            self.assertRegex(self.page(), r"control: [^|]* \| " + ("done" if fails_unwaited else "exit code 1"))

    def test_a_part_that_hangs_is_ended_and_no_more_is_begun_than_fits(self):
        self.put_test("a_gpu_test", "sleep 100\n")
        self.put_test("b_gpu_test", "echo never; exit 1\n")
        done = self.run_script(FIRST_RUN_PARTS="tests", FIRST_RUN_BUDGET_S="11")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(self.page(), r"a_gpu_test \| out of time")
        self.assertRegex(self.page(), r"b_gpu_test \| not begun: no time left")

    def test_a_pack_is_unpacked(self):
        self.put_test("a_gpu_test", "echo fine\n")
        pack = self.build.with_name("pack")
        pack.mkdir()
        subprocess.run(["tar", "-C", self.build, "-czf", pack / "pack.tar.gz", "."], check=True)
        self.build = pack
        self.assertEqual(self.run_script(FIRST_RUN_PARTS="tests").returncode, 0)
        self.assertRegex(self.page(), r"a_gpu_test \| done")
        (pack / "pack.tar.gz").write_bytes(b"no archive")
        done = self.run_script(FIRST_RUN_PARTS="tests")
        self.assertEqual(done.returncode, 2)
        self.assertIn("pack.tar.gz is damaged", done.stderr)

    def test_without_a_gpu(self):
        program(self.build / "tools/gpu/probe/gpu_probe", NO_GPU)
        done = self.run_script()
        self.assertEqual(done.returncode, 3)
        self.assertEqual(done.stderr, "gpu_probe: no GPU can be used here: none\n")

    def test_without_a_build(self):
        (self.build / "tools/gpu/probe/gpu_probe").unlink()
        done = self.run_script()
        self.assertEqual(done.returncode, 2)
        self.assertIn("build it", done.stderr)


if __name__ == "__main__":
    unittest.main()
