"""What the benchmark scripts share: running `outrider bench` for its JSON, taking turns, ratios with intervals.

Only the standard library.
"""

import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile


def ratio_interval(ratios, num_resamples=2000):
    """The 95 % percentile bootstrap interval of the median of ratios."""
    rng = random.Random(1)
    medians = sorted(statistics.median(rng.choices(ratios, k=len(ratios))) for _ in range(num_resamples))
    return medians[int(0.025 * num_resamples)], medians[int(0.975 * num_resamples) - 1]


def in_turns(passes, measure_first, measure_second, names=("self", "peer")):
    """Runs both in alternating order; each gets the pass's number and returns {case: figure}.

    Returns {case: {first name: [...], second name: [...]}}.
    """
    samples = {}
    for number in range(passes):
        sides = list(zip(names, (measure_first, measure_second)))
        for side, measure in sides if number % 2 == 0 else reversed(sides):
            for case, figure in measure(number).items():
                samples.setdefault(case, {name: [] for name in names})[side].append(figure)
        print(f"pass {number + 1} of {passes}", file=sys.stderr, flush=True)
    return samples


def print_ratios(title, unit, samples, higher_is_better):
    """A line per case: both medians, and how many times better the first is, pass by pass."""
    first, second = next(iter(samples.values())).keys()
    print(f"\n{title} ({unit})\n{'case':>28} {first:>12} {second:>12} {'ratio':>7}  95 % interval")
    for case, sides in samples.items():
        pairs = zip(sides[first], sides[second])
        ratios = [ours / theirs if higher_is_better else theirs / ours for ours, theirs in pairs]
        low, high = ratio_interval(ratios)
        ours, theirs = statistics.median(sides[first]), statistics.median(sides[second])
        print(f"{case:>28} {ours:12.2f} {theirs:12.2f} {statistics.median(ratios):7.2f}  {low:.2f} .. {high:.2f}")
    sys.stdout.flush()


def run_bench(outrider, kind, options, launcher=(), environment=None):
    """The JSON that `outrider bench KIND` writes. launcher: what goes before it, as mpirun -np 2."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out.json"
        command = [*launcher, str(outrider), "bench", kind, *options, "--json", str(out)]
        result = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if result.returncode != 0:
            raise SystemExit(f"{' '.join(command)} ended with {result.returncode}:\n{result.stdout[-2000:]}")
        return json.loads(out.read_text())


def medians_of(report, series):
    """{x: median of the samples} of one series of a report."""
    return {one["x"]: statistics.median(one["samples"]) for one in report["series"] if one["name"] == series}
