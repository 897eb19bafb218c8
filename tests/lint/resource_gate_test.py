"""Shows that the gate on the compiler's resource report can fail: once on reports made up here, and, where nvcc is
found, on a kernel that really spills.

    resource_gate_test.py [NVCC]
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("resource_gate", ROOT / "tools/gpu/resource_gate.py")
gate = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(gate)
NVCC = sys.argv.pop() if len(sys.argv) > 1 else ""

REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{name}' for 'sm_90a'
ptxas info    : Function properties for {name}
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used {registers} registers, used 1 barriers
ptxas info    : Compile time = 2.032 ms
"""
GOOD = {"name": "_ZN8outrider4cuda1kILi4EEEvPKfPj", "stack": 0, "stores": 0, "loads": 0, "registers": 64}
BUDGET = [("outrider::cuda::k<4>", 64, 0), ("*", 32, 0)]

SPILLS = """__global__ void __launch_bounds__(1024) spills(float* out, const float* in) {
  float all[48];
#pragma unroll
  for (int i = 0; i < 48; ++i) { all[i] = in[i * 1024 + threadIdx.x]; }
  __syncthreads();
#pragma unroll
  for (int round = 0; round < 3; ++round) {
#pragma unroll
    for (int i = 0; i < 48; ++i) { all[i] = all[i] * all[(i * 7 + 1) % 48] + in[i + round]; }
  }
#pragma unroll
  for (int i = 0; i < 48; ++i) { out[i * 1024 + threadIdx.x] = all[i]; }
}
"""


def report(**changes):
    return REPORT.format(**{**GOOD, **changes})


class Gate(unittest.TestCase):
    def problems(self, text, budget=None):
        return [problem for kernel in gate.kernels_of(text)
                for problem in gate.problems_of(kernel, BUDGET if budget is None else budget)]

    def test_a_good_report_passes(self):
        self.assertEqual(self.problems(report()), [])
        self.assertEqual([k.name for k in gate.kernels_of(report())], ["outrider::cuda::k<4>"])

    def test_each_limit_fails(self):
        for changes, word in (({"registers": 65}, "65 registers"), ({"stack": 8}, "stack frame of 8"),
                              ({"stores": 4}, "spills 4"), ({"loads": 12}, "spills 12"),
                              ({"name": "_Z5otherPf"}, "64 registers, budgeted are 32")):
            problems = self.problems(report(**changes))
            self.assertEqual(len(problems), 1, (changes, problems))
            self.assertIn(word, problems[0])

    def test_a_kernel_without_a_budget_fails(self):
        self.assertIn("no line of the budget", self.problems(report(name="_Z5otherPf"), BUDGET[:1])[0])

    def test_a_budget_may_allow_a_stack_frame(self):
        budget = gate.read_budget("# comment\nouter::*  64 stack 16  # why\n* 80\n")
        self.assertEqual(budget, [("outer::*", 64, 16), ("*", 80, 0)])
        with self.assertRaises(ValueError):
            gate.read_budget("kernel many\n")

    def test_reports_that_are_not_understood_fail(self):
        for text in (report().replace("Used", "Took"), report().replace("stack frame", "frames"),
                     "\n".join(report().splitlines()[:3])):
            with self.assertRaises(ValueError):
                gate.kernels_of(text)

    def test_unnamed_namespaces_and_parameters_are_left_out_of_names(self):
        self.assertEqual(gate.plain_name("void outrider::a::_GLOBAL__N__4989_12_util_cu_f67::fill<(int)4>(float*)"),
                         "outrider::a::fill<(int)4>")
        self.assertEqual(gate.plain_name("outrider::(anonymous namespace)::fill(float*, int)"), "outrider::fill")

    def judged(self, reports):
        """judge() over a build folder with these objects: {name: report or None}."""
        with tempfile.TemporaryDirectory() as folder:
            build = pathlib.Path(folder)
            commands = [{"directory": folder, "file": name, "command": f"nvcc -x cu -c {name} -o {name}.o"} for name in reports]
            commands.append({"directory": folder, "file": "host.cu", "command": "c++ -xc++ -c host.cu -o host.o"})
            (build / "compile_commands.json").write_text(json.dumps(commands))
            for name, text in reports.items():
                if text is not None:
                    (build / f"{name}.o.ptxas").write_text(text)
            return gate.judge(build, BUDGET)

    def test_an_object_without_a_report_and_a_build_without_objects_fail(self):
        self.assertEqual(self.judged({"a.cu": report()}), (1, 0))
        self.assertEqual(self.judged({"a.cu": report(), "b.cu": None}), (1, 1))
        self.assertEqual(self.judged({}), (0, 1))

    def test_a_kernel_that_really_spills_fails(self):
        if not NVCC:
            self.skipTest("no nvcc")
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "spills.cu")
            source.write_text(SPILLS)
            done = subprocess.run([NVCC, "-arch=sm_90a", "-Xptxas", "-v", "-maxrregcount", "24", "-c", str(source), "-o",
                                   str(source) + ".o"], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            problems = self.problems(done.stderr, [("spills", 255, 1 << 20)])
            self.assertTrue(problems and "spills" in problems[0], done.stderr)


if __name__ == "__main__":
    unittest.main()
