"""The synthetic pair as a user makes it: outrider synth, check-pair, export-gguf, and one text of the pair."""

import json
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

PROGRAM = os.environ["OUTRIDER_PROGRAM"]
SHAPE = "tinyllama-1.1b@2"
KEY_TYPES = {4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q"}


def outrider(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)


class GgufHeader:
    """As much of a GGUF file as its header tells: keys that are no arrays, and the tensors' names and types."""

    def __init__(self, path):
        self.file = open(path, "rb")
        with self.file:
            assert self.file.read(4) == b"GGUF"
            self.version, num_tensors, num_keys = self.take("<I"), self.take("<Q"), self.take("<Q")
            self.keys = {self.text(): self.value(self.take("<I")) for _ in range(num_keys)}
            self.tensor_types = {}
            for _ in range(num_tensors):
                name, num_dims = self.text(), self.take("<I")
                for _ in range(num_dims):
                    self.take("<Q")
                self.tensor_types[name] = self.take("<I")
                self.take("<Q")

    def take(self, form):
        return struct.unpack(form, self.file.read(struct.calcsize(form)))[0]

    def text(self):
        return self.file.read(self.take("<Q")).decode()

    def value(self, kind):
        if kind == 8:
            return self.text()
        if kind == 9:
            member, count = self.take("<I"), self.take("<Q")
            return [self.value(member) for _ in range(count)]
        return self.take(KEY_TYPES[kind])


class Synth(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.pair = pathlib.Path(cls.folder.name) / "pair"
        made = outrider("synth", "--shape", SHAPE, "--draft-layers", 1, "--epsilon", 0.3, "-o", cls.pair)
        assert made.returncode == 0, made.stdout + made.stderr
        cls.told = made.stdout

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_says_the_acceptance_it_measured(self):
        record = json.loads((self.pair / "synthetic.json").read_text())
        acceptance = record["measured"]["acceptance"]
        self.assertGreater(acceptance, 0.05)
        self.assertLess(acceptance, 0.95)
        self.assertIn(f"acceptance {acceptance:.4f}", self.told)

    def test_the_pair_fits_together(self):
        checked = outrider("check-pair", self.pair / "target", self.pair / "draft")
        self.assertEqual(checked.returncode, 0, checked.stdout + checked.stderr)
        self.assertTrue(checked.stdout.startswith("compatible"))

    def test_speculation_changes_nothing_and_is_accepted_as_measured(self):
        report = self.pair / "decode.json"
        options = ["--model", self.pair / "target", "--speculative-config.model", self.pair / "draft"]
        options += ["--max-model-len", 256, "--num-prompts", 2, "--max-tokens", 48, "--repeat", 1, "--json", report]
        run = outrider("bench", "decode", *options)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("2 of 2", run.stdout)

    def test_exports_every_type(self):
        sizes = []
        for outtype, matrix_type in (("f32", 0), ("f16", 1), ("bf16", 30), ("q8_0", 8)):
            file = self.pair / f"draft-{outtype}.gguf"
            made = outrider("export-gguf", self.pair / "draft", "-o", file, "--outtype", outtype)
            self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
            header = GgufHeader(file)
            self.assertEqual((header.version, header.keys["general.architecture"]), (3, "llama"))
            self.assertEqual(header.keys["llama.block_count"], 1)
            self.assertEqual(len(header.keys["tokenizer.ggml.tokens"]), 32000)
            self.assertEqual(header.tensor_types["blk.0.ffn_down.weight"], matrix_type)
            self.assertEqual(header.tensor_types["output_norm.weight"], 0)
            sizes.append(file.stat().st_size)
        self.assertGreater(sizes[0], 1.9 * sizes[1])
        self.assertGreater(sizes[1], 1.8 * sizes[3])

    def test_refuses_what_it_cannot_do(self):
        cases = [
            (("synth", "--shape", "gpt-9", "--epsilon", 0.1, "-o", self.pair / "x"), "gpt-9"),
            (("synth", "--shape", SHAPE, "--epsilon", 0.1, "-o", self.pair), str(self.pair)),
            (("synth", "--shape", SHAPE, "--alpha", 1.5, "-o", self.pair / "x"), "alpha"),
            (("export-gguf", self.pair / "draft", "-o", self.pair / "x.gguf", "--outtype", "q3"), "q3"),
            (("export-gguf", self.pair / "nothing", "-o", self.pair / "x.gguf"), "nothing"),
        ]
        for arguments, named in cases:
            refused = outrider(*arguments)
            self.assertEqual(refused.returncode, 2, f"{arguments}: {refused.stderr}")
            self.assertIn(named, refused.stderr.splitlines()[-1])
        self.assertFalse((self.pair / "x").exists())
        self.assertFalse((self.pair / "x.gguf").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
