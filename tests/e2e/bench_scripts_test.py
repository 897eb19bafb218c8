"""The scripts that compare: tools/bench_runs.py's statistics, bench_ranks.py and bench_structured.py on the embedded
models, and compare_peers.py against a made-up peer that speaks as llama.cpp's programs do."""

import contextlib
import json
import os
import pathlib
import random
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = os.environ["OUTRIDER_PROGRAM"]
MODELS = ROOT / "models" / "embedded"
sys.path.insert(0, str(ROOT / "tools"))

import bench_runs  # noqa: E402 - found by the line above
from cluster import Server  # noqa: E402
from structured_output_test import is_built  # noqa: E402

LLAMA_BENCH = """
if "-gp" in sys.argv:
    assert value("-p") == value("-n") == "0"
    rates = [1000.0 + int(value("-gp").split(",")[0])]
else:
    rates = [100.0 for _ in value("-p").split(",")]
print(json.dumps([{"avg_ts": rate} for rate in rates]))
"""
LLAMA_SWEEP_BENCH = """
assert value("--output-format") == "jsonl" and value("-n") == "1"
print("a word on the model")
for _ in range(8):
    print(json.dumps({"n_kv_max": 256, "pp": int(value("-ub")), "t_pp": 0.050, "t_tg": 0.040}))
sys.exit(1)
"""
CONVERTER = """
if sys.argv[1].endswith("draft") and value("--outtype") != "q8_0":
    sys.exit("the draft's own type was asked for")
assert os.path.basename(value("--outfile")) == f"{os.path.basename(sys.argv[1])}-{value('--outtype')}.part"
assert not os.path.exists(value("--outfile"))
shutil.copy(os.path.join(os.path.dirname(sys.argv[0]), "small.gguf"), value("--outfile"))
"""
LLAMA_QUANTIZE = """
assert sys.argv[1].endswith("target-bf16.gguf") and sys.argv[3] == "q4_0"
shutil.copy(sys.argv[1], sys.argv[2])
"""
# In the place of a Python that has openvino-genai; it is asked to run tools/bench_openvino.py.
OPENVINO_PYTHON = """
if value("--model").endswith("bf16.gguf"):
    sys.exit("bf16 is not read")
print("a warning")
print(json.dumps({length: 10.0 for length in value("--lengths").split(",")}))
"""
LLAMA_SERVER = """
import http.server

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, body):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def do_GET(self):
        self.answer({})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert all(isinstance(token, int) for token in asked["prompt"])
        self.answer({"tokens_predicted": asked["n_predict"]})

    def log_message(self, *_):
        pass

http.server.ThreadingHTTPServer(("127.0.0.1", int(value("--port"))), Handler).serve_forever()
"""


def write_program(path, body):
    value = "def value(name):\n    return sys.argv[sys.argv.index(name) + 1]\n"
    path.write_text(f"#!{sys.executable}\nimport json, os, shutil, sys\n\n{value}{body}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


class Statistics(unittest.TestCase):
    def test_interval_covers_a_known_median(self):
        rng = random.Random(7)
        covered = 0
        for _ in range(200):
            low, high = bench_runs.ratio_interval([rng.gauss(1.5, 0.2) for _ in range(15)], 300)
            self.assertLess(low, high)
            covered += low <= 1.5 <= high
        self.assertGreater(covered, 170)
        self.assertLess(covered, 200)

    def test_turns_alternate(self):
        order = []

        def side(name):
            return lambda number: order.append((number, name)) or {"case": float(number)}

        samples = bench_runs.in_turns(3, side("a"), side("b"), ("a", "b"))
        self.assertEqual([name for _, name in order], ["a", "b", "b", "a", "a", "b"])
        self.assertEqual(samples, {"case": {"a": [0.0, 1.0, 2.0], "b": [0.0, 1.0, 2.0]}})



class Scripts(unittest.TestCase):
    def run_script(self, name, *options):
        command = [sys.executable, str(ROOT / "tools" / name), "--passes", "2", *options]
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "out.json"
            result = subprocess.run([*command, "--json", str(out)], capture_output=True, text=True, timeout=300)
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
            return json.loads(out.read_text()), result.stdout

    def test_ranks(self):
        options = ["--model", str(MODELS / "target"), "--ranks", "2", "--rows", "1,5", "--repeat", "3"]
        found, text = self.run_script("bench_ranks.py", "--outrider", PROGRAM, *options)
        self.assertEqual(list(found["samples"]), ["1 rows", "5 rows"])
        for sides in found["samples"].values():
            self.assertEqual([len(values) for values in sides.values()], [2, 2])
            self.assertTrue(all(value > 0 for values in sides.values() for value in values))
        for share in found["exchange_share"]["5 rows"]:
            self.assertGreater(share, 0)
            self.assertLess(share, 1)
        self.assertIn("in sums over the ranks", text)

    @unittest.skipUnless(is_built(), "built without xgrammar")
    def test_structured(self):
        drafting = ["--speculative-config.method", "grammar", "--speculative-config.num-speculative-tokens", "4"]
        with Server(0, "--model", "embedded", *drafting) as server:
            found, text = self.run_script("bench_structured.py", "--base-url", server.url, "--num-prompts", "4")
        self.assertEqual(len(found["lengths"]), 4)
        rounds = found["samples"]["tokens a round"]
        self.assertGreater(min(rounds["schema"]), 1.3)
        self.assertEqual(rounds["text"], [1, 1])
        self.assertTrue(all(rate > 0 for side in found["samples"]["tokens/s"].values() for rate in side))
        self.assertIn("4 answers of", text)

    @contextlib.contextmanager
    def peer(self):
        """A folder with a made-up llama.cpp's programs, target, draft and small.gguf, and the options that name it."""
        with tempfile.TemporaryDirectory() as folder:
            peer = pathlib.Path(folder)
            write_program(peer / "llama-bench", LLAMA_BENCH)
            write_program(peer / "llama-sweep-bench", LLAMA_SWEEP_BENCH)
            write_program(peer / "llama-server", LLAMA_SERVER)
            write_program(peer / "llama-quantize", LLAMA_QUANTIZE)
            write_program(peer / "convert_hf_to_gguf.py", CONVERTER)
            write_program(peer / "openvino-python", OPENVINO_PYTHON)
            (peer / "small.gguf").symlink_to(ROOT / "tests" / "golden" / "gguf" / "mxfp4.gguf")
            for model in ("target", "draft"):
                (peer / model).symlink_to(MODELS / model)
            yield peer, ["--outrider", PROGRAM, "--peer-bin", folder, "--peer-source", folder, "--threads", "1"]

    def test_peer(self):
        with self.peer() as (peer, options):
            options += ["--draft-outtype", "q8_0", "--self-from-folder"]
            options += ["--target", str(peer / "target"), "--draft", str(peer / "draft")]
            options += ["--max-prompt-id", "1000", "--prompt-tokens", "8", "--max-tokens", "8"]
            options += ["--prefill-lengths", "16", "--concurrencies", "1,2", "--draft-lens", "0,2"]
            found, _ = self.run_script("compare_peers.py", *options, "steps", "prefill", "load", "draft")
            made = sorted(path.name for path in peer.iterdir() if path.suffix in (".gguf", ".part"))
            self.assertEqual(made, ["draft-q8_0.gguf", "small.gguf", "target-bf16.gguf"])
        samples = found["samples"]
        self.assertEqual(samples["steps"]["1 rows"]["peer"], [40.0, 40.0])
        self.assertEqual(samples["steps"]["17 rows"]["peer"], [50.0, 50.0])
        self.assertEqual(samples["prefill"]["16 tokens"]["peer"], [100.0, 100.0])
        self.assertEqual(len(samples["load"]["2 in flight"]["self"]), 2)
        self.assertEqual(len(samples["draft"]["draft length 2, tokens/s"]["peer"]), 2)
        self.assertGreater(samples["load"]["memory"]["self"][0], 1)

    def test_peer_with_the_same_file(self):
        with self.peer() as (peer, options):
            options += ["--prefill-lengths", "16", "--decode-contexts", "0,8", "--decode-tokens", "2"]
            for target in (["small.gguf"], ["target", "--outtype", "q4_0"]):
                target = ["--target", str(peer / target[0]), *target[1:]]
                found, _ = self.run_script("compare_peers.py", *options, *target, "prefill", "decode")
                decode = found["samples"]["decode"]
                self.assertEqual([decode[f"after {n} tokens"]["peer"] for n in (0, 8)], [[1000.0] * 2, [1008.0] * 2])
                self.assertTrue(all(rate > 0 for sides in decode.values() for rate in sides["self"]))
                self.assertEqual(found["arguments"]["self_target"], found["arguments"]["peer_target"])
            self.assertTrue(found["arguments"]["self_target"].endswith("target-q4_0.gguf"))

    def test_what_a_peer_cannot_do_is_said(self):
        with self.peer() as (peer, options):
            options += ["--target", str(peer / "small.gguf"), "--prefill-lengths", "16"]
            (peer / "llama-sweep-bench").unlink()
            found, text = self.run_script("compare_peers.py", *options, "steps", "prefill")
            self.assertEqual(list(found["samples"]), ["prefill"])
            self.assertIn("steps: left out. The peer has no llama-sweep-bench", text)
            options += ["--openvino-python", str(peer / "openvino-python")]
            found, text = self.run_script("compare_peers.py", *options, "load", "prefill")
            self.assertEqual(found["samples"]["prefill"]["16 tokens"]["peer"], [10.0, 10.0])
            self.assertIn("load: left out. OpenVINO GenAI", text)
            (peer / "bf16.gguf").symlink_to(peer / "small.gguf")
            options += ["--target", str(peer / "bf16.gguf")]
            found, text = self.run_script("compare_peers.py", *options, "prefill")
            self.assertEqual(found["samples"], {})
            self.assertIn("bf16 is not read", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
