#!/usr/bin/env python3
"""Shows that nobody waits for the dead: one stream goes on while its drafts are killed, stopped and replaced.

Two target ranks and a draft rank run under mpirun, and a second draft attaches over TCP later. Processes, signals and
messages are real. The models are simulated: their steps take 100 and 10 ms, so that one can watch. Each token is marked by
where it came from: with a draft several come at once, without one they come singly. At the end the text is compared with
that of the same request in peace."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time

from demo import LEGEND, ROOT, show, start_server, stop, stream, wait_ready
from free_port import free_port

TARGET, DRAFT = "sim:step_ms=100", "sim:step_ms=10,alpha=0.85"


def engine_pid(server):
    """The draft rank's child, which holds the draft model: of mpirun's grandchildren those that are `outrider serve`."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    parents = {int(pid): int(ppid) for pid, ppid, _ in (line.split(None, 2) for line in listed.splitlines())}
    ranks = {pid for pid, ppid in parents.items() if ppid == server.pid}
    below = {pid for pid, ppid in parents.items() if ppid in ranks}
    return max(below | {pid for pid, ppid in parents.items() if ppid in below})


class Watched(threading.Thread):
    """One request, shown as it comes."""

    def __init__(self, url, body):
        super().__init__()
        self.url, self.body, self.ids, self.longest_gap_s, self.problem = url, body, [], 0, None

    def run(self):
        last = None
        try:
            for chunk in stream(self.url, self.body, "/v1/completions"):
                for choice in chunk.get("choices", []):
                    now = time.monotonic()
                    self.longest_gap_s, last = max(self.longest_gap_s, now - last if last else 0), now
                    self.ids += choice.get("token_ids") or []
                    tokens = (choice.get("logprobs") or {}).get("tokens") or []
                    show(tokens, choice.get("token_origins"), sys.stdout.isatty())
        except (RuntimeError, OSError) as problem:
            self.problem = problem


def play(server, draft_command):
    """The faults, one after the other; returns the attached draft's process."""
    def say(what):
        print(f"\n\n--- {what}\n", flush=True)

    time.sleep(3)
    say("the draft engine is killed; its rank starts it again")
    os.kill(engine_pid(server), signal.SIGKILL)
    time.sleep(4)
    say("the new draft engine is stopped for two seconds")
    stopped = engine_pid(server)
    os.kill(stopped, signal.SIGSTOP)
    time.sleep(2)
    os.kill(stopped, signal.SIGCONT)
    time.sleep(2)
    say("a second draft attaches over TCP, then the first is killed")
    attached = subprocess.Popen(draft_command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(2)
    os.kill(engine_pid(server), signal.SIGKILL)
    time.sleep(3)
    say("the second draft is killed too")
    attached.kill()
    time.sleep(2)
    return attached


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "outrider"))
    parser.add_argument("--max-tokens", type=int, default=1200)
    arguments = parser.parse_args()
    log = tempfile.NamedTemporaryFile("w+", prefix="outrider-demo-", suffix=".log")
    draft_at = f"127.0.0.1:{free_port()}"
    server = start_server(arguments.program, ["--model", TARGET, "--speculative-config.model", DRAFT,
                                              "--draft-listen", draft_at, "--port", "0"], log)
    try:
        url = wait_ready(server, log)
        body = {"prompt": "Once upon a time", "max_tokens": arguments.max_tokens, "ignore_eos": True, "seed": 7,
                "stream": True, "logprobs": 0, "return_token_ids": True, "return_token_origins": True}
        print(f"({LEGEND})\n")
        watched = Watched(url, body)
        watched.start()
        attached = play(server, [arguments.program, "draft", "--connect", draft_at, "--model", DRAFT])
        watched.join()
        attached.wait()
        print("\n\nThe same request in peace ...", flush=True)
        undisturbed = [token for chunk in stream(url, body, "/v1/completions")
                       for choice in chunk.get("choices", []) for token in choice.get("token_ids") or []]
        same = watched.ids == undisturbed
        print(f"tokens written       {len(watched.ids)}\nlongest gap          {1000 * watched.longest_gap_s:.0f} ms\n"
              f"same text            {'yes' if same else 'NO'}")
        if watched.problem or not same:
            print(f"demo: FAILED: {watched.problem or 'the text differs'}", file=sys.stderr)
            return 1
        return 0
    except (RuntimeError, OSError, KeyboardInterrupt) as problem:
        log.seek(0)
        print(f"demo: FAILED: {problem}\n--- server log\n{log.read()}", file=sys.stderr)
        return 1
    finally:
        stop(server)


if __name__ == "__main__":
    sys.exit(main())
