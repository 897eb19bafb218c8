"""What the client scripts of this folder share: one line per check, and a server started for the run when asked."""
import argparse
import contextlib
import socket
import ssl
import subprocess
import tempfile
import urllib.parse

import certificate


class Checks:
    """Prints one line per check; failed() says whether the script must exit non-zero."""

    def __init__(self):
        self.num_passed = 0
        self.num_failed = 0

    def check(self, name, condition, detail=""):
        if condition:
            self.num_passed += 1
            print(f"ok    {name}", flush=True)
        else:
            self.num_failed += 1
            print(f"FAIL  {name}: {detail}", flush=True)
        return bool(condition)

    def run(self, name, function):
        """A check that is a function; an exception fails it and the script goes on."""
        try:
            function()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this check's failure
            self.check(name, False, f"{type(error).__name__}: {error}")

    def finish(self):
        print(f"{self.num_passed} passed, {self.num_failed} failed", flush=True)
        return 1 if self.num_failed or not self.num_passed else 0


def parser(description):
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--base-url", default="http://127.0.0.1:8000", help="of a live server, without /v1")
    arguments.add_argument("--api-key", default="")
    arguments.add_argument("--pid", type=int, default=0, help="of the server, to watch its memory")
    arguments.add_argument("--spawn", default="", help="a program to run that prints 'port N' and stops at end of input")
    arguments.add_argument("--transport", default="tcp", choices=["tcp", "tls", "unix"], help="of what --spawn starts")
    return arguments


def connect(target, timeout):
    """target: (host, port), (host, port, TLS context) or the path of a Unix socket."""
    if isinstance(target, str):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(timeout)
        sock.connect(target)
        return sock
    sock = socket.create_connection(target[:2], timeout=timeout)
    return target[2].wrap_socket(sock, server_hostname=target[0]) if target[2:] else sock


@contextlib.contextmanager
def server(arguments):
    """Yields what connect() takes; starts and stops a server when --spawn is given."""
    if not arguments.spawn:
        url = urllib.parse.urlparse(arguments.base_url)
        yield url.hostname, url.port or 80
        return
    with tempfile.TemporaryDirectory() as folder:
        files = certificate.make(folder) if arguments.transport == "tls" else []
        path = f"{folder}/socket"
        words = {"tcp": [], "tls": files, "unix": [path]}[arguments.transport]
        process = subprocess.Popen([arguments.spawn, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.DEVNULL, text=True)
        try:
            port = int(process.stdout.readline().split()[1])
            arguments.pid = process.pid
            arguments.base_url = f"http://127.0.0.1:{port}"
            context = [ssl.create_default_context(cafile=files[0])] if files else []
            yield path if arguments.transport == "unix" else ("127.0.0.1", port, *context)
        finally:
            process.stdin.close()
            process.wait(timeout=30)
