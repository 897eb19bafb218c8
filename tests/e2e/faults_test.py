"""Faults on purpose (OUTRIDER_FAULT) under mpirun: ranks that disagree, and NaN in one request."""

import concurrent.futures
import json
import os
import re
import signal
import time
import unittest
import urllib.error

from cluster import DRAFTED_PAIR, PAIR, PROGRAM, Server, children, job_code, left_of, mpirun, run

PROMPTS = ["Once upon a time", "The king said to his daughter", "In the forest", "My dear Watson, I",
           "The soldiers", "It was a dark night and", "\"Where are you going?\" asked", "A"]


def stream(server, prompt, **options):
    """(token ids received, error object or None) of a streamed completion that may be cut."""
    ids, error = [], None
    try:
        for event in server.events("/v1/completions", {"prompt": prompt, "return_token_ids": True, "temperature": 0,
                                                       "ignore_eos": True, **options}):
            error = event.get("error", error)
            for choice in event.get("choices", []):
                ids += choice.get("token_ids") or []
    except urllib.error.HTTPError as problem:
        error = json.loads(problem.read())["error"]
    return ids, error


def all_at_once(server, **options):
    body = {"max_tokens": 40, "return_token_ids": True, **options}
    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(lambda prompt: server.post("/v1/completions", {"prompt": prompt, **body}), PROMPTS))


class JobCode(unittest.TestCase):
    """What tests take for a job's exit code when mpirun itself may have died."""

    SAID = ("mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be "
            "terminated. The first process to do so was:\n\n  Process name: [[50833,1],0]\n  Exit code:    70\n")

    def test_only_a_crash_after_the_sentence_is_overlooked(self):
        self.assertEqual(job_code(-11, self.SAID + "[host:1] *** Process received signal ***\n"), 70)
        self.assertEqual(job_code(-11, "Exit code:    70\n"), -11)
        killed = "mpirun noticed that process rank 1 with PID 71 on node host exited on signal 9 (Killed).\n"
        self.assertEqual(job_code(-11, killed + "[host:1] *** Process received signal ***\n"), 137)
        for returned in (0, 1, 70, 137, -6, -9):
            self.assertEqual(job_code(returned, self.SAID), returned)
            self.assertEqual(job_code(returned, killed), returned)


class Divergence(unittest.TestCase):
    """The job stops in that round: no token of it reaches a client, no rank survives."""

    def check(self, num_ranks, fault, sentence, recovery=False, drafts=True):
        with Server(num_ranks, *DRAFTED_PAIR, recovery=recovery, fault=fault) as server:
            pids = list(children(server.process.pid))
            self.assertGreaterEqual(len(pids), num_ranks)
            options = {"max_tokens": 400}
            if not drafts:
                options["speculative"] = {"enabled": False}
            with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
                answers = [pool.submit(stream, server, prompt, **options) for prompt in PROMPTS]
                code = server.wait_end()
                received = [answer.result()[0] for answer in answers]
            log = server.text_of_log()
            if not recovery:  # with it Open MPI 4.1's mpirun returns 0 whatever its ranks return
                self.assertEqual(code, 70, log)
            said = re.search(sentence, log)
            self.assertTrue(said, log)
            end = time.time() + 30
            while left_of(pids) and time.time() < end:
                time.sleep(0.05)
            self.assertEqual(left_of(pids), [], "still there")
            return int(said.group(1)), received

    def test_two_targets(self):
        sentence = (r"round (\d+) was decided differently by the target ranks: "
                    r"rank 0 \(coordinator\+target\[0/2\], digest \w+\), rank 1 \(target\[1/2\]")
        for rank in (0, 1):
            round_of_end, _ = self.check(3, f"flip_decision:rank={rank},round=20", sentence)
            self.assertEqual(round_of_end, 20)
        self.check(3, "flip_decision:rank=1,round=5,field=accepted", sentence)
        self.check(3, "flip_decision:rank=1,round=20", sentence, recovery=True)

    def test_four_targets_name_the_one(self):
        for rank, name in ((0, r"coordinator\+target\[0/4\]"), (3, r"target\[3/4\]")):
            round_of_end, _ = self.check(5, f"flip_decision:rank={rank},round=12",
                                         rf"round (\d+) was decided differently by rank {rank} \({name}\)")
            self.assertEqual(round_of_end, 12)

    def test_no_token_of_the_round_reaches_a_client(self):
        # One token per sequence and round: nobody can have more than the rounds before gave.
        round_of_end, received = self.check(3, "flip_decision:rank=1,round=30", r"round (\d+) was", drafts=False)
        self.assertEqual(round_of_end, 30)
        self.assertLessEqual(max(map(len, received)), 29)
        self.assertGreater(max(map(len, received)), 20)

    def test_the_last_round_before_idle(self):
        with Server(2, "--model", "embedded", "-tp", "2", recovery=False, fault="flip_decision:rank=1,round=12") as server:
            ids, _ = stream(server, PROMPTS[0], max_tokens=12)
            self.assertEqual(server.wait_end(), 70)
            self.assertIn("round 12 was decided differently", server.text_of_log())
            self.assertLess(len(ids), 12)

    def test_one_process(self):
        with Server(0, *PAIR, "-tp", "4", fault="flip_decision:rank=2,round=9") as server:
            stream(server, PROMPTS[0], max_tokens=100)
            self.assertEqual(server.wait_end(), 70)
            self.assertIn("round 9 was decided differently by rank 2 (target[2/4])", server.text_of_log())

    def test_a_wrong_text_is_refused(self):
        code, _, errors = run([*mpirun(3, recovery=False), "-x", "OUTRIDER_FAULT=flip_decision:rank=5,round=1",
                               PROGRAM, "serve", *PAIR, "--port", "0"], timeout_s=30)
        self.assertNotEqual(code, 0)
        sentences = [line for line in errors.splitlines() if "OUTRIDER_FAULT" in line]
        self.assertEqual(len(sentences), 1, errors)
        self.assertIn("names rank 5 of 2 target ranks", sentences[0])


class LastWords(unittest.TestCase):
    """When a job ends under its clients each is told: an error event in its stream, or a 5xx."""

    SLOW = ["--model", "sim:step_ms=20", "--max-model-len", "1024"]  # 900 tokens take 18 s

    def check(self, end, sentence, code):
        with Server(3, *self.SLOW, "--speculative-config.model", "sim:step_ms=2", recovery=False) as server:
            options = {"max_tokens": 900, "speculative": {"enabled": False}}
            body = {"prompt": PROMPTS[0], "ignore_eos": True, **options}
            with concurrent.futures.ThreadPoolExecutor(12) as pool:
                streams = [pool.submit(stream, server, prompt, **options) for prompt in PROMPTS[:6]]
                wholes = [pool.submit(server.post, "/v1/completions", body) for _ in range(6)]
                # All are in: one that came after the end could find nobody.
                while (server.metric("outrider:rounds_total") < 10 or
                       server.metric("vllm:request_params_n_count") < 12):
                    time.sleep(0.005)
                end(server)
                returned = server.wait_end()
                for answer in streams:
                    error = answer.result()[1]
                    self.assertIsNotNone(error, server.text_of_log())
                    self.assertRegex(error["message"], sentence)
                for answer in wholes:
                    status, body = answer.result()
                    self.assertEqual(status, 503, body)
                    self.assertRegex(body["error"]["message"], sentence)
            if code is not None:
                self.assertEqual(returned, code, server.text_of_log())

    def test_a_target_rank_dies(self):
        def kill(server):
            os.kill(server.rank_pids()[1], signal.SIGKILL)
        # mpirun may tell the ranks to stop first, and a call may come after that.
        self.check(kill, r"the job has ended: rank 1 \(.*\) is (gone|lost)|the server is shutting down|draining", None)

    def test_a_target_rank_dies_unseen_by_mpirun(self):
        """Which leaves a zombie that still has its process id."""
        with Server(2, *self.SLOW, "-tp", "2") as server:
            events = server.events("/v1/completions", {"prompt": PROMPTS[0], "ignore_eos": True, "max_tokens": 900})
            next(events)
            rank_pid = server.rank_pids()[1]
            os.kill(server.process.pid, signal.SIGSTOP)
            os.kill(rank_pid, signal.SIGKILL)
            errors = [event["error"]["message"] for event in events if "error" in event]
            os.kill(server.process.pid, signal.SIGCONT)
            server.wait_end()
        self.assertEqual(len(errors), 1)
        self.assertRegex(errors[0], r"the job has ended: rank 1 \(target\[1/2\] on \S+, process \d+\) is gone")

    def test_the_first_rank_cannot_end_the_job(self):
        """And mpirun does not: another of the ranks that saw the death does."""
        with Server(3, *self.SLOW, "-tp", "3", "--watchdog-timeout", "0") as server:
            ranks = server.rank_pids()
            calls = server.events("/v1/completions", {"prompt": PROMPTS[0], "ignore_eos": True, "max_tokens": 900})
            next(calls)
            os.kill(server.process.pid, signal.SIGSTOP)
            os.kill(ranks[0], signal.SIGSTOP)
            os.kill(ranks[2], signal.SIGKILL)
            end = time.time() + 30
            while left_of([ranks[1]]) and time.time() < end:
                time.sleep(0.05)
            self.assertEqual(left_of([ranks[1]]), [], "it waits for rank 0")
            os.kill(ranks[0], signal.SIGCONT)
            os.kill(server.process.pid, signal.SIGCONT)
            server.wait_end()

    def test_the_ranks_disagree(self):
        with Server(2, *PAIR[:2], recovery=False, fault="flip_decision:rank=1,round=60") as server:
            _, error = stream(server, PROMPTS[0], max_tokens=400)
            self.assertEqual(server.wait_end(), 70, server.text_of_log())
            self.assertRegex((error or {}).get("message", ""), "the job has ended: round 60 was decided differently")

    def test_mpirun_is_terminated(self):
        self.check(lambda server: server.process.terminate(), "the server is shutting down", None)

    def test_mpirun_is_terminated_with_time_to_drain(self):
        environment = {"OMPI_MCA_odls_base_sigkill_timeout": "6"}
        with Server(3, *DRAFTED_PAIR, recovery=False, environment=environment) as server:
            with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
                answers = [pool.submit(stream, server, prompt, max_tokens=700) for prompt in PROMPTS]
                while (server.metric("outrider:rounds_total") < 10 or
                       server.metric("vllm:request_params_n_count") < len(PROMPTS)):
                    time.sleep(0.005)
                server.process.terminate()
                for answer in answers:
                    ids, error = answer.result()
                    self.assertIsNone(error)
                    self.assertEqual(len(ids), 700)
            server.wait_end()


class Nan(unittest.TestCase):
    """That request ends with an error; the others' text is as ever; all blocks come back and are clean."""

    def expect_all_blocks_back(self, server):
        end = time.time() + 10  # the gauge is set a moment after the last answer
        while server.metric("vllm:kv_cache_usage_perc") > 0 and time.time() < end:
            time.sleep(0.05)
        self.assertEqual(server.metric("vllm:kv_cache_usage_perc"), 0)

    def check(self, num_ranks, *options):
        # Requests 1-8, 9-16, ... in order of arrival; who of a group is hit is chance.
        fault = "nan_logits:sequence=11,output=5,rank={0};nan_logits:sequence=25,output=7,rank={0}".format(
            1 if num_ranks else 0)
        with Server(num_ranks, *DRAFTED_PAIR, *options, recovery=False, fault=fault) as server:
            self.assertIn("WILL MISBEHAVE ON PURPOSE", server.text_of_log())
            expected = [reply["choices"][0]["token_ids"] for _, reply in all_at_once(server, temperature=0)]
            hit = all_at_once(server, temperature=0)
            failed = [i for i, (status, _) in enumerate(hit) if status != 200]
            self.assertEqual(len(failed), 1)
            status, reply = hit[failed[0]]
            self.assertEqual(status, 500)
            self.assertEqual(reply["error"]["message"], "the model produced NaN or infinite logits")
            self.assertEqual(reply["error"]["type"], "server_error")
            for i, (_, other) in enumerate(hit):
                if i not in failed:
                    self.assertEqual(other["choices"][0]["token_ids"], expected[i])
            again = [reply["choices"][0]["token_ids"] for _, reply in all_at_once(server, temperature=0)]
            self.assertEqual(again, expected)
            # Request 25, streamed: what was right, then the error event.
            ids, error = stream(server, PROMPTS[0], max_tokens=40)
            self.assertEqual(error["message"], "the model produced NaN or infinite logits")
            self.assertEqual(ids, expected[0][:len(ids)])
            self.assertLessEqual(len(ids), 7)
            ids, error = stream(server, PROMPTS[0], max_tokens=40)
            self.assertEqual((ids, error), (expected[0], None))
            self.assertEqual(server.metric("outrider:logits_not_finite_total"), 2)
            self.expect_all_blocks_back(server)
            self.assertEqual(server.stop(), 0, server.text_of_log())

    def test_two_targets_and_a_draft(self):
        self.check(3)

    def test_four_targets_and_a_draft(self):
        self.check(5)

    def test_one_process(self):
        self.check(0)

    def test_echo_and_prompt_chunk(self):
        prompt = "The soldiers had been marching since the morning and the road was long."
        fault = "nan_logits:sequence=2,prompt=4,rank=1;nan_kv:sequence=4,position=3,rank=1"
        with Server(3, *PAIR, "--max-num-batched-tokens", "8", recovery=False, fault=fault) as server:
            scored = {"prompt": prompt, "max_tokens": 0, "echo": True, "logprobs": 2}
            plain = {"prompt": prompt, "max_tokens": 20, "temperature": 0, "return_token_ids": True}
            expected = []
            for body in (scored, plain):  # 1 and 2, 3 and 4, 5 and 6
                for _ in range(2):
                    expected.append(server.post("/v1/completions", body))
            self.assertEqual([status for status, _ in expected], [200, 500, 200, 500])
            for body, (_, first) in ((scored, expected[0]), (plain, expected[2])):
                status, reply = server.post("/v1/completions", body)
                self.assertEqual(status, 200)
                self.assertEqual(reply["choices"], first["choices"])
            self.expect_all_blocks_back(server)


if __name__ == "__main__":
    unittest.main(verbosity=2)
