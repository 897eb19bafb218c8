"""bench serve from outside, against our own server: figures recomputed from the raw times it writes, traces, and what
goes wrong before a run."""

import contextlib
import http.server
import json
import os
import statistics
import tempfile
import threading
import unittest

from cluster import DRAFTED_PAIR, PAIR, PROGRAM, Server, free_port, run

SMALL = ["--tokenizer", "embedded", "--random-input-len", "48", "--random-output-len", "24", "--ignore-eos"]


@contextlib.contextmanager
def fake_server(handler):
    fake = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    fake.url = f"http://127.0.0.1:{fake.server_port}/v1"
    thread = threading.Thread(target=fake.serve_forever)
    thread.start()
    try:
        yield fake
    finally:
        fake.shutdown()
        thread.join()
        fake.server_close()


class BenchServe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(0, *DRAFTED_PAIR, "-t", "1")

    @classmethod
    def tearDownClass(cls):
        cls.server.kill()

    def bench(self, *options, server=None, code=0, environment=None):
        """Returns (parsed JSON, stdout)."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "result.json")
            url = (server or self.server).url
            done, out, errors = run([PROGRAM, "bench", "serve", "--base-url", url, "--json", path, *options])
            self.assertEqual(done, code, errors + out)
            with open(path) as file:
                return json.load(file), out

    def test_poisson_arrivals_and_figures_that_follow_from_the_raw_times(self):
        result, out = self.bench(*SMALL, "--num-prompts", "32", "--request-rate", "40", "--goodput", "ttft:0",
                                 "tpot:100000")
        self.assertEqual((result["completed"], result["failed"]), (32, 0))
        self.assertEqual(result["total_output_tokens"], 32 * 24)
        self.assertEqual(result["total_input_tokens"], 32 * 48)
        self.assertEqual(result["request_rate"], 40)
        self.assertEqual(result["request_goodput"], 0)  # no answer begins at once
        requests = result["requests"]
        scheduled = [request["scheduled_s"] for request in requests]
        self.assertEqual(scheduled, sorted(scheduled))
        self.assertAlmostEqual(scheduled[-1], 32 / 40, places=9)
        gaps = [b - a for a, b in zip(scheduled, scheduled[1:])]
        self.assertGreater(statistics.pstdev(gaps), 0.3 * statistics.mean(gaps))
        ttfts, tpots, itls = [], [], []
        for request in requests:
            self.assertGreaterEqual(request["sent_s"], request["scheduled_s"])
            self.assertEqual(sum(count for _, count in request["chunks"]), 24)
            times = [time for time, _ in request["chunks"]]
            self.assertEqual(times, sorted(times))
            ttfts.append(times[0] - request["sent_s"])
            tpots.append((request["last_choice_s"] - times[0]) / 23)
            for before, (time, count) in zip(times, request["chunks"][1:]):
                itls += [(time - before) / count] * count
        self.assertAlmostEqual(result["mean_ttft_ms"], 1e3 * statistics.mean(ttfts), places=6)
        self.assertAlmostEqual(result["median_tpot_ms"], 1e3 * statistics.median(tpots), places=6)
        self.assertAlmostEqual(result["mean_itl_ms"], 1e3 * statistics.mean(itls), places=6)
        duration = max(request["end_s"] for request in requests) - scheduled[0]
        self.assertAlmostEqual(result["output_throughput"], 32 * 24 / duration, places=6)
        # Speculation brings several tokens at once, and the server's counters tell what it did.
        self.assertLess(sum(len(request["chunks"]) for request in requests), 32 * 24)
        rates = result["spec_decode_per_position_acceptance_rates"]
        self.assertEqual(rates, sorted(rates, reverse=True))
        self.assertAlmostEqual(result["spec_decode_acceptance_length"], 1 + sum(rates), places=6)
        self.assertGreater(result["spec_decode_accepted_tokens"], 0)
        self.assertIn("commit", result["environment"])
        for words in ("Successful requests", "TTFT", "ITL", "Acceptance rate", "Acceptance by position"):
            self.assertIn(words, out)

    def test_the_same_seed_sends_the_same(self):
        options = [*SMALL, "--num-prompts", "6", "--request-rate", "100", "--random-range-ratio", "0.5", "--seed"]
        runs = [self.bench(*options, seed)[0]["requests"] for seed in ("3", "3", "4")]
        plans = [[(r["scheduled_s"], r["prompt_tokens"], r["max_tokens"]) for r in requests] for requests in runs]
        self.assertEqual(plans[0], plans[1])
        self.assertNotEqual(plans[0], plans[2])
        self.assertGreater(len({tokens for _, tokens, _ in plans[0]}), 2)

    def test_chat_prompt_files_and_no_running_usage(self):
        result, _ = self.bench("--backend", "openai-chat", "--random-input-len", "20", "--random-output-len",
                               "8", "--ignore-eos", "--num-prompts", "4")
        self.assertEqual((result["completed"], result["total_output_tokens"]), (4, 32))
        result, _ = self.bench(*SMALL, "--num-prompts", "2", "--no-continuous-usage", "--extra-body",
                               '{"speculative": {"enabled": false}}')
        self.assertEqual({count for request in result["requests"] for _, count in request["chunks"]}, {1})
        self.assertNotIn("spec_decode_draft_tokens", result)
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write('{"prompt": "The king", "output_tokens": 5}\n{"turns": ["The old woman"]}\n')
            file.flush()
            result, _ = self.bench("--dataset", "custom", "--dataset-path", file.name, "--num-prompts", "3",
                                   "--output-len", "7", "--ignore-eos")
        self.assertEqual(result["total_output_tokens"], 21)

    def test_a_trace_is_replayed_at_its_times_with_at_most_three_in_flight(self):
        rows = [{"timestamp": 5000 + 20 * i, "input_length": 30 + i, "output_length": 4} for i in range(8)]
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as trace:
            trace.write("".join(json.dumps(row) + "\n" for row in rows))
            trace.flush()
            result, _ = self.bench("--tokenizer", "embedded", "--dataset-name", "timed_trace", "--dataset-path",
                                   trace.name, "--max-concurrency", "3")
        self.assertEqual((result["completed"], result["request_rate"]), (8, "trace"))
        self.assertLessEqual(result["max_concurrent_requests"], 3)
        for row, request in zip(rows, result["requests"]):
            self.assertAlmostEqual(request["scheduled_s"], (row["timestamp"] - 5000) / 1e3, places=6)
            self.assertEqual((request["prompt_tokens"], request["max_tokens"]), (row["input_length"], 4))

    def test_what_cannot_run_says_why(self):
        for options, code, words in (
                (["--random-input-len", "5000"], 2, "http 400: This model's maximum context length"),
                (["--model", "other"], 2, "http 404"),
                (["--endpoint", "/nowhere/completions"], 2, "http 404"),
                (["--goodput", "itl:4"], 2, "goodput"),
                (["--extra-body", "[]"], 2, "extra_body: must be a JSON object"),
                (["--dataset", "timed_trace", "--dataset-path", "nothing.csv"], 2, "nothing.csv"),
                (["--request-rate", "-1"], 2, "request_rate"),
                (["--max-concurency", "1"], 2, "max-concurrency")):
            done, _, errors = run([PROGRAM, "bench", "serve", "--base-url", self.server.url, *options])
            self.assertEqual(done, code, errors)
            self.assertIn(words, errors)
        done, _, errors = run([PROGRAM, "bench", "serve", "--port", str(free_port()), "--ready-check-timeout-sec", "1"])
        self.assertEqual(done, 2)
        self.assertIn("was not ready within 1 s: no connection", errors)

    def test_a_server_that_refuses_after_the_first_request(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            num_posts = 0
            lock = threading.Lock()

            def do_GET(self):
                self.send_response(200 if self.path == "/v1/models" else 404)
                self.end_headers()
                self.wfile.write(b'{"data": [{"id": "m"}]}')

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                with self.lock:
                    Handler.num_posts += 1
                    first = Handler.num_posts == 1
                self.send_response(200 if first else 503)
                self.end_headers()
                self.wfile.write(b'data: {"choices": [{"text": "a", "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
                                 if first else b'{"error": "overloaded"}')

            def log_message(self, *unused):
                pass

        with fake_server(Handler) as fake:
            result, out = self.bench("--num-prompts", "5", "--header", "x-secret=hidden", server=fake, code=1)
        self.assertEqual((result["completed"], result["failed"]), (0, 5))
        self.assertEqual(result["failures"], {"http 503": 5})
        self.assertIn("5 failed with http 503, such as: overloaded", out)
        self.assertNotIn("hidden", json.dumps(result))

    def test_a_server_that_refuses_running_usage(self):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if self.path == "/v1/models" else 404)
                self.end_headers()
                self.wfile.write(b'{"data": [{"id": "m"}]}')

            def do_POST(self):
                self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(422)
                self.end_headers()
                self.wfile.write(b'{"error": "continuous_usage_stats: extra fields are not permitted"}')

            def log_message(self, *unused):
                pass

        with fake_server(Handler) as fake:
            code, _, errors = run([PROGRAM, "bench", "serve", "--base-url", fake.url, "--num-prompts", "5"])
        self.assertEqual(code, 2)
        self.assertIn("extra fields are not permitted; give --no-continuous-usage", errors)

    def test_lengths_that_were_not_given_fit_a_small_model(self):
        result, _ = self.bench("--num-prompts", "2", "--tokenizer", "embedded")
        self.assertEqual((result["completed"], result["failed"]), (2, 0))
        self.assertEqual({request["input_len"] for request in result["requests"]}, {512})

    def test_against_two_target_ranks_and_a_draft(self):
        with Server(3, *PAIR) as server:
            result, _ = self.bench(*SMALL, "--num-prompts", "8", "--request-rate", "20", "--burstiness", "0.5",
                                   server=server)
        self.assertEqual((result["completed"], result["total_output_tokens"]), (8, 8 * 24))


if __name__ == "__main__":
    unittest.main()
