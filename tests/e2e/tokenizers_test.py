"""Random hard texts through `outrider tokenize` and through Hugging Face's tokenizers: equal ids and equal texts, for
every golden tokenizer, every normalizer over every character of Unicode, and Unigram models full of ties."""

import importlib.util
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.environ["OUTRIDER_PROGRAM"]
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "tokenizer"
NUM_TEXTS = int(os.environ.get("OUTRIDER_TOKENIZER_TEXTS", "500"))
SKIPPED = 77

CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
MARKS = "\u0300\u0301\u0316\u0323\u0345\u05b0\u0651\u093c\u0e33\u0e38\u0eba\u0f71\u0f72\u1039\u1714\u1abf\u302a\u3099\U0001d165"
SCRIPTS = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x5D0, 0x700), (0x900, 0xE00), (0xE00, 0x1100), (0x1100, 0x1200),
           (0x1780, 0x1800), (0x1AB0, 0x1D00), (0x1E00, 0x2100), (0x2E80, 0x3100), (0x4E00, 0x4F00), (0xA700, 0xA830),
           (0xAC00, 0xAD00), (0xFB00, 0xFB50), (0xFE00, 0x10000), (0x10D40, 0x10D90), (0x11900, 0x11A50), (0x1F300, 0x1F700)]
ODD = ["'s", "'LL", "'\u017f", "''", "``", " ", "  ", "   ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u2028", "/", "\u2581",
       "...", "<0x41>", "<unk>", "<s>", "\u200d", "\ufe0f", "12", "1234", "\u0663", "\u00bd", "\u3007", "\ufb01", "\u0130", "\u03a3",
       "\uac00\u11a8", "\U0001f468\u200d\U0001f469", "A", "ABc", "aB", "\u01c5", "\u02b0", "\u4e2d", "\u30fc", "\x00", "\x01", "\ufeff", "\ufffd"]


def hard_texts(count, seed):
    rng = random.Random(seed)
    words = (GOLDEN / "texts.json").read_text().split()

    def part():
        kind = rng.random()
        if kind < 0.3:
            return rng.choice([" ", "", "\n"]) + rng.choice(words)
        if kind < 0.65:
            return rng.choice(ODD) * rng.randrange(1, 4)
        if kind < 0.8:
            return "".join(chr(rng.randrange(*rng.choice(SCRIPTS))) for _ in range(rng.randrange(1, 4)))
        if kind < 0.9:
            return rng.choice("aeo\u0915\u0e81\u1000 ") + "".join(rng.choice(MARKS) for _ in range(rng.randrange(1, 4)))
        return rng.choice(CHARACTERS)

    return ["".join(part() for _ in range(rng.randrange(1, 14))) for _ in range(count)]


def character_bytes(normalizer):
    """A tokenizer whose ids are the bytes of the normalized text."""
    vocab = {"<unk>": 0, **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)}}
    return {"version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": None, "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
            "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "vocab": vocab, "merges": []}}


def unigram(seed, alphabet):
    """Short pieces with scores that make ties, and sums that differ in their last bit."""
    rng = random.Random(seed)
    pieces = {c for c in alphabet if rng.random() < 0.8}
    while len(pieces) < 60:
        pieces.add("".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 5))))
    score = [lambda p: -float(len(p)), lambda p: round(-rng.random() * 3, 1), lambda p: -rng.random() * 12,
             lambda p: rng.choice([-1.1, -2.2, -3.3000000000000003, 0.1, 5.0])][seed % 4]
    vocab = [["<unk>", 0.0]] + [[piece, score(piece)] for piece in sorted(pieces)]
    has_bytes = seed % 3 == 0
    if has_bytes:
        vocab += [[f"<0x{byte:02X}>", -1.0] for byte in range(256)]
    return dict(character_bytes(None), model={"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": has_bytes})


class TokenizersTest(unittest.TestCase):
    def ask(self, folder, lines):
        done = subprocess.run([PROGRAM, "tokenize", "--model", folder], input="".join(json.dumps(line) + "\n" for line in lines),
                              capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.split("\n") if line]

    def check(self, spec, texts):
        from tokenizers import Tokenizer
        theirs = Tokenizer.from_str(json.dumps(spec))
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "tokenizer.json").write_text(json.dumps(spec))
            ids = [line["ids"] for line in self.ask(folder, [{"text": text} for text in texts])]
            decoded = [line["text"] for line in self.ask(folder, [{"ids": line} for line in ids])]
        self.assertEqual(len(ids), len(texts))
        for text, ours, back in zip(texts, ids, decoded):
            self.assertEqual(ours, theirs.encode(text, add_special_tokens=False).ids, repr(text))
            self.assertEqual(back, theirs.decode(ours, skip_special_tokens=False), repr(text))

    def test_golden_tokenizers(self):
        kinds = sorted(path.parent.name for path in GOLDEN.glob("*/tokenizer.json"))
        self.assertGreater(len(kinds), 15)
        for number, kind in enumerate(kinds):
            with self.subTest(kind):
                self.check(json.loads((GOLDEN / kind / "tokenizer.json").read_text()), hard_texts(NUM_TEXTS, number))

    def test_normalizers_over_all_characters(self):
        everything = ["".join(CHARACTERS[i:i + 64]) for i in range(0, len(CHARACTERS), 64)]
        bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
        strip = {"type": "Strip", "strip_left": True, "strip_right": True}
        for number, normalizer in enumerate([{"type": name} for name in (
                "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel")] + [bert, strip]):
            with self.subTest(normalizer["type"]):
                self.check(character_bytes(normalizer), everything + hard_texts(NUM_TEXTS, 100 + number))

    def test_unigram_ties(self):
        alphabet = "abc\u00e9\u2581\u4e2d"
        for seed in range(12):
            rng = random.Random(seed)
            texts = ["".join(rng.choice(alphabet + "xy\u00fc") for _ in range(rng.randrange(1, 60))) for _ in range(NUM_TEXTS)]
            with self.subTest(seed):
                self.check(unigram(seed, alphabet), texts)


if __name__ == "__main__":
    if importlib.util.find_spec("tokenizers") is None:
        print("skipped: the Python package tokenizers is not installed")
        sys.exit(SKIPPED)
    unittest.main()
