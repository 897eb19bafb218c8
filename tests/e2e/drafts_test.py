"""Drafts that come and go: no request fails, no token changes, and the draft is back soon."""

import concurrent.futures
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from cluster import DRAFTED_PAIR, PROGRAM, Server, children, free_port, left_of, run

PROMPTS = ["The sea was calm and", "Once upon a time there", "It is a truth universally"]
# What is accepted shall be the drafts', not that of the source which stands in for them.
RANK = [*DRAFTED_PAIR, "--speculative-config.backup", "none"]
ANY_DRAFT = ["--model", "embedded", "--speculative-config.num_speculative_tokens", "4", "--speculative-config.backup",
             "none"]
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
    def wait_for(self, what, condition, timeout_s=60):
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

        def has_accepted():  # a draft that has just come reads the texts first
            self.assertEqual(texts(server), expected)
            return server.metric(ACCEPTED) > before

        self.wait_for("accepted tokens", has_accepted)


class Restarts(DraftTest):
    """The engine of the draft rank, whatever happens to it."""

    def is_back(self, server, old, restarts):
        try:
            return self.is_up(server) and takeovers(server) >= restarts and server.engine_pid() != old
        except StopIteration:  # the coordinator has not heard yet that there is none
            return False

    def check_replaced(self, signals, timeout_s):
        with Server(3, *RANK, recovery=False) as server:
            expected = texts(server)
            with Load(server, expected) as load:
                for count, one in enumerate(signals, 1):
                    old = server.engine_pid()
                    time.sleep(0.1)
                    os.kill(old, one)
                    self.wait_for(f"a draft after signal {one}", lambda: self.is_back(server, old, count), timeout_s)
            self.assertEqual(load.problems, [])
            self.check_accepts(server, expected)
            processes = list(children(server.process.pid))
            self.assertEqual(server.stop(), 0, server.text_of_log())
            self.wait_for("all processes gone", lambda: not left_of(processes))
            return server.text_of_log()

    def test_killed_and_crashed(self):
        log = self.check_replaced([signal.SIGKILL, signal.SIGSEGV, signal.SIGKILL, signal.SIGKILL], 25)
        self.assertIn("was ended by signal 9", log)
        self.assertIn("was ended by signal 11", log)
        self.assertIn("draft worker (rank 2) does not answer", log)
        self.assertIn("draft worker (rank 2) drafts from here on", log)

    def test_stopped_for_good(self):
        self.assertIn("does not answer: it is ended", self.check_replaced([signal.SIGSTOP], 60))

    def test_the_job_ends_while_the_draft_is_away(self):
        with Server(3, *RANK, recovery=False) as server:
            os.kill(server.engine_pid(), signal.SIGSTOP)
            self.assertEqual(server.stop(), 0, server.text_of_log())

    def test_without_its_keeper_it_stays_away(self):
        with Server(2, *RANK, recovery=False) as server:
            expected = texts(server)
            keeper = next(iter(children(server.rank_pids()[1])))
            os.kill(keeper, signal.SIGKILL)
            self.wait_for("down", lambda: not self.is_up(server))
            self.assertEqual(texts(server), expected)
            self.assertIn("the draft stays away", server.text_of_log())
            self.assertEqual(server.stop(), 0, server.text_of_log())


class Attached:
    """`outrider draft`, attached to a job."""

    def __init__(self, port, *options, model="embedded", environment=None):
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        self.process = subprocess.Popen(
            [PROGRAM, "draft", "--connect", f"127.0.0.1:{port}", "--model", model, "--threads", "1", *options],
            stdout=self.log, stderr=self.log, env=dict(os.environ, **(environment or {})))

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.process.kill()
        self.process.wait()

    def text_of_log(self):
        with open(self.log.name) as file:
            return file.read()


def takeovers(server):
    return server.metric("outrider:draft_restarts_total")


class OverTcp(DraftTest):
    """Drafts outside the job."""

    def wait_serves(self, server, count, timeout_s=60):
        self.wait_for(f"takeover {count}", lambda: self.is_up(server) and takeovers(server) >= count, timeout_s)

    def test_join_late_leave_and_come_again(self):
        port = free_port()
        with Server(0, *ANY_DRAFT, "--draft-listen", f"127.0.0.1:{port}") as server:
            self.assertFalse(self.is_up(server))
            expected = texts(server)
            self.assertEqual(server.metric(ACCEPTED), 0)
            with Load(server, expected) as load:
                with Attached(port) as first:
                    self.wait_serves(server, 1)
                    self.check_accepts(server, expected)
                    first.process.send_signal(signal.SIGKILL)
                    self.wait_for("down", lambda: not self.is_up(server))
                with Attached(port) as second:
                    self.wait_serves(server, 2)
                    self.check_accepts(server, expected)
                    second.process.terminate()  # in an orderly way
                    self.assertEqual(second.process.wait(30), 0, second.text_of_log())
                    self.wait_for("down", lambda: not self.is_up(server))
                with Attached(port) as third:
                    self.wait_serves(server, 3)
                    third.process.send_signal(signal.SIGSTOP)
                    self.wait_for("down", lambda: not self.is_up(server))
                    third.process.send_signal(signal.SIGCONT)
                    self.wait_for("up", lambda: self.is_up(server))
                    self.check_accepts(server, expected)
            self.assertEqual(load.problems, [])
            self.assertEqual(server.stop(), 0, server.text_of_log())

    def test_two_drafts_and_a_rank_stand_in_for_each_other(self):
        port = free_port()
        with Server(2, *RANK, "--draft-listen", f"127.0.0.1:{port}", recovery=False) as server:
            expected = texts(server)
            with Load(server, expected) as load, Attached(port) as first, Attached(port):
                self.wait_for("two standing by", lambda: server.metric("outrider:draft_standbys") >= 2)
                os.kill(server.engine_pid(), signal.SIGKILL)
                self.wait_serves(server, 1)
                self.check_accepts(server, expected)
                self.wait_for("the rank back", lambda: server.metric("outrider:draft_standbys") >= 2)
                self.assertIn("drafts from here on", server.text_of_log())
                first.process.kill()
                os.kill(server.engine_pid(), signal.SIGKILL)
                self.wait_for("a draft", lambda: self.is_up(server))
                self.check_accepts(server, expected)
            self.assertEqual(load.problems, [])
            self.assertEqual(server.stop(), 0, server.text_of_log())

    def test_it_outlives_the_job_and_waits_for_the_next(self):
        port = free_port()
        with Attached(port) as draft:
            for _ in range(2):
                with Server(0, *ANY_DRAFT, "--draft-listen", f"127.0.0.1:{port}") as server:
                    self.wait_serves(server, 1)
                    self.check_accepts(server, texts(server))
                    self.assertEqual(server.stop(), 0, server.text_of_log())
            self.assertIn("the job has ended", draft.text_of_log())
            self.assertIsNone(draft.process.poll())

    def check_refused(self, port, words, *options, **more):
        with Attached(port, *options, **more) as draft:
            self.assertEqual(draft.process.wait(60), 2, draft.text_of_log())
            self.assertIn(words, draft.text_of_log())
            self.assertEqual(len(draft.text_of_log().strip().splitlines()), 1, draft.text_of_log())

    def test_keys_and_vocabularies(self):
        port = free_port()
        with Server(0, *ANY_DRAFT, "--draft-listen", f"127.0.0.1:{port}", "--draft-key", "open sesame") as server:
            self.check_refused(port, "the job asks for a key")
            self.check_refused(port, "its key is not the job's", "--draft-key", "open sesam")
            self.check_refused(port, "its key is not the job's", "--draft-key", "open sesameopen sesame")
            self.check_refused(port, "its tokens are not the target's", "--draft-key", "open sesame",
                               model="sim:step_ms=1")
            self.assertFalse(self.is_up(server))
            with Attached(port, environment={"OUTRIDER_DRAFT_KEY": "open sesame"}):
                self.wait_serves(server, 1)
            self.assertNotIn("sesame", server.text_of_log())

    def test_a_port_for_all_needs_a_key(self):
        for address in ("0.0.0.0:0", "[::]:0"):
            code, _, errors = run([PROGRAM, "serve", *ANY_DRAFT, "--port", "0", "--draft-listen", address])
            self.assertEqual(code, 2)
            self.assertIn("is for loopback addresses alone", errors)
        for address in ("7000", "localhost:", "::1:7000", "localhost:70000"):
            code, _, errors = run([PROGRAM, "serve", *ANY_DRAFT, "--port", "0", "--draft-listen", address])
            self.assertEqual(code, 2)
            self.assertIn("is no address", errors)

    def test_strangers_cost_nothing(self):
        port = free_port()
        with Server(0, *ANY_DRAFT, "--draft-listen", f"127.0.0.1:{port}") as server:
            expected = texts(server)
            strangers = []
            for data in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x10", b"\x04\x00\x00\x00OHLO", b"\x06\x00\x00\x00OHLO\x05",
                         b"\xff\xff\xff\xff" + bytes(4096), b"\x00\x00\x00\x00", b"\x0a\x00\x00\x00OHLO\x05\x00\xff\xff\xff\x7f"):
                for _ in range(3):  # more than may be at the door at once
                    stranger = socket.create_connection(("127.0.0.1", port))
                    stranger.sendall(data)
                    strangers.append(stranger)
            with Load(server, expected) as load, Attached(port):
                self.wait_serves(server, 1)  # the silent ones are sent away after 5 s
                self.check_accepts(server, expected)
            self.assertEqual(load.problems, [])
            for stranger in strangers:
                stranger.settimeout(30)
                try:
                    self.assertEqual(stranger.recv(1), b"")
                except ConnectionResetError:
                    pass
                stranger.close()
            self.assertEqual(server.stop(), 0, server.text_of_log())


if __name__ == "__main__":
    unittest.main()
