"""Benchmarks from outside, with tiny sizes: each kind's table, JSON, CSV and plot, in one process and under mpirun.
Figures are checked for being there and for agreeing with each other, never for being fast."""

import csv
import json
import os
import tempfile
import unittest

from cluster import PAIR, PROGRAM, mpirun, run


def is_number(value):
    return isinstance(value, (int, float)) and value == value


class Kinds(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.files = {kind: os.path.join(folder.name, "result." + kind) for kind in ("json", "csv")}

    def bench(self, kind, *arguments, num_ranks=0):
        """Runs it; returns (JSON, terminal) after checks that hold for every kind."""
        command = mpirun(num_ranks) if num_ranks else []
        command += [PROGRAM, "bench", kind, *arguments]
        for name, path in self.files.items():
            command += ["--" + name, path]
        code, out, errors = run(command, timeout_s=300)
        self.assertEqual(code, 0, errors)
        with open(self.files["json"]) as file:
            result = json.load(file)
        self.check_environment(result, kind, num_ranks)
        self.check_samples(result, kind)
        self.check_plot(result["plot"])
        self.assertIn(result["title"], out)
        return result, out

    def check_plot(self, plot):
        for panel in plot["panels"]:
            self.assertTrue(panel["series"], panel["title"])
            for series in panel["series"]:
                self.assertTrue(all(len(point) == 3 for point in series["points"]))

    def check_environment(self, result, kind, num_ranks):
        self.assertEqual(result["kind"], kind)
        self.assertTrue(result["command"].startswith(f"outrider bench {kind} "))
        around = result["environment"]
        for key in ("date", "version", "commit", "compiler", "host", "cpu", "isa"):
            self.assertTrue(around[key], key)
        self.assertGreaterEqual(around["num_cores"], 1)
        self.assertEqual(len(around["load_average_at_end"]), 3)
        topology = around["topology"]
        if num_ranks:
            self.assertEqual(topology["num_ranks"], num_ranks)
            self.assertIn("MPI", topology["library"])
        self.assertEqual([place["rank"] for place in topology["ranks"]], list(range(topology["num_ranks"])))
        for place in topology["ranks"]:
            self.assertGreaterEqual(place["threads"], 1)
            self.assertIn(place["host"], topology["hosts"])
            self.assertEqual(place["device"], "cpu")
        self.assertEqual(result["options"]["model"], "embedded")
        self.assertIn("numerics", result["options"])

    def check_samples(self, result, kind):
        samples = []
        for series in result["series"]:
            for number, value in enumerate(series["samples"]):
                self.assertTrue(is_number(value), series["name"])
                samples.append((kind, series["name"], series.get("x_name", ""), series.get("x"), number, value,
                                series["unit"]))
        with open(self.files["csv"], newline="") as file:
            rows = list(csv.reader(file))
        self.assertEqual(rows[0], ["kind", "series", "x_name", "x", "sample", "value", "unit"])
        read = [(r[0], r[1], r[2], float(r[3]) if r[3] else None, int(r[4]), float(r[5]), r[6]) for r in rows[1:]]
        self.assertEqual(read, samples)
        self.assertGreater(len(samples), 0)
        for figure in result["figures"]:
            if is_number(figure["low"]):
                self.assertLessEqual(figure["low"], figure["value"])
                self.assertLessEqual(figure["value"], figure["high"])

    def series(self, result, name, unit):
        return {s.get("x"): s["samples"] for s in result["series"] if (s["name"], s["unit"]) == (name, unit)}

    def figures(self, result, name):
        return {f.get("x"): f["value"] for f in result["figures"] if f["name"] == name}

    def check_curve(self, result):
        steps = self.series(result, "step", "ms")
        self.assertEqual(sorted(steps), [1, 3, 5])
        for samples in steps.values():
            self.assertEqual(len(samples), 4)
            self.assertGreater(min(samples), 0)
        self.assertEqual(len(self.series(result, "plain read", "ms")[None]), 4)
        self.assertGreater(min(self.series(result, "multipliers' peak", "GFLOP/s")[None]), 0)
        self.assertEqual(self.figures(result, "step / step of one row")[1], 1)
        self.assertGreater(self.figures(result, "share of the plain read's bandwidth")[None], 0)

    def test_verify_curve(self):
        arguments = ["--model", "embedded", "--rows", "5,3,5", "--context", "20", "--repeat", "4"]
        result, out = self.bench("verify-curve", *arguments)
        self.check_curve(result)
        self.assertIn("x one row", out)
        result, _ = self.bench("verify-curve", *arguments, num_ranks=3)
        self.check_curve(result)
        self.assertEqual([place["role"] for place in result["environment"]["topology"]["ranks"]],
                         ["coordinator+target[0/3]", "target[1/3]", "target[2/3]"])

    def check_comm(self, result, num_ranks):
        times = self.series(result, "partial sums", "us")
        self.assertEqual(sorted(times), [1, 6])
        sums = self.figures(result, "partial sums: size")
        self.assertEqual(sums[6], 6 * sums[1])
        messages = {s["name"] for s in result["series"]}
        for message in ("plan, digests back", "draft request, reply", "sampling: row maxima", "sampling: top-p"):
            self.assertIn(message, messages)
        for message in messages:
            self.assertEqual(set(self.figures(result, message + ": #wrong").values()), {0})
        bus, algorithm = (self.figures(result, "partial sums: " + name) for name in ("busbw", "algbw"))
        self.assertAlmostEqual(bus[6] / algorithm[6], 2 * (num_ranks - 1) / num_ranks, places=5)

    def test_comm(self):
        arguments = ["--model", "embedded", "--rows", "1,6", "--num-seqs", "2", "--repeat", "3", "--iters", "4"]
        result, out = self.bench("comm", *arguments, "--tensor-parallel-size", "2")
        self.check_comm(result, 2)
        self.assertIn("busbw", out)
        result, _ = self.bench("comm", *arguments, num_ranks=3)
        self.check_comm(result, 3)
        code, _, errors = run([PROGRAM, "bench", "comm"])
        self.assertEqual(code, 2, errors)
        self.assertIn("there is only one", errors)

    def test_prefill(self):
        result, _ = self.bench("prefill", "--model", "embedded", "--lengths", "40,24", "--repeat", "3",
                               "--max-num-batched-tokens", "16")
        for name in ("chunked", "in one step"):
            rates = self.series(result, name, "tokens/s")
            self.assertEqual(sorted(rates), [24, 40])
            self.assertEqual({len(samples) for samples in rates.values()}, {3})
            self.assertGreater(min(map(min, rates.values())), 0)
        self.assertEqual(result["options"]["lengths"], [24, 40])
        result, _ = self.bench("prefill", "--model", "embedded", "--repeat", "1")
        self.assertEqual(result["options"]["lengths"], [128, 512, 1024], "all that a small model takes")

    def check_throughput(self, result):
        for state in ("off", "on"):
            rates = self.series(result, "output, speculation " + state, "tokens/s")
            self.assertEqual(sorted(rates), [1, 3])
            self.assertEqual({len(samples) for samples in rates.values()}, {2})
            first = self.series(result, "TTFT, speculation " + state, "ms")
            self.assertEqual({len(samples) for samples in first.values()}, {2 * 5})
        self.assertEqual(sorted(self.figures(result, "on / off")), [1, 3])

    def test_throughput(self):
        arguments = [*PAIR, "--num-prompts", "5", "--output-len", "12", "--concurrency", "1,3", "--repeat", "2"]
        result, out = self.bench("throughput", *arguments)
        self.check_throughput(result)
        self.assertIn("10 of 10", out)  # greedy: the same text with and without speculation
        result, _ = self.bench("throughput", *arguments, num_ranks=3)
        self.check_throughput(result)

    def test_throughput_of_random_ids(self):
        result, out = self.bench("throughput", *PAIR, "--num-prompts", "4", "--input-len", "20", "--output-len", "8",
                                 "--random-range-ratio", "0.5", "--repeat", "1", "--speculative-config.method", "none")
        self.assertEqual(len(self.series(result, "output, speculation off", "tokens/s")[4]), 1)
        self.assertNotIn("speculation on", out)

    def check_decode(self, result, lengths):
        rates = self.series(result, "decode", "tokens/s")
        self.assertEqual(sorted(rates), lengths)
        self.assertEqual({len(samples) for samples in rates.values()}, {2})
        for name in ("speed-up measured", "speed-up predicted", "speed-up predicted by step times", "acceptance"):
            found = self.figures(result, name)
            self.assertEqual(sorted(found), lengths[1:])
            self.assertTrue(all(is_number(value) and value > 0 for value in found.values()), name)
        for one in result["pairs"][0]["lengths"]:
            self.assertEqual(one["num_same_text"], one["num_answers"])
            self.assertEqual(one["num_answers"], 4)
            if one["num_speculative_tokens"] > 0:
                self.check_prediction(one)

    def check_prediction(self, one):
        alpha, draft_len = one["acceptance"], one["num_speculative_tokens"]
        tokens = sum(alpha ** i for i in range(draft_len + 1))
        by_steps = tokens * one["target_step_s"] / (one["verify_step_s"] + draft_len * one["draft_step_s"])
        self.assertAlmostEqual(one["speedup_predicted_by_steps"], by_steps, places=6)
        by_theorem = tokens / (1 + draft_len * one["cost_ratio"])
        self.assertAlmostEqual(one["speedup_predicted"], by_theorem, places=6)
        self.assertEqual(len(one["drafted_per_position"]), draft_len)

    def test_decode_with_several_draft_lengths(self):
        arguments = [*PAIR, "--num-prompts", "2", "--max-tokens", "24", "--repeat", "2", "--draft-lens", "3,1"]
        result, out = self.bench("decode", *arguments)
        self.check_decode(result, [0, 1, 3])
        self.assertEqual(len(self.series(result, "prefill", "tokens/s")[0]), 2)
        self.assertIn("acceptance by position, draft length 3", out)
        result, _ = self.bench("decode", *arguments, num_ranks=3)
        self.check_decode(result, [0, 1, 3])

    def test_decode_of_several_pairs(self):
        result, _ = self.bench("decode", "--model", "embedded", "--drafts", "embedded,embedded", "--num-prompts", "1",
                               "--max-tokens", "8", "--repeat", "2")
        self.assertEqual(len(result["pairs"]), 2)


class Refusals(unittest.TestCase):
    def refused(self, *arguments):
        code, _, errors = run([PROGRAM, "bench", *arguments])
        self.assertEqual(code, 2, errors)
        return errors

    def test_what_is_wrong_is_said(self):
        self.assertIn("verify-curve", self.refused("no-such-kind"))
        self.assertIn("list of numbers", self.refused("verify-curve", "--rows", "1,,2"))
        self.assertIn("list of numbers", self.refused("verify-curve", "--rows", "0"))
        self.assertIn("list of numbers", self.refused("throughput", "--concurrency", "1;2"))
        self.assertIn("max_model_len", self.refused("prefill", "--lengths", "64", "--max-model-len", "32"))
        self.assertIn("synth:", self.refused("decode", "--epsilons", "0.1"))
        self.assertIn("no folder", self.refused("prefill", "--csv", "no/such/folder/a.csv"))
        self.assertIn("epsilon", self.refused("prefill", "--model", "synth:tinyllama-1.1b?epsilon=2"))
        self.assertIn("epsilon", self.refused("prefill", "--model", "synth:tinyllama-1.1b?alpha=0.5"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
