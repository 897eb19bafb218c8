"""/metrics as vLLM's users read it, our dashboard (configs/grafana.json) against it, and the log's line about the load."""

import itertools
import json
import pathlib
import re
import subprocess
import time
import unittest

from cluster import DRAFTED_PAIR, PROGRAM, Server

DASHBOARD = pathlib.Path(__file__).resolve().parent.parent.parent / "configs/grafana.json"
OF_PROMETHEUS = {"instance", "job"}  # labels that a scrape adds
LINE = "Avg generation throughput: "


def samples_of(text):
    """Of a /metrics page: [(name, labels, value)]."""
    samples = []
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, labels, value = re.fullmatch(r"([\w:]+)(?:\{(.*)\})? (\S+)", line).groups()
            samples.append((name, dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels or "")), float(value)))
    return samples


def problems_of(expr, samples):
    """Which metrics and labels of a PromQL expression /metrics does not have, as sentences."""
    def blank(found):
        return " " * len(found.group())

    text = re.sub(r'"[^"]*"', lambda found: "'" * len(found.group()), expr)
    text = re.sub(r"\[[^\]]*\]", blank, text)
    grouped = [(found.end(), re.findall(r"\w+", found.group(1))) for found in re.finditer(r"\bby\s*\(([^)]*)\)", text)]
    text = re.sub(r"\b(?:by|on|group_left)\s*\([^)]*\)", blank, text)
    # A function is followed by a bracket.
    used = [found for found in re.finditer(r"(?<![\w:])([A-Za-z_:][\w:]*)(?![\w:]|\s*\()(?:\{([^}]*)\})?", text)]
    problems = [] if used else [f"no metric in {expr}"]
    for i, found in enumerate(used):
        name = found.group(1)
        begin = used[i - 1].end() if i else 0
        labels = re.findall(r"(\w+)\s*[=!]", found.group(2) or "")
        labels += itertools.chain(*(names for at, names in grouped if begin <= at <= found.start()))
        there = [set(its) for sample, its, _ in samples if sample == name]
        if not there:
            problems.append(f"there is no {name}")
            continue
        missing = sorted(set(labels) - OF_PROMETHEUS - set.union(*there))
        problems += [f"{name} has no label {label}" for label in missing]
    return problems


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(0, *DRAFTED_PAIR)
        cls.addClassCleanup(cls.server.kill)
        for _ in range(cls.num_requests):
            status, _ = cls.server.post("/v1/completions", {"prompt": "Once upon a time there was a king. " * 4,
                                                            "max_tokens": cls.max_tokens, "ignore_eos": True})
            assert status == 200
        cls.samples = samples_of(cls.server.get("/metrics"))

    num_requests = 1
    max_tokens = 40

    def value(self, name, **labels):
        return sum(value for found, its, value in self.samples if found == name and labels.items() <= its.items())


class Dashboard(Metrics):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.dashboard = json.loads(DASHBOARD.read_text())
        cls.panels = [panel for panel in cls.dashboard["panels"] if panel["type"] != "row"]

    def test_every_expression_finds_its_metrics_and_labels(self):
        exprs = [target["expr"] for panel in self.panels for target in panel["targets"]]
        self.assertGreater(len(exprs), 50)
        for expr in exprs:
            self.assertEqual(problems_of(expr, self.samples), [], expr)

    def test_legends_and_variables_name_labels_that_are_there(self):
        for panel in self.panels:
            for target in panel["targets"]:
                for label in re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]):
                    self.assertRegex(target["expr"], rf"by \([^)]*\b{label}\b", panel["title"])
        queries = [variable["query"]["query"] for variable in self.dashboard["templating"]["list"]
                   if variable["type"] == "query"]
        for query in queries:
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()
            self.assertEqual(problems_of(f"sum by ({label}) ({selector})", self.samples), [], query)

    def test_what_is_not_there_is_found(self):
        for expr, problem in [("sum(rate(outrider:round_total[5m]))", "there is no outrider:round_total"),
                              ("sum by (place) (outrider:rounds_total)", "outrider:rounds_total has no label place"),
                              ('outrider:rounds_total{model="$m"} / 2', "outrider:rounds_total has no label model"),
                              ("sum(1) + 2", "no metric in sum(1) + 2")]:
            self.assertEqual(problems_of(expr, self.samples), [problem])

    def test_panels_lie_beside_each_other(self):
        places = set()
        for panel in self.dashboard["panels"]:
            at = panel["gridPos"]
            for place in itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])):
                self.assertNotIn(place, places, panel["title"])
                self.assertLess(place[0], 24)
                places.add(place)
        numbers = [panel["id"] for panel in self.dashboard["panels"]]
        self.assertEqual(len(numbers), len(set(numbers)))
        self.assertEqual({panel["datasource"]["uid"] for panel in self.panels}, {"${datasource}"})

    def test_what_is_ours_is_drawn(self):
        text = DASHBOARD.read_text()
        for name in ("spec_decode_num_accepted_tokens_per_pos_total", "speculation_cache_hits_total", "rounds_total",
                     "draft_up", "prefix_cache_hits_total", "kv_cache_usage_perc", "time_to_first_token_seconds_bucket"):
            self.assertIn(f"outrider:{name}{{", text)


class AsVllm(Metrics):
    """What vLLM's dashboards and its tests of /metrics ask for."""
    num_requests = 4
    max_tokens = 10

    def test_counts_of_requests_and_tokens(self):
        for name in ("time_to_first_token_seconds", "e2e_request_latency_seconds", "request_queue_time_seconds",
                     "request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds",
                     "request_num_preemptions", "request_prompt_tokens", "request_generation_tokens",
                     "request_params_n", "request_params_max_tokens", "request_time_per_output_token_seconds"):
            self.assertEqual(self.value(f"vllm:{name}_count"), 4, name)
        num_gaps = self.value("vllm:inter_token_latency_seconds_count")
        self.assertTrue(num_gaps > 0 and num_gaps % 4 == 0, num_gaps)
        self.assertEqual(self.value("vllm:generation_tokens_total"), 40)
        self.assertEqual(self.value("vllm:request_generation_tokens_sum"), 40)
        self.assertEqual(self.value("vllm:prompt_tokens_total"), self.value("vllm:request_prompt_tokens_sum"))
        self.assertEqual(self.value("vllm:request_success_total", finished_reason="length"), 4)
        self.assertEqual(self.value("vllm:request_num_preemptions_sum"), 0)

    def test_phases_are_parts_of_the_latency(self):
        seconds = {name: self.value(f"vllm:{name}_seconds_sum")
                   for name in ("request_queue_time", "request_prefill_time", "request_decode_time",
                                "request_inference_time", "e2e_request_latency")}
        self.assertGreater(min(seconds.values()), 0)
        self.assertAlmostEqual(seconds["request_inference_time"],
                               seconds["request_prefill_time"] + seconds["request_decode_time"], places=6)
        self.assertLessEqual(seconds["request_queue_time"] + seconds["request_inference_time"],
                             seconds["e2e_request_latency"])

    def test_the_cache_and_its_queue(self):
        self.assertEqual({labels["reason"] for name, labels, _ in self.samples
                          if name == "vllm:num_requests_waiting_by_reason"}, {"capacity", "deferred"})
        cache, = [(labels, value) for name, labels, value in self.samples if name == "vllm:cache_config_info"]
        labels, value = cache
        self.assertEqual(value, 1)
        self.assertEqual(int(labels["kv_cache_size_tokens"]), int(labels["block_size"]) * int(labels["num_gpu_blocks"]))
        self.assertGreater(float(labels["kv_cache_max_concurrency"]), 1)
        self.assertEqual(labels["enable_prefix_caching"], "True")
        self.assertGreater(self.value("vllm:prompt_tokens_cached_total"), 0)


class NarrowCache(unittest.TestCase):
    def test_a_server_with_keys_and_values_in_8_bits(self):
        num_bytes = {}
        texts = {}
        for dtype in ("auto", "int8"):
            with Server(0, *DRAFTED_PAIR, "--kv-cache-dtype", dtype) as server:
                status, body = server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 20,
                                                               "temperature": 0, "ignore_eos": True})
                self.assertEqual(status, 200)
                texts[dtype] = body["choices"][0]["text"]
                samples = samples_of(server.get("/metrics"))
                labels, = [its for name, its, _ in samples if name == "vllm:cache_config_info"]
                self.assertEqual(labels["cache_dtype"], dtype)
                num_bytes[dtype], = [value for name, _, value in samples if name == "outrider:kv_cache_bytes"]
        self.assertGreater(len(texts["int8"]), 20)
        self.assertLess(num_bytes["int8"], 0.3 * num_bytes["auto"])


class LogStats(unittest.TestCase):
    def load(self, server, is_enough):
        end = time.time() + 60
        while not is_enough(server.text_of_log()) and time.time() < end:
            server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 100, "ignore_eos": True})

    def log_at_rest(self, server):
        """Its text when no line about the load has come in more than two intervals."""
        end = time.time() + 30
        while time.time() < end:
            count = server.text_of_log().count(LINE)
            time.sleep(1.2)
            if (log := server.text_of_log()).count(LINE) == count:
                return log
        self.fail(f"there are lines while nothing runs: {log}")

    def test_a_line_while_something_runs_and_none_while_nothing_does(self):
        with Server(0, *DRAFTED_PAIR, "--log-stats-interval", "0.5") as server:
            begin = time.time()
            self.load(server, lambda log: log.count(LINE) >= 3)
            most = (time.time() - begin) / 0.5 + 3  # of what ran before, and the last one's end
            log = self.log_at_rest(server)
            self.assertGreaterEqual(log.count(LINE), 3, log)
            self.assertLessEqual(log.count(LINE), most, log)
            self.assertRegex(log, r"Avg prompt throughput: [1-9][\d.]* tokens/s, Avg generation throughput: [1-9][\d.]* "
                                  r"tokens/s, Running: [01] reqs, Waiting: 0 reqs, KV cache usage: [\d.]+%, Prefix "
                                  r"cache hit rate: [\d.]+%, Mean acceptance length: [1-5]\.\d\d, Avg Draft acceptance "
                                  r"rate: [\d.]+%\n")
            self.assertEqual(server.stop(), 0, server.text_of_log())

    def test_no_line_when_it_is_off_and_none_of_drafts_where_none_are(self):
        with Server(0, "--log-stats-interval", "0") as server:
            end = time.time() + 1
            self.load(server, lambda _: time.time() > end)
            log = server.text_of_log()
        self.assertNotIn(LINE, log)
        self.assertIn(" tokens/s, ", log)  # of the requests
        self.assertNotIn("draft tokens accepted", log)

    def test_every_ten_seconds_unless_told_otherwise(self):
        dump = subprocess.run([PROGRAM, "config", "dump"], capture_output=True, text=True, check=True).stdout
        self.assertIn("log_stats_interval: 10  # default", dump)

    def test_no_acceptance_where_nothing_drafts(self):
        with Server(2, "--log-stats-interval", "0.5") as server:
            self.load(server, lambda log: log.count(LINE) >= 2)
            self.assertIn(LINE, server.text_of_log())
            self.assertNotIn("acceptance length", server.text_of_log())


if __name__ == "__main__":
    unittest.main(verbosity=2)
