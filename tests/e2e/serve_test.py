"""The server as a job under mpirun: answers, equality with and without a draft, and faults of the draft."""

import concurrent.futures
import os
import signal
import time
import unittest

from cluster import DRAFTED_PAIR, PAIR, PROGRAM, Server, mpirun, run

PROMPTS = ["Once upon a time", "The king said to his daughter", "In the forest", "My dear Watson, I",
           "The soldiers", "It was a dark night and", "\"Where are you going?\" asked", "A"]


def completion(server, prompt, **options):
    body = {"prompt": prompt, "max_tokens": 60, "return_token_ids": True, **options}
    status, reply = server.post("/v1/completions", body)
    if status != 200:
        raise AssertionError(f"{status}: {reply}")
    return reply["choices"][0]


def all_at_once(server, **options):
    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
        answers = pool.map(lambda prompt: completion(server, prompt, **options), PROMPTS)
        return [answer["token_ids"] for answer in answers]


class SameText(unittest.TestCase):
    def check(self, server):
        for options in ({"temperature": 0}, {"temperature": 0.8, "seed": 11}):
            plain = all_at_once(server, speculative={"enabled": False}, **options)
            self.assertEqual(len({tuple(ids) for ids in plain}), len(PROMPTS))
            for draft_len in (1, 2, 4):
                drafted = all_at_once(server, speculative={"num_speculative_tokens": draft_len}, **options)
                self.assertEqual(plain, drafted)
            one_by_one = [completion(server, prompt, **options)["token_ids"] for prompt in PROMPTS]
            self.assertEqual(plain, one_by_one)
        self.assertGreater(server.metric("vllm:spec_decode_num_accepted_tokens_total"), 100)
        # Down for a moment where the machine stands still: it is up again with its next answer.
        end = time.time() + 30
        while server.metric("outrider:draft_up") != 1 and time.time() < end:
            completion(server, PROMPTS[0])
        self.assertEqual(server.metric("outrider:draft_up"), 1)
        self.assertTrue("\noutrider:draft_dropped_frames_total{" in server.get("/metrics"))
        self.assertEqual(server.metric("outrider:draft_dropped_frames_total"), 0)

    def test_two_targets_and_a_draft(self):
        with Server(3, *DRAFTED_PAIR) as server:
            self.check(server)
            self.assertEqual(server.stop(), 0, server.text_of_log())

    def test_one_process(self):
        with Server(0, *DRAFTED_PAIR) as server:
            self.check(server)
            self.assertEqual(server.stop(), 0, server.text_of_log())


class PrefixReuse(unittest.TestCase):
    """A conversation that grows: the same text with and without reuse, counted in usage and metrics."""

    def talk(self, server):
        ids, cached = [], []
        prompt = "The old king sat by the fire and told his three sons a tale of the sea. " * 3
        for _ in range(3):
            status, reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 40, "temperature": 0,
                                                            "return_token_ids": True})
            self.assertEqual(status, 200, reply)
            ids.append(reply["choices"][0]["token_ids"])
            cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
            prompt += reply["choices"][0]["text"] + " And then?"
        return ids, cached

    def test_two_targets_and_a_draft(self):
        with Server(3, *PAIR, "--no-enable-prefix-caching") as server:
            expected, cached = self.talk(server)
            self.assertEqual(cached, [0, 0, 0])
            self.assertEqual(server.metric("vllm:prefix_cache_queries_total"), 0)
        with Server(3, *PAIR) as server:
            ids, cached = self.talk(server)
            self.assertEqual(ids, expected)
            self.assertEqual(cached[0], 0)
            self.assertGreater(cached[1], 32)
            self.assertGreater(cached[2], cached[1])
            self.assertEqual(server.metric("vllm:prefix_cache_hits_total"), sum(cached))
            self.assertGreater(server.metric("vllm:prefix_cache_queries_total"), sum(cached))


    def test_only_requests_of_the_same_salt_share(self):
        with Server(3, *PAIR) as server:
            def ask(prompt, **fields):
                status, reply = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0,
                                                                **fields})
                self.assertEqual(status, 200, reply)
                return reply["usage"]["prompt_tokens_details"]["cached_tokens"], reply["choices"][0]["text"]

            prompt = "The old king sat by the fire and told his three sons a tale of the sea. " * 2
            texts = set()
            for salt in ("", "a", "b"):
                for is_known in (False, True):
                    cached, text = ask(prompt, cache_salt=salt)
                    self.assertEqual(cached > 16, is_known, salt)
                    texts.add(text)
            cached, text = ask(prompt, cache_prompt=False)
            self.assertEqual(cached, 0)
            self.assertEqual(texts, {text})

    def test_fingerprints_tell_types_of_keys_and_values_apart(self):
        fingerprints = set()
        for dtype in ("float32", "bfloat16", "int8"):
            with Server(1, "--model", "embedded", "--kv-cache-dtype", dtype) as server:
                status, reply = server.post("/v1/completions", {"prompt": "The old king", "max_tokens": 1})
                self.assertEqual(status, 200, reply)
                fingerprints.add(reply["system_fingerprint"])
        self.assertEqual(len(fingerprints), 3, fingerprints)

    def test_continued_messages_and_scores_of_prompts(self):
        user = {"role": "user", "content": "Tell me about the sea."}
        with Server(3, *PAIR) as server:
            status, scored = server.post("/v1/completions", {"prompt": "The old king", "max_tokens": 1, "echo": True,
                                                             "logprobs": 1, "prompt_logprobs": 1})
            self.assertEqual(status, 200, scored)
            self.assertRegex(scored["system_fingerprint"], r"^outrider-[0-9.]+-fast-tp2-[0-9a-f]{8}$")
            choice = scored["choices"][0]
            for i, entry in enumerate(choice["prompt_logprobs"][1:], 1):
                first = next(iter(entry.values()))
                self.assertEqual(first["logprob"], choice["logprobs"]["token_logprobs"][i])
                best = max(token["logprob"] for token in entry.values())
                self.assertEqual(best, next(t["logprob"] for t in entry.values() if t["rank"] == 1))
            begun = {"messages": [user, {"role": "assistant", "content": "The sea is"}], "max_tokens": 8,
                     "temperature": 0, "continue_final_message": True, "add_generation_prompt": False}
            status, answer = server.post("/v1/chat/completions", {**begun, "echo": True})
            self.assertEqual(status, 200, answer)
            status, text = server.post("/apply-template", begun)
            self.assertTrue(text["prompt"].endswith("The sea is"), text)
            status, again = server.post("/tokenize", begun)
            self.assertEqual(again["count"], answer["usage"]["prompt_tokens"])
            status, same = server.post("/v1/completions", {"prompt": again["tokens"], "max_tokens": 8, "temperature": 0})
            self.assertEqual(answer["choices"][0]["message"]["content"], "The sea is" + same["choices"][0]["text"])


class DraftFaults(unittest.TestCase):
    """Of an engine that comes back by itself; drafts_test.py has those that are started again. Under plain mpirun."""

    def keep_busy_until(self, server, draft_up, expected):
        # Down is noticed when an answer is overdue, so there must be work; and for seconds only, until it is replaced.
        end = time.time() + 60
        was_seen = False
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            while not was_seen and time.time() < end:
                work = pool.submit(all_at_once, server, temperature=0, max_tokens=400)
                while not was_seen and not work.done():
                    was_seen = server.metric("outrider:draft_up") == draft_up
                    time.sleep(0.01)
                self.assertEqual(work.result(), expected)
        self.assertTrue(was_seen, f"draft_up was never {draft_up}")

    def test_stopped_and_continued(self):
        with Server(3, *DRAFTED_PAIR, recovery=False) as server:
            expected = all_at_once(server, temperature=0, max_tokens=400)
            engine = server.engine_pid()
            os.kill(engine, signal.SIGSTOP)
            self.keep_busy_until(server, 0, expected)
            try:
                os.kill(engine, signal.SIGCONT)
            except ProcessLookupError:
                pass  # on a busy machine that took so long that its rank has replaced it
            self.keep_busy_until(server, 1, expected)
            before = server.metric("outrider:spec_decode_num_accepted_tokens_total")
            self.assertEqual(all_at_once(server, temperature=0, max_tokens=400), expected)
            self.assertGreater(server.metric("outrider:spec_decode_num_accepted_tokens_total"), before)


class JobFaults(unittest.TestCase):
    def test_a_dead_target_rank_ends_the_job(self):
        for recovery in (True, False):
            with Server(3, *PAIR, recovery=recovery) as server:
                completion(server, "x", temperature=0)
                os.kill(server.rank_pids()[1], signal.SIGKILL)
                code = server.wait_end(30)  # an mpirun that hangs is ended after 10 s
                self.assertIn("rank 1", server.text_of_log())
                # With --enable-recovery Open MPI 4.1's mpirun returns 0 whatever its ranks return.
                if not recovery:
                    self.assertNotEqual(code, 0)

    def test_a_rank_that_cannot_load_stops_all_with_one_sentence(self):
        code, _, errors = run([*mpirun(3, recovery=False), PROGRAM, "serve", "--model", "embedded",
                               "--speculative-config.model", "/no/such/model"])
        self.assertNotEqual(code, 0)
        sentences = [line for line in errors.splitlines() if "no/such/model" in line]
        self.assertEqual(len(sentences), 1, errors)
        self.assertIn("rank 2 (draft on", sentences[0])

    def test_a_wrong_number_of_ranks_is_one_sentence(self):
        code, _, errors = run([*mpirun(3, recovery=False), PROGRAM, "serve", *PAIR, "-tp", "4"])
        self.assertNotEqual(code, 0)
        self.assertEqual(len([line for line in errors.splitlines() if "mpirun -np 5" in line]), 1, errors)


if __name__ == "__main__":
    unittest.main(verbosity=2)
