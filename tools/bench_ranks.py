#!/usr/bin/env python3
"""Ranks on this machine: `outrider bench verify-curve` as one rank of N threads and as N ranks of one, in turns.

  tools/bench_ranks.py --model DIR [--ranks 2] [--passes 5]

Prints the step times and the ratio (above 1: several ranks are faster) with a 95 % bootstrap interval, and what share
of a step rank 0 spent in the sums over the ranks. Needs mpirun; only the standard library.
"""

import argparse
import json
import os
import pathlib
import statistics

import bench_runs

MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", default="build/outrider")
    parser.add_argument("--model", default="synth:tinyllama-1.1b")
    parser.add_argument("--ranks", type=int, default=os.cpu_count())
    parser.add_argument("--rows", default="1,5,17,128")
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=20, help="steps of each kind in a pass")
    parser.add_argument("--json", help="also write every sample to this file")
    return parser.parse_args()


def main():
    args = parse_arguments()
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    options = ["--model", args.model, "--rows", args.rows, "--repeat", str(args.repeat), "--log-level", "warning"]
    shares = {}

    def one_rank(_):
        report = bench_runs.run_bench(args.outrider, "verify-curve", [*options, "-t", str(args.ranks)])
        return {f"{rows:g} rows": step for rows, step in bench_runs.medians_of(report, "step").items()}

    def many_ranks(_):
        launcher = [*MPIRUN, "-np", str(args.ranks)]
        report = bench_runs.run_bench(args.outrider, "verify-curve", [*options, "-t", "1"], launcher, environment)
        steps = bench_runs.medians_of(report, "step")
        for rows, exchange in bench_runs.medians_of(report, "exchange").items():
            shares.setdefault(f"{rows:g} rows", []).append(exchange / steps[rows])
        return {f"{rows:g} rows": step for rows, step in steps.items()}

    names = (f"{args.ranks} x 1 thread", f"1 x {args.ranks}")
    samples = bench_runs.in_turns(args.passes, many_ranks, one_rank, names)
    bench_runs.print_ratios(f"a step of {args.model}", "ms", samples, higher_is_better=False)
    for case, values in shares.items():
        print(f"{case}: {100 * statistics.median(values):.1f} % of the step in sums over the ranks")
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps({"samples": samples, "exchange_share": shares}, indent=1) + "\n")


if __name__ == "__main__":
    main()
