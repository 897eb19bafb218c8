#!/usr/bin/env python3
"""Tensor parallel over hosts, on one machine: network namespaces as hosts, one rank of one thread in each.

  sudo tools/bench_hosts.py --model DIR [--hosts 1,2,4] [--links 10gbit,1gbit] [--json FILE]

For every link and number of hosts it runs `outrider bench verify-curve` over TCP between the namespaces, each behind
its own token bucket, and prints the step time, the share of it spent in the sums over the ranks, the bytes a token
costs and the speed against one host. More hosts than cores share the cores: then the step time says little and the
exchange is what is measured. The link "memory" is the floor: the same ranks without namespaces, over shared memory.
Needs root, iproute2 and mpirun. Everything it makes is taken down again, whatever happens.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

import bench_runs
from bench_ranks import MPIRUN

SUBNET = "10.77.0"
PREFIX = "orbench"
AGENT = """#!/bin/sh
# What mpirun starts instead of ssh: the command in the namespace of the host it names.
while [ "${1#-}" != "$1" ]; do shift; done
host="$1"; shift
exec ip netns exec "PREFIX${host##*.}" unshare --uts -- sh -c "hostname node${host##*.}; exec sh -c \\"\\$1\\"" sh "$*"
"""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outrider", default="build/outrider", type=pathlib.Path)
    parser.add_argument("--model", default="synth:tinyllama-1.1b")
    parser.add_argument("--hosts", default="1,2,4")
    parser.add_argument("--links", default="memory,10gbit,1gbit", help="memory or a rate that tc understands")
    parser.add_argument("--rows", default="1,5")
    parser.add_argument("--passes", type=int, default=3, help="runs of every combination, in turns")
    parser.add_argument("--repeat", type=int, default=15, help="steps of each kind in a run")
    parser.add_argument("--json", help="also write every sample to this file")
    return parser.parse_args()


def run(*command):
    subprocess.run(command, check=True)


def name_of(host):
    return f"{PREFIX}{host}"


def add_host(host, link):
    """A namespace with one address, joined to the bridge by a pair of devices that both keep to the rate."""
    name = name_of(host)
    run("ip", "netns", "add", name)
    run("ip", "link", "add", f"{name}a", "netns", name, "type", "veth", "peer", f"{name}b", "netns", f"{PREFIX}sw")
    run("ip", "-n", f"{PREFIX}sw", "link", "set", f"{name}b", "master", "bridge", "up")
    run("ip", "-n", name, "address", "add", f"{SUBNET}.{host}/24", "dev", f"{name}a")
    run("ip", "-n", name, "link", "set", f"{name}a", "up")
    run("ip", "-n", name, "link", "set", "lo", "up")
    for space, device in ((name, f"{name}a"), (f"{PREFIX}sw", f"{name}b")):
        bucket = ["tbf", "rate", link, "burst", "256kb", "latency", "50ms"]
        run("ip", "netns", "exec", space, "tc", "qdisc", "add", "dev", device, "root", *bucket)


def remove_hosts():
    listed = subprocess.run(["ip", "netns", "list"], check=True, stdout=subprocess.PIPE, text=True).stdout
    for line in listed.splitlines():
        if line.startswith(PREFIX):
            subprocess.run(["ip", "netns", "delete", line.split()[0]], check=False)


@contextlib.contextmanager
def network(num_hosts, link, folder):
    """Yields the launcher that starts one rank on each of the hosts, from within the first."""
    remove_hosts()
    try:
        run("ip", "netns", "add", f"{PREFIX}sw")
        run("ip", "-n", f"{PREFIX}sw", "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", f"{PREFIX}sw", "link", "set", "bridge", "up")
        for host in range(1, num_hosts + 1):
            add_host(host, link)
        agent = folder / "agent.sh"
        agent.write_text(AGENT.replace("PREFIX", PREFIX))
        agent.chmod(0o755)
        hostfile = folder / "hosts"
        hostfile.write_text("".join(f"{SUBNET}.{host} slots=1\n" for host in range(1, num_hosts + 1)))
        within = ["ip", "netns", "exec", name_of(1), "unshare", "--uts", "--", "sh", "-c"]
        tcp = ["--mca", "plm_rsh_agent", str(agent), "--mca", "btl", "tcp,self", "--hostfile", str(hostfile)]
        for layer in ("btl_tcp_if_include", "oob_tcp_if_include"):
            tcp += ["--mca", layer, f"{SUBNET}.0/24"]
        yield [*within, 'hostname node1; exec "$@"', "sh", *MPIRUN, *tcp, "-np", str(num_hosts)]
    finally:
        remove_hosts()


def measure(args, num_hosts, link, environment):
    options = ["--model", args.model, "--rows", args.rows, "--repeat", str(args.repeat), "-t", "1"]
    options += ["--log-level", "warning"]
    if link == "memory" or num_hosts == 1:
        launcher = [*MPIRUN, "-np", str(num_hosts)]
        return bench_runs.run_bench(args.outrider.resolve(), "verify-curve", options, launcher, environment)
    with tempfile.TemporaryDirectory() as folder:
        with network(num_hosts, link, pathlib.Path(folder)) as launcher:
            return bench_runs.run_bench(args.outrider.resolve(), "verify-curve", options, launcher, environment)


def collect(args, combinations):
    environment = os.environ | {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    found = {}
    for number in range(args.passes):
        for link, num_hosts in combinations if number % 2 == 0 else reversed(combinations):
            report = measure(args, num_hosts, link, environment)
            steps = bench_runs.medians_of(report, "step")
            exchanges = bench_runs.medians_of(report, "exchange")
            sizes = bench_runs.medians_of(report, "partial sums")
            for rows, step in steps.items():
                samples = found.setdefault((link, num_hosts, rows), {"step": [], "exchange": [], "bytes": []})
                samples["step"].append(step)
                samples["exchange"].append(exchanges.get(rows, 0.0))
                samples["bytes"].append(sizes.get(rows, 0.0))
            print(f"pass {number + 1} of {args.passes}: {num_hosts} hosts, {link}", flush=True)
    return found


def print_table(found):
    print(f"\n{'link':>8} {'hosts':>5} {'rows':>4} {'step, ms':>9} {'exchange':>9} {'kB/rank':>8}  speed against one host")
    for (link, num_hosts, rows), samples in found.items():
        step = statistics.median(samples["step"])
        share = 100 * statistics.median(samples["exchange"]) / step
        alone = found[next(iter(found))[0], 1, rows]["step"]
        ratios = [one / many for one, many in zip(alone, samples["step"])]
        low, high = bench_runs.ratio_interval(ratios)
        size = statistics.median(samples["bytes"]) / 1e3
        ratio = f"{statistics.median(ratios):.2f} ({low:.2f} .. {high:.2f})"
        print(f"{link:>8} {num_hosts:>5} {rows:>4g} {step:9.2f} {share:7.1f} % {size:8.1f}  {ratio}")


def plot_of(found):
    """For tools/plot.py: tokens per second of one-row steps over the number of hosts, a line for each link."""
    speeds = {}
    first = next(iter(found))[0]
    for (link, num_hosts, rows), samples in found.items():
        if rows == 1:
            speeds.setdefault(link, {})[num_hosts] = 1e3 / statistics.median(samples["step"])
    for points in speeds.values():
        points.setdefault(1, speeds[first][1])
    series = [{"name": link, "mark": "line", "color": number, "points": [[x, y, 0] for x, y in sorted(points.items())]}
              for number, (link, points) in enumerate(speeds.items())]
    title = "decode, one rank of one thread a host"
    return {"title": title, "panels": [{"title": "", "x_label": "hosts", "y_label": "tokens/s", "series": series}]}


def main():
    args = parse_arguments()
    if os.geteuid() != 0:
        raise SystemExit("bench_hosts.py makes network namespaces: run it as root")
    hosts = [int(n) for n in args.hosts.split(",")]
    links = args.links.split(",")
    combinations = [(links[0], 1)] + [(link, n) for link in links for n in hosts if n > 1]
    found = collect(args, combinations)
    print_table(found)
    if args.json:
        rows = [dict(zip(("link", "hosts", "rows"), key), **samples) for key, samples in found.items()]
        report = {"rows": rows, "plot": plot_of(found)}
        pathlib.Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
