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
def sample_windows(target, windows, count, length, end_of_text):
    """The target's own text at temperature 1 after chat prompts, as [count, length] windows."""
    rows = min(64, count)
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


PROMPTS = [
    "Tell me a story about a king and his daughter.", "Tell me a story about a fox.",
    "Once upon a time there was a poor miller.", "Tell me about Sherlock Holmes.",
    "Who is Pierre?", "Write about a winter night.", "What happened to the princess?",
    "Tell me a story.", "What did Napoleon say?", "Continue the story: The door opened slowly.",
    "Write a story about a soldier and a wolf.", "Hello!", "Tell me about the letter.",
    "The old man looked at the river and said nothing.", "Write about the battle.",
    "Please tell me a tale of a forest and a bird."]


@torch.no_grad()
def agreement(target, draft, tokenizer, temperature, rounds):
    """Overlap (or equality of the first choice at temperature 0) along the target's own text."""
    scores, samples = [], []
    stops = [tokenizer.convert_tokens_to_ids(t) for t in (texts.END, texts.END_OF_TEXT)]
    how = ({"do_sample": True, "temperature": temperature, "top_k": 0,
            "num_return_sequences": rounds} if temperature > 0
           else {"do_sample": False, "temperature": None})
    for prompt in PROMPTS:
        rendered = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], tokenize=False, add_generation_prompt=True)
        ids = tokenizer(rendered, return_tensors="pt", add_special_tokens=False).input_ids
        full = target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=220,
                               eos_token_id=stops, pad_token_id=stops[1], **how)
        logits = [model(full).logits.float() for model in (target, draft)]
        for row, tokens in enumerate(full.tolist()):
            end = next((i + 1 for i in range(ids.shape[1], len(tokens)) if tokens[i] in stops),
                       len(tokens))
            pair = [l[row, ids.shape[1] - 1 : end - 1] for l in logits]
            if temperature > 0:
                scores.append(torch.minimum(*((l / temperature).softmax(-1) for l in pair)).sum(-1))
            else:
                scores.append((pair[0].argmax(-1) == pair[1].argmax(-1)).float())
            samples.append((prompt, tokenizer.decode(tokens[ids.shape[1] : end]), len(scores[-1])))
    return torch.cat(scores), samples


@torch.no_grad()
def losses_by_position(target, draft, books, tokenizer, n_positions):
    """Target loss, draft loss and overlap on held-out prose, in spans of 128 positions."""
    rows = []
    for name in sorted(books):
        ids = tokenizer.encode("\n\n".join("\n\n".join(b) for b in books[name][1])).ids
        rows += [ids[s : s + n_positions] for s in range(0, len(ids) - n_positions, n_positions)]
    rows = torch.tensor(rows[:16])
    sums = torch.zeros(3, n_positions - 1)
    for row in rows.split(2):
        logits = [model(row).logits[:, :-1].float() for model in (target, draft)]
        for index in range(2):
            sums[index] += F.cross_entropy(logits[index].transpose(1, 2), row[:, 1:],
                                           reduction="none").sum(0)
        sums[2] += torch.minimum(logits[0].softmax(-1), logits[1].softmax(-1)).sum(-1).sum(0)
    return [(start, [span.mean().item() / len(rows) for span in sums[:, start : start + 128]])
            for start in range(0, n_positions - 1, 128)]


def evaluate_folders(args):
    """Reads the two folders with transformers, as a user of them would, and prints figures."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    books = texts.load_books(args.text_dir)
    tokenizer = AutoTokenizer.from_pretrained(args.models + "/target")
    target, draft = (AutoModelForCausalLM.from_pretrained(
        f"{args.models}/{name}", dtype=torch.float32).eval() for name in ("target", "draft"))
    raw = tokenizer.backend_tokenizer
    chat = [{"role": "user", "content": "Hello!"}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert rendered == texts.render_chat([("user", "Hello!")]) + texts.ASSISTANT
    for kind, windows in data.held_out_windows(books, raw, 257, 16).items():
        result = losses(lambda ids: target(ids).logits, lambda ids: draft(ids).logits, windows)
        print(f"held-out {kind}: target loss {result.target_loss:.4f}, draft loss "
              f"{result.draft_loss:.4f}, overlap {result.overlap:.4f}")
    for start, values in losses_by_position(target, draft, books, raw, 1024):
        print(f"positions {start}-{start + 127}: target loss {values[0]:.3f}, draft loss "
              f"{values[1]:.3f}, overlap {values[2]:.3f}")
    for temperature, rounds in ((1.0, 4), (0.7, 2), (0.0, 1)):
        scores, samples = agreement(target, draft, tokenizer, temperature, rounds)
        error = scores.std().item() / len(scores) ** 0.5
        print(f"temperature {temperature}: mean agreement {scores.mean().item():.4f} "
              f"(standard error {error:.4f}) over {len(scores)} tokens of the target's own text")
        for prompt, text, length in samples[: None if args.show else 3]:
            print(f"  [{length} tokens] {prompt} => {text!r}")
