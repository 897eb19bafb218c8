#!/usr/bin/env python3
"""Measures this program and a peer in turns, on the same GGUF files, and prints ratios.

  tools/compare_peers.py --peer-bin DIR --target FILE_OR_FOLDER [--draft FILE_OR_FOLDER] TEST...
  tools/compare_peers.py --openvino-python VENV/bin/python --target FILE_OR_FOLDER prefill decode

TEST is steps (time of a step by rows; the peer's llama-sweep-bench), prefill and decode (by prompt length and by
context; its llama-bench), load (requests in flight at a server) or draft (one request, by draft length). A pass runs
one side and then the other, the first one alternating; each figure is a median over the passes, each ratio the median
of the passes' ratios with a 95 % bootstrap interval. Above 1 this program is faster. The peer is a llama.cpp or a fork
of it that you built, or an OpenVINO GenAI that you installed; nothing is downloaded. What it cannot do is said in a
line. Of a Hugging Face folder llama.cpp's own converter and llama-quantize make a file of --outtype, beside it and
once. This script wants the standard library only.
"""

import argparse
import concurrent.futures
import contextlib
import http.client
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import time

import bench_runs
from free_port import free_port

ROWS = [1, 2, 3, 5, 9, 17]
CONVERTED = ["f32", "f16", "bf16", "q8_0"]  # what the converter writes; llama-quantize makes the others of bf16
OPENVINO = pathlib.Path(__file__).with_name("bench_openvino.py")


class CannotDo(Exception):
    """What the peer cannot do: a sentence in place of its table."""


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="+", choices=list(TESTS))
    parser.add_argument("--outrider", default="build/outrider", help="this program")
    parser.add_argument("--peer-bin", type=pathlib.Path, help="folder of llama.cpp's programs")
    parser.add_argument("--openvino-python", help="a Python with openvino-genai, which is then the peer")
    parser.add_argument("--openvino-tokenizer", help="folder of its convert_tokenizer, for tokenizers but BPE")
    parser.add_argument("--target", required=True, help="a GGUF file, or a Hugging Face folder to make one of")
    parser.add_argument("--draft", help="the same")
    parser.add_argument("--outtype", default="bf16", help="of a folder's file (bf16), e.g. q8_0, q4_0, q4_k_m")
    parser.add_argument("--draft-outtype", help="the draft's; without it the target's")
    parser.add_argument("--peer-source", type=pathlib.Path, help="folder of convert_hf_to_gguf.py, to make files")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has what the converter imports")
    parser.add_argument(
        "--self-from-folder",
        action="store_true",
        help="this program loads the folders themselves, e.g. with --self-options '--quantization int8'",
    )
    parser.add_argument("--self-options", default="", help="of this program, e.g. '--quantization int8'")
    parser.add_argument("--peer-bench-options", default="", help="of llama-bench, e.g. '-rtr 1'")
    parser.add_argument("--peer-server-options", default="", help="of llama-server and llama-sweep-bench, e.g. -rtr")
    parser.add_argument(
        "--peer-decode-options",
        default="-p 0 -n 0 -gp {context},{tokens}",
        help="of llama-bench for the test decode; upstream's are '-p 0 -n {tokens} -d {context}'",
    )
    parser.add_argument(
        "--peer-draft-options",
        default="--draft-max {} --draft-min 1 --draft-p-min 0",
        help="of llama-server, {} being the length; ik_llama.cpp's '--spec-type draft:n_max={},p_min=0.0'",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--passes", type=int, default=5, help="runs of each side (5)")
    parser.add_argument("--repeat", type=int, default=2, help="of prefill, and of llama-bench's decode, in a run (2)")
    parser.add_argument("--prefill-lengths", default="512")
    parser.add_argument("--decode-contexts", default="0,4096")
    parser.add_argument("--decode-tokens", type=int, default=32, help="that the peer makes after each context")
    parser.add_argument("--concurrencies", default="1,4,8,16", help="of the test load")
    parser.add_argument("--load-draft-len", type=int, default=0, help="of the test load; 0 = without a draft")
    parser.add_argument(
        "--peer-load-without-draft",
        action="store_true",
        help="the test load gives only this program a draft: some peers draft for one request at a time only",
    )
    parser.add_argument("--draft-lens", default="0,2,4,8", help="of the test draft; 0 = without a draft")
    parser.add_argument("--max-prompt-id", type=int, default=31000, help="prompts are random ids from 300 to this")
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--json", help="also write every sample to this file")
    args = parser.parse_args()
    if not args.peer_bin and not args.openvino_python:
        parser.error("--peer-bin or --openvino-python says who the peer is")
    if "draft" in args.tests and not args.draft:
        parser.error("the test draft wants --draft")
    args.peer_bin = args.peer_bin.resolve() if args.peer_bin else None
    args.peer_target = gguf_of(args, args.target, args.outtype)
    args.peer_draft = gguf_of(args, args.draft, args.draft_outtype or args.outtype) if args.draft else None
    args.self_target = args.target if args.self_from_folder else args.peer_target
    args.self_draft = args.draft if args.self_from_folder else args.peer_draft
    return args


def gguf_of(args, model, outtype):
    """The model if it is a GGUF file; else the folder's FOLDER-OUTTYPE.gguf, which llama.cpp's tools make once."""
    path = pathlib.Path(model).absolute()
    if not path.exists():
        raise SystemExit(f"{path} is not there")
    if path.suffix == ".gguf":
        return str(path)
    file = path.with_name(f"{path.name}-{outtype}.gguf")
    if not file.exists():
        unfinished = file.with_suffix(".part")
        if outtype in CONVERTED:
            command = [args.peer_python, str(tool_of(args, "--peer-source", "convert_hf_to_gguf.py")), str(path)]
            command += ["--outfile", str(unfinished), "--outtype", outtype]
        else:
            command = [str(tool_of(args, "--peer-bin", "llama-quantize")), gguf_of(args, model, "bf16")]
            command += [str(unfinished), outtype]
        subprocess.run(command, check=True, stdout=sys.stderr)
        unfinished.rename(file)
    return str(file)


def tool_of(args, option, name):
    folder = args.peer_source if option == "--peer-source" else args.peer_bin
    if folder is None:
        raise SystemExit(f"a file is not made yet, and {option} does not say where {name} is")
    return folder.resolve() / name


# ---- one process a measurement: steps and prefill -------------------------------------------------------------------


def run_outrider(args, kind, series, options):
    """{x: median} of one series of `outrider bench KIND`."""
    options = ["--model", args.self_target, "-t", str(args.threads), *options, *args.self_options.split()]
    return bench_runs.medians_of(bench_runs.run_bench(args.outrider, kind, options), series)


def run_llama_bench(args, options):
    """Mean tokens per second of each of llama-bench's tests, in its order."""
    command = [str(args.peer_bin / "llama-bench"), "-m", args.peer_target, "-t", str(args.threads), "-o", "json"]
    command += ["-r", str(args.repeat)] + options + args.peer_bench_options.split()
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return [test["avg_ts"] for test in json.loads(result.stdout)]


def run_openvino(args, kind, lengths):
    """Median tokens per second of OpenVINO GenAI, in the order of lengths."""
    command = [args.openvino_python, str(OPENVINO), kind, "--model", args.peer_target, "--threads", str(args.threads)]
    command += ["--lengths", ",".join(str(n) for n in lengths), "--max-tokens", str(args.decode_tokens)]
    command += ["--repeat", str(args.repeat)]
    command += ["--max-prompt-id", str(args.max_prompt_id)]
    command += ["--tokenizer", args.openvino_tokenizer] if args.openvino_tokenizer else []
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        words = result.stderr.strip().splitlines() or ["no word"]
        raise CannotDo(f"OpenVINO GenAI does not run {args.peer_target}: {words[-1]}")
    rates = json.loads(result.stdout.splitlines()[-1])
    return [rates[str(n)] for n in lengths]


def run_sweep_bench(args, rows):
    """Medians in ms over llama-sweep-bench's lines: a step of `rows` rows of one sequence, and one of a single row.

    Of the many rows the peer computes the logits of the last one only.
    """
    command = [str(args.peer_bin / "llama-sweep-bench"), "-m", args.peer_target, "-t", str(args.threads)]
    command += ["-c", "256", "-b", str(rows), "-ub", str(rows), "-n", "1", "--output-format", "jsonl"]
    command += args.peer_server_options.split()
    # It runs until its context is full and then fails, which is no fault here.
    # In a folder of its own: it writes a log beside itself.
    with tempfile.TemporaryDirectory() as folder:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "cwd": folder}
        result = subprocess.run(command, **options)
    steps = [json.loads(line) for line in result.stdout.splitlines() if line.startswith('{"n_kv_max"')]
    if len(steps) < 5:
        raise SystemExit(f"{' '.join(command)} gave {len(steps)} steps:\n{result.stdout[-2000:]}")
    return tuple(1e3 * statistics.median(step[key] for step in steps) for key in ("t_pp", "t_tg"))


def test_steps(args):
    if not (args.peer_bin / "llama-sweep-bench").exists():
        raise CannotDo("The peer has no llama-sweep-bench, and nothing else that times a step of several rows.")
    rows = ",".join(str(n) for n in ROWS)

    def ours(_):
        steps = run_outrider(args, "verify-curve", "step", ["--rows", rows, "--context", "128"])
        return {f"{n} rows": steps[n] for n in ROWS}

    def theirs(_):
        times = {n: run_sweep_bench(args, n) for n in ROWS if n > 1}
        single = statistics.median(single for _, single in times.values())
        return {"1 rows": single} | {f"{n} rows": many for n, (many, _) in times.items()}

    samples = bench_runs.in_turns(args.passes, ours, theirs)
    bench_runs.print_ratios("one step of one sequence", "ms", samples, higher_is_better=False)
    return samples


def test_prefill(args):
    lengths = [int(n) for n in args.prefill_lengths.split(",")]

    def ours(_):
        options = ["--lengths", args.prefill_lengths, "--repeat", str(args.repeat)]
        rates = run_outrider(args, "prefill", "chunked", options)
        return {f"{n} tokens": rates[n] for n in lengths}

    def theirs(_):
        if args.openvino_python:
            rates = run_openvino(args, "prefill", lengths)
        else:
            rates = run_llama_bench(args, ["-p", args.prefill_lengths, "-n", "0"])
        return {f"{n} tokens": rate for n, rate in zip(lengths, rates)}

    samples = bench_runs.in_turns(args.passes, ours, theirs)
    bench_runs.print_ratios("prefill of one sequence", "tokens/s", samples, higher_is_better=True)
    return samples


def test_decode(args):
    contexts = [int(n) for n in args.decode_contexts.split(",")]

    def ours(_):
        rates = {}
        for n in contexts:
            options = ["--rows", "1", "--context", str(n), "--repeat", str(args.decode_tokens)]
            rates[f"after {n} tokens"] = 1e3 / run_outrider(args, "verify-curve", "step", options)[1]
        return rates

    def llama_bench(context):
        options = args.peer_decode_options.format(context=context, tokens=args.decode_tokens)
        return run_llama_bench(args, options.split())[0]

    def theirs(_):
        rates = run_openvino(args, "decode", contexts) if args.openvino_python else map(llama_bench, contexts)
        return {f"after {n} tokens": rate for n, rate in zip(contexts, rates)}

    samples = bench_runs.in_turns(args.passes, ours, theirs)
    bench_runs.print_ratios("decode of one sequence", "tokens/s", samples, higher_is_better=True)
    return samples


# ---- servers --------------------------------------------------------------------------------------------------------


class Server:
    """A server process that answers POST /v1/completions or /completion."""

    def __init__(self, command, port, path, folder=None):
        self.port = port
        self.path = path
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, cwd=folder)

    def call(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        with contextlib.closing(connection):
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, response.read()

    def wait_ready(self, seconds=300):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                self.log.seek(0)
                raise SystemExit("the server ended:\n" + self.log.read().decode(errors="replace")[-2000:])
            with contextlib.suppress(OSError):
                if self.call("GET", "/health")[0] == 200:
                    return self
            time.sleep(0.1)
        raise SystemExit("the server was not ready in time")

    def resident_mib(self):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        return float("nan")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Outrider(Server):
    def __init__(self, args, draft_len, num_slots):
        port = free_port()
        max_len = args.prompt_tokens + args.max_tokens + 16
        command = [args.outrider, "serve", "--model", args.self_target, "--port", str(port), "-t", str(args.threads)]
        command += ["--max-model-len", str(max_len), "--max-num-seqs", str(num_slots)]
        command += ["--no-enable-prefix-caching", "--log-level", "warning"]
        if draft_len > 0:
            command += ["--speculative-config.model", args.self_draft]
            command += ["--speculative-config.num_speculative_tokens", str(draft_len)]
        super().__init__(command + args.self_options.split(), port, "/v1/completions")

    def complete(self, prompt, max_tokens):
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        status, answer = self.call("POST", self.path, body)
        if status != 200:
            raise SystemExit(f"outrider answered {status}: {answer[:300]}")
        return json.loads(answer)["usage"]["completion_tokens"]


class Peer(Server):
    def __init__(self, args, draft_len, num_slots):
        port = free_port()
        context = num_slots * (args.prompt_tokens + args.max_tokens + 16)
        command = [str(args.peer_bin / "llama-server"), "-m", args.peer_target, "--port", str(port)]
        command += ["-t", str(args.threads), "-c", str(context), "-np", str(num_slots)]
        if draft_len > 0:
            command += ["-md", args.peer_draft, *args.peer_draft_options.format(draft_len).split()]
        self.folder = tempfile.TemporaryDirectory()  # it writes a log into where it runs
        super().__init__(command + args.peer_server_options.split(), port, "/completion", self.folder.name)

    def complete(self, prompt, max_tokens):
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
        status, answer = self.call("POST", self.path, body)
        if status != 200:
            raise SystemExit(f"the peer answered {status}: {answer[:300]}")
        return json.loads(answer)["tokens_predicted"]


def random_prompts(args, count, seed):
    """Token ids past the special and byte tokens of a Llama vocabulary; both sides take ids as they are."""
    rng = random.Random(seed)
    return [[rng.randrange(300, args.max_prompt_id) for _ in range(args.prompt_tokens)] for _ in range(count)]


def tokens_per_s(server, prompts, max_tokens):
    """All prompts at once; output tokens in total over the wall clock."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        counts = list(pool.map(lambda prompt: server.complete(prompt, max_tokens), prompts))
    return sum(counts) / (time.monotonic() - begin)


@contextlib.contextmanager
def running(args, *servers):
    try:
        for server in servers:
            server.wait_ready()
            server.complete(random_prompts(args, 1, 0)[0], 4)
        yield
    finally:
        for server in servers:
            server.stop()


def serve_both(args, draft_len, peer_draft_len, concurrencies, label):
    """Both servers at once, one of them asked at a time; samples by label(concurrency), and memory afterwards."""
    ours, theirs = Outrider(args, draft_len, max(concurrencies)), Peer(args, peer_draft_len, max(concurrencies))
    samples = {}
    with running(args, ours, theirs):
        for concurrency in concurrencies:

            def measure(server, number, concurrency=concurrency):
                prompts = random_prompts(args, concurrency, 1000 * concurrency + number)
                return {label(concurrency): tokens_per_s(server, prompts, args.max_tokens)}

            samples |= bench_runs.in_turns(args.passes, lambda n: measure(ours, n), lambda n: measure(theirs, n))
        memory = {label("memory"): {"self": [ours.resident_mib()], "peer": [theirs.resident_mib()]}}
    return samples, memory


def test_load(args):
    concurrencies = [int(n) for n in args.concurrencies.split(",")]
    peer_draft_len = 0 if args.peer_load_without_draft else args.load_draft_len

    def label(what):
        return what if what == "memory" else f"{what} in flight"

    samples, memory = serve_both(args, args.load_draft_len, peer_draft_len, concurrencies, label)
    bench_runs.print_ratios("server, all requests at once", "tokens/s in total", samples, higher_is_better=True)
    bench_runs.print_ratios("resident memory after it", "MiB", memory, higher_is_better=False)
    return samples | memory


def test_draft(args):
    samples, memory = {}, {}
    for draft_len in [int(n) for n in args.draft_lens.split(",")]:

        def label(what, draft_len=draft_len):
            return f"draft length {draft_len}, {'memory' if what == 'memory' else 'tokens/s'}"

        more, room = serve_both(args, draft_len, draft_len, [1], label)
        samples |= more
        memory |= room
    bench_runs.print_ratios("server, one request, greedy", "tokens/s", samples, higher_is_better=True)
    bench_runs.print_ratios("resident memory after it", "MiB", memory, higher_is_better=False)
    return samples | memory


TESTS = {"steps": test_steps, "prefill": test_prefill, "decode": test_decode, "load": test_load, "draft": test_draft}


def main():
    args = parse_arguments()
    samples = {}
    for test in args.tests:
        try:
            if args.openvino_python and test not in ("prefill", "decode"):
                raise CannotDo("OpenVINO GenAI is measured in prefill and decode only.")
            samples[test] = TESTS[test](args)
        except CannotDo as reason:
            print(f"\n{test}: left out. {reason}", flush=True)
    if args.json:
        record = {"arguments": {key: str(value) for key, value in vars(args).items()}, "samples": samples}
        pathlib.Path(args.json).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
