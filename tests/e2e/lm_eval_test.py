"""lm-evaluation-harness itself against a live server: the tasks in lm_eval/, with and without a draft, compared with
each other bit for bit and with what its own Hugging Face model gets (tests/golden/lm_eval)."""

import glob
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

from cluster import PAIR, Server

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "..", "..")
TASKS = os.path.join(HERE, "lm_eval")
NAMES = ["outrider_choice", "outrider_last_word", "outrider_rolling", "outrider_generate"]
TARGET = ["--model", "embedded"]
MAX_LENGTH = 256  # so that a text is scored in several windows
# How the harness may ask. Without arguments it finds the server's /tokenizer_info and tokenises there.
HUGGING_FACE = f"tokenizer_backend=huggingface,tokenizer={os.path.join(ROOT, 'models', 'embedded', 'target')}"
NEEDED = ["lm_eval", "datasets", "aiohttp", "requests", "tenacity", "transformers"]
SKIPPED = 77


def harness(server, options="", batch_size=1):
    """Runs the tasks; returns (figures by task, samples by task: answers in the order of the documents)."""
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, HF_HOME=os.path.join(folder, "hf"), HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1",
                           TOKENIZERS_PARALLELISM="false")
        model = f"model=embedded,base_url={server.url}/v1/completions,max_length={MAX_LENGTH},{options}"
        done = subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args",
                               model.rstrip(","), "--batch_size", str(batch_size), "--include_path", TASKS, "--tasks",
                               ",".join(NAMES), "--log_samples", "--output_path", folder],
                              cwd=TASKS, env=environment, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            raise AssertionError(done.stdout + done.stderr + server.text_of_log())
        with open(only(folder, "results_*.json"), encoding="utf-8") as file:
            figures = json.load(file)["results"]
        return figures, {name: answers(only(folder, f"samples_{name}_*.jsonl")) for name in NAMES}


def only(folder, pattern):
    found = glob.glob(os.path.join(folder, "**", pattern), recursive=True)
    if len(found) != 1:
        raise AssertionError(f"{pattern}: {found}")
    return found[0]


def answers(path):
    with open(path, encoding="utf-8") as file:
        samples = sorted(map(json.loads, file), key=lambda sample: sample["doc_id"])
    return [[response[0] for response in sample["resps"]] for sample in samples]


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(os.path.join(ROOT, "tests", "golden", "lm_eval", "golden.json"), encoding="utf-8") as file:
            cls.golden = json.load(file)["tasks"]

    def expect_golden(self, figures, samples):
        for name in NAMES:
            expected = self.golden[name]
            for metric, value in expected["metrics"].items():
                got = figures[name][f"{metric},none"]
                self.assertTrue(abs(got - value) <= 1e-4 * abs(value), f"{name} {metric}: {got}, not {value}")
            self.assertEqual(len(samples[name]), len(expected["answers"]))
            for got, wanted in zip(samples[name], expected["answers"], strict=True):
                self.expect_answers(name, got, wanted)

    def expect_answers(self, name, got, wanted):
        self.assertEqual(len(got), len(wanted), name)
        for answer, expected in zip(got, wanted, strict=True):
            if name == "outrider_generate":
                self.assertEqual(answer, expected)
                continue
            if isinstance(expected, list):  # the harness writes its pairs as texts
                self.assertEqual(str(answer[1]), str(expected[1]), f"{name}: {answer}, not {expected}")
                answer, expected = answer[0], expected[0]
            self.assertTrue(abs(float(answer) - expected) <= 1e-4 * max(1.0, abs(expected)),
                            f"{name}: {answer}, not {expected}")

    def compare(self, ranks_off, ranks_on):
        with Server(ranks_off, *TARGET) as server:
            figures, off = harness(server, HUGGING_FACE)
            self.expect_golden(figures, off)
        with Server(ranks_on, *PAIR) as server:
            figures, on = harness(server, "num_concurrent=4", batch_size=4)
            self.assertGreater(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 20)
            self.expect_golden(figures, on)
        self.assertEqual(off, on)  # the same numbers to the last digit

    def test_one_process(self):
        self.compare(0, 0)

    def test_two_targets_and_a_draft(self):
        self.compare(2, 3)

    def test_prompts_as_text(self):
        with Server(0, *PAIR) as server:
            figures, samples = harness(server, HUGGING_FACE + ",tokenized_requests=False")
            self.expect_golden(figures, samples)


if __name__ == "__main__":
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(f"SKIPPED: lm-evaluation-harness is not installed (no {', '.join(missing)})")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
