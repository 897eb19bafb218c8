#!/usr/bin/env python3
"""Trains the embedded pair from scratch on public-domain books and writes it as two model folders.

  train_pair.py train  --text-dir DIR --out RUN [--minutes 40]   target, draft distilled beside it
  train_pair.py train  ... --resume [--target-only]              a second cycle, lower rate
  train_pair.py distil --text-dir DIR --out RUN [--minutes 12]   draft from the finished target
  train_pair.py export --out RUN --to models/embedded            from the best checkpoint so far
  train_pair.py evaluate --text-dir DIR --models models/embedded losses, acceptance, sample text

All hyperparameters are the constants below. Needs torch, tokenizers, safetensors; evaluate needs
transformers. With --minutes the schedule also ends by the clock; the log says at which step.
"""

import argparse
import math
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from pair import data, evaluate, export, texts, workers
from pair.model import Average, Llama, ModelShape, MuonAdam

SEED = 20260
N_VOCAB = 3072
TARGET = ModelShape(N_VOCAB, n_hidden=256, n_layers=5, n_heads=8, n_kv_heads=4, n_head_dim=32,
                    n_ffn=512)
DRAFT = ModelShape(N_VOCAB, n_hidden=128, n_layers=2, n_heads=4, n_kv_heads=2, n_head_dim=32,
                   n_ffn=352)
TARGET_DROPOUT = 0.1
BATCH_TOKENS = 4096
LONG_WINDOW, SHORT_WINDOW, LONG_EVERY = 1024, 256, 4  # every 4th batch has windows of 1024
CHAT_SHARE = 0.5
TRAIN_STEPS, DISTIL_STEPS = 5000, 1500
WARM_UP_STEPS, FINAL_LR = 50, 0.02
RESUME_LR = 0.5  # train --resume: a second, lower cycle from the best weights
TARGET_MUON_LR, TARGET_ADAM_LR = 0.02, 3e-3
DRAFT_MUON_LR, DRAFT_ADAM_LR = 0.02, 4e-3
WEIGHT_DECAY = 0.1
AVERAGE_DECAY = 0.995
OVERLAP_WEIGHT = 1.0  # in distil: weight of 1 - sum_v min(target_prob, draft_prob)
SAMPLED_SHARE = 0.25  # in distil: share of the batches that are the target's own text
EVAL_EVERY, LOG_EVERY = 100, 20


def lr_scale(step, progress):
    warm_up = min(1.0, (step + 1) / WARM_UP_STEPS)
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    return warm_up * (FINAL_LR + (1 - FINAL_LR) * cosine)


def batch_shape(step):
    window = LONG_WINDOW if step % LONG_EVERY == LONG_EVERY - 1 else SHORT_WINDOW
    return BATCH_TOKENS // window, window


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def target_loss(target, ids):
    """Next-token cross-entropy and the logits it came from."""
    with autocast():
        logits = target(ids[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    return loss, logits


def distil_loss(draft, ids, target_logits):
    """Cross-entropy of the draft on the target's probabilities, and the overlap of the two."""
    target_prob = target_logits.float().softmax(-1)
    with autocast():
        logits = draft(ids)
    log_draft = logits.float().log_softmax(-1)
    cross_entropy = -(target_prob * log_draft).sum(-1).mean()
    overlap = torch.minimum(target_prob, log_draft.exp()).sum(-1).mean()
    return cross_entropy, overlap


class Run:
    """What both phases share: books, tokenizer, windows, checkpoints, clock and log."""

    def __init__(self, args, seed):
        torch.manual_seed(seed)
        torch.set_num_threads(args.threads)
        self.out = Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.minutes = args.minutes
        self.books = texts.load_books(args.text_dir)
        path = self.out / "tokenizer.json"
        self.tokenizer = (Tokenizer.from_file(str(path)) if path.exists()
                          else data.train_tokenizer(self.books, N_VOCAB, path))
        self.windows = data.Windows(self.books, self.tokenizer, CHAT_SHARE, seed)
        self.held_out = data.held_out_windows(self.books, self.tokenizer, SHORT_WINDOW + 1, 16)
        self.log_file = open(self.out / "log.txt", "a", encoding="utf-8")
        self.compile = torch.compile if args.compile else (lambda f, **_: f)
        self.start = time.time()

    def progress(self, step, steps):
        by_clock = (time.time() - self.start) / 60 / self.minutes if self.minutes else 0.0
        return max(step / steps, by_clock)

    def log(self, line):
        line = f"{(time.time() - self.start) / 60:6.2f} min  {line}"
        print(line, flush=True)
        print(line, file=self.log_file, flush=True)

    def save(self, name, model_values, step):
        temporary = self.out / (name + ".tmp")
        torch.save({"weights": model_values, "step": step}, temporary)
        temporary.replace(self.out / (name + ".pt"))

    def load(self, name):
        return torch.load(self.out / (name + ".pt"))["weights"]


def average_model(shape, average):
    model = Llama(shape)
    model.load_state_dict(average.values)
    return model.eval()


def report(run, step, target, draft):
    """Held-out losses and overlap; returns (target loss, overlap) averaged over both kinds."""
    results = {kind: evaluate.losses(target, draft, windows)
               for kind, windows in run.held_out.items()}
    run.log(f"step {step} held out: " + "  ".join(
        f"{kind}: target {r.target_loss:.4f} draft {r.draft_loss:.4f} overlap {r.overlap:.4f}"
        for kind, r in results.items()))
    return (sum(r.target_loss for r in results.values()) / 2,
            sum(r.overlap for r in results.values()) / 2)


def train(args, team):
    run = Run(args, (SEED + 2 if args.resume else SEED) + 1000 * team.rank)
    torch.manual_seed(SEED)  # the same first weights in all workers
    target, draft = Llama(TARGET, TARGET_DROPOUT), Llama(DRAFT)
    if args.resume:
        target.load_state_dict(run.load("target"))
        draft.load_state_dict(run.load("draft"))
    torch.manual_seed(SEED + 1 + team.rank)
    models = [target] if args.target_only else [target, draft]
    rates = (TARGET_MUON_LR, TARGET_ADAM_LR), (DRAFT_MUON_LR, DRAFT_ADAM_LR)
    optimisers = [MuonAdam(m, *rate, WEIGHT_DECAY) for m, rate in zip(models, rates)]
    parameters = [p for optimiser in optimisers for p in optimiser.parameters]
    averages = Average(target, AVERAGE_DECAY), Average(draft, AVERAGE_DECAY)
    compiled_target = run.compile(target_loss, dynamic=False)
    compiled_distil = run.compile(distil_loss, dynamic=False)
    is_first = team.rank == 0
    if is_first:
        run.log(f"target {sum(p.numel() for p in target.parameters())} parameters, "
                f"draft {sum(p.numel() for p in draft.parameters())}; training tokens "
                + str({name: len(ids) for name, ids in run.windows.streams.items()}))
    best = checkpoint(run, 0, averages, 1e9) if args.resume and is_first else 1e9
    step, progress = 0, 0.0
    while progress < 1.0:
        rows, window = batch_shape(step)
        ids = run.windows.batch(rows // team.count, window + 1)
        loss, logits = compiled_target(target, ids)
        loss.backward()
        soft_loss = overlap = torch.zeros(())
        if draft in models:
            half = ids.shape[0] // 2  # the draft follows on half of the rows, to save time
            soft_loss, overlap = compiled_distil(draft, ids[:half, :-1], logits[:half].detach())
            soft_loss.backward()
        scale = lr_scale(step, progress) * (RESUME_LR if args.resume else 1.0)
        step += 1
        progress = team.average_gradients(parameters, run.progress(step, TRAIN_STEPS))
        for optimiser, average, model in zip(optimisers, averages, models):
            optimiser.step(scale)
            average.update(model)
        if is_first and step % LOG_EVERY == 0:
            run.log(f"step {step} progress {progress:.3f} loss {loss.item():.4f} "
                    f"distil {soft_loss.item():.4f} overlap {overlap.item():.4f}")
        if is_first and step % EVAL_EVERY == 0:
            best = checkpoint(run, step, averages, best)
    if is_first:
        checkpoint(run, step, averages, best)


def checkpoint(run, step, averages, best):
    target, draft = average_model(TARGET, averages[0]), average_model(DRAFT, averages[1])
    loss, _ = report(run, step, target, draft)
    if loss < best:
        run.save("target", averages[0].values, step)
        run.save("draft", averages[1].values, step)
    return min(best, loss)


def distil(args, team):
    run = Run(args, SEED + 10 + 1000 * team.rank)
    is_first = team.rank == 0
    target, draft = Llama(TARGET).eval(), Llama(DRAFT)
    target.load_state_dict(run.load("target"))
    target.requires_grad_(False)
    draft.load_state_dict(run.load("draft"))
    sampled = evaluate.sample_windows(target, run.windows, args.samples // team.count,
                                      SHORT_WINDOW, run.tokenizer.token_to_id(texts.END_OF_TEXT))
    optimiser = MuonAdam(draft, 0.5 * DRAFT_MUON_LR, 0.5 * DRAFT_ADAM_LR, 0.0)
    average = Average(draft, AVERAGE_DECAY)
    compiled_target = run.compile(lambda ids: target(ids), dynamic=False)
    compiled_distil = run.compile(distil_loss, dynamic=False)
    run.start = time.time()
    if is_first:
        run.log(f"sampled {len(sampled)} windows of the target's own text")
        report(run, 0, target, draft)
    best, step, progress = 0.0, 0, 0.0
    while progress < 1.0:
        rows, window = batch_shape(step)
        rows //= team.count
        if window == SHORT_WINDOW and run.windows.rng.random() < SAMPLED_SHARE * 4 / 3:
            ids = sampled[[run.windows.rng.randrange(len(sampled)) for _ in range(rows)]]
        else:
            ids = run.windows.batch(rows, window)
        with torch.no_grad(), autocast():
            logits = compiled_target(ids)
        soft_loss, overlap = compiled_distil(draft, ids, logits)
        (soft_loss - OVERLAP_WEIGHT * overlap).backward()
        scale = lr_scale(step, progress)
        step += 1
        progress = team.average_gradients(optimiser.parameters, run.progress(step, DISTIL_STEPS))
        optimiser.step(scale)
        average.update(draft)
        if is_first and step % LOG_EVERY == 0:
            run.log(f"step {step} progress {progress:.3f} distil {soft_loss.item():.4f} "
                    f"overlap {overlap.item():.4f}")
        if is_first and (step % EVAL_EVERY == 0 or progress >= 1.0):
            _, overlap = report(run, step, target, average_model(DRAFT, average))
            if overlap > best:
                run.save("draft_distilled", average.values, step)
                best = overlap


def export_pair(args):
    out, to = Path(args.out), Path(args.to)
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    distilled, target = out / "draft_distilled.pt", out / "target.pt"
    is_newer = distilled.exists() and distilled.stat().st_mtime > target.stat().st_mtime
    for folder, shape, name in (("target", TARGET, "target"),
                                ("draft", DRAFT, "draft_distilled" if is_newer else "draft")):
        saved = torch.load(out / (name + ".pt"))
        print(f"{folder}: {name}.pt of step {saved['step']}")
        export.export_model(to / folder, shape, saved["weights"], tokenizer, out / "tokenizer.json")
    print("bytes:", sum(f.stat().st_size for f in to.rglob("*") if f.is_file()))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["train", "distil", "export", "evaluate"])
    parser.add_argument("--text-dir", help="folder with " + ", ".join(texts.BOOKS))
    parser.add_argument("--out", default="pair-run", help="checkpoints, tokenizer and log")
    parser.add_argument("--to", default="models/embedded", help="where export writes")
    parser.add_argument("--models", default="models/embedded", help="what evaluate reads")
    parser.add_argument("--minutes", type=float, default=0.0, help="end the schedule by the clock")
    parser.add_argument("--samples", type=int, default=128, help="windows sampled by distil")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1, help="processes, batch shared")
    parser.add_argument("--target-only", action="store_true", help="train: leave the draft alone")
    parser.add_argument("--resume", action="store_true", help="train: a second, lower cycle")
    parser.add_argument("--show", action="store_true", help="evaluate prints more sample text")
    parser.add_argument("--compile", action="store_true", help="use torch.compile")
    args = parser.parse_args()
    if args.command in ("train", "distil", "evaluate") and not args.text_dir:
        sys.exit("train_pair.py: --text-dir is needed by " + args.command)
    if args.command == "evaluate":
        evaluate.evaluate_folders(args)
    else:
        {"train": lambda a: workers.launch(train, a), "distil": lambda a: workers.launch(distil, a),
         "export": export_pair}[args.command](args)


if __name__ == "__main__":
    main()
