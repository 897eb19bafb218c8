#!/usr/bin/env python3
"""Drafts that are killed, stopped, cut off and replaced while requests run: nobody may notice but by the clock.

    python3 tools/draft_faults.py [--cycles 1000 | --minutes 30] [--pair simulated] [--clients 4] [--seed 1]

One job of two target ranks and a draft rank, which lets further drafts attach over TCP through a forwarder that can be
cut. The embedded pair keeps all cores busy; the simulated one (a target of 20 ms a step) leaves them idle, so that
gaps are the program's own. Clients stream greedy and seeded requests all the time; each answer is compared with what
the job wrote before the first fault. Printed at the end: failed requests and other texts, the longest time between two
pieces of a stream, the time until drafts are used again, memory and KV blocks. Exit code 1 for a failure or another
text, memory that grows by 2%, drafts that stay away, or KV left in use.
"""
import argparse
import os
import pathlib
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPTS = ["Once upon a time", "The king said to his daughter", "In the forest", "My dear Watson, I", "The soldiers"]
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
LONGEST_BACK_S = 15
SIMULATED_DRAFT = "sim:step_ms=2,alpha=0.8"
SIMULATED_PAIR = ["--model", "sim:step_ms=20", "--speculative-config.model", SIMULATED_DRAFT]


def connect_cluster(program):
    os.environ.setdefault("OUTRIDER_PROGRAM", str(program))
    sys.path.insert(0, str(ROOT / "tests" / "e2e"))
    import cluster
    return cluster


class Forwarder:
    """Passes TCP connections on to a port until it is cut: then nothing moves, and no end is seen by either side."""

    def __init__(self, port, to_port):
        self.to_port, self.is_cut, self.pairs = to_port, False, {}
        self.listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while True:
            if self.is_cut:
                time.sleep(0.02)
                continue
            for end in select.select([self.listener, *self.pairs], [], [], 0.02)[0]:
                if end is self.listener:
                    self.accept()
                elif end in self.pairs:
                    self.move(end)

    def accept(self):
        ours, _ = self.listener.accept()
        try:
            theirs = socket.create_connection(("127.0.0.1", self.to_port), 5)
        except OSError:
            return ours.close()
        self.pairs.update({ours: theirs, theirs: ours})

    def move(self, end):
        other = self.pairs[end]
        try:
            data = end.recv(1 << 16)
            if data:
                return other.sendall(data)
        except OSError:
            pass
        for one in (end, other):
            self.pairs.pop(one, None)
            one.close()

    def restore(self):
        """The old connections are lost, new ones pass."""
        for end in list(self.pairs):
            self.pairs.pop(end, None)
            end.close()
        self.is_cut = False


class Load:
    """Streams that never end, and what was seen of them."""

    def __init__(self, server, num_clients, max_tokens):
        self.server, self.max_tokens = server, max_tokens
        self.bodies = [{"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "return_token_ids": True,
                        **({"temperature": 0} if i % 2 else {"temperature": 0.8, "seed": i})}
                       for i, prompt in enumerate(PROMPTS)]
        self.expected = [self.stream(body)[0] for body in self.bodies]
        self.num_requests, self.problems, self.gaps, self.stopping = 0, [], [], False
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(num_clients)]

    def stream(self, body):
        ids, longest, last = [], 0, None
        for event in self.server.events("/v1/completions", body, timeout_s=120):
            if "error" in event:
                raise RuntimeError(str(event["error"]))
            now = time.monotonic()
            longest, last = max(longest, now - last if last else 0), now
            for choice in event.get("choices", []):
                ids += choice.get("token_ids") or []
        return ids, longest

    def run(self, number):
        while not self.stopping:
            number = (number + 1) % len(self.bodies)
            try:
                ids, gap = self.stream(self.bodies[number])
                if ids != self.expected[number]:
                    self.problems.append(f"{PROMPTS[number]!r}: another text of {len(ids)} tokens")
                self.gaps.append(gap)
            except Exception as problem:  # whatever a client may see counts as a failed request
                self.problems.append(f"{PROMPTS[number]!r}: {problem}")
            self.num_requests += 1

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *unused):
        self.stopping = True
        for thread in self.threads:
            thread.join()


class Drafts:
    """The draft rank's engine, and one draft that is attached over TCP."""

    def __init__(self, server, command, forwarder):
        self.server, self.command, self.forwarder = server, command, forwarder
        self.attached = None
        self.attach()

    def attach(self):
        self.attached = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def replace_attached(self):
        self.attached.kill()
        self.attached.wait()
        self.attach()

    def signal_engine(self, number):
        try:
            os.kill(self.server.engine_pid(), number)
        except (ProcessLookupError, KeyError, StopIteration):
            pass  # between two lives

    def stop_engine(self):
        self.signal_engine(signal.SIGSTOP)
        time.sleep(1)
        self.signal_engine(signal.SIGCONT)

    def stop_attached(self):
        self.attached.send_signal(signal.SIGSTOP)
        time.sleep(1)
        self.attached.send_signal(signal.SIGCONT)

    def cut(self):
        self.forwarder.is_cut = True
        time.sleep(1)
        self.forwarder.restore()

    def kill_both(self):
        self.signal_engine(signal.SIGKILL)
        self.replace_attached()

    def faults(self):
        return {"engine killed": lambda: self.signal_engine(signal.SIGKILL), "engine stopped": self.stop_engine,
                "attached killed": self.replace_attached, "attached stopped": self.stop_attached,
                "attached cut off": self.cut, "both killed": self.kill_both}


def resident_kib(pids):
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/status") as file:
                total += next((int(line.split()[1]) for line in file if line.startswith("VmRSS")), 0)
        except FileNotFoundError:
            pass
    return total


def wait_drafting(server):
    """Seconds until draft tokens are proposed again."""
    begin, before = time.monotonic(), server.metric(DRAFTED)
    while time.monotonic() - begin < LONGEST_BACK_S:
        if server.metric("outrider:draft_up") == 1 and server.metric(DRAFTED) > before:
            return time.monotonic() - begin
        time.sleep(0.02)
    return float("inf")


def run_faults(options, server, drafts):
    """Per kind of fault the seconds until drafts were used again; resident memory early and late."""
    rng, back, kinds = random.Random(options.seed), {}, drafts.faults()
    ranks = [pid for pid in server.rank_pids().values()]
    end, cycle, early, late = time.monotonic() + 60 * options.minutes, 0, 0, 0
    while cycle < options.cycles if options.cycles else time.monotonic() < end:
        kind = rng.choice(list(kinds))
        time.sleep(rng.uniform(0, 0.3))
        kinds[kind]()
        back.setdefault(kind, []).append(wait_drafting(server))
        cycle += 1
        late = resident_kib(ranks)
        if cycle == 20:
            early = late
    return back, early, late


def report(options, load, back, memory):
    early, late = memory
    cycles = sum(map(len, back.values()))
    gaps = sorted(load.gaps)
    print(f"{cycles} cycles, {load.num_requests} requests of {load.max_tokens} tokens, {options.clients} at a time")
    print("| fault | cycles | drafts used again after, median | longest |\n|---|---|---|---|")
    for kind, seconds in sorted(back.items()):
        seconds.sort()
        print(f"| {kind} | {len(seconds)} | {seconds[len(seconds) // 2]:.2f} s | {seconds[-1]:.2f} s |")
    print(f"failed requests or other texts: {len(load.problems)}")
    print("\n".join(load.problems[:10]))
    print(f"longest gap in a stream: median {1000 * gaps[len(gaps) // 2]:.0f} ms, 99% {1000 * gaps[len(gaps) * 99 // 100]:.0f}"
          f" ms, longest {1000 * gaps[-1]:.0f} ms")
    growth = late / early - 1 if early else 0
    print(f"resident memory of the ranks: {early} KiB after 20 cycles, {late} KiB at the end ({100 * growth:+.1f}%)")
    return not load.problems and growth < 0.02 and all(seconds[-1] < LONGEST_BACK_S for seconds in back.values())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build" / "outrider"))
    parser.add_argument("--pair", choices=["embedded", "simulated"], default="embedded")
    parser.add_argument("--cycles", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=1)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    cluster = connect_cluster(options.program)
    draft_port, open_port = cluster.free_port(), cluster.free_port()
    is_simulated = options.pair == "simulated"
    pair = SIMULATED_PAIR if is_simulated else cluster.DRAFTED_PAIR
    attach = [options.program, "draft", "--connect", f"127.0.0.1:{open_port}",
              "--model", SIMULATED_DRAFT if is_simulated else "embedded"]
    with cluster.Server(3, *pair, "--draft-listen", f"127.0.0.1:{draft_port}",
                        recovery=False) as server:
        load = Load(server, options.clients, options.max_tokens)
        drafts = Drafts(server, attach, Forwarder(open_port, draft_port))
        try:
            with load:
                back, *memory = run_faults(options, server, drafts)
            is_good = report(options, load, back, memory)
            usage = server.metric("vllm:kv_cache_usage_perc")
            print(f"KV blocks in use at the end: {100 * usage:.1f}%; draft_restarts_total "
                  f"{server.metric('outrider:draft_restarts_total'):.0f}")
            return 0 if is_good and usage == 0 else 1
        finally:
            drafts.attached.kill()


if __name__ == "__main__":
    sys.exit(main())
