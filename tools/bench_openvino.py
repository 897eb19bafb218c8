#!/usr/bin/env python3
"""Measures OpenVINO GenAI on one model and prints {length: tokens/s} as JSON; tools/compare_peers.py runs it.

  bench_openvino.py prefill|decode --model FILE --lengths 512,4096 [--threads 2] [--repeat 2] [--max-tokens 32]

prefill: the prompt's tokens over the time to the first token. decode: further tokens after a prompt of that length,
over their time; length 0 is a prompt of one token. Prompts are random ids, each its own, so that no prefix is known
already. It wants a Python that has openvino-genai and numpy.
"""

import argparse
import json
import random
import statistics

import numpy
import openvino
import openvino_genai


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["prefill", "decode"])
    parser.add_argument("--model", required=True, help="a GGUF file, or a folder of OpenVINO's own format")
    parser.add_argument("--tokenizer", help="a folder of convert_tokenizer; its GGUF reader makes BPE tokenizers only")
    parser.add_argument("--lengths", required=True)
    parser.add_argument("--threads", type=int, default=0, help="0 = as many as it likes")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=32, help="of decode")
    parser.add_argument("--max-prompt-id", type=int, default=31000, help="prompts are random ids from 300 to this")
    return parser.parse_args()


def generate(pipeline, args, length, max_tokens):
    """The metrics of one greedy answer of exactly max_tokens tokens to a prompt of random ids."""
    ids = [[random.randrange(300, args.max_prompt_id) for _ in range(max(length, 1))]]
    prompt = openvino.Tensor(numpy.array(ids, dtype=numpy.int64))
    mask = openvino.Tensor(numpy.ones(prompt.shape, dtype=numpy.int64))
    inputs = openvino_genai.TokenizedInputs(prompt, mask)
    return pipeline.generate(inputs, max_new_tokens=max_tokens, ignore_eos=True, do_sample=False).perf_metrics


def tokens_per_s(pipeline, args, length):
    if args.kind == "prefill":
        return 1e3 * length / generate(pipeline, args, length, 1).get_ttft().mean
    return 1e3 / generate(pipeline, args, length, args.max_tokens + 1).get_tpot().mean


def main():
    args = parse_arguments()
    properties = {"INFERENCE_NUM_THREADS": args.threads} if args.threads > 0 else {}
    tokenizer = [openvino_genai.Tokenizer(args.tokenizer)] if args.tokenizer else []
    pipeline = openvino_genai.LLMPipeline(args.model, *tokenizer, "CPU", **properties)
    generate(pipeline, args, 16, 4)
    lengths = [int(length) for length in args.lengths.split(",")]
    rates = {n: statistics.median(tokens_per_s(pipeline, args, n) for _ in range(args.repeat)) for n in lengths}
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
