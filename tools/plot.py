#!/usr/bin/env python3
"""Draws what the program wrote; wants matplotlib (apt install python3-matplotlib, or pip install matplotlib).

  tools/plot.py bench FILE.json -o FILE.svg                 the panels of any `outrider bench KIND --json FILE.json`
  tools/plot.py rounds TRACE.json -o FILE.svg [--request N] [--first-round N] [--rounds N]
                                                            rounds of one request of a --trace file
"""

import argparse
import collections
import json
import math
import sys

# Told apart also by those who see few colours (Okabe and Ito).
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
MARKS = {"line": {"linestyle": "-"}, "dashed line": {"linestyle": "--"},
         "dots": {"linestyle": "", "marker": "o"}, "rings": {"linestyle": "", "marker": "o", "fillstyle": "none"},
         "squares": {"linestyle": "", "marker": "s"}}
ACCEPTED, REJECTED, CORRECTED, BONUS, PLAIN, WAIT, DRAFT, GUESS = (
    "#009e73", "#f4e3df", "#d55e00", "#0072b2", "#8c959f", "#e69f00", "#cc79a7", "#7d3f63")


def fail(sentence):
    print(f"plot.py: {sentence}", file=sys.stderr)
    sys.exit(2)


def read_json(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        fail(f"{path} cannot be read: {error}")


# ---- benchmarks


def draw_panel(axes, panel):
    for series in panel["series"]:
        points = [point for point in series["points"] if None not in point]
        x, y, error = zip(*points) if points else ((), (), ())
        options = {"color": PALETTE[series["color"] % len(PALETTE)], "label": series["name"] or None}
        bars = error if any(error) else None
        axes.errorbar(x, y, yerr=bars, capsize=2, markersize=4, **MARKS[series["mark"]], **options)
    axes.set(title=panel["title"], xlabel=panel["x_label"], ylabel=panel["y_label"])
    axes.set_xlim(left=min(0, axes.get_xlim()[0]))
    axes.set_ylim(bottom=min(0, axes.dataLim.y0))
    if any(series["name"] for series in panel["series"]):
        axes.legend(fontsize="small")


def draw_bench(pyplot, path):
    plot = read_json(path)
    plot = plot.get("plot") if isinstance(plot, dict) else None
    if not plot or not plot["panels"]:
        fail(f"{path} is no JSON of a benchmark with something to draw")
    figure, axes = pyplot.subplots(1, len(plot["panels"]), figsize=(5 * len(plot["panels"]), 4.6), squeeze=False)
    for one, panel in zip(axes[0], plot["panels"]):
        draw_panel(one, panel)
    figure.suptitle(plot["title"])
    return figure


# ---- rounds


def verifications_of(events):
    """By request: what became of each round, with the time of the targets' step in ms."""
    rounds, begun = collections.defaultdict(list), {}
    for event in events:
        if event.get("name") != "verification":
            continue
        if event["ph"] == "b":
            begun[event["id"]] = event
        elif event["id"] in begun:
            begin = begun.pop(event["id"])
            rounds[begin["id"]].append({**begin["args"], "begin": begin["ts"] / 1e3, "end": event["ts"] / 1e3})
    return rounds


def choose_rounds(path, rounds, args):
    if not rounds:
        fail(f"{path} has no rounds of any request")
    by_number = {int(name): its for name, its in rounds.items()}
    drafting = [number for number, its in by_number.items() if any(one["drafted"] for one in its)]
    request = args.request or min(drafting or by_number)
    if request not in by_number:
        fail(f"{path} has no rounds of request {request}; it has those of {min(by_number)} to {max(by_number)}")
    chosen = [one for one in by_number[request] if one["round"] >= args.first_round][:args.rounds]
    if not chosen:
        fail(f"request {request} has no round {args.first_round} or later in {path}")
    return request, chosen


def draw_round(axes, one):
    """The step, and in it what became of each draft token and the token that the target added."""
    width = one["end"] - one["begin"]
    axes.add_patch(rectangle(one["begin"], 1.05, width, 0.9, "#e8eef7", edge="#9fb3cf"))
    num_boxes = one["drafted"] + 1
    added = PLAIN if not one["drafted"] else BONUS if one["accepted"] == one["drafted"] else CORRECTED
    colors = [ACCEPTED] * one["accepted"] + [REJECTED] * (one["drafted"] - one["accepted"]) + [added]
    pitch = width / num_boxes
    for i, color in enumerate(colors):
        axes.add_patch(rectangle(one["begin"] + pitch * (i + 0.1), 1.4, 0.8 * pitch, 0.3, color))
    middle = one["begin"] + width / 2
    axes.text(middle, 2.12, str(one["round"]), ha="center")
    axes.text(middle, 1.12, f"+{one['accepted'] + 1}", ha="center", fontsize="small", color="#6e7781")
    source = {"speculation_cache": ACCEPTED, "draft_model": WAIT}.get(one.get("source"))
    if source:
        axes.plot([middle], [2.04], "o", color=source, markersize=4)


def rectangle(x, y, width, height, color, edge="none"):
    from matplotlib.patches import Rectangle
    return Rectangle((x, y), width, height, facecolor=color, edgecolor=edge)


def draw_draft(axes, events, draft_ranks, request, begin, end):
    """A step is as high as its rows are many, by logarithm; a dot is a block of this request."""
    steps = [(event["ts"] / 1e3, event["dur"] / 1e3, event["args"]["rows"]) for event in events
             if event["ph"] == "X" and event["name"] == "draft step" and event["pid"] in draft_ranks]
    steps = [step for step in steps if step[0] < end and step[0] + step[1] > begin]
    most = max((rows for _, _, rows in steps), default=1)
    for at, length, rows in steps:
        height = 0.25 + (0.45 * math.log(max(1, rows)) / math.log(most) if most > 1 else 0)
        axes.add_patch(rectangle(at, 0.05, length, height, DRAFT))
    for event in events:
        args = event.get("args", {})
        if event.get("name") == "drafted" and args.get("sequence") == request and begin < event["ts"] / 1e3 < end:
            guessed = args.get("guess", -1) >= 0
            axes.plot([event["ts"] / 1e3], [0.85 if guessed else 0.93], "o", color=GUESS, markersize=4,
                      fillstyle="none" if guessed else "full")


def draw_messages(axes, events, draft_ranks, begin, end):
    sent = {event["id"]: event for event in events if event["ph"] == "s"}
    for event in events:
        if event["ph"] != "f" or event["id"] not in sent:
            continue
        times = sent[event["id"]]["ts"] / 1e3, event["ts"] / 1e3
        if times[0] < end and times[1] > begin:
            to_draft = event["pid"] in draft_ranks
            ends, color = ((1.05, 0.97), BONUS) if to_draft else ((0.97, 1.05), PLAIN)
            axes.plot(times, ends, color=color, linewidth=0.8)


def add_legend(axes, has_draft):
    entries = [(ACCEPTED, "accepted"), (REJECTED, "rejected"), (CORRECTED, "corrected"), (BONUS, "bonus"),
               (PLAIN, "plain"), (WAIT, "targets wait")] + ([(DRAFT, "draft step (rows)")] if has_draft else [])
    axes.legend([rectangle(0, 0, 1, 1, color) for color, _ in entries], [name for _, name in entries],
                ncols=len(entries), loc="upper center", bbox_to_anchor=(0.5, -0.12), fontsize="small")


def draw_rounds(pyplot, args):
    trace = read_json(args.file)
    events = trace.get("traceEvents") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        fail(f"{args.file} is not a trace file: there is no list traceEvents")
    request, rounds = choose_rounds(args.file, verifications_of(events), args)
    begin, end = rounds[0]["begin"], rounds[-1]["end"]
    draft_ranks = {event["pid"] for event in events if event["ph"] == "M" and event["name"] == "process_name"
                   and event["args"]["name"].endswith(": draft")}
    figure, axes = pyplot.subplots(figsize=(13, 4.4))
    draw_messages(axes, events, draft_ranks, begin, end)
    for event in events:
        if event["ph"] == "X" and event["name"] == "wait for draft" and event["pid"] == 0:
            axes.add_patch(rectangle(event["ts"] / 1e3, 1.15, event["dur"] / 1e3, 0.7, WAIT))
    for one in rounds:
        draw_round(axes, one)
    if draft_ranks:
        draw_draft(axes, events, draft_ranks, request, begin, end)
    accepted, drafted = (sum(one[key] for one in rounds) for key in ("accepted", "drafted"))
    axes.set_title(f"Request {request}, rounds {rounds[0]['round']} to {rounds[-1]['round']}: "
                   f"{accepted + len(rounds)} tokens, {accepted} of {drafted} draft tokens accepted")
    margin = 0.03 * (end - begin)
    axes.set(xlim=(begin - margin, end + margin), ylim=(0 if draft_ranks else 1, 2.3), xlabel="ms")
    axes.set_yticks([0.5, 1.5] if draft_ranks else [1.5], ["draft", "target"] if draft_ranks else ["target"])
    add_legend(axes, bool(draft_ranks))
    print(f"request {request}, rounds {rounds[0]['round']} to {rounds[-1]['round']}: {args.output}")
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("bench", "rounds"))
    parser.add_argument("file")
    parser.add_argument("-o", "--output", required=True, help="SVG, PNG or PDF, by its ending")
    parser.add_argument("--request", type=int, default=0, help="its number; 0 = the first that drafts")
    parser.add_argument("--first-round", type=int, default=0, help="sampling round")
    parser.add_argument("--rounds", type=int, default=8, help="how many")
    args = parser.parse_args()
    try:
        import matplotlib
    except ImportError:
        fail("matplotlib is needed: apt install python3-matplotlib, or pip install matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"
    from matplotlib import pyplot
    figure = draw_bench(pyplot, args.file) if args.what == "bench" else draw_rounds(pyplot, args)
    figure.tight_layout()
    try:
        figure.savefig(args.output, bbox_inches="tight")
    except (OSError, ValueError) as error:
        fail(f"{args.output} cannot be written: {error}")


if __name__ == "__main__":
    main()
