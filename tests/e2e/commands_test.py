"""The commands from outside: batch under mpirun with resume and exit codes, bench, tokenize, render, config."""

import json
import os
import signal
import subprocess
import tempfile
import time
import unittest

from cluster import ENVIRONMENT, PAIR, PROGRAM, mpirun, run


def line(number, **body):
    return {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions",
            "body": {"prompt": f"The number {number} and the king", "max_tokens": 24, "seed": number,
                     "temperature": 0.8, "return_token_ids": True, **body}}


def changed_draft(parent, change, vocab_size=3072):
    """A folder with the embedded draft, its tokenizer changed."""
    embedded = os.path.join(os.path.dirname(__file__), "..", "..", "models", "embedded", "draft")
    folder = tempfile.mkdtemp(dir=parent)
    with open(os.path.join(embedded, "tokenizer.json")) as file:
        tokenizer = json.load(file)
    change(tokenizer)
    with open(os.path.join(embedded, "config.json")) as file:
        config = dict(json.load(file), vocab_size=vocab_size)
    for name, value in (("tokenizer.json", tokenizer), ("config.json", config)):
        with open(os.path.join(folder, name), "w") as file:
            json.dump(value, file)
    os.symlink(os.path.abspath(os.path.join(embedded, "model.safetensors")), os.path.join(folder, "model.safetensors"))
    return folder


def with_other_texts(tokenizer):
    """Every seventh token of several characters gets a text the target has no token for."""
    model = tokenizer["model"]
    model["vocab"] = {f"~~{number}" if number % 7 == 0 and len(text) > 1 and number > 4 else text: number
                      for text, number in model["vocab"].items()}
    model["merges"] = [pair for pair in model["merges"]
                       if all(text in model["vocab"] for text in (*pair, "".join(pair)))]


class Batch(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.input = os.path.join(self.folder.name, "in.jsonl")
        self.output = os.path.join(self.folder.name, "out.jsonl")

    def tearDown(self):
        self.folder.cleanup()

    def write(self, lines):
        with open(self.input, "w") as file:
            for entry in lines:
                file.write((entry if isinstance(entry, str) else json.dumps(entry)) + "\n")

    def results(self):
        with open(self.output) as file:
            return {entry["custom_id"]: entry for entry in map(json.loads, file)}

    def batch(self, num_ranks, *options):
        # With --enable-recovery Open MPI 4.1's mpirun returns 0 whatever its ranks return.
        launcher = mpirun(num_ranks, recovery=False) if num_ranks else []
        if "--resume" not in options and os.path.exists(self.output):
            os.remove(self.output)
        return run([*launcher, PROGRAM, "batch", "-i", self.input, "-o", self.output, "--log-level", "warning", *options])

    def test_same_tokens_for_every_draft_length_on_each_number_of_ranks(self):
        self.write([line(number) for number in range(8)]
                   + [dict(line(100 + number, temperature=0), custom_id=f"greedy-{number}") for number in range(4)])
        for num_targets in (1, 2, 4):
            code, _, errors = self.batch(num_targets, "--model", "embedded")
            self.assertEqual(code, 0, errors)
            plain = {key: entry["response"]["body"]["choices"][0]["token_ids"] for key, entry in self.results().items()}
            self.assertEqual(len(plain), 12)
            self.assertGreater(len({tuple(ids) for ids in plain.values()}), 8)
            for draft_len in (1, 4, 16):
                code, _, errors = self.batch(num_targets + 1, *PAIR, "--draft-max", str(draft_len))
                self.assertEqual(code, 0, errors)
                drafted = {key: entry["response"]["body"]["choices"][0]["token_ids"]
                           for key, entry in self.results().items()}
                self.assertEqual(plain, drafted, f"{num_targets} targets, draft length {draft_len}")

    def test_strict_numerics_same_tokens_and_logprobs_on_every_number_of_ranks(self):
        self.write([line(number, logprobs=2, temperature=0.8 if number % 3 else 0) for number in range(9)])
        expected = None
        for num_ranks, options in ((0, ["--model", "embedded"]), (2, ["--model", "embedded"]), (3, PAIR), (5, PAIR),
                                   (9, PAIR)):
            code, _, errors = self.batch(num_ranks, *options, "--numerics", "strict")
            self.assertEqual(code, 0, errors)
            choices = {key: entry["response"]["body"]["choices"][0] for key, entry in self.results().items()}
            answers = {key: (choice["token_ids"], choice["logprobs"]) for key, choice in choices.items()}
            expected = expected or answers
            self.assertEqual(len(answers), 9)
            self.assertGreater(len({tuple(ids) for ids, _ in answers.values()}), 7)
            self.assertEqual(answers, expected, f"{num_ranks} ranks")
        bench = [PROGRAM, "bench", "decode", "--speculative-config.method", "none", "--numerics"]
        code, _, errors = run(mpirun(1, recovery=False) + bench + ["fast", ":", "-np", "1"] + bench + ["strict"])
        self.assertEqual(code, 2, errors)
        self.assertIn("it has numerics strict where rank 0 has numerics fast", errors)
        rounding = [PROGRAM, "bench", "decode", "--speculative-config.method", "none", "--activation-dtype"]
        code, _, errors = run(mpirun(1, recovery=False) + rounding + ["float32", ":", "-np", "1"] + rounding + ["bfloat16"])
        self.assertEqual(code, 2, errors)
        self.assertIn("it has activation_dtype bfloat16 where rank 0 has activation_dtype float32; all ranks need", errors)
        narrow = [PROGRAM, "bench", "decode", "--speculative-config.method", "none", "--kv-cache-dtype"]
        code, _, errors = run(mpirun(1, recovery=False) + narrow + ["auto", ":", "-np", "1"] + narrow + ["int8"])
        self.assertEqual(code, 2, errors)
        self.assertIn("it has kv_cache_dtype int8 where rank 0 has kv_cache_dtype float32; all ranks need", errors)
        code, _, errors = self.batch(3, "--model", "embedded", "--numerics", "strict")
        self.assertEqual(code, 2, errors)
        self.assertIn("numerics strict is for 1, 2, 4 or 8 target ranks, not for 3", errors)

    def test_a_draft_with_another_tokenizer(self):
        draft = changed_draft(self.folder.name, with_other_texts)
        pair = ["--model", "embedded", "--model-draft", draft, "--draft-max", "4"]
        # So long that a draft which begins late, on a busy machine, is used all the same.
        options = {"max_tokens": 200, "return_token_origins": True}
        self.write([line(number, **options) for number in range(6)]
                   + [dict(line(9, temperature=0, **options), custom_id="greedy")])
        code, _, errors = self.batch(3, *pair)
        self.assertEqual(code, 2, errors)
        self.assertIn("id 266 is 'Ġs' in the target and '~~266' in the draft", errors)
        self.assertIn("use_heterogeneous_vocab", errors)
        code, _, errors = self.batch(2, "--model", "embedded")
        self.assertEqual(code, 0, errors)
        plain = {key: entry["response"]["body"]["choices"][0]["token_ids"] for key, entry in self.results().items()}
        code, _, errors = self.batch(3, *pair, "--speculative-config.use-heterogeneous-vocab")
        self.assertEqual(code, 0, errors)
        drafted = {key: entry["response"]["body"]["choices"][0] for key, entry in self.results().items()}
        self.assertEqual(plain, {key: choice["token_ids"] for key, choice in drafted.items()})
        origins = [origin for choice in drafted.values() for origin in choice.get("token_origins", [])]
        self.assertGreater(origins.count("accepted"), 10)

    def test_the_same_tokenizer_needs_no_translation(self):
        self.write([line(0)])
        code, _, errors = run([*mpirun(2), PROGRAM, "batch", "-i", self.input, "-o", self.output, *PAIR,
                               "--speculative-config.async-drafting", "cache", "--speculative-config.use-heterogeneous-vocab"])
        self.assertEqual(code, 0, errors)
        self.assertIn("asynchronous drafting: cache", errors)
        self.assertNotIn("the draft is translated", errors)

    def test_resume_answers_only_the_rest(self):
        self.write([line(number) for number in range(10)])
        code, _, errors = self.batch(0, "--model", "embedded")
        self.assertEqual(code, 0, errors)
        whole = self.results()
        with open(self.output) as file:
            kept = file.read().splitlines(True)[:4]
        with open(self.output, "w") as file:
            file.write("".join(kept) + '{"custom_id": "line-9", "torn')
        code, _, errors = self.batch(0, "--model", "embedded", "--resume")
        self.assertEqual(code, 0, errors)
        with open(self.output) as file:
            lines = file.read().splitlines(True)
        self.assertEqual(lines[:4], kept)
        self.assertEqual(len(lines), 10)
        texts = {key: entry["response"]["body"]["choices"][0]["text"] for key, entry in self.results().items()}
        self.assertEqual(texts, {key: entry["response"]["body"]["choices"][0]["text"] for key, entry in whole.items()})

    def test_all_lines_are_checked_first(self):
        for bad, word in (("not json", "line 2"), (line(1, temperature=-1), "temperature"),
                          (dict(line(1), url="/v1/embeddings"), "embeddings"), (dict(line(0)), "line-0"),
                          (line(1, max_tokens="many"), "max_tokens")):
            self.write([line(0), bad])
            code, _, errors = run([PROGRAM, "batch", "-i", self.input, "-o", self.output, "--model", "embedded"])
            self.assertEqual(code, 2, errors)
            self.assertIn(word, errors)
            self.assertNotIn("rank 0 ready", errors)  # nothing was loaded for it
            self.assertFalse(os.path.exists(self.output))

    def test_a_failed_line_gives_code_3_and_its_error(self):
        failing = dict(line(1), body={"prompt": "x " * 3000, "max_tokens": 5})
        self.write([line(0), failing, dict(failing, custom_id="line-2")])
        code, _, errors = self.batch(0, "--model", "embedded")
        self.assertEqual(code, 3, errors)
        self.assertIn("batch: the first failure is line 2 (line-1): This model's maximum context length is", errors)
        self.assertEqual(self.results()["line-1"]["response"]["status_code"], 400)
        self.assertIsNone(self.results()["line-0"]["error"])

    def test_a_failed_line_is_there_once_however_often_it_is_resumed(self):
        failing = dict(line(1), body={"prompt": "x " * 3000, "max_tokens": 5})
        self.write([failing, line(0)])
        for options in ([], ["--resume"], ["--resume"]):
            code, _, errors = self.batch(0, "--model", "embedded", *options)
            self.assertEqual(code, 3, errors)
            with open(self.output) as file:
                self.assertEqual(sorted(json.loads(entry)["custom_id"] for entry in file), ["line-0", "line-1"])
        self.write([line(1), line(0)])
        code, _, errors = self.batch(0, "--model", "embedded", "--resume")
        self.assertEqual(code, 0, errors)
        self.assertEqual({key: entry["error"] for key, entry in self.results().items()}, {"line-0": None, "line-1": None})

    def test_a_chat_template_of_a_file_sees_the_special_tokens(self):
        template = os.path.join(self.folder.name, "bos.jinja")
        with open(template, "w") as file:
            file.write("{{ bos_token }}{{ messages[0].content }}")
        self.write([{"custom_id": "chat", "url": "/v1/chat/completions", "method": None,
                     "body": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1,
                              "return_token_ids": True, "stream": None}}])
        code, _, errors = self.batch(0, "--model", "embedded", "--chat-template", template)
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.results()["chat"]["response"]["body"]["prompt_token_ids"][0], 0, "<|endoftext|>")

    def test_no_file_is_lost_by_a_slip(self):
        self.write([line(0)])
        with open(self.input) as file:
            before = file.read()
        os.symlink(self.input, self.output)
        notes = os.path.join(self.folder.name, "notes.txt")
        with open(notes, "w") as file:
            file.write("my only copy")
        for output, options, words in ((self.output, ["--resume"], "are one file"), (self.input, [], "are one file"),
                                       (notes, [], "--resume"), (notes, ["--resume"], "is not the output of this batch")):
            code, _, errors = run([PROGRAM, "batch", "-i", self.input, "-o", output, *options])
            self.assertEqual(code, 2, errors)
            self.assertIn(words, errors)
            self.assertNotIn("rank 0 ready", errors)
        with open(self.input) as file, open(notes) as kept:
            self.assertEqual((file.read(), kept.read()), (before, "my only copy"))

    def test_no_line_is_lost_to_the_queue(self):
        self.write([line(number, prompt=["The king"] * 8, n=2, max_tokens=4) for number in range(12)])
        code, _, errors = self.batch(0, "--model", "embedded", "--max-num-queued-reqs", "20", "--max-num-seqs", "4")
        self.assertEqual(code, 0, errors)
        self.assertEqual(len(self.results()), 12)
        self.assertEqual({len(entry["response"]["body"]["choices"]) for entry in self.results().values()}, {16})

    def test_exit_codes_pass_through_mpirun(self):
        self.write([line(0), dict(line(1), body={"prompt": "x " * 3000, "max_tokens": 5})])
        code, _, errors = self.batch(3, *PAIR)
        self.assertEqual(code, 3, errors)

    def test_a_signal_stops_with_code_75_and_resume_finishes(self):
        self.write([line(number, max_tokens=600, ignore_eos=True, temperature=0) for number in range(200)])
        job = subprocess.Popen([PROGRAM, "batch", "-i", self.input, "-o", self.output, "--max-num-seqs", "2",
                                "--log-level", "warning"], stderr=subprocess.PIPE, env=ENVIRONMENT)
        end = time.time() + 60
        while time.time() < end and (not os.path.exists(self.output) or os.path.getsize(self.output) == 0):
            time.sleep(0.02)
        job.send_signal(signal.SIGTERM)
        _, errors = job.communicate(timeout=30)
        self.assertEqual(job.returncode, 75, errors)
        num_done = len(self.results())
        self.assertGreater(num_done, 0)
        self.assertLess(num_done, 200)

    def test_stopped_with_fewer_lines_than_run_at_once(self):
        self.write([line(number, max_tokens=500, ignore_eos=True) for number in range(3)])
        job = subprocess.Popen([PROGRAM, "batch", "-i", self.input, "-o", self.output, "--model", "sim:step_ms=200"],
                               stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        progress = next(entry for entry in job.stderr if entry.startswith("batch: "))
        job.send_signal(signal.SIGTERM)
        _, errors = job.communicate(timeout=30)
        self.assertEqual(job.returncode, 75, errors)
        self.assertEqual(self.results(), {})
        for entry in (progress, errors):
            self.assertIn("batch: 0 of 3 done, 0 failed", entry)
            self.assertNotIn("s left", entry)


class Bench(unittest.TestCase):
    def test_decode_prints_a_table_and_json(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "bench.json")
            code, out, errors = run([*mpirun(3), PROGRAM, "bench", "decode", *PAIR, "--num-prompts", "2", "--repeat",
                                     "1", "--max-tokens", "32", "--json", path])
            self.assertEqual(code, 0, errors)
            with open(path) as file:
                result = json.load(file)
        self.assertIn("speed-up predicted", out)
        self.assertEqual(result["num_same_text"], result["num_answers"])
        self.assertEqual(result["num_target_ranks"], 2)
        self.assertGreater(result["tokens_per_s_off"][0], 0)


class Help(unittest.TestCase):
    def test_every_command_lists_its_own_options_first(self):
        for command, option in (("batch", "--resume"), ("quantize", "--keep-head"), ("synth", "--positions"),
                                ("verify", "--break"), ("plan", "--gpus"),
                                ("render", "--template"), ("bench serve", "--burstiness")):
            code, out, errors = run([PROGRAM, *command.split(), "--help"])
            self.assertEqual(code, 0, errors)
            self.assertIn(f"\n  {option}", out)
            if "--max-model-len" in out:
                self.assertLess(out.index(f"\n  {option}"), out.index("--max-model-len"))
        for command in ("serve", "check-pair", "tokenize", "config", "config dump"):
            code, out, errors = run([PROGRAM, *command.split(), "--help"])
            self.assertEqual((code, errors), (0, ""))
            self.assertIn("--max-model-len", out)


class Inspect(unittest.TestCase):
    def talk(self, command, lines):
        done = subprocess.run([PROGRAM, *command], input="\n".join(map(json.dumps, lines)) + "\n", text=True,
                              capture_output=True, timeout=30, env=ENVIRONMENT)
        return done.returncode, [json.loads(entry) for entry in done.stdout.splitlines()], done.stderr

    def test_tokenize_there_and_back(self):
        texts = ["Once upon a time", " leading and trailing ", "naïve café 🙂", ""]
        code, out, _ = self.talk(["tokenize", "--model", "embedded"], [{"text": text} for text in texts])
        self.assertEqual(code, 0)
        self.assertEqual([entry["text"] for entry in out], texts)
        code, back, _ = self.talk(["tokenize", "--model", "embedded"], [{"ids": entry["ids"]} for entry in out])
        self.assertEqual([entry["text"] for entry in back], texts)
        code, bad, _ = self.talk(["tokenize", "--model", "embedded"], [{"ids": [10**9]}, {"text": "x"}])
        self.assertEqual(code, 3)
        self.assertIn("error", bad[0])
        self.assertIn("ids", bad[1])

    def test_render(self):
        messages = [{"role": "user", "content": "Hello"}]
        code, out, errors = self.talk(["render", "--model", "embedded"],
                                      [{"messages": messages, "add_generation_prompt": True}])
        self.assertEqual(code, 0, errors)
        self.assertIn("Hello", out[0]["prompt"])
        with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
            file.write("{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}")
            file.flush()
            _, out, _ = self.talk(["render", "--template", file.name], [{"messages": messages}])
            self.assertEqual(out[0]["prompt"], "[user: Hello]")
            file.seek(0)
            file.write("{{ bos_token }}{% for m in messages %}{{ '{:>7}'.format(m.content) }}{% endfor %}" + " " * 40)
            file.flush()
            _, out, _ = self.talk(["render", "--template", file.name, "--model", "embedded"], [{"messages": messages}])
        self.assertEqual(out[0]["prompt"].rstrip(), "<|endoftext|>  Hello")


class CheckPair(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()

    def tearDown(self):
        self.folder.cleanup()

    def changed(self, *arguments, **options):
        return changed_draft(self.folder.name, *arguments, **options)

    def check(self, *arguments):
        code, out, errors = run([PROGRAM, "check-pair", *arguments])
        return code, out, errors

    def test_verdicts_and_codes(self):
        code, out, errors = self.check("embedded", "embedded")
        self.assertEqual((code, out), (0, "compatible: the same 3072 tokens\n"), errors)
        code, out, errors = self.check("embedded", self.changed(lambda tokenizer: None, vocab_size=4096))
        self.assertEqual(code, 0, errors)
        self.assertTrue(out.startswith("compatible after padding: "), out)
        self.assertIn("4096 rows", out)

        def rename(tokenizer):
            vocab = tokenizer["model"]["vocab"]
            vocab["~~"] = vocab.pop("~")

        code, out, errors = self.check("embedded", self.changed(rename))
        self.assertEqual(code, 4, errors)
        self.assertEqual(out.count("\n"), 1)
        self.assertIn("id 98 is '~' in the target and '~~' in the draft", out)
        self.assertIn("3071 of the target's 3072 tokens (100.0%)", out)

    def test_bad_input_is_code_2_and_one_sentence(self):
        no_tokenizer = self.changed(lambda tokenizer: None)
        os.remove(os.path.join(no_tokenizer, "tokenizer.json"))
        for arguments, word in (((), "usage"), (("embedded",), "usage"), (("embedded",) * 3, "'embedded'"),
                                (("embedded", "/no/such/folder"), "/no/such/folder"),
                                (("embedded", no_tokenizer), "tokenizer.json"),
                                (("synth:tinyllama-1.1b", "embedded"), "synth:tinyllama-1.1b")):
            code, out, errors = self.check(*arguments)
            self.assertEqual((code, out), (2, ""), arguments)
            self.assertIn(word, errors)
            self.assertEqual(errors.count("\n"), 1, errors)


class Words(unittest.TestCase):
    """What stands alone on a command line is the model, or is refused."""

    OF_A_MODEL = [["serve", "--port", "0"], ["batch", "-i", "in", "-o", "out"], ["verify"], ["tokenize"], ["render"],
                  ["plan"], *(["bench", kind] for kind in ("decode", "verify-curve", "prefill", "throughput", "load"))]
    OF_NO_MODEL = [["synth", "-o", "pair"], ["config", "dump"], ["bench", "sim"], ["bench", "serve"]]

    def refusal(self, *arguments):
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=60, env=ENVIRONMENT,
                              stdin=subprocess.DEVNULL)
        self.assertEqual(done.returncode, 2, f"{arguments}: {done.stderr}")
        return done.stderr

    def test_one_word_is_the_model(self):
        for command in self.OF_A_MODEL:
            self.assertIn("'/no/such/model'", self.refusal(*command, "/no/such/model"), command)
            self.assertIn("unexpected argument 'more'", self.refusal(*command, "embedded", "more"))
            self.assertIn("'embedded' and --model other are two models", self.refusal(*command, "embedded", "-m", "other"))
        self.assertIn("unexpected argument 'more'", self.refusal("bench", "comm", "embedded", "more"))

    def test_where_no_model_is_wanted(self):
        for command in self.OF_NO_MODEL:
            self.assertIn("unexpected argument 'embedded'", self.refusal(*command, "embedded"), command)
        for command in (["check-pair", "embedded", "embedded"], ["quantize", "embedded", "-o", "x"]):
            self.assertIn("unexpected argument 'more'", self.refusal(*command, "more"), command)


class Config(unittest.TestCase):
    def test_precedence_and_origins(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("port: 1111\nmax-num-seqs: 3\nspeculative_config:\n  num_speculative_tokens: 7\nhost: 127.0.0.9\n")
            file.flush()
            environment = dict(ENVIRONMENT, OUTRIDER_PORT="2222", OUTRIDER_HOST="127.0.0.8")
            done = subprocess.run([PROGRAM, "config", "dump", "--config", file.name, "--host=127.0.0.7"],
                                  capture_output=True, text=True, env=environment, timeout=30)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn('host: "127.0.0.7"  # command line', done.stdout)
        self.assertIn("port: 2222  # OUTRIDER_PORT", done.stdout)
        self.assertIn("max_num_seqs: 3  # ", done.stdout)
        self.assertIn("  num_speculative_tokens: 7  # ", done.stdout)
        self.assertIn("block_size: 16  # default", done.stdout)

    def test_the_dump_is_a_configuration(self):
        code, dump, _ = run([PROGRAM, "config", "dump", "--port", "1234", "-tp", "2"])
        self.assertEqual(code, 0)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(dump)
            file.flush()
            code, again, errors = run([PROGRAM, "config", "dump", "--config", file.name])
        self.assertEqual(code, 0, errors)
        values = [entry.split("#")[0] for entry in dump.splitlines()]
        self.assertEqual(values, [entry.split("#")[0] for entry in again.splitlines()])

    def test_what_is_wrong_is_named(self):
        for arguments, words in ((["--prot", "1"], ["--prot", "--port"]), (["--port", "70000"], ["port", "65535"]),
                                 (["--port"], ["--port", "value"]), (["--isa", "sse9"], ["isa", "avx512"]),
                                 (["--config", "/no/such.yaml"], ["/no/such.yaml"])):
            code, _, errors = run([PROGRAM, "config", "dump", *arguments])
            self.assertEqual(code, 2)
            for word in words:
                self.assertIn(word, errors)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("max_num_seq: 3\n")
            file.flush()
            code, _, errors = run([PROGRAM, "config", "dump", "--config", file.name])
        self.assertEqual(code, 2)
        self.assertIn("max_num_seqs", errors)

    def test_every_file_in_configs_is_good(self):
        folder = os.path.join(os.path.dirname(__file__), "..", "..", "configs")
        names = [name for name in sorted(os.listdir(folder)) if name.endswith(".yaml")]
        self.assertGreaterEqual(len(names), 7)
        for name in names:
            code, _, errors = run([PROGRAM, "config", "dump", "--config", os.path.join(folder, name)])
            self.assertEqual(code, 0, f"{name}: {errors}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
