"""Jobs whose ranks were not started alike: each ends at once with one sentence that names the rank."""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request

from cluster import ENVIRONMENT, PROGRAM, Server, job_code, mpirun, run, text_of

SOURCE = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = SOURCE / "models/embedded/target"
DRAFT = SOURCE / "models/embedded/draft"


def copy_of(folder, parent, name):
    copy = pathlib.Path(parent) / name
    shutil.copytree(folder, copy)
    return copy


def flip_byte(file, place):
    """Of a file; place < 0 counts from its end."""
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)


class UnlikeRanks(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = temporary.name

    def check(self, ranks, sentence):
        """ranks: the command of each rank."""
        command = mpirun(1, recovery=False)[:-2]
        for i, rank in enumerate(ranks):
            command += ([":"] if i else []) + ["-np", "1", *map(str, rank)]
        code, _, log = run(command)
        self.assertEqual(code, 2, log)
        self.assertRegex(log, sentence)
        self.assertNotIn("ready: http", log)

    def serve(self, model=TARGET, *options, program=PROGRAM, command="serve"):
        return [program, command, "--model", model, "--port", "0", *options]

    def serve_pair(self, model=TARGET, draft=DRAFT, *options):
        return self.serve(model, "--speculative-config.model", draft, *options)

    def test_other_weights(self):
        other = copy_of(TARGET, self.folder, "other")
        flip_byte(other / "model.safetensors", -1)
        self.check([self.serve(), self.serve(other)],
                   r"rank 1 \(target\[1/2\] on .*\): it has model weights \w{16} where rank 0 has model weights \w{16}")

    def test_other_tokenizer_and_configuration(self):
        for file in ["tokenizer.json", "config.json"]:
            other = copy_of(TARGET, self.folder, file)
            (other / file).write_text((other / file).read_text() + " ")
            self.check([self.serve(), self.serve(other)], rf"rank 1 .*: it has model {file} \w+ where rank 0 has")

    def test_another_model_of_other_sizes(self):
        self.check([self.serve(), self.serve(DRAFT)], "rank 1 .*: it has model config.json")

    def test_another_command(self):
        self.check([self.serve(), self.serve(command="tokenize")[:1] + ["bench", "decode", "--model", TARGET]],
                   r"rank 1 .*: it has program outrider \S+ \(\S+\) bench decode where rank 0 has program .* serve")

    def test_another_program(self):
        content = pathlib.Path(PROGRAM).read_bytes()
        commit = re.search(rb"\x00([0-9a-f]{40})(\+dirty)?\x00", content)
        if not commit:
            self.skipTest("the program does not know its commit: built without git")
        other = pathlib.Path(self.folder) / "outrider"
        other.write_bytes(content.replace(commit.group(1), bytes(reversed(commit.group(1)))))
        other.chmod(0o755)
        self.check([self.serve(), self.serve(program=other)], r"rank 1 .*: it has program outrider")

    def test_another_role(self):
        draft_is_ngram = self.serve(TARGET, "--speculative-config.method", "ngram")
        self.check([self.serve_pair(), self.serve_pair(), draft_is_ngram],
                   "rank 2 .*: it has ranks 3 target ranks where rank 0 has ranks 2 target ranks and a draft")

    def test_another_number_of_targets(self):
        self.check([self.serve(), self.serve(TARGET, "--tensor-parallel-size", "1")],
                   "rank 1 .*: 2 ranks were started, but tensor_parallel_size 1")

    def test_another_draft(self):
        other = copy_of(DRAFT, self.folder, "other")
        flip_byte(other / "model.safetensors", -1)
        self.check([self.serve_pair(), self.serve_pair(draft=other)], r"rank 1 \(draft on .*\): it has draft weights")

    def test_the_drafts_target(self):
        other = copy_of(TARGET, self.folder, "other")
        (other / "tokenizer.json").write_text((other / "tokenizer.json").read_text() + " ")
        self.check([self.serve_pair(), self.serve_pair(other)], r"rank 1 \(draft on .*\): it has model tokenizer.json")

    def test_other_settings(self):
        self.check([self.serve(), self.serve(TARGET, "--max-num-seqs", "4")],
                   "rank 1 .*: it has max_num_seqs 4 where rank 0 has max_num_seqs 16; all ranks need the same")

    def test_a_folder_that_is_missing(self):
        self.check([self.serve(), self.serve(pathlib.Path(self.folder) / "nowhere")],
                   "rank 1 .*: model folder '.*nowhere' does not exist")


class ForeignLaunchers(unittest.TestCase):
    """Tasks that a launcher starts beside each other, and of which each would be a job of its own."""

    def test_srun_without_pmi(self):
        environment = dict(os.environ, SLURM_STEP_NUM_TASKS="3", SLURM_PROCID="1")
        done = subprocess.run([PROGRAM, "serve", "--port", "0"], capture_output=True, text=True, timeout=60,
                              env=environment)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("3 tasks were started (SLURM_STEP_NUM_TASKS), but MPI sees 1: start them with mpirun, or "
                      "srun --mpi=pmix", done.stderr)

    def test_mpirun_inside_of_srun(self):
        environment = dict(ENVIRONMENT, SLURM_STEP_NUM_TASKS="3")
        command = [*mpirun(2, recovery=False), "-x", "SLURM_STEP_NUM_TASKS", PROGRAM, "bench", "decode", "--num-prompts",
                   "1", "--max-tokens", "4", "--repeat", "1"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
        self.assertEqual(done.returncode, 0, done.stderr)


class LateRanks(unittest.TestCase):
    def test_rank_0_says_that_it_waits_for_the_others(self):
        bench = [PROGRAM, "bench", "decode", "--num-prompts", "1", "--max-tokens", "4", "--repeat", "1"]
        # Rank 1 starts when rank 0 has said it, or after a minute.
        sentence = "the ranks have not met within 10 s"
        with tempfile.TemporaryDirectory() as folder:
            said = pathlib.Path(folder) / "said"
            late = ["sh", "-c", 'n=600; until [ -e "$0" ] || [ $n = 0 ]; do sleep 0.1; n=$((n - 1)); done; exec "$@"']
            job = subprocess.Popen([*mpirun(1, recovery=False), *bench, ":", "-np", "1", *late, str(said), *bench],
                                   env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            self.addCleanup(job.kill)
            log = ""
            for line in job.stderr:
                log += line
                if sentence in line:
                    said.touch()
            self.assertEqual(job_code(job.wait(60), log), 0, log)
        self.assertEqual(log.count(sentence), 1, log)


class Addresses(unittest.TestCase):
    def test_all_addresses_are_said_with_the_hosts_name_and_one_warning(self):
        with Server(2, "--model", "embedded", "--host", "0.0.0.0") as server:
            log = server.text_of_log()
        self.assertIn(f"ready: http://{socket.gethostname()}:{server.port}/v1 serves", log)
        self.assertEqual(log.count("listening on 0.0.0.0 without api_key"), 1, log)


class Containers(unittest.TestCase):
    """Ranks with process ids of their own, as containers of one host have them."""

    def test_process_ids_of_another_namespace_are_not_looked_at(self):
        unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
        if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
            self.skipTest("process namespaces cannot be made here")
        bench = [PROGRAM, "bench", "decode", "--num-prompts", "2", "--max-tokens", "400", "--repeat", "2"]
        # Beyond the numbers that the other's threads have.
        as_a_later_process = ["sh", "-c", 'for i in $(seq 100); do /bin/true; done; "$@"; exit $?', "sh"]
        # Open MPI's own shared memory between them would take one's process ids for the other's.
        command = mpirun(1, recovery=False)[:-2] + ["--mca", "btl", "tcp,self", "-np", "1", *unshare, *bench, ":", "-np", "1", *unshare,
                                                 *as_a_later_process, *bench]
        code, _, log = run(command)
        self.assertEqual(code, 0, log)


class EverydayOptions(unittest.TestCase):
    def test_what_changes_nothing_is_logged_once(self):
        with Server(2, *"--trust-remote-code --dtype auto --load-format auto --enable-chunked-prefill -ngl 99".split()) as server:
            log = server.text_of_log()
        for flag in ["--trust-remote-code", "--load-format auto", "--enable-chunked-prefill", "--gpu-layers 99"]:
            self.assertEqual(log.count(f"{flag} changes nothing here: "), 1, log)

    def test_keys_of_a_file(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            code, _, log = run([PROGRAM, "serve", "--api-key-file", keys.name])
            self.assertEqual((code, log.count(f"{keys.name}: has no key")), (2, 1), log)
            keys.write("one\r\n\ntwo\n")
            keys.flush()
            with Server(0, "--api-key-file", keys.name) as server:
                statuses = [self.status(server, key) for key in ["one", "two", "three", ""]]
        self.assertEqual(statuses, [200, 200, 401, 401])

    def status(self, server, key):
        request = urllib.request.Request(server.url + "/v1/models", headers={"Authorization": f"Bearer {key}"})
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return response.status
        except urllib.error.HTTPError as error:
            return error.code

    def test_a_seed_of_the_server_makes_unseeded_texts_the_same_again(self):
        def texts(seed):
            with Server(0, "--seed", str(seed)) as server:
                body = {"prompt": "Once", "max_tokens": 24, "temperature": 1.0}
                return [server.post("/v1/completions", body)[1]["choices"][0]["text"] for _ in range(3)]

        first = texts(1)
        self.assertEqual(first, texts(1))
        self.assertEqual(len(set(first)), 3, first)
        self.assertNotEqual(first, texts(2))


class BeforeTheLoad(unittest.TestCase):
    def test_the_port_is_taken_first(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            for launcher in [[], mpirun(2, recovery=False)]:
                code, _, log = run([*launcher, PROGRAM, "serve", "--port", port])
                self.assertEqual(code, 2, log)
                self.assertIn(f"cannot listen on 127.0.0.1 port {port}", log)
                self.assertNotIn("memory:", log)  # said when the weights are there

    def test_files_and_options_are_checked_first(self):
        with tempfile.TemporaryDirectory() as folder:
            template = pathlib.Path(folder) / "bad.jinja"
            template.write_text("{% if %}")
            other = copy_of(DRAFT, folder, "other")
            tokens = json.loads((other / "tokenizer.json").read_text())
            vocabulary = tokens["model"]["vocab"]
            first, second = list(vocabulary)[300:302]
            vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
            (other / "tokenizer.json").write_text(json.dumps(tokens))
            lookup = ["--speculative-config.prompt-lookup-max", "2", "--speculative-config.prompt-lookup-min", "3"]
            for options, sentence in [
                    (["--chat-template", template], f"{template}: chat template line 1: expected an expression"),
                    (["--chat-template", f"{folder}/none"], f"{folder}/none: cannot be opened"),
                    (["--max-model-len", "100000"], "max_model_len 100000 is more than the model's"),
                    (["--speculative-config.method", "ngram", *lookup], "prompt_lookup_max is 2, less than"),
                    (["--trace", f"{folder}/none/trace.json"], "/none/trace.json.partial-"),
                    (["--speculative-config.model", f"{folder}/none"], f"model folder '{folder}/none' does not exist"),
                    (["--speculative-config.model", other], f"draft '{other}' cannot serve target 'embedded'")]:
                code, _, log = run([PROGRAM, "serve", "--port", "0", *map(str, options)])
                self.assertEqual(code, 2, log)
                self.assertIn(sentence, log)
                self.assertNotIn(" loaded ", log)  # said when a model's weights are read


def resident_mib(pid):
    return int(re.search(r"VmRSS:\s+(\d+)", text_of(f"/proc/{pid}/status") or "VmRSS: 0")[1]) >> 10


class Loading(unittest.TestCase):
    def test_a_signal_ends_it_at_once(self):
        bench = subprocess.Popen([PROGRAM, "bench", "decode", "--model", "synth:llama-3.2-1b", "--max-model-len", "256"],
                                 env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        self.addCleanup(bench.kill)
        end = time.time() + 60
        while resident_mib(bench.pid) < 200 and time.time() < end:  # of 2,400 in the end
            time.sleep(0.001)
        bench.terminate()
        self.assertEqual(bench.wait(60), -signal.SIGTERM)
        self.assertIn("stopped by a signal", bench.stderr.read())


if __name__ == "__main__":
    unittest.main()
