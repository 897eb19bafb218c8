"""Held-out losses, sampling from the target, and acceptance of the exported pair.

Used by train_pair.py only.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from pair import data, texts


@dataclass
class Losses:
    target_loss: float
    draft_loss: float
    overlap: float


@torch.no_grad()
def losses(target, draft, windows, rows=8):
    """Mean next-token losses and mean of sum_v min(target_prob, draft_prob) on given windows."""
    totals = [0.0, 0.0, 0.0]
    for chunk in windows.split(rows):
        with torch.autocast("cpu", torch.bfloat16):
            pair = [model(chunk[:, :-1]).float() for model in (target, draft)]
        labels = chunk[:, 1:].flatten()
        for index in range(2):
            totals[index] += F.cross_entropy(pair[index].flatten(0, 1), labels).item() * len(chunk)
        overlap = torch.minimum(pair[0].softmax(-1), pair[1].softmax(-1)).sum(-1).mean()
        totals[2] += overlap.item() * len(chunk)
    return Losses(*(total / len(windows) for total in totals))


@torch.no_grad()
def sample_windows(target, windows, count, length, end_of_text, rows=64):
    """The target's own text at temperature 1 after chat prompts, as [count, length] windows."""
    out = []
    while sum(len(o) for o in out) < count:
        prompts = windows.prompts(rows)
        # Rows keep the same length without padding: each prompt is cut or led by running prose.
        size = 40
        ids = []
        for prompt in prompts:
            lead = windows.prose(windows.rng.choice(windows.names), size)
            ids.append((lead + [end_of_text] + prompt)[-size:] if len(prompt) < size
                       else prompt[-size:])
        ids = torch.tensor(ids)
        cache = target.new_cache()
        step_ids = ids
        while ids.shape[1] < length:
            with torch.autocast("cpu", torch.bfloat16):
                logits = target(step_ids, cache)[:, -1].float()
            step_ids = torch.multinomial(logits.softmax(-1), 1)
            ids = torch.cat((ids, step_ids), dim=1)
        out.append(ids)
    return torch.cat(out)[:count]
