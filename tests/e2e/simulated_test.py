"""Simulated models from outside: the same tokens with and without drafts under mpirun, HTTP, and bench sim."""

import json
import os
import tempfile
import unittest

from cluster import PROGRAM, Server, mpirun, run

TARGET = ["--model", "sim:step_ms=2", "--max-model-len", "1024"]
DRAFT = ["--speculative-config.model", "sim:step_ms=0.2,alpha=0.8", "--draft-max", "4"]


class Simulated(unittest.TestCase):
    def test_same_tokens_with_and_without_a_draft_under_mpirun(self):
        with tempfile.TemporaryDirectory() as folder:
            source = os.path.join(folder, "in.jsonl")
            with open(source, "w") as file:
                for number in range(6):
                    body = {"prompt": f"Request {number}", "max_tokens": 48, "seed": number, "return_token_ids": True,
                            "temperature": 0.8 if number % 2 else 0, "return_token_origins": True}
                    file.write(json.dumps({"custom_id": f"{number}", "method": "POST", "url": "/v1/completions",
                                           "body": body}) + "\n")
            answers = []
            for ranks, options in ((1, []), (2, DRAFT), (3, DRAFT)):
                output = os.path.join(folder, f"out-{ranks}.jsonl")
                code, _, errors = run([*mpirun(ranks, recovery=False), PROGRAM, "batch", "-i", source, "-o", output,
                                       "--log-level", "warning", *TARGET, *options])
                self.assertEqual(code, 0, errors)
                with open(output) as file:
                    choices = {entry["custom_id"]: entry["response"]["body"]["choices"][0]
                               for entry in map(json.loads, file)}
                answers.append({key: choice["token_ids"] for key, choice in choices.items()})
                origins = [origin for choice in choices.values() for origin in choice.get("token_origins", [])]
                self.assertEqual(origins.count("accepted") > 50, bool(options), origins)
            self.assertEqual(len({tuple(ids) for ids in answers[0].values()}), 6)
            self.assertEqual(answers[0], answers[1])
            self.assertEqual(answers[0], answers[2])

    def test_it_answers_over_http(self):
        server = Server(3, *TARGET, *DRAFT)
        try:
            status, answer = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}],
                                                                   "max_tokens": 32, "temperature": 0})
            self.assertEqual(status, 200, answer)
            self.assertEqual(answer["model"], "outrider-simulated")
            self.assertEqual(answer["usage"]["completion_tokens"], 32)
            self.assertGreater(len(answer["choices"][0]["message"]["content"]), 32)
        finally:
            server.kill()

    def test_bench_sim_under_mpirun_and_in_one_process(self):
        small = ["--alphas", "0.6,0.9", "--costs", "0.1", "--draft-len", "3", "--step-ms", "5", "--max-tokens", "60", "--requests", "1,3",
                 "--modes", "off,cache", "--cases=false", "--sweep-tokens", "24", "--repeat", "2"]
        for launcher in ([], mpirun(3, recovery=False)):
            with tempfile.TemporaryDirectory() as folder:
                paths = {kind: os.path.join(folder, "out." + kind) for kind in ("json", "csv")}
                files = [argument for kind, path in paths.items() for argument in (f"--{kind}", path)]
                code, out, errors = run([*launcher, PROGRAM, "bench", "sim", *small, *files])
                # So few tokens on a machine that has other work may well miss a bar.
                self.assertEqual(code, 1 if "falls short" in out else 0, errors)
                self.assertIn("standard error", out)
                self.assertIn("Leviathan", out)
                self.assertIn("asynchronous drafting with the speculation cache", out)
                self.assertNotIn("where speculation cannot pay", out)
                with open(paths["json"]) as file:
                    report = json.load(file)
                figures = {figure["name"]: figure["value"] for figure in report["figures"]}
                self.assertAlmostEqual(figures["alpha 0.6 c 0.1 K 3 Leviathan"], 2.176 / 1.3, places=3)
                series = {(entry["name"], entry.get("x")): entry["samples"] for entry in report["series"]}
                self.assertEqual(len(series["alpha 0.9 c 0.1 K 3 on", None]), 2)
                self.assertTrue(all(value > 0 for value in series["sweep on", 3]))
                # How much it is says nothing here: one pass may have run beside other work.
                self.assertGreater(figures["sweep speed-up while all run"], 0)
                # The three requests of a pass have the same drawn lengths with drafts and without, other ones in the next.
                self.assertEqual(series["sweep tokens on", 3], series["sweep tokens off", 3])
                self.assertEqual(len(set(series["sweep tokens on", 3])), 2, series["sweep tokens on", 3])
                self.assertTrue(all(3 * 11 <= tokens <= 3 * 35 for tokens in series["sweep tokens on", 3]))
                self.assertEqual(series["sweep tokens on", 1], [23, 23])
                for name in ("alpha 0.6 c 0.1 K 3 overhead", "alpha 0.9 c 0.1 K 3 overhead"):
                    self.assertGreater(len(series[name, None]), 2 * 60 / 4 - 3)
                self.assertTrue(any(line["points"] for panel in report["plot"]["panels"] for line in panel["series"]))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "equal.json")
            code, out, errors = run([PROGRAM, "bench", "sim", *small, "--clock", "virtual", "--random-range-ratio", "0", "--json", path])
            self.assertEqual(code, 1 if "falls short" in out else 0, errors)
            with open(path) as file:
                series = {(entry["name"], entry.get("x")): entry["samples"] for entry in json.load(file)["series"]}
            for mode in ("off", "on"):
                self.assertEqual(series["sweep tokens " + mode, 3], [3 * 23, 3 * 23])
        code, _, errors = run([PROGRAM, "bench", "sim", "--random-range-ratio", "1"])
        self.assertEqual(code, 2, errors)
        self.assertIn("1 is not between 0 and 0.99", errors)
        code, _, errors = run([PROGRAM, "bench", "sim", "--modes", "off,far"])
        self.assertEqual(code, 2, errors)
        self.assertIn("modes must be off, chain, cache", errors)
        code, _, errors = run([PROGRAM, "bench", "sim", "--alphas", "0.6,x"])
        self.assertEqual(code, 2, errors)
        self.assertIn("alphas: '0.6,x' is no list of numbers from 0 to 1", errors)


if __name__ == "__main__":
    unittest.main()
