#!/usr/bin/env python3
"""Makes tests/golden/lm_eval/golden.json: what lm-evaluation-harness asks of a model for the tasks in
tests/e2e/lm_eval, and what transformers answers, in float32, for the embedded target.

The harness runs the tasks with its own Hugging Face model. Beside its figures the file keeps every request as token
ids with the log-probability of each scored token from one plain forward pass, which must add up to what the harness
got. Needs torch, transformers, accelerate and lm-eval; no network. Run from anywhere; writes into the repository.
"""

import json
import os
import pathlib
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = ROOT / "models" / "embedded" / "target"
TASKS = ROOT / "tests" / "e2e" / "lm_eval"
OUT = ROOT / "tests" / "golden" / "lm_eval" / "golden.json"
# With max_length 256 the harness's model of an API scores windows of 254 tokens; so does this.
WINDOW = 254
NAMES = ["outrider_choice", "outrider_last_word", "outrider_rolling", "outrider_generate"]

os.environ.update(HF_DATASETS_OFFLINE="1", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
os.environ["HF_HOME"] = tempfile.mkdtemp()

import lm_eval  # noqa: E402 - after the environment it reads
import lm_eval.tasks  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402


class RecordingModel(HFLM):
    """The harness's own model; notes the token ids of what it is asked to score."""

    def __init__(self, **options):
        super().__init__(**options)
        self.asked = []

    def _loglikelihood_tokens(self, requests, **options):
        answers = super()._loglikelihood_tokens(requests, **options)
        for (_, context, continuation), (total, is_greedy) in zip(requests, answers, strict=True):
            self.asked.append((list(context), list(continuation), total, bool(is_greedy)))
        return answers


@torch.no_grad()
def score(model, context, continuation):
    """Log-probability of each continuation token, whether it is the likeliest, and the token likeliest after all."""
    logits = model(torch.tensor([context + continuation])).logits[0].double()
    rows = torch.log_softmax(logits, -1)[len(context) - 1:]
    return ([rows[i, token].item() for i, token in enumerate(continuation)],
            all(rows[i].argmax().item() == token for i, token in enumerate(continuation)), rows[-1].argmax().item())


def scored_requests(harness):
    requests = []
    for context, continuation, total, is_greedy in harness.asked:
        logprobs, greedy, next_token = score(harness.model, context, continuation)
        assert abs(sum(logprobs) - total) < 1e-3 and greedy == is_greedy, (context, continuation)
        requests.append({"context": context, "continuation": continuation, "is_greedy": greedy,
                         "next_token": next_token, "token_logprobs": [round(value, 7) for value in logprobs]})
    return requests


def answer_of(sample):
    """[[loglikelihood, is_greedy], ...], [loglikelihood] or [text]: one per request of the sample."""
    return [list(answer) if isinstance(answer, tuple) else answer
            for answer in (responses[0] for responses in sample["resps"])]


def main():
    os.chdir(TASKS)
    torch.set_num_threads(1)  # sums in one order
    harness = RecordingModel(pretrained=str(MODEL), dtype="float32", device="cpu", max_length=WINDOW, batch_size=1)
    results = lm_eval.simple_evaluate(model=harness, tasks=NAMES, bootstrap_iters=0,
                                      task_manager=lm_eval.tasks.TaskManager(include_path=str(TASKS)))
    tasks = {}
    for name in NAMES:
        metrics = {key.split(",")[0]: value for key, value in results["results"][name].items()
                   if key.endswith(",none") and isinstance(value, float)}
        samples = sorted(results["samples"][name], key=lambda sample: sample["doc_id"])
        tasks[name] = {"metrics": metrics, "answers": [answer_of(sample) for sample in samples]}
    generations = [sample["arguments"][0] for sample in
                   sorted(results["samples"]["outrider_generate"], key=lambda sample: sample["doc_id"])]
    golden = {
        "made_by": "tools/make_lm_eval_golden.py",
        "versions": {"lm_eval": lm_eval.__version__, "torch": torch.__version__.split("+")[0],
                     "transformers": transformers.__version__},
        "window": WINDOW,
        "requests": scored_requests(harness),
        "generations": [{"context": harness.tok_encode(context), "options": options}
                        for context, options in generations],
        "tasks": tasks,
    }
    OUT.parent.mkdir(parents=True, exist_ok=True)
    lines = json.dumps(golden, ensure_ascii=False, separators=(",", ":"))
    OUT.write_text(lines.replace('{"context"', '\n{"context"').replace('"outrider_', '\n"outrider_') + "\n",
                   encoding="utf-8")
    print(f"{OUT}: {len(golden['requests'])} scored requests, {len(golden['generations'])} texts")


if __name__ == "__main__":
    main()
