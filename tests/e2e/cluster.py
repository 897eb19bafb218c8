"""Helpers of the end-to-end tests: jobs under mpirun and requests to them. Standard library only."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "tools"))

from free_port import free_port as any_free_port  # noqa: E402 - found by the line above

PROGRAM = os.environ["OUTRIDER_PROGRAM"]
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
PAIR = ["--model", "embedded", "--speculative-config.model", "embedded"]
# Left to itself the planner does without so tiny a target's draft, and so does asynchronous drafting on shared CPUs.
DRAFTED_PAIR = [*PAIR, "--speculative-config.num_speculative_tokens", "4", "--speculative-config.async_drafting", "cache"]


RESERVED = []


def free_port():
    """Nobody else's: another test, or this one, may have been given one that its server has not taken yet. A name in
    the abstract namespace is this process's until it ends."""
    while True:
        port = any_free_port()
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0outrider-test-port-{port}")
        except OSError:
            name.close()
            continue
        RESERVED.append(name)
        return port


def mpirun(num_ranks, recovery=True):
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
    return command + (["--enable-recovery"] if recovery else []) + ["-np", str(num_ranks)]


def job_code(returned, log):
    """The exit code of a job that mpirun ran: what mpirun returned. But Open MPI 4.1.4's mpirun can die of SIGSEGV in
    its own finalize after it has ended an aborted job; then what it said of the first process that failed."""
    if returned != -signal.SIGSEGV:
        return returned
    if said := re.search(r"The first process to do so was:\s+Process name: .*\s+Exit code: +(\d+)", log):
        return int(said.group(1))
    said = re.search(r"noticed that process rank \d+ with PID \d+ on node \S+ exited on\s+signal (\d+)", log)
    return 128 + int(said.group(1)) if said else returned


def run(command, timeout_s=120, **options):
    """Runs to the end; returns (code, stdout, stderr)."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=ENVIRONMENT, **options)
    code = job_code(done.returncode, done.stderr) if command[0] == "mpirun" else done.returncode
    return code, done.stdout, done.stderr


def text_of(path):
    """Of a file in /proc; None where the process or thread has ended."""
    try:
        with open(path) as file:
            return file.read()
    except (FileNotFoundError, ProcessLookupError):
        return None


def tasks_of(pid):
    """Its threads; none when it has ended."""
    try:
        return os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return []


def children(pid):
    """Processes below pid, as {pid: command line}. One that ends meanwhile hides none of the others."""
    found = {}
    frontier = [pid]
    while frontier:
        parent = frontier.pop()
        for task in tasks_of(parent):
            for child in (text_of(f"/proc/{parent}/task/{task}/children") or "").split():
                line = text_of(f"/proc/{child}/cmdline")
                if line is not None:
                    found[int(child)] = line.replace("\0", " ")
                    frontier.append(int(child))
    return found


def parent(pid):
    """0 when it has ended."""
    stat = text_of(f"/proc/{pid}/stat")
    return int(stat.rsplit(")", 1)[1].split()[1]) if stat else 0


def left_of(pids):
    """Of these processes, those that run."""
    left = []
    for pid in pids:
        stat = text_of(f"/proc/{pid}/stat")
        if stat and stat.rsplit(")", 1)[1].split()[0] not in "ZX":
            left.append(pid)
    return left


class UnixConnection(http.client.HTTPConnection):
    path = None

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def unix_handler(path):
    """urllib's, for a server that listens on a Unix socket."""
    class Handler(urllib.request.HTTPHandler):
        def http_open(self, request):
            return self.do_open(type("Connection", (UnixConnection,), {"path": path}), request)
    return Handler()


class Server:
    """`outrider serve` under mpirun (num_ranks 0: one process). handlers: urllib's, where the server speaks TLS (scheme
    https) or listens on a Unix socket. launcher: in place of mpirun. wait_s 0: returns at once."""

    def __init__(self, num_ranks, *options, recovery=True, fault="", program=PROGRAM, environment=None,
                 wait_s=60, scheme="http", handlers=(), launcher=None):
        self.port = free_port()
        self.url = f"{scheme}://127.0.0.1:{self.port}"
        self.opener = urllib.request.build_opener(*handlers)
        self.num_ranks = num_ranks
        self.log = tempfile.NamedTemporaryFile("w+", suffix=".log")
        if launcher is None:
            launcher = mpirun(num_ranks, recovery) if num_ranks else []
        self.process = subprocess.Popen([*launcher, program, "serve", *options, "--port", str(self.port)],
                                        stdout=self.log, stderr=self.log, start_new_session=True,
                                        env=dict(ENVIRONMENT, OUTRIDER_FAULT=fault, **(environment or {})))
        if wait_s:
            self.wait_ready(wait_s)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.kill()

    def text_of_log(self):
        with open(self.log.name) as file:
            return file.read()

    def wait_ready(self, timeout_s):
        end = time.time() + timeout_s
        while time.time() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}:\n{self.text_of_log()}")
            try:
                with self.opener.open(self.url + "/readyz", timeout=2):
                    return self.wait_said("ready: ")
            except (urllib.error.URLError, OSError):
                time.sleep(0.05)
        raise RuntimeError(f"not ready:\n{self.text_of_log()}")

    def wait_said(self, words, timeout_s=10):
        """Until they are in the log: a line reaches it by way of mpirun, and may come after what it tells of."""
        end = time.time() + timeout_s
        while words not in self.text_of_log() and time.time() < end:
            time.sleep(0.005)

    def rank_pids(self):
        """World rank -> pid."""
        pids = {}
        for pid, line in children(self.process.pid).items():
            if " serve " not in line:
                continue
            # Empty when it ended meanwhile, as a draft's engine that a test has killed.
            for entry in (text_of(f"/proc/{pid}/environ") or "").split("\0"):
                if entry.startswith("OMPI_COMM_WORLD_RANK="):
                    pids.setdefault(int(entry.split("=")[1]), []).append(pid)
        # The draft rank has a child and a grandchild with the same environment: the engine's keeper and the engine.
        return {rank: next(pid for pid in found if not set(found) & {parent(pid)}) for rank, found in pids.items()}

    def engine_pid(self):
        """The process that holds the draft model: the draft rank's grandchild. StopIteration while there is none."""
        return next(iter(list(children(self.rank_pids()[self.num_ranks - 1]))[1:]))

    def post(self, path, body, timeout_s=60):
        """Returns (status, parsed JSON)."""
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with self.opener.open(request, timeout=timeout_s) as response:
                return response.status, json.loads(response.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def events(self, path, body, timeout_s=60):
        """Yields the events of a streamed answer, parsed; that the server ends cuts it short. HTTPError as it is."""
        request = urllib.request.Request(self.url + path, json.dumps({**body, "stream": True}).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with self.opener.open(request, timeout=timeout_s) as response:
                for line in response:
                    if line.startswith(b"data: {"):
                        yield json.loads(line[6:])
        except urllib.error.HTTPError:
            raise
        except (OSError, http.client.HTTPException):  # the second: cut inside of a chunk
            return

    def get(self, path):
        with self.opener.open(self.url + path, timeout=10) as response:
            return response.read().decode()

    def metric(self, name):
        """Sum of all samples of a family."""
        total = 0.0
        for line in self.get("/metrics").splitlines():
            if line.startswith(name + "{") or line.startswith(name + " "):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def stop(self, timeout_s=20):
        """SIGUSR1 to mpirun (which forwards it) or SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGUSR1 if self.num_ranks else signal.SIGTERM)
        return self.wait_end(timeout_s)

    def wait_end(self, timeout_s=30):
        """Until the job has ended by itself; returns its exit code."""
        code = self.process.wait(timeout_s)
        return job_code(code, self.text_of_log()) if self.num_ranks else code

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
