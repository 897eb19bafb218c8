"""Jobs under mpirun whose target ranks compute on emulated GPUs: the text is the CPU's; a rank that is killed, or whose
GPU fails, ends the job with its name."""

import os
import shutil
import signal
import tempfile
import time
import unittest

from cluster import PROGRAM, Server, mpirun, run

OPTIONS = ["--model", "embedded", "--activation-dtype", "float32", "--max-model-len", "512", "--max-num-seqs", "2",
           "--kv-cache-memory-bytes", "8388608"]
ON_GPU = [*OPTIONS, "--device", "cuda"]
DRAFT_ON_CPU = ["--speculative-config.model", "embedded", "--speculative-config.device", "cpu"]

BODY = {"prompt": "Once upon a time", "max_tokens": 400, "temperature": 0, "ignore_eos": True}


class GpuRanks(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """The program with emulated GPUs beside it, where it looks for the CUDA ones."""
        cls.folder = tempfile.TemporaryDirectory()
        cls.program = shutil.copy2(PROGRAM, os.path.join(cls.folder.name, "outrider"))
        os.symlink(os.environ["OUTRIDER_EMULATED_CUDA"], os.path.join(cls.folder.name, "liboutrider_cuda.so"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def server(self, num_ranks, *options, num_gpus=8, failure="", **others):
        environment = {"OUTRIDER_TEST_GPUS": str(num_gpus)}
        if failure:
            environment["OUTRIDER_TEST_GPU_FAILURE"] = failure
        return Server(num_ranks, *options, program=self.program, environment=environment, **others)


class Text(GpuRanks):
    def test_is_that_of_the_cpu(self):
        body = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, "return_token_ids": True}

        def ids_of(server):
            status, reply = server.post("/v1/completions", body)
            self.assertEqual(status, 200, reply)
            return reply["choices"][0]["token_ids"]

        with Server(0, *OPTIONS) as server:
            expected = ids_of(server)
        self.assertEqual(len(expected), 8)
        for ranks, sums, options in ((2, "staged", []), (3, "auto", DRAFT_ON_CPU)):
            with self.server(ranks, *ON_GPU, *options, "--device-sums", sums) as server:
                self.assertEqual(ids_of(server), expected)
                taken = "exchange" if sums == "auto" else f"{sums}, as asked"
                self.assertIn(f"sums over the ranks' GPUs: {taken}\n", server.text_of_log())
                self.assertEqual(server.stop(), 0, server.text_of_log())


class Death(GpuRanks):
    """In the midst of steps."""

    def begin(self, server):
        """Returns once the first token of a long text has come."""
        events = server.events("/v1/completions", BODY)
        next(events)
        return events

    def check_killed(self, rank, sums, recovery):
        with self.server(3, *ON_GPU, "--device-sums", sums, recovery=recovery) as server:
            events = self.begin(server)
            os.kill(server.rank_pids()[rank], signal.SIGKILL)
            killed = time.time()
            code = server.wait_end(30)  # an mpirun that hangs is ended after 10 s
            print(f"rank {rank} killed, sums by {sums}, recovery {recovery}: the job ended {time.time() - killed:.1f} s later")
            self.assertLess(len(list(events)), 399)
            log = server.text_of_log()
            if not recovery:  # with it Open MPI 4.1's mpirun returns 0 whatever its ranks return
                self.assertNotEqual(code, 0, log)
                self.assertIn(f"rank {rank}", log)
            else:
                # Lost: the watchdog was before them, since what an emulated GPU had begun ended late.
                self.assertRegex(log, rf"rank {rank} \(\S+ on \S+(, process \d+\) is gone|\) is lost)")

    def test_a_killed_rank_ends_the_job_with_its_name(self):
        for recovery in (False, True):
            for rank, sums in ((0, "exchange"), (2, "exchange"), (1, "staged")):
                with self.subTest(rank=rank, sums=sums, recovery=recovery):
                    self.check_killed(rank, sums, recovery)

    def test_a_gpu_that_fails_ends_the_job_with_its_rank(self):
        for rank, name in ((0, r"coordinator\+target\[0/2\]"), (1, r"target\[1/2\]")):
            with self.server(3, *ON_GPU, *DRAFT_ON_CPU, failure=f"step:{rank}:40", recovery=False) as server:
                list(server.events("/v1/completions", BODY))
                self.assertEqual(server.wait_end(30), 70, server.text_of_log())
                self.assertRegex(server.text_of_log(), rf" E {name} the GPU has fallen off the bus\n")


class Start(GpuRanks):
    """What only one rank's GPU lacks stops all with one sentence."""

    def start(self, failure, *options, recovery=False):
        """(code, what was said) of a job of two targets and a draft that would end as soon as it has begun."""
        launch = [*mpirun(3, recovery), "-x", "OUTRIDER_TEST_GPUS=2", "-x", f"OUTRIDER_TEST_GPU_FAILURE={failure}"]
        with tempfile.TemporaryDirectory() as folder:
            requests = os.path.join(folder, "in.jsonl")
            open(requests, "w").close()
            code, _, errors = run([*launch, self.program, "batch", "-i", requests, "-o", os.path.join(folder, "out.jsonl"),
                                   *ON_GPU, *DRAFT_ON_CPU, *options], timeout_s=60)
        return code, errors

    def refusal(self, failure, *options):
        code, errors = self.start(failure, *options)
        self.assertEqual(code, 2, errors)
        sentences = [line for line in errors.splitlines() if line.startswith("outrider")]
        self.assertEqual(len(sentences), 1, errors)
        return sentences[0]

    def test_the_rank_is_named(self):
        named = r"rank 1 \(target\[1/2\] on \S+\): "
        self.assertRegex(self.refusal("open:1:0"), named + "GPU 1 is in use by another process")
        self.assertRegex(self.refusal("small:1:0"), named + "the GPU's memory does not suffice")
        self.assertRegex(self.refusal("allocate:1:5"), named + r"GPU 1 has no \d+ bytes left")
        self.assertRegex(self.refusal("share:1:0", "--device-sums", "exchange"),
                         "the exchange between GPUs cannot be set up: rank 1: GPU 1 cannot share memory")

    def test_a_rank_that_dies_on_the_way_is_named(self):
        """In its loading, and in what the ranks set up together."""
        num_deaths = 0
        for after in range(0, 1000, 8):
            code, errors = self.start(f"die:1:{after}", "--device-sums", "exchange", recovery=True)
            if "rank 1 ready" in errors and "is gone" not in errors:
                self.assertEqual(code, 0, errors)
                break
            # The draft only looks at rank 0: it was told.
            self.assertRegex(errors, r" draft rank 0 \(\S+\) ended the job: rank 1 \(\S+ on \S+, process \d+\) is gone")
            num_deaths += 1
        self.assertGreater(num_deaths, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
