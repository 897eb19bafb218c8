"""Prompt scoring as lm-evaluation-harness asks for it, against transformers and with and without a draft.

Sends the requests of the golden file (tools/make_lm_eval_golden.py) exactly as the harness's local-completions model
does, reads the answers as it does, and runs with the standard library alone; lm_eval_test.py runs the harness itself.
"""

import concurrent.futures
import json
import os
import unittest

from cluster import DRAFTED_PAIR, Server

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TARGET = ["--model", "embedded"]
ABS_TOLERANCE = 1e-4  # per token, nats


def golden():
    with open(os.path.join(ROOT, "tests", "golden", "lm_eval", "golden.json"), encoding="utf-8") as file:
        return json.load(file)


def chunks(items, size):
    return [items[start:start + size] for start in range(0, len(items), size)]


def post(server, body):
    status, reply = server.post("/v1/completions", body)
    if status != 200:
        raise AssertionError(f"{status}: {reply}")
    return sorted(reply["choices"], key=lambda choice: choice["index"])


def scored(server, requests, batch_size, max_tokens=1):
    """(log-probabilities of the continuation, is_greedy, whole logprobs object) of each request."""
    def one_batch(batch):
        choices = post(server, {"model": "embedded", "temperature": 0, "max_tokens": max_tokens, "logprobs": 1,
                                "seed": 1234, "echo": True,
                                "prompt": [request["context"] + request["continuation"] for request in batch]})
        return [read(request, choice["logprobs"]) for request, choice in zip(batch, choices, strict=True)]

    def read(request, logprobs):
        begin = len(request["context"])
        end = -1 if max_tokens == 1 else None
        values = logprobs["token_logprobs"][begin:end]
        tops = logprobs["top_logprobs"][begin:end]
        return values, all(value == max(top.values()) for value, top in zip(values, tops, strict=True)), logprobs

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return [answer for answers in pool.map(one_batch, chunks(requests, batch_size)) for answer in answers]


def generated(server, generations):
    def one(generation):
        options = generation["options"]
        return post(server, {"prompt": [generation["context"]], "model": "embedded", "seed": 1234,
                             "max_tokens": options["max_gen_toks"], "temperature": options["temperature"],
                             "stop": options["until"] + ["<|endoftext|>"]})[0]["text"]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        return list(pool.map(one, generations))


class LmEvalScoring(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.golden = golden()
        cls.requests = cls.golden["requests"]

    def expect_golden(self, answers):
        self.assertEqual(len(answers), len(self.requests))
        for request, (values, is_greedy, logprobs) in zip(self.requests, answers, strict=True):
            self.assertEqual(len(values), len(request["token_logprobs"]), request)
            for value, expected in zip(values, request["token_logprobs"], strict=True):
                self.assertTrue(abs(value - expected) <= ABS_TOLERANCE, f"{value}, not {expected}: {request}")
            self.assertEqual(is_greedy, request["is_greedy"], request)
            # Nothing but the first token is without a number, and all lists are parallel.
            self.assertIsNone(logprobs["token_logprobs"][0])
            self.assertIsNone(logprobs["top_logprobs"][0])
            self.assertNotIn(None, logprobs["token_logprobs"][1:])
            self.assertEqual(len({len(values) for values in logprobs.values()}), 1)

    def run_all(self, server):
        """Every answer of one server; texts are made while prompts are scored, so that batches are mixed."""
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            texts = pool.submit(generated, server, self.golden["generations"])
            one = scored(server, self.requests, batch_size=1)
            texts = texts.result()
        self.assertEqual([[text] for text in texts], self.golden["tasks"]["outrider_generate"]["answers"])
        self.expect_golden(one)
        self.assertEqual(scored(server, self.requests, batch_size=7), one)
        prompts_only = scored(server, self.requests, batch_size=3, max_tokens=0)
        self.expect_golden(prompts_only)
        for (values, is_greedy, logprobs), whole in zip(prompts_only, one, strict=True):
            self.assertEqual((values, is_greedy), whole[:2])
            self.assertEqual({name: items[:-1] for name, items in whole[2].items()}, logprobs)
        return one

    def compare(self, ranks_off, ranks_on):
        with Server(ranks_off, *TARGET) as server:
            off = self.run_all(server)
            self.assertEqual(server.stop(), 0, server.text_of_log())
        with Server(ranks_on, *DRAFTED_PAIR) as server:
            on = self.run_all(server)
            self.assertGreater(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 20)
            self.assertEqual(server.stop(), 0, server.text_of_log())
        self.assertEqual(off, on)  # the same JSON numbers

    def test_one_process(self):
        self.compare(0, 0)

    def test_two_targets_and_a_draft(self):
        self.compare(2, 3)

    def test_the_golden_file_covers_what_matters(self):
        end_tokens = {0, 4}
        self.assertGreater(sum(request["next_token"] in end_tokens for request in self.requests), 2)
        self.assertGreater(sum(request["is_greedy"] for request in self.requests), 5)
        self.assertGreater(sum(not request["is_greedy"] for request in self.requests), 50)
        self.assertGreater(max(len(request["context"] + request["continuation"]) for request in self.requests), 200)
        values = [value for request in self.requests for value in request["token_logprobs"]]
        self.assertGreater(len(set(values)), 800)


if __name__ == "__main__":
    unittest.main(verbosity=2)
