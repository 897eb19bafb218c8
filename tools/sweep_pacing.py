#!/usr/bin/env python3
"""What each constant of pacing is worth: bench sim in virtual time with it halved and doubled.

Reads the constants from scheduler/pacing/constants.h and prints the table of docs/pacing.md.
"""

import argparse
import json
import math
import pathlib
import re
import statistics
import subprocess
import tempfile

HEADER = pathlib.Path(__file__).parent.parent / "scheduler/pacing/constants.h"
GRID = [
    "--clock", "virtual", "--modes", "off,cache", "--alphas", "0.6,0.9", "--costs", "0.05,0.2",
    "--requests", "1,4,16,64", "--repeat", "1", "--max-tokens", "600", "--sweep-tokens", "128",
    "--target-keys", "jitter=0.1", "--draft-keys", "jitter=0.3",
]
SEEDS = (0, 1, 2)


def constants():
    found = re.findall(r"^  double (\w+) = ([0-9.e-]+);", HEADER.read_text(), re.M)
    return {name: float(value) for name, value in found}


def figures(program, pacing):
    """Geometric means of speed-ups: of one request, of several, and of the cases that cannot gain."""
    kinds = {"one": [], "many": [], "cases": []}
    for seed in SEEDS:
        with tempfile.NamedTemporaryFile(suffix=".json") as out:
            command = [program, "bench", "sim", *GRID, "--seed", str(seed), "--json", out.name]
            for item in pacing:
                command += ["--pacing", item]
            # Its exit status says whether a bar was missed, which some of these values are to show.
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            rows = json.load(open(out.name, encoding="utf-8"))["figures"]
        for row in rows:
            name = row["name"]
            if name == "sweep speed-up" and row["x"] > 1:
                kinds["many"].append(row["value"])
            elif name.endswith("cache speed-up"):
                kinds["one"].append(row["value"])
            elif name.endswith(" speed-up") and " K " not in name and name != "sweep speed-up":
                kinds["cases"].append(row["value"])
    return {kind: math.exp(statistics.fmean(map(math.log, values))) for kind, values in kinds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default="build/outrider")
    parser.add_argument("--only", nargs="*", help="names of constants; without it all of them")
    args = parser.parse_args()
    base = figures(args.program, [])
    print(f"as it is: one request {base['one']:.3f}, several {base['many']:.3f}, "
          f"cases without a gain {base['cases']:.3f}\n", flush=True)
    print("| constant | value | halved: one, several, cases | doubled: one, several, cases |")
    print("|---|---|---|---|")
    for name, value in constants().items():
        if args.only and name not in args.only:
            continue
        cells = []
        for factor in (0.5, 2):
            changed = figures(args.program, [f"{name}={value * factor:g}"])
            cells.append(", ".join(f"{100 * (changed[kind] / base[kind] - 1):+.1f}%" for kind in base))
        print(f"| `{name}` | {value:g} | {cells[0]} | {cells[1]} |", flush=True)


if __name__ == "__main__":
    main()
