#!/usr/bin/env python3
"""Makes tests/golden/sampling/typical.json: which tokens transformers' own logits warpers keep.

Run from the repository root with torch and transformers installed:
    python3 tools/make_sampling_golden.py
The warpers run in the order of transformers' generate(): temperature, top-k, top-p, min-p, typical-p.
A row whose kept set depends on float32 or float64, or on the last digits of a parameter, is drawn
anew: it would test rounding and not the rule.
"""
import json
import pathlib
import random

import torch
import transformers
from transformers.generation import logits_process as warpers

FILE = pathlib.Path("tests/golden/sampling/typical.json")
SIZES = [5, 24, 90, 220]
SETTINGS = [
    {"typical_p": 0.95}, {"typical_p": 0.5}, {"typical_p": 0.2}, {"typical_p": 0.02},
    {"typical_p": 0.9, "temperature": 0.5}, {"typical_p": 0.6, "temperature": 1.8},
    {"typical_p": 0.7, "top_k": 20}, {"typical_p": 0.8, "top_p": 0.9}, {"typical_p": 0.8, "min_p": 0.05},
    {"typical_p": 0.6, "temperature": 1.3, "top_k": 40, "top_p": 0.95, "min_p": 0.01},
]


def kept(logits, setting, dtype, nudge=0.0):
    scores = torch.tensor([logits], dtype=dtype)
    chain = [warpers.TemperatureLogitsWarper(float(setting.get("temperature", 1.0)))]
    if "top_k" in setting:
        chain.append(warpers.TopKLogitsWarper(setting["top_k"]))
    if "top_p" in setting:
        chain.append(warpers.TopPLogitsWarper(setting["top_p"] + nudge))
    if "min_p" in setting:
        chain.append(warpers.MinPLogitsWarper(setting["min_p"] * (1.0 + nudge)))
    chain.append(warpers.TypicalLogitsWarper(setting["typical_p"] + nudge))
    for warper in chain:
        scores = warper(None, scores)
    return [i for i, score in enumerate(scores[0].tolist()) if score > float("-inf")]


def draw(generator, size, flat):
    """Rounded to 3 digits, so that the file is short and the values the same everywhere."""
    spread = 0.7 if flat else 2.5
    logits = [round(generator.gauss(0.0, spread), 3) for _ in range(size)]
    for _ in range(0 if flat else 3):
        logits[generator.randrange(size)] += 4.0
    return [round(logit, 3) for logit in logits]


def main():
    generator = random.Random(7)
    cases = []
    for setting in SETTINGS:
        for size in SIZES:
            flat = len(cases) % 3 == 0
            while True:
                logits = draw(generator, size, flat)
                ids = kept(logits, setting, torch.float64)
                others = [kept(logits, setting, torch.float32)]
                others += [kept(logits, setting, torch.float64, nudge) for nudge in (-1e-5, 1e-5)]
                if all(other == ids for other in others):
                    break
            cases.append({"setting": setting, "logits": logits, "kept": ids})
    FILE.parent.mkdir(parents=True, exist_ok=True)
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__}
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    FILE.write_text('{"made_by":%s,\n"cases":[\n%s\n]}\n' % (json.dumps(made_by), lines))
    cut_best = sum(1 for c in cases if c["logits"].index(max(c["logits"])) not in c["kept"])
    print(f"{len(cases)} cases, {cut_best} of them without the likeliest token")


if __name__ == "__main__":
    main()
