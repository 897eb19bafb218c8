#!/usr/bin/env python3
"""Kills, stops and cuts off a target rank at 20 moments of a job's life, and prints what came of it.

  tools/kill_targets.py [--program build/outrider] [--repeat 5] [--faults killed,stopped,cut] [--moments 3,7]

Each run starts a job of two targets and a draft under mpirun with the default --watchdog-timeout and does something to
rank 1: SIGKILL, SIGSTOP, or its host's link goes down (two network namespaces; needs root, left out otherwise). Wanted:
seen within 5 s and named, every client told (an error event or a 5xx), all that was received is the beginning of the
right text, and no process left 10 s after the fault. Exit code 1 when one run is not so. A run takes about 12 s.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import re
import signal
import sys
import threading
import time
import urllib.error

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEEN_S, GONE_S = 5, 10
# By rank 0 itself, or by mpirun, where it ended the job first.
NAMED = re.compile(r"rank 1 \(target\[1/2\] on .*\) is (lost|gone)|process rank 1 with PID .* exited on signal")
PROMPTS = ["Once upon a time", "The king said to his daughter", "In the forest", "My dear Watson, I",
           "The soldiers", "It was a dark night and"]
LONG_PROMPT = "The old king sat by the fire and told his three sons a tale of the sea. " * 40
GREEDY = {"temperature": 0, "max_tokens": 400, "ignore_eos": True, "return_token_ids": True}
SAMPLED = dict(GREEDY, temperature=0.9, seed=7)


class Stream(threading.Thread):
    """A call again and again until it fails; keeps what came of the last."""

    def __init__(self, server, prompt, options):
        super().__init__(daemon=True)
        self.server, self.prompt, self.options = server, prompt, options
        self.ids, self.told, self.wrong = {}, "", False

    def run(self):
        while not self.told:
            self.ids = {}
            ended, error = set(), ""
            try:
                for event in self.server.events("/v1/completions", {"prompt": self.prompt, **self.options}):
                    error = event.get("error", {}).get("message", error)
                    for choice in event.get("choices", []):
                        self.ids.setdefault(choice["index"], []).extend(choice.get("token_ids") or [])
                        if choice.get("finish_reason"):
                            ended.add(choice["index"])
            except urllib.error.HTTPError as problem:
                error = json.loads(problem.read())["error"]["message"]
            except urllib.error.URLError:
                error = "refused"
            except OSError:
                pass
            self.check()
            if len(ended) < self.options.get("n", 1) or error:
                self.told = error or "CUT"

    def check(self):
        expected = self.server.expected.get(key_of(self.prompt, self.options))
        for index, ids in self.ids.items():
            if expected is not None and ids != expected[index][:len(ids)]:
                self.wrong = True


def key_of(prompt, options):
    return json.dumps([prompt, options])


def start_streams(server, prompts, options):
    streams = [Stream(server, prompt, options) for prompt in prompts]
    for stream in streams:
        stream.start()
    return streams


# A moment: waits for it, with what load it wants; returns the streams that must be told.
def at_line(text, delay_s=0.0):
    def wait(server):
        while text not in server.text_of_log() and server.process.poll() is None:
            time.sleep(0.001)
        time.sleep(delay_s)
        return []
    return wait


def when_ready(delay_s, burst=False):
    def wait(server):
        server.wait_ready(60)
        if burst:
            server.post("/v1/completions", {"prompt": PROMPTS[0], **GREEDY, "max_tokens": 50})
        time.sleep(delay_s)
        return []
    return wait


def in_load(prompts, options, delay_s=None, then=None):
    def wait(server):
        server.wait_ready(60)
        before = server.metric("outrider:rounds_total")
        streams = start_streams(server, prompts, options)
        while server.metric("outrider:rounds_total") <= before:
            time.sleep(0.001)
        time.sleep(random.uniform(0, 0.5) if delay_s is None else delay_s)
        if then:
            then(server)
        return streams
    return wait


def drain(server):
    os.kill(server.process.pid, signal.SIGUSR1)
    time.sleep(0.05)


def cancel_some(server):
    for prompt in PROMPTS:
        next(server.events("/v1/completions", {"prompt": prompt, **GREEDY}))


MOMENTS = [
    ("it listens", at_line("listening on")),
    ("4 ms later", at_line("listening on", 0.004)),
    ("it has loaded", at_line("loaded target")),
    ("ready barrier", at_line("rank 0 ready")),
    ("the server opens", at_line("ready: ")),
    ("idle for 0.1 s", when_ready(0.1)),
    ("idle for 4 s", when_ready(4)),
    ("a call has ended", when_ready(0, burst=True)),
    ("first round", in_load(PROMPTS[:1], GREEDY, 0)),
    ("one stream", in_load(PROMPTS[:1], GREEDY)),
    ("six streams, first round", in_load(PROMPTS, GREEDY, 0)),
    ("six streams", in_load(PROMPTS, GREEDY)),
    ("six streams, later", in_load(PROMPTS, GREEDY, 2)),
    ("sampled", in_load(PROMPTS, SAMPLED)),
    ("without drafts", in_load(PROMPTS, dict(GREEDY, speculative={"enabled": False}))),
    ("24 streams", in_load(PROMPTS * 4, GREEDY)),
    ("four choices each", in_load(PROMPTS[:3], dict(SAMPLED, n=4))),
    ("long prompts", in_load([LONG_PROMPT] * 6, dict(GREEDY, max_tokens=4))),
    ("calls are cancelled", in_load(PROMPTS, GREEDY, None, cancel_some)),
    ("the server drains", in_load(PROMPTS, GREEDY, None, drain)),
]
LOADS = [(PROMPTS, GREEDY), (PROMPTS, SAMPLED), (PROMPTS, dict(GREEDY, speculative={"enabled": False})),
         (PROMPTS[:3], dict(SAMPLED, n=4)), ([LONG_PROMPT], dict(GREEDY, max_tokens=4))]


def expected_texts(server):
    expected = {}
    for prompts, options in LOADS:
        for prompt in prompts:
            status, answer = server.post("/v1/completions", {"prompt": prompt, **options})
            if status != 200:
                raise SystemExit(f"{status}: {answer}")
            expected[key_of(prompt, options)] = {choice["index"]: choice["token_ids"] for choice in answer["choices"]}
    return expected


def wait_until(condition, end):
    while not condition() and time.time() < end:
        time.sleep(0.01)
    return condition()


def run_once(start, fault, moment, expected):
    """{seen, told, calls, wrong, gone, code}: seconds after the fault, None for never."""
    with start() as (server, hosts):
        server.expected = expected
        streams = moment(server)
        pids = [server.process.pid, *children(server.process.pid)]
        victim = server.rank_pids()[1]
        since = time.time()
        if fault == "cut":
            hosts.set_link("down")
        else:
            os.kill(victim, {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}[fault])
        found = {"seen": None, "gone": None, "calls": len(streams)}
        if wait_until(lambda: NAMED.search(server.text_of_log()), since + 2 * SEEN_S):
            found["seen"] = time.time() - since
        if wait_until(lambda: server.process.poll() is not None and not left_of(pids), since + 2 * GONE_S):
            found["gone"] = time.time() - since
        found["code"] = server.wait_end(1) if server.process.poll() is not None else "runs"
        for stream in streams:
            stream.join(5)
        found["told"] = sum(stream.told not in ("", "CUT") for stream in streams)
        found["wrong"] = sum(stream.wrong for stream in streams)
        found["log"] = server.text_of_log()
        for pid in left_of(pids):
            os.kill(pid, signal.SIGKILL)
        return found


def is_good(found):
    return (found["seen"] is not None and found["seen"] <= SEEN_S and found["told"] == found["calls"] and
            not found["wrong"] and found["gone"] is not None and found["gone"] <= GONE_S)


def starters(hosts_reason):
    """Fault -> a context that yields (server that is starting, hosts)."""
    @contextlib.contextmanager
    def on_one_host():
        with Server(3, *DRAFTED_PAIR, recovery=False, wait_s=0) as server:
            yield server, None

    @contextlib.contextmanager
    def on_two_hosts():
        with TwoHosts() as hosts:
            path = str(hosts.folder / "socket")
            with Server(3, *DRAFTED_PAIR, "--uds", path, wait_s=0, launcher=hosts.mpirun(1, 2),
                        handlers=[unix_handler(path)]) as server:
                yield server, hosts
    return {"killed": on_one_host, "stopped": on_one_host, **({} if hosts_reason else {"cut": on_two_hosts})}


def latest(values):
    return "never" if None in values else f"{max(values):.1f}"


def print_row(name, fault, runs):
    calls, told = sum(r["calls"] for r in runs), sum(r["told"] for r in runs)
    codes = " ".join(sorted({str(run["code"]) for run in runs}))
    print(f"{name:26} {fault:8} {sum(map(is_good, runs)):3} of {len(runs):3} {latest([r['seen'] for r in runs]):>7} "
          f"{latest([r['gone'] for r in runs]):>7} {told:5} of {calls:4} {sum(r['wrong'] for r in runs):6}   {codes}",
          flush=True)


def main():
    args = parser().parse_args()
    reason = reason_against()
    if reason:
        print(f"no links are cut: {reason}")
    start = starters(reason)
    for fault in args.faults.split(","):
        if fault not in ("killed", "stopped", "cut"):
            sys.exit(f"--faults: there is no fault '{fault}'; there are killed, stopped and cut")
    with Server(3, *DRAFTED_PAIR, recovery=False) as server:
        expected = expected_texts(server)
    everything, failed_logs = {}, []
    print(f"{'moment':26} {'rank 1':8} {'as wanted':>10} {'seen s':>7} {'gone s':>7} {'told':>13} {'wrong':>6}   codes")
    numbers = [int(n) for n in args.moments.split(",")] if args.moments else range(1, len(MOMENTS) + 1)
    for number in numbers:
        name, moment = MOMENTS[number - 1]
        for fault in args.faults.split(","):
            if fault not in start:
                continue
            runs = [run_once(start[fault], fault, moment, expected) for _ in range(args.repeat)]
            print_row(f"{number:2} {name}", fault, runs)
            everything.setdefault(fault, []).extend(runs)
            failed_logs += [f"{name}, {fault}: {run}" for run in runs if not is_good(run)]
    for fault, runs in everything.items():
        print_row("all", fault, runs)
    if args.logs and failed_logs:
        pathlib.Path(args.logs).write_text("\n\n".join(failed_logs).replace("\\n", "\n"))
    return 1 if failed_logs else 0


def parser():
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument("--program", default=str(ROOT / "build/outrider"))
    result.add_argument("--repeat", type=int, default=5)
    result.add_argument("--faults", default="killed,stopped,cut")
    result.add_argument("--moments", help="numbers of the table, separated by commas; all without it")
    result.add_argument("--logs", help="file for the logs of runs that are not as wanted")
    return result


if __name__ == "__main__":
    os.environ["OUTRIDER_PROGRAM"] = str(pathlib.Path(parser().parse_args().program).resolve())
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    from cluster import DRAFTED_PAIR, Server, children, left_of, unix_handler
    from two_hosts import TwoHosts, reason_against
    sys.exit(main())
