"""--trace from outside: a file that trace viewers load, with every rank on one clock, under mpirun and in one
process; its plot; and the figures in responses."""

import collections
import json
import os
import pathlib
import signal
import sys
import tempfile
import time
import unittest
import urllib.request

from cluster import PROGRAM, Server, children, mpirun, run

PLOT = pathlib.Path(__file__).resolve().parent.parent.parent / "tools/plot.py"

MODELS = ["--model", "sim:step_ms=3", "--max-model-len", "512",
          "--speculative-config.model", "sim:step_ms=0.3,alpha=0.8", "--draft-max", "4"]
COORDINATOR = {"round", "plan", "forward", "verify", "agreement", "apply", "send draft request", "take draft reply"}


class Trace(unittest.TestCase):
    def batch(self, folder, launcher, *options):
        source, output = os.path.join(folder, "in.jsonl"), os.path.join(folder, "out.jsonl")
        with open(source, "w") as file:
            for number in range(3):
                body = {"prompt": f"Request {number}", "max_tokens": 40, "temperature": 0.5 * number}
                file.write(json.dumps({"custom_id": f"{number}", "method": "POST", "url": "/v1/completions",
                                       "body": body}) + "\n")
        code, _, errors = run([*launcher, PROGRAM, "batch", "-i", source, "-o", output, *MODELS, *options])
        self.assertEqual(code, 0, errors)
        with open(output) as file:
            return [json.loads(line)["response"]["body"] for line in file], errors

    def check_spans(self, events):
        """Times ascend; spans of a rank nest; what begins in a request's lane ends there."""
        last, open_spans, lanes = 0, collections.defaultdict(list), collections.defaultdict(list)
        for event in events:
            if event["ph"] == "M":
                continue
            self.assertGreaterEqual(event["ts"], last)
            last = event["ts"]
            if event["ph"] == "X":
                ends = open_spans[event["pid"]]
                while ends and ends[-1] <= event["ts"] + 1e-6:
                    ends.pop()
                end = event["ts"] + event["dur"]
                self.assertTrue(not ends or end <= ends[-1] + 1e-6, event)
                ends.append(end)
            elif event["ph"] == "b":
                lanes[event["id"]].append(event["name"])
            elif event["ph"] == "e":
                self.assertEqual(lanes[event["id"]].pop(), event["name"])
        self.assertFalse(any(lanes.values()))

    def check_messages(self, events):
        """Every message heard was sent, and before."""
        sent = {event["id"]: event for event in events if event["ph"] == "s"}
        heard = [event for event in events if event["ph"] == "f"]
        self.assertGreater(len(heard), 10)
        for event in heard:
            self.assertIn(event["id"], sent)
            self.assertNotEqual(sent[event["id"]]["pid"], event["pid"])
            # Clocks of ranks on one host are compared to some microseconds; a busy host does worse.
            self.assertGreater(event["ts"] - sent[event["id"]]["ts"], -2000)

    def test_all_ranks_on_one_clock(self):
        for ranks, launcher in ((3, mpirun(3, recovery=False)), (2, [])):
            with tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "rounds.json")
                bodies, errors = self.batch(folder, launcher, "--trace", path)
                self.assertFalse(any("metrics" in body for body in bodies))
                self.assertIn("speculation:", errors)
                with open(path) as file:
                    trace = json.load(file)
                events = trace["traceEvents"]
                self.check_spans(events)
                self.check_messages(events)
                spans = collections.defaultdict(collections.Counter)
                for event in events:
                    if event["ph"] == "X":
                        spans[event["pid"]][event["name"]] += 1
                self.assertEqual(sorted(spans), list(range(ranks)))
                self.assertLessEqual(COORDINATOR, set(spans[0]))
                self.assertGreater(spans[ranks - 1]["draft step"], 5)
                for rank in range(ranks - 1):
                    self.assertEqual(spans[rank]["forward"], spans[0]["forward"])
                rounds = [event["args"] for event in events if event["name"] == "verification" and event["ph"] == "b"]
                requests = [event["args"] for event in events if event["name"] == "request" and event["ph"] == "b"]
                self.assertEqual([request["output"] for request in requests], [40] * 3)
                self.assertGreaterEqual(sum(one["accepted"] + 1 for one in rounds), 120)
                self.assertTrue(all(one["accepted"] <= one["drafted"] <= 4 for one in rounds))
                self.assertGreater(sum(one["accepted"] for one in rounds), 10)
                self.check_plot(folder, path, rounds[0]["sequence"])

    def check_plot(self, folder, path, request):
        svg = os.path.join(folder, "rounds.svg")
        plot = [sys.executable, PLOT, "rounds", path, "-o", svg]
        code, out, errors = run([*plot, "--request", str(request), "--rounds", "4"])
        self.assertEqual(code, 0, errors)
        self.assertIn("rounds 0 to 3", out)
        with open(svg, encoding="utf-8") as file:
            drawing = file.read()
        for text in (f"Request {request}, rounds 0 to 3", "target", "draft", "accepted", "corrected"):
            self.assertIn(text, drawing)
        for options, sentence in ((["--request", "9999"], "no rounds of request 9999"),
                                  (["--first-round", "500"], "no round 500 or later")):
            code, _, errors = run([*plot, *options])
            self.assertEqual(code, 2)
            self.assertIn(sentence, errors)

    def test_what_is_no_trace_is_not_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            other = os.path.join(folder, "other.json")
            for text in ("", "[1, 2]", "{}", "[" * 100000):
                with open(other, "w") as file:
                    file.write(text)
                for what in ("rounds", "bench"):
                    code, _, errors = run([sys.executable, PLOT, what, other, "-o", os.path.join(folder, "x.svg")])
                    self.assertEqual(code, 2)
                    self.assertIn("other.json", errors)

    def test_a_benchmark_is_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            report, svg = os.path.join(folder, "curve.json"), os.path.join(folder, "curve.svg")
            code, _, errors = run([PROGRAM, "bench", "verify-curve", "--model", "embedded", "--rows", "1,2", "--repeat", "2",
                                   "--json", report])
            self.assertEqual(code, 0, errors)
            code, _, errors = run([sys.executable, PLOT, "bench", report, "-o", svg])
            self.assertEqual(code, 0, errors)
            with open(report) as file:
                panels = json.load(file)["plot"]["panels"]
            with open(svg, encoding="utf-8") as file:
                drawing = file.read()
            for panel in panels:
                self.assertIn(panel["x_label"].split("&")[0], drawing)

    def test_a_file_that_cannot_be_is_refused_at_the_start(self):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "in.jsonl")
            with open(source, "w") as file:
                file.write("\n")
            code, _, errors = run([PROGRAM, "batch", "-i", source, "-o", os.path.join(folder, "out"), *MODELS,
                                   "--trace", os.path.join(folder, "nowhere", "rounds.json")])
            self.assertEqual(code, 2, errors)
            self.assertIn("nowhere", errors)

    def test_figures_in_responses(self):
        with tempfile.TemporaryDirectory() as folder:
            bodies, _ = self.batch(folder, mpirun(2, recovery=False), "--per-request-spec-decode-metrics", "detailed")
        for body in bodies:
            figures, ours = body["metrics"]["speculative_decoding"], body["metrics"]["outrider"]
            self.assertEqual(len(figures["per_step_drafted"]), figures["num_spec_steps"])
            self.assertEqual(sum(figures["per_step_drafted"]), figures["num_draft_tokens"])
            self.assertEqual(sum(figures["per_step_accepted"]), figures["num_accepted_draft_tokens"])
            self.assertEqual(sum(figures["acceptance_histogram"]), figures["num_spec_steps"])
            for length, counts in figures["acceptance_histogram_by_draft_length"].items():
                self.assertEqual(len(counts), int(length) + 1)
                self.assertEqual(sum(counts), figures["per_step_drafted"].count(int(length)))
            self.assertGreaterEqual(ours["num_rounds"], figures["num_spec_steps"])
            self.assertEqual(ours["num_rounds_draft_at_hand"] + ours["num_rounds_draft_waited_for"],
                             figures["num_spec_steps"])
        self.assertGreater(sum(body["metrics"]["speculative_decoding"]["num_spec_steps"] for body in bodies), 5)

    def test_a_server_whose_draft_died_leaves_the_trace_of_the_others(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "rounds.json")
            with Server(3, *MODELS, "--trace", path) as server:
                status, answer = server.post("/v1/completions", {"prompt": "x", "max_tokens": 150, "temperature": 0})
                self.assertEqual(status, 200, answer)
                self.assertFalse("metrics" in answer)
                figures = self.figures(server)
                for name in ("verified_rows_total", "speculation_cache_queries_total", "outcome_cache_queries_total", "draft_busy_seconds_total",
                             "target_busy_seconds_total", "speedup_compared_tokens_total", "speedup_measured",
                             "speedup_predicted", "tokens_per_second_without_speculation", "acceptance_ratio",
                             "draft_cost_ratio", "prepared_tokens_total"):
                    self.assertGreater(figures[name], 0, name)
                self.assertEqual(figures["wasted_rows_total"], figures["spec_decode_num_draft_tokens_total"]
                                 - figures["spec_decode_num_accepted_tokens_total"])
                self.assertGreaterEqual(figures["speculation_cache_queries_total"], figures["speculation_cache_hits_total"])
                self.assertEqual(figures["speculation_cache_queries_total"], figures["outcome_cache_queries_total"])
                self.assertLess(figures["target_bubble_ratio"], 1)
                # Its keeper dies, and the engine with it: none comes back in the time that the others need.
                keeper = next(iter(children(server.rank_pids()[2])))
                os.kill(keeper, signal.SIGKILL)
                os.kill(server.rank_pids()[0], signal.SIGTERM)
                end = time.time() + 60
                while not os.path.exists(path) and time.time() < end:
                    time.sleep(0.05)
                server.wait_said("rank 2 (draft) handed nothing over")
                log = server.text_of_log()
            self.assertIn("rank 2 (draft) handed nothing over", log)
            with open(path) as file:
                trace = json.load(file)
            self.check_spans(trace["traceEvents"])
            self.assertEqual({event["pid"] for event in trace["traceEvents"] if event["ph"] == "X"}, {0, 1})

    def figures(self, server):
        """Our metrics that have one value."""
        with urllib.request.urlopen(server.url + "/metrics", timeout=10) as response:
            lines = response.read().decode().splitlines()
        names = (line.split("{")[0] for line in lines)
        return {name[len("outrider:"):]: float(line.split()[-1]) for name, line in zip(names, lines)
                if name.startswith("outrider:")}


if __name__ == "__main__":
    try:
        import matplotlib  # noqa: F401 - what tools/plot.py draws with
    except ImportError:
        print("matplotlib is not here: skipped", file=sys.stderr)
        sys.exit(77)
    unittest.main()
