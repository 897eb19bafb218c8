"""Shows that the gate on machine code can fail: each rule on listings made up here.

    machine_code_gate_test.py
"""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools/gpu"))
import machine_code_gate as gate  # noqa: E402

RULE = gate.Rule("k<.*>", 1, {gate.COPY_128: 2}, {gate.MATRIX: 1}, gate.LOAD_128)
COPY = "LDGSTS.E.BYPASS.LTC128B.128"
GOOD = ["MOV", COPY, COPY, "ACQBULK", "PREEXIT", "HMMA.16816.F32.BF16", "STG.E.128", "EXIT"]


def listing(instructions, name="_Z1kILi4EEvPf"):
    lines = [f"//--------------------- .text.{name} --------------------------",
             f'\t.section\t.text.{name},"ax",@progbits', f".text.{name}:"]
    for place, instruction in enumerate(instructions):
        guard = "@!P0 " if place % 2 else ""
        lines.append(f"        /*{place * 16:04x}*/              {guard}     {instruction} R1, desc[UR4][R2.64] ;")
    return "\n".join(lines + ["\t.align\t32", ""])


class Gate(unittest.TestCase):
    def problems(self, instructions, architecture="sm_90a", rules=(RULE,), **changes):
        return gate.judge(gate.kernels_of(listing(instructions, **changes), architecture), list(rules))

    def test_good_code_passes(self):
        self.assertEqual(self.problems(GOOD), [])
        kernel, = gate.kernels_of(listing(GOOD), "sm_90a")
        self.assertEqual((kernel.name, kernel.instructions), ("k<4>", GOOD))

    def test_each_rule_fails(self):
        for instructions, words in (
                (["ACQBULK", COPY, COPY] + GOOD[4:], ["0 of LDGSTS", "before the wait"]),
                (GOOD[:3] + GOOD[4:], ["lets the next launch begin", "before the wait"]),
                (["PREEXIT"] + GOOD, ["lets the next launch begin"]),
                (["STG.E"] + GOOD, ["1 writes before the wait"]),
                (["RED.E.ADD"] + GOOD, ["1 writes before the wait"]),
                (GOOD + ["LDL.64"], ["1 loads and stores of local memory"]),
                (GOOD + ["STL"], ["1 loads and stores of local memory"]),
                (GOOD + ["LDG.E.128.CONSTANT"], ["wanted are none"]),
                ([line for line in GOOD if "HMMA" not in line], ["0 of HMMA"]),
                ([], ["no instruction was understood"])):
            problems = "\n".join(self.problems(instructions))
            for word in words:
                self.assertIn(word, problems, instructions)

    def test_matrix_instructions_of_four_warps_go_together(self):
        together = ["HGMMA.64x64x16.F32.BF16"] * 3 + ["WARPGROUP.DEPBAR.LE"]
        self.assertEqual(self.problems(GOOD + together), [])
        apart = ["HGMMA.64x64x16.F32.BF16", "WARPGROUP.DEPBAR.LE"] * 3
        self.assertIn("is waited for by itself", "\n".join(self.problems(GOOD + apart)))

    def test_what_only_newer_architectures_have_is_asked_of_them(self):
        rule = RULE._replace(since_90={gate.GROUP_MATRIX: 1})
        self.assertIn("0 of HGMMA", "\n".join(self.problems(GOOD, rules=(rule,))))
        self.assertEqual(self.problems(GOOD, "sm_80", rules=(rule,)), [])

    def test_what_has_no_wait_is_not_asked_for_it(self):
        without = [line for line in GOOD if line not in ("ACQBULK", "PREEXIT")]
        self.assertEqual(self.problems(without, "sm_80"), [])
        self.assertNotEqual(self.problems(without), [])

    def test_a_kernel_too_few_fails(self):
        self.assertIn("0 kernels for sm_90a are k<.*>", "\n".join(self.problems(GOOD, name="_Z1jILi4EEvPf")))
        self.assertEqual(gate.judge([], [RULE]), ["no kernel was found"])

    def test_the_rules_are_of_kernels_as_they_are_called(self):
        name = "outrider::gpu::skinny_product<outrider::gpu::Skinny<(outrider::gpu::Type)1, 4, 3> >"
        kernel = gate.Kernel(name, "sm_90a", [])
        self.assertEqual(sum(1 for rule in gate.RULES if gate.re.fullmatch(rule.kernels, kernel.name)), 1)


if __name__ == "__main__":
    unittest.main()
