#!/usr/bin/env python3
"""Shows Outrider at work: starts two target ranks and a draft rank of the embedded pair under mpirun, sends one
streaming chat request, marks each token by where it came from, and asks again without speculation to compare.
On a terminal the server stays up afterwards; otherwise everything that was started is stopped."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# origin: (terminal colour, plain marks)
MARKS = {
    "accepted": ("\033[32m", ("", "")),
    "corrected": ("\033[31m", ("<", ">")),
    "bonus": ("\033[36m", ("[", "]")),
    "plain": ("\033[2m", ("(", ")")),
}
LEGEND = "accepted draft tokens, <corrected where a draft token was rejected>, [bonus token after a block that was accepted whole], (plain step)"


# Left to itself the planner finds that drafts cannot pay for a target of 0.1 ms a token, and that this draft has no
# hardware of its own; the demo is there to show them.
PAIR = ["--model", "embedded", "--speculative-config.model", "embedded",
        "--speculative-config.num-speculative-tokens", "4", "--speculative-config.async-drafting", "cache",
        "--per-request-spec-decode-metrics", "summary"]


def start_server(program, options, log):
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", "3", program, "serve", *options]
    print("$", " ".join(command), flush=True)
    return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def wait_ready(server, log, timeout_s=120):
    """The server's address, as it says in its log."""
    end = time.time() + timeout_s
    while time.time() < end:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with code {server.returncode} before it was ready")
        with open(log.name) as written:  # not `log` itself: the server writes where it stands
            said = re.search(r"ready: (http://\S+)/v1 serves", written.read())
        if said:
            return said.group(1)
        time.sleep(0.1)
    raise RuntimeError(f"the server was not ready after {timeout_s} s")


def stream(url, body, path="/v1/chat/completions"):
    """Yields the parsed chunks of a streamed answer."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        for line in response:
            line = line.decode().strip()
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            chunk = json.loads(line[len("data: "):])
            if "error" in chunk:
                raise RuntimeError(chunk["error"]["message"])
            yield chunk


def show(tokens, origins, colour):
    """One chunk's tokens, each marked by its origin."""
    for token, origin in zip(tokens, origins or []):
        start, (left, right) = MARKS[origin]
        sys.stdout.write(f"{start}{token}\033[0m" if colour else f"{left}{token}{right}")
    sys.stdout.flush()


def run_chat(url, body, colour=None):
    """Sends the request; returns (text, token ids, last metrics)."""
    text, ids, metrics, usage = "", [], {}, {}
    for chunk in stream(url, body):
        metrics = chunk.get("metrics") or metrics
        usage = chunk.get("usage") or usage
        for choice in chunk.get("choices", []):
            piece = choice.get("delta", {}).get("content") or ""
            ids += choice.get("token_ids") or []
            text += piece
            if colour is not None:
                tokens = [entry["token"] for entry in (choice.get("logprobs") or {}).get("content") or []]
                show(tokens, choice.get("token_origins"), colour)
    return text, ids, metrics or {}, usage


def stop(server):
    if server.poll() is None:
        server.send_signal(signal.SIGUSR1)  # mpirun forwards it; rank 0 drains
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    return server.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", default=os.path.join(ROOT, "build", "outrider"))
    parser.add_argument("--prompt", default="Tell me a story about a king and his daughter.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--temperature", type=float, default=0.7)
    arguments = parser.parse_args()

    on_terminal = sys.stdout.isatty() and sys.stdin.isatty()
    body = {"messages": [{"role": "user", "content": arguments.prompt}], "stream": True,
            "stream_options": {"include_usage": True}, "max_tokens": arguments.max_tokens,
            "seed": arguments.seed, "temperature": arguments.temperature,
            "logprobs": True, "return_token_ids": True, "return_token_origins": True}
    log = tempfile.NamedTemporaryFile("w+", prefix="outrider-demo-", suffix=".log")
    server = start_server(arguments.program, [*PAIR, "--port", str(arguments.port)], log)
    try:
        url = wait_ready(server, log)
        print(f"\n{arguments.prompt}\n({LEGEND})\n")
        text, ids, metrics, usage = run_chat(url, body, colour=sys.stdout.isatty())
        stats, own = metrics.get("speculative_decoding", {}), metrics.get("outrider", {})
        plain_text, plain_ids, _, _ = run_chat(url, dict(body, speculative={"enabled": False}))
        same = ids == plain_ids and text == plain_text

        rounds = stats.get("num_spec_steps", 0)
        accepted, drafted = stats.get("num_accepted_draft_tokens", 0), stats.get("num_draft_tokens", 0)
        print("\n")
        print(f"tokens written            {usage.get('completion_tokens', len(ids))}")
        print(f"rounds with a draft       {rounds}")
        print(f"draft tokens accepted     {accepted} of {drafted}"
              + (f" ({100 * accepted / drafted:.0f} %)" if drafted else ""))
        print(f"drafts at hand in time    {own.get('num_rounds_draft_at_hand', 0)}")
        if rounds:
            print(f"tokens per such round     {1 + accepted / rounds:.2f}")
        print(f"same text without draft   {'yes' if same else 'NO'}")
        if not ids or not same:
            print("demo: FAILED: the text differs with and without speculation", file=sys.stderr)
            return 1
        if on_terminal:
            print(f"\nThe server is still running at {url}/v1. Try:\n"
                  f"  curl {url}/v1/chat/completions -H 'Content-Type: application/json' "
                  f"-d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Tell me about the sea.\"}}]}}'\n"
                  "Press Enter to stop it.")
            sys.stdin.readline()
        return 0
    except (RuntimeError, OSError, KeyboardInterrupt) as problem:
        log.seek(0)
        print(f"demo: FAILED: {problem}\n--- server log\n{log.read()}", file=sys.stderr)
        return 1
    finally:
        stop(server)


if __name__ == "__main__":
    sys.exit(main())
