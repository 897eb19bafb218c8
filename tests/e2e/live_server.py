"""What the client scripts of this folder share: one line per check, and a server started for the run when asked."""
import argparse
import contextlib
import subprocess
import urllib.parse


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
    return arguments


@contextlib.contextmanager
def server(arguments):
    """Yields (host, port) of the server; starts and stops one when --spawn is given."""
    if not arguments.spawn:
        url = urllib.parse.urlparse(arguments.base_url)
        yield url.hostname, url.port or 80
        return
    process = subprocess.Popen([arguments.spawn], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               stderr=subprocess.DEVNULL, text=True)
    try:
        port = int(process.stdout.readline().split()[1])
        arguments.pid = process.pid
        arguments.base_url = f"http://127.0.0.1:{port}"
        yield "127.0.0.1", port
    finally:
        process.stdin.close()
        process.wait(timeout=30)
