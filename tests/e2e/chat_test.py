"""outrider chat by a pipe and by a pseudo-terminal."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
import unittest

from cluster import DRAFTED_PAIR, ENVIRONMENT, PROGRAM, Server

COLORS = {"accepted": "\033[94m", "corrected": "\033[33m", "bonus": "\033[32m"}
DIM, OFF = "\033[2m", "\033[0m"
FIGURES = r"\d+ tokens, [\d.]+ tokens/s, [\d.]+ tokens per round(, \d+% accepted)?"


def environment(**more):
    clean = {name: value for name, value in ENVIRONMENT.items() if name not in ("NO_COLOR", "OPENAI_API_KEY")}
    return dict(clean, **more)


class Terminal:
    """The program with a pseudo-terminal for input and output."""

    def __init__(self, *arguments, **more):
        pid, self.descriptor = pty.fork()
        if pid == 0:
            os.execve(PROGRAM, [PROGRAM, "chat", *arguments], environment(**more))
        self.pid = pid
        self.text = ""

    def write(self, text):
        os.write(self.descriptor, text.encode())

    def read_until(self, pattern, timeout_s=30):
        """What came up to the pattern's end, which is taken from what will be read next."""
        end = time.time() + timeout_s
        while not (found := re.search(pattern, self.text)):
            if time.time() > end:
                raise AssertionError(f"no {pattern!r} in {self.text!r}")
            if select.select([self.descriptor], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self.descriptor, 65536).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"ended before {pattern!r}: {self.text!r}") from None
        taken, self.text = self.text[:found.end()], self.text[found.end():]
        return taken

    def end(self):
        """Its exit code."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.descriptor)
        return os.waitstatus_to_exitcode(status)


class Chat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(0, *DRAFTED_PAIR, "--api-key", "secret")
        cls.addClassCleanup(cls.server.kill)
        cls.options = ["--url", cls.server.url, "--api-key", "secret", "--max-tokens", "60", "--seed", "5",
                       "--temperature", "0.7"]

    def expected(self, *questions, system=""):
        """What the API answers to these."""
        messages = [{"role": "system", "content": system}] if system else []
        for question in questions:
            messages.append({"role": "user", "content": question})
            request = {"messages": messages, "max_tokens": 60, "seed": 5, "temperature": 0.7}
            done = subprocess.run(["curl", "-sS", self.server.url + "/v1/chat/completions", "-H", "X-Api-Key: secret",
                                   "-H", "Content-Type: application/json", "-d", json.dumps(request)],
                                  capture_output=True, text=True, timeout=60, check=True)
            answer = json.loads(done.stdout)["choices"][0]["message"]["content"]
            messages.append({"role": "assistant", "content": answer})
        return answer

    def pipe(self, text, *arguments, **more):
        return subprocess.run([PROGRAM, "chat", *(arguments or self.options)], input=text, capture_output=True, text=True,
                              timeout=60, env=environment(**more))

    def test_by_a_pipe_there_is_text_alone(self):
        done = self.pipe("The king said\n\nAnd then?\n/clear\nThe king said")
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second = self.expected("The king said"), self.expected("The king said", "And then?")
        self.assertEqual(done.stdout, "".join(text if text.endswith("\n") else text + "\n" for text in (first, second, first)))
        lines = done.stderr.splitlines()
        self.assertEqual(len(lines), 3)
        for line in lines:
            self.assertRegex(line, f"^{FIGURES}$")

    def test_a_system_prompt_and_the_key_of_the_environment(self):
        options = [entry for entry in self.options if entry not in ("--api-key", "secret")]
        done = self.pipe("Hello\n/quit\nnot read\n", *options, "--system", "You tell stories.", OPENAI_API_KEY="secret")
        self.assertEqual(done.stdout.rstrip("\n"), self.expected("Hello", system="You tell stories.").rstrip("\n"))

    def test_what_fails_is_a_sentence_and_a_code(self):
        for arguments, sentence in (([*self.options, "--api-key", "wrong"], "the server answered 401: a valid API key"),
                                    ([*self.options, "--model", "none"], "the server answered 404: "),
                                    (["--url", "http://127.0.0.1:1"], "there is no connection to http://127.0.0.1:1")):
            done = self.pipe("Hello\n", *arguments)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(sentence, done.stderr)
        done = self.pipe("/quti\n")
        self.assertIn("there is no command /quti", done.stderr)
        self.assertEqual(self.pipe("", "--url", "nonsense").returncode, 2)
        self.assertEqual(self.pipe("", "--temperature", "9").returncode, 2)

    def test_a_terminal_shows_origins_in_colours(self):
        terminal = Terminal(*self.options)
        self.assertIn(COLORS["accepted"] + "accepted" + OFF, terminal.read_until("> "))
        terminal.write("The king said\n")
        answer = terminal.read_until("accepted" + re.escape(OFF))
        self.assertRegex(answer, re.escape(DIM) + FIGURES + re.escape(OFF))
        for color in COLORS.values():
            self.assertIn(color, answer)
        plain = re.sub(r"\033\[\d+m", "", answer).replace("\r\n", "\n")
        self.assertIn(self.expected("The king said"), plain)
        terminal.read_until("> ")
        terminal.write("\x04")
        self.assertEqual(terminal.end(), 0)

    def test_no_color(self):
        terminal = Terminal(*self.options, NO_COLOR="1")
        terminal.read_until("> ")
        terminal.write("The king said\n")
        answer = terminal.read_until(FIGURES + r"\r\n")
        self.assertNotIn("\033", answer)
        terminal.write("/quit\n")
        self.assertEqual(terminal.end(), 0)


class Stopping(unittest.TestCase):
    def test_ctrl_c_stops_the_answer_and_not_the_program(self):
        with Server(0, "--model", "sim:step_ms=30") as server:
            terminal = Terminal("--url", server.url, "--max-tokens", "900")
            terminal.read_until("> ")
            for _ in range(100):  # at the prompt: a new one, however soon it comes
                terminal.write("\x03")
                terminal.read_until("> ")
            for _ in range(2):
                terminal.write("Tell me a long story\n")
                terminal.read_until("story\r\n.*\033\\[39m.*\033\\[39m")
                terminal.write("\x03")
                terminal.read_until("stopped: .* tokens", timeout_s=15)  # the whole answer takes 27 s
                terminal.read_until("> ")
            end = time.time() + 10
            while json.loads(server.get("/load"))["server_load"] and time.time() < end:
                time.sleep(0.02)
            self.assertEqual(json.loads(server.get("/load"))["server_load"], 0)
            terminal.write("/quit\n")
            self.assertEqual(terminal.end(), 0)

    def test_ctrl_c_before_the_first_token(self):
        with Server(0, "--model", "sim:step_ms=20000") as server:
            terminal = Terminal("--url", server.url)
            terminal.read_until("> ")
            terminal.write("Hello\n")
            time.sleep(0.5)
            start = time.time()
            os.kill(terminal.pid, signal.SIGINT)
            terminal.read_until("stopped.*\n.*> ", timeout_s=15)
            self.assertLess(time.time() - start, 15)
            terminal.write("/quit\n")
            self.assertEqual(terminal.end(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
