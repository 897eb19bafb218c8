"""Target ranks that are killed, stopped or cut off, at any moment: seen in time and named, every client told, nothing
left; and a draft rank, whose loss ends nothing. Two hosts are network namespaces, where this user may make them."""

import http.client
import os
import signal
import threading
import time
import unittest
import urllib.error

from cluster import DRAFTED_PAIR, Server, children, left_of, tasks_of, text_of, unix_handler
from faults_test import stream
from two_hosts import TwoHosts, reason_against

TIMEOUT_S = 2
WATCHED = ["--watchdog-timeout", str(TIMEOUT_S)]
TWO_TARGETS = ["--model", "embedded", "-tp", "2"]
GONE_S = 15  # 10 s are promised with a timeout of 5 s; a disturbed machine may add some
# After a loss, no sooner do the ranks' shells end mpirun: seven tenths of the timeout, and kTimeForLauncher.
LAUNCHER_S = 0.7 * TIMEOUT_S + 3.25
SENTENCE = r"rank {} \((coordinator\+)?target\[{}/2\] on \S+?(, process \d+)?\) is (lost: rank \d, in .*, has not heard|gone)"


class Calls:
    """Streams and whole calls, one after the other until one fails, and what /readyz says meanwhile (0: no answer)."""

    def __init__(self, server, num_streams=3):
        self.server, self.streams, self.wholes, self.ready = server, [], [], []
        self.threads = [threading.Thread(target=self.stream) for _ in range(num_streams)]
        self.threads.append(threading.Thread(target=self.whole))
        self.stopped = threading.Event()
        self.watcher = threading.Thread(target=self.watch)
        for thread in [*self.threads, self.watcher]:
            thread.start()
        # All are in: one that came after the loss could find nobody.
        while (server.metric("outrider:rounds_total") < 10 or
               server.metric("vllm:request_params_n_count") < len(self.threads)):
            time.sleep(0.005)

    # A later call is one whose client was just served to the end: it may come after the last word.
    def stream(self):
        is_later = False
        while True:
            ids, error = stream(self.server, "Once upon a time", max_tokens=900)
            if error or len(ids) < 900:
                self.streams.append((ids, error, is_later))
                return
            is_later = True

    def whole(self):
        body = {"prompt": "The king", "max_tokens": 900, "ignore_eos": True}
        is_later = False
        while True:
            try:
                status, answer = self.server.post("/v1/completions", body)
            except (OSError, http.client.HTTPException) as problem:
                status, answer = 0, {"error": {"message": f"cut: {problem}"}}
            if status != 200:
                self.wholes.append((status, answer, is_later))
                return
            is_later = True

    def watch(self):
        while not self.stopped.is_set():
            try:
                self.server.get("/readyz")
                self.ready.append(200)
            except urllib.error.HTTPError as problem:
                self.ready.append(problem.code)
            except (OSError, http.client.HTTPException):
                self.ready.append(0)
            time.sleep(0.01)

    def end(self):
        for thread in self.threads:
            thread.join()
        self.stopped.set()
        self.watcher.join()


def wait_for_threads(pid):
    """Until each thread has run and waits: the watchdog's has sent its first datagram, and the rank would be missed."""
    def has_waited(task):
        status = text_of(f"/proc/{pid}/task/{task}/status") or ""
        return "\nvoluntary_ctxt_switches:\t0\n" not in status

    end = time.time() + 1
    while not all(map(has_waited, tasks_of(pid))) and time.time() < end:
        time.sleep(0.001)


def processes_of(server):
    return [server.process.pid, *children(server.process.pid)]


class Watched(unittest.TestCase):
    def expect_end(self, server, pids, since, rank, codes=(70,)):
        """Seen and named, the job ended with one of these codes, and nothing is left of it."""
        returned = server.wait_end(GONE_S + 10)
        took = time.time() - since
        while left_of(pids) and time.time() < since + GONE_S:
            time.sleep(0.05)
        self.assertEqual(left_of(pids), [], server.text_of_log())
        self.assertRegex(server.text_of_log(), SENTENCE.format(rank, rank))
        # On a machine so busy that mpirun had to be ended, or when it hangs as ranks end at once, its code is its own.
        if took < LAUNCHER_S:
            self.assertIn(returned, codes, server.text_of_log())
        self.assertNotEqual(returned, 0)

    def expect_all_told(self, server, calls, sentence):
        calls.end()
        self.assertEqual(len(calls.streams) + len(calls.wholes), len(calls.threads), "a client has failed")
        for ids, error, is_later in calls.streams:
            if error is None and not ids and is_later:
                continue
            self.assertIsNotNone(error, server.text_of_log())
            self.assertRegex(error["message"], sentence)
        for status, body, is_later in calls.wholes:
            if status == 0 and is_later:
                continue
            self.assertEqual(status, 503, body)
            self.assertRegex(body["error"]["message"], sentence)
        # 503 for the moment that is left, then nobody answers.
        not_ready = next(i for i, status in enumerate(calls.ready) if status != 200)
        self.assertNotIn(200, calls.ready[not_ready:])


class OneHost(Watched):
    def test_a_stopped_target_while_streaming(self):
        with Server(3, *DRAFTED_PAIR, *WATCHED, recovery=False) as server:
            pids, ranks = processes_of(server), server.rank_pids()
            calls = Calls(server)
            since = time.time()
            os.kill(ranks[1], signal.SIGSTOP)
            self.expect_end(server, pids, since, 1)
            self.expect_all_told(server, calls, "the job has ended: " + SENTENCE.format(1, 1))

    def test_a_stopped_target_while_idle(self):
        with Server(2, *TWO_TARGETS, *WATCHED, recovery=False) as server:
            pids, ranks = processes_of(server), server.rank_pids()
            since = time.time()
            os.kill(ranks[1], signal.SIGSTOP)
            self.expect_end(server, pids, since, 1)

    def test_the_coordinator_stopped(self):
        with Server(3, *DRAFTED_PAIR, *WATCHED, recovery=False) as server:
            pids, ranks = processes_of(server), server.rank_pids()
            since = time.time()
            os.kill(ranks[0], signal.SIGSTOP)
            self.expect_end(server, pids, since, 0)

    def test_the_only_target_stopped_beside_its_draft(self):
        with Server(2, *DRAFTED_PAIR, *WATCHED, recovery=False) as server:
            pids, ranks = processes_of(server), server.rank_pids()
            since = time.time()
            os.kill(ranks[0], signal.SIGSTOP)
            server.wait_end(GONE_S + 10)
            self.assertIn("rank 0 (coordinator+target[0/1] on", server.text_of_log())
            while left_of(pids) and time.time() < since + GONE_S:
                time.sleep(0.05)
            self.assertEqual(left_of(pids), [])

    def test_a_stopped_target_at_load(self):
        with Server(2, *TWO_TARGETS, *WATCHED, recovery=False, wait_s=0) as server:
            while "listening on" not in server.text_of_log():
                time.sleep(0.002)
            pids, ranks = processes_of(server), server.rank_pids()
            wait_for_threads(ranks[1])
            since = time.time()
            os.kill(ranks[1], signal.SIGSTOP)
            self.expect_end(server, pids, since, 1)

    def test_a_rank_that_looks_at_nothing_is_ended_too(self):
        # A step of 6 s on two ranks, in which rank 0's round asks for nobody.
        with Server(2, "--model", "sim:step_ms=12000", "-tp", "2", *WATCHED, recovery=False) as server:
            pids, ranks = processes_of(server), server.rank_pids()
            answers = []
            call = threading.Thread(target=lambda: answers.append(stream(server, "word", max_tokens=5)))
            call.start()
            while server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == 0:
                time.sleep(0.01)
            time.sleep(0.5)
            since = time.time()
            os.kill(ranks[1], signal.SIGSTOP)
            self.expect_end(server, pids, since, 1)
            call.join()
            self.assertRegex(answers[0][1]["message"], "the job has ended: " + SENTENCE.format(1, 1))

    def test_a_killed_target(self):
        with Server(3, *DRAFTED_PAIR, *WATCHED, recovery=False) as server:
            pids, ranks = processes_of(server), server.rank_pids()
            calls = Calls(server)
            since = time.time()
            os.kill(ranks[1], signal.SIGKILL)
            # mpirun says what the first process ended with, and may have told the ranks to stop first.
            self.expect_end(server, pids, since, 1, (70, 137))
            self.expect_all_told(server, calls, "the job has ended: .*is gone|the server is shutting down|draining")

    def test_a_stopped_target_and_then_sigterm(self):
        with Server(2, *TWO_TARGETS, *WATCHED, recovery=False) as server:
            pids, ranks = processes_of(server), server.rank_pids()
            since = time.time()
            os.kill(ranks[1], signal.SIGSTOP)
            server.process.terminate()
            server.wait_end(GONE_S + 10)
            while left_of(pids) and time.time() < since + GONE_S:
                time.sleep(0.05)
            self.assertEqual(left_of(pids), [])

    def test_a_stopped_draft_rank_ends_nothing(self):
        with Server(3, *DRAFTED_PAIR, *WATCHED, recovery=False) as server:
            pids, ranks = processes_of(server), server.rank_pids()
            expected, _ = stream(server, "Once upon a time", max_tokens=100)
            os.kill(ranks[2], signal.SIGSTOP)
            end = time.time() + 3 * TIMEOUT_S
            while time.time() < end:
                ids, error = stream(server, "Once upon a time", max_tokens=100)
                self.assertEqual((ids, error), (expected, None))
            self.assertEqual(server.get("/readyz"), '{"status":"ready"}')
            self.assertIsNone(server.process.poll())
            since = time.time()
            server.stop(30)
            while left_of(pids) and time.time() < since + GONE_S:
                time.sleep(0.05)
            self.assertEqual(left_of(pids), [])
            self.assertNotIn("is lost", server.text_of_log())

    def test_without_a_watchdog_nobody_looks(self):
        with Server(2, *TWO_TARGETS, "--watchdog-timeout", "0", recovery=False) as server:
            ranks = server.rank_pids()
            os.kill(ranks[1], signal.SIGSTOP)
            time.sleep(2 * TIMEOUT_S)
            self.assertIsNone(server.process.poll())
            os.kill(ranks[1], signal.SIGCONT)
            ids, error = stream(server, "Once upon a time", max_tokens=10)
            self.assertEqual((len(ids), error), (10, None))
            self.assertEqual(server.stop(), 0)

    def test_ranks_with_other_timeouts_are_refused(self):
        with Server(2, *TWO_TARGETS, recovery=False, wait_s=0,
                    launcher=["sh", "-c", 'exec mpirun --oversubscribe --bind-to none -np 1 "$@" --watchdog-timeout 3 : '
                              '-np 1 "$@" --watchdog-timeout 4', "sh"]) as server:
            self.assertEqual(server.wait_end(30), 2, server.text_of_log())
            self.assertIn("it has watchdog_timeout 4 where rank 0 has watchdog_timeout 3", server.text_of_log())


REASON = reason_against()


@unittest.skipIf(REASON, REASON)
class AcrossHosts(Watched):
    """The link between two hosts goes down: each side ends by itself, and so do mpirun and its daemon there."""

    def start(self, stack_of_hosts, num_first, num_second, *options):
        path = os.path.join(str(stack_of_hosts.folder), "socket")
        return Server(num_first + num_second, *options, *WATCHED, "--uds", path, handlers=[unix_handler(path)],
                      launcher=stack_of_hosts.mpirun(num_first, num_second))

    def test_a_cut_target_while_streaming(self):
        with TwoHosts() as hosts, self.start(hosts, 1, 1, *TWO_TARGETS) as server:
            pids = processes_of(server)
            self.assertGreaterEqual(len(pids), 4)  # mpirun, its daemon, two ranks
            calls = Calls(server)
            since = time.time()
            hosts.set_link("down")
            # What mpirun returns when it has to be ended: by SIGTERM 1 or a crash of its own, by SIGKILL -9.
            self.expect_end(server, pids, since, 1, range(-15, 256))
            self.expect_all_told(server, calls, "the job has ended: " + SENTENCE.format(1, 1))

    def test_a_cut_target_while_idle_and_sigterm(self):
        with TwoHosts() as hosts, self.start(hosts, 1, 1, *TWO_TARGETS) as server:
            pids = processes_of(server)
            since = time.time()
            hosts.set_link("down")
            server.process.terminate()
            server.wait_end(GONE_S + 10)
            while left_of(pids) and time.time() < since + GONE_S:
                time.sleep(0.05)
            self.assertEqual(left_of(pids), [], server.text_of_log())

    def test_a_draft_that_is_cut_off_comes_back(self):
        with TwoHosts() as hosts, self.start(hosts, 1, 1, *DRAFTED_PAIR) as server:
            expected, _ = stream(server, "Once upon a time", max_tokens=100)
            hosts.set_link("down")
            end = time.time() + 3 * TIMEOUT_S
            while time.time() < end:
                ids, error = stream(server, "Once upon a time", max_tokens=100)
                self.assertEqual((ids, error), (expected, None))
            hosts.set_link("up")
            end = time.time() + 60
            while server.metric("outrider:draft_up") != 1 and time.time() < end:
                ids, error = stream(server, "Once upon a time", max_tokens=100)
                self.assertEqual((ids, error), (expected, None))
            self.assertEqual(server.metric("outrider:draft_up"), 1)
            self.assertNotIn("is lost", server.text_of_log())
            self.assertEqual(server.stop(), 0, server.text_of_log())

    def test_a_draft_that_is_cut_off_keeps_no_job_from_ending(self):
        with TwoHosts() as hosts, self.start(hosts, 1, 1, *DRAFTED_PAIR, "--watchdog-port", "30200") as server:
            for rank in (0, 1):
                self.assertIn(f":{30200 + rank:04X} ", hosts.run_on(rank + 1, "cat", "/proc/net/udp"))
            pids = processes_of(server)
            hosts.set_link("down")
            since = time.time()
            server.stop(60)  # mpirun is ended after some 20 s
            # The draft's side cannot know that it is over: it waits twelve times as long.
            while left_of(pids) and time.time() < since + 12 * TIMEOUT_S + GONE_S:
                time.sleep(0.05)
            self.assertEqual(left_of(pids), [], server.text_of_log())


if __name__ == "__main__":
    unittest.main(verbosity=2)
