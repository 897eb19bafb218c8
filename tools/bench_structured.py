#!/usr/bin/env python3
"""Documents of a JSON schema against free text of the same lengths, and tokens a round, on a running server.

    python3 tools/bench_structured.py [--base-url http://127.0.0.1:8000] [--passes 4] [--num-prompts 64]
        [--max-concurrency 16] [--json FILE]

In turns, the first one alternating: the same seeded documents, then texts that are as long, by max_tokens. Tokens a
second are by wall clock. Tokens a round are by the server's own counters: nothing else may be asking it.
"""
import argparse
import concurrent.futures
import json
import pathlib
import time
import urllib.request

from bench_runs import in_turns, print_ratios

TEXT = {"type": "string", "maxLength": 24}


def closed(**properties):
    return {"type": "object", "additionalProperties": False, "required": list(properties), "properties": properties}


SCHEMA = closed(
    name=TEXT,
    email={"type": "string", "pattern": "^[a-z]{3,10}@[a-z]{3,8}\\.(com|org)$"},
    age={"type": "integer", "minimum": 0, "maximum": 120},
    member={"type": "boolean"},
    address=closed(street=TEXT, city=TEXT, country={"enum": ["Austria", "Belgium", "Denmark", "France", "Germany"]}),
    orders={"type": "array", "minItems": 2, "maxItems": 4, "items": closed(
        product=TEXT, quantity={"type": "integer", "minimum": 1, "maximum": 99},
        status={"enum": ["ordered", "paid", "sent", "returned"]})})
PROMPT = "Extract the customer as JSON: Maria Huber of Graz, 41, has ordered two lamps and a chair. Document number {}."
GRAMMAR = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}, "max_tokens": 600}
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"


class Load:
    def __init__(self, options):
        self.url, self.in_flight = options.base_url, options.max_concurrency
        self.common = [{"prompt": PROMPT.format(i), "temperature": 1, "seed": i} for i in range(options.num_prompts)]
        self.lengths = [said["usage"]["completion_tokens"] for said in self.wave([GRAMMAR] * len(self.common))[1]]

    def ask(self, body):
        request = urllib.request.Request(self.url + "/v1/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as response:
            return json.loads(response.read())

    def wave(self, fields):
        """Seconds, and the answers in order."""
        bodies = [{**common, **own} for common, own in zip(self.common, fields)]
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(self.in_flight) as pool:
            answers = list(pool.map(self.ask, bodies))
        return time.perf_counter() - begin, answers

    def num_accepted(self):
        with urllib.request.urlopen(self.url + "/metrics") as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(ACCEPTED + "{"))

    def figures(self, fields):
        before = self.num_accepted()
        seconds, answers = self.wave(fields)
        lengths = [said["usage"]["completion_tokens"] for said in answers]
        assert lengths == self.lengths, "the answers are not as long as the first ones"
        total = sum(lengths)
        per_round = total / (total - (self.num_accepted() - before))
        return {"tokens/s": total / seconds, "tokens a round": per_round}, answers

    def documents(self, _):
        found, answers = self.figures([GRAMMAR] * len(self.common))
        for said in answers:
            json.loads(said["choices"][0]["text"])
        return found

    def texts(self, _):
        return self.figures([{"max_tokens": length, "ignore_eos": True} for length in self.lengths])[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--passes", type=int, default=4)
    parser.add_argument("--num-prompts", type=int, default=64)
    parser.add_argument("--max-concurrency", type=int, default=16)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    load = Load(options)
    samples = in_turns(options.passes, load.documents, load.texts, names=("schema", "text"))
    lengths = sorted(load.lengths)
    print(f"{len(lengths)} answers of {lengths[0]} to {lengths[-1]} tokens, {options.max_concurrency} in flight")
    print_ratios("a JSON schema's documents against free text", "by wall clock", samples, higher_is_better=True)
    if options.json:
        options.json.write_text(json.dumps({"lengths": load.lengths, "samples": samples}))


if __name__ == "__main__":
    main()
