"""Drafts that come and go: no request fails, no token changes, and the draft is back soon."""

import concurrent.futures
import os
import signal
import threading
import time
import unittest

from cluster import DRAFTED_PAIR, Server, children

PROMPTS = ["The sea was calm and", "Once upon a time there", "It is a truth universally"]
ACCEPTED = "outrider:spec_decode_num_accepted_tokens_total"


def completion(server, prompt, **options):
    status, answer = server.post("/v1/completions", {"prompt": prompt, "return_token_ids": True, **options})
    if status != 200:
        raise AssertionError(answer)
    return answer["choices"][0]["token_ids"]


def texts(server, max_tokens=200):
    """Greedy and seeded tokens of all prompts at once."""
    asks = [(prompt, options) for prompt in PROMPTS
            for options in ({"temperature": 0}, {"temperature": 0.8, "seed": 7})]
    with concurrent.futures.ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(lambda ask: completion(server, ask[0], max_tokens=max_tokens, ignore_eos=True, **ask[1]),
                             asks))


class Load:
    """Asks for the same texts again and again on a thread, and compares them."""

    def __init__(self, server, expected):
        self.server, self.expected = server, expected
        self.num_rounds, self.problems, self.over = 0, [], threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.over.is_set() and not self.problems:
            try:
                if texts(self.server) != self.expected:
                    self.problems.append("another text")
            except Exception as error:  # whatever it is, a request has failed
                self.problems.append(repr(error))
            self.num_rounds += 1

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *unused):
        self.over.set()
        self.thread.join()


class DraftTest(unittest.TestCase):
    def wait_for(self, what, condition, timeout_s=20):
        end = time.time() + timeout_s
        while time.time() < end:
            if condition():
                return
            time.sleep(0.02)
        self.fail(f"not in {timeout_s} s: {what}")

    def is_up(self, server):
        return server.metric("outrider:draft_up") == 1

    def check_accepts(self, server, expected):
        before = server.metric(ACCEPTED)
        self.assertEqual(texts(server), expected)
        self.assertGreater(server.metric(ACCEPTED), before)


class Restarts(DraftTest):
    """The engine of the draft rank, whatever happens to it."""

    def is_back(self, server, old, restarts):
        return self.is_up(server) and server.engine_pid() not in (None, old) and \
            server.metric("outrider:draft_restarts_total") >= restarts

    def check_replaced(self, signals, timeout_s):
        with Server(3, *DRAFTED_PAIR, recovery=False) as server:
            expected = texts(server)
            with Load(server, expected) as load:
                for count, one in enumerate(signals, 1):
                    old = server.engine_pid()
                    time.sleep(0.1)
                    os.kill(old, one)
                    self.wait_for(f"a draft after signal {one}", lambda: self.is_back(server, old, count), timeout_s)
            self.assertEqual(load.problems, [])
            self.check_accepts(server, expected)
            processes = [pid for pids in (children(server.process.pid),) for pid in pids]
            self.assertEqual(server.stop(), 0, server.text_of_log())
            self.wait_for("all processes gone", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in processes), 5)
            return server.text_of_log()

    def test_killed_and_crashed(self):
        log = self.check_replaced([signal.SIGKILL, signal.SIGSEGV, signal.SIGKILL, signal.SIGKILL], 10)
        self.assertIn("was ended by signal 9", log)
        self.assertIn("was ended by signal 11", log)
        self.assertIn("draft worker (rank 2) does not answer", log)
        self.assertIn("draft worker (rank 2) was started again", log)

    def test_stopped_for_good(self):
        self.assertIn("does not answer: it is ended", self.check_replaced([signal.SIGSTOP], 20))

    def test_the_job_ends_while_the_draft_is_away(self):
        with Server(3, *DRAFTED_PAIR, recovery=False) as server:
            os.kill(server.engine_pid(), signal.SIGSTOP)
            self.assertEqual(server.stop(), 0, server.text_of_log())

    def test_without_its_keeper_it_stays_away(self):
        with Server(2, *DRAFTED_PAIR, recovery=False) as server:
            expected = texts(server)
            keeper = next(iter(children(server.rank_pids()[1])))
            os.kill(keeper, signal.SIGKILL)
            self.wait_for("down", lambda: not self.is_up(server))
            self.assertEqual(texts(server), expected)
            self.assertIn("the draft stays away", server.text_of_log())
            self.assertEqual(server.stop(), 0, server.text_of_log())


if __name__ == "__main__":
    unittest.main()
