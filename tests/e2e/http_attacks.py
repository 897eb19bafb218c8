#!/usr/bin/env python3
"""Attacks on a live server that Debian's HTTP library alone lets through, as a regression test.

Needs only the standard library. Sends what a hostile or broken client would: endless heads, chunked and compressed
bodies, ambiguous framing, dripping connections, JSON made to hurt. Checks the status, that the server is still there,
and, where its process is known, that its memory did not grow.

    python3 tests/e2e/http_attacks.py --base-url http://127.0.0.1:8000 [--pid N] [--api-key K]
"""
import json
import os
import sys
import threading
import time

import live_server

TARGET = ("127.0.0.1", 8000)
KEY_HEADER = b""
# The allocator keeps what the largest prompt and a hundred threads needed; without the guard it was 200 and more.
MEMORY_SLACK_MIB = 128


def connect(timeout=20):
    return live_server.connect(TARGET, timeout)


def read_reply(sock):
    """All bytes up to the end or a complete response; an early reset is an empty answer."""
    data = b""
    try:
        while True:
            chunk = sock.recv(65536)
            if not chunk:
                break
            data += chunk
            head, separator, body = data.partition(b"\r\n\r\n")
            if not separator:
                continue
            for line in head.split(b"\r\n"):
                if line.lower().startswith(b"content-length:") and len(body) >= int(line.split(b":")[1]):
                    return data
    except OSError:
        pass
    return data


def status_of(reply):
    return int(reply[9:12]) if len(reply) > 12 and reply.startswith(b"HTTP/1.1 ") else 0


def exchange(data):
    with connect() as sock:
        sock.sendall(data)
        return read_reply(sock)


def head(path="/v1/completions", method="POST", headers=b""):
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + KEY_HEADER + headers


def post(body, headers=b"", path="/v1/completions"):
    return head(path, headers=headers) + b"Content-Length: %d\r\n\r\n" % len(body) + body


def flood(first, chunk, limit):
    """Sends chunk after chunk until refused; (status, bytes the server took)."""
    sent = 0
    with connect() as sock:
        try:
            sock.sendall(first)
            while sent < limit:
                sent += sock.send(chunk)
        except OSError:
            pass
        return status_of(read_reply(sock)), sent


def resident_mib(pid):
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def attack_heads(checks):
    # The kernel's buffers take a few MiB; what the server takes is bounded by its head limit.
    status, sent = flood(head(method="GET") + b"X-A: ", b"a" * 65536, 200 << 20)
    checks.check("endless header line", status in (0, 431) and sent < (32 << 20), f"status {status}, {sent} bytes")
    status, sent = flood(head(method="GET"), b"X-A: b\r\n" * 1000, 64 << 20)
    checks.check("endless headers", status in (0, 431) and sent < (32 << 20), f"status {status}, {sent} bytes")
    status = status_of(exchange(head(method="GET") + b"X-A: b\r\n" * 100 + b"\r\n"))
    checks.check("100 headers", status == 431, f"status {status}")
    cases = {
        "request line of 9000 bytes": (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        "bare LF": (b"GET / HTTP/1.1\nHost: x\n\n", 400),
        "bare CR": (b"GET / HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n", 400),
        "NUL in a header": (head(method="GET") + b"A: b\0c\r\n\r\n", 400),
        "folded header": (head(method="GET") + b"A: b\r\n c\r\n\r\n", 400),
        "space before the colon": (head(method="GET") + b"A : b\r\n\r\n", 400),
        "a request line of one byte": (b"X\r\n\r\n", 400),
        "no Host": (b"GET / HTTP/1.1\r\n\r\n", 400),
        "two Hosts": (head(method="GET") + b"Host: y\r\n\r\n", 400),
        "HTTP/0.9": (b"GET /\r\n\r\n", 400),
        "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        "absolute target": (b"GET http://x/ HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        "percent NUL in the path": (b"GET /a%00b HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        "percent CRLF in the path": (b"GET /a%0d%0aX:y HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        "path upwards": (head("/../../etc/passwd", "GET") + b"\r\n", 404),
    }
    for name, (data, expected) in cases.items():
        status = status_of(exchange(data))
        checks.check(name, status == expected, f"status {status}, not {expected}")


def attack_framing(checks):
    body = b'{"prompt":"a","max_tokens":1}'
    length = b"Content-Length: %d\r\n" % len(body)
    chunked = b"Transfer-Encoding: chunked\r\n"
    cases = {
        "two Content-Lengths": (head(headers=length + b"Content-Length: 1\r\n") + b"\r\n" + body, 400),
        "Content-Length twice the same": (head(headers=length * 2) + b"\r\n" + body, 400),
        "Content-Length list": (head(headers=b"Content-Length: 5, 5\r\n") + b"\r\n" + body, 400),
        "negative Content-Length": (head(headers=b"Content-Length: -1\r\n") + b"\r\n" + body, 400),
        "Content-Length beyond 64 bits": (head(headers=b"Content-Length: 99999999999999999999\r\n") + b"\r\n", 413),
        "chunked with Content-Length": (head(headers=chunked + length) + b"\r\n" + body, 400),
        "chunk size -2": (head(headers=chunked) + b"\r\n-2\r\n" + b"a" * 1000, 400),
        "gzip body": (head(headers=b"Content-Encoding: gzip\r\n" + length) + b"\r\n" + body, 415),
        "multipart body": (post(body, b"Content-Type: multipart/form-data; boundary=x\r\n"), 415),
        "body over the limit": (head(headers=b"Content-Length: 1000000000\r\n") + b"\r\n", 413),
    }
    for name, (data, expected) in cases.items():
        status = status_of(exchange(data))
        checks.check(name, status == expected, f"status {status}, not {expected}")
    status, sent = flood(head(headers=chunked) + b"\r\n", b"10000\r\n" + b"a" * 65536 + b"\r\n", 128 << 20)
    checks.check("128 MiB in chunks", status in (0, 413) and sent < (32 << 20), f"status {status}, {sent} bytes")
    reply = exchange(head("/version", "GET", b"X-A: a%0d%0aSet-Cookie: x=y\r\nX-Request-Id: a%0d%0aB: c\r\n"
                          b"REMOTE_ADDR: 9.9.9.9\r\n") + b"\r\n")
    checks.check("percent CRLF and REMOTE_ADDR in headers",
                 status_of(reply) == 200 and b"Set-Cookie" not in reply and b"9.9.9.9" not in reply, reply[:200])
    smuggled = exchange(head(headers=b"Content-Length: 0\r\n") + b"\r\n" + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n")
    checks.check("body outside its Content-Length is not the body", status_of(smuggled) == 400, smuggled[:100])


def attack_json(checks):
    cases = {
        "5,000,000 open brackets": b'{"prompt":' + b"[" * 5_000_000,
        "100,000 nested arrays, closed": b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        "duplicate keys": b'{"prompt":"a","max_tokens":1,"max_tokens":400}',
        "bytes that are not UTF-8": b'{"prompt":"\xff\xfe"}',
        "lone surrogate": b'{"prompt":"\\ud800"}',
        "not an object": b"[1,2,3]",
        "empty body": b"",
        "max_tokens 1e30": b'{"prompt":"a","max_tokens":1e30}',
        "max_tokens true": b'{"prompt":"a","max_tokens":true}',
        "max_tokens -1": b'{"prompt":"a","max_tokens":-1}',
        "n 1000000": b'{"prompt":"a","n":1000000}',
        "token id -1": b'{"prompt":[-1]}',
        "token id 2147483647": b'{"prompt":[2147483647]}',
        "token id 4294967296": b'{"prompt":[4294967296]}',
        "logit_bias out of vocabulary": b'{"prompt":"a","logit_bias":{"2147483647":1}}',
        "temperature NaN": b'{"prompt":"a","temperature":NaN}',
        "temperature 1e400": b'{"prompt":"a","temperature":1e400}',
        "17 stop strings": b'{"prompt":"a","stop":' + json.dumps(["x"] * 17).encode() + b"}",
        "image part": b'{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"file:///etc/passwd"}}]}]}',
        "template from the client": b'{"messages":[{"role":"user","content":"a"}],"chat_template":"{{ 1 }}"}',
        "prompt of 7 MiB": b'{"prompt":"' + b"a b " * (7 << 18) + b'"}',
    }
    for name, body in cases.items():
        path = "/v1/chat/completions" if b"messages" in body else "/v1/completions"
        start = time.monotonic()
        reply = exchange(post(body, path=path))
        took = time.monotonic() - start
        ok = status_of(reply) == 400 and b'"error":{"message"' in reply
        checks.check(f"JSON: {name} ({took:.2f} s)", ok, reply[:200])


def attack_slowly(checks):
    """40 connections that drip a head byte by byte, 40 a body; others must not notice."""
    stop = threading.Event()

    def drip(data):
        try:
            with connect() as sock:
                for byte in data:
                    if stop.is_set():
                        return
                    sock.send(bytes([byte]))
                    time.sleep(0.2)
        except OSError:
            pass

    slow_head = b"GET /version HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"a" * 1000
    threads = [threading.Thread(target=drip, args=(data,), daemon=True)
               for data in [slow_head] * 40 + [post(b" " * 100_000)] * 40]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    worst = 0.0
    for path in ["/health", "/metrics", "/version"] * 5:
        start = time.monotonic()
        status = status_of(exchange(head(path, "GET") + b"\r\n"))
        worst = max(worst, time.monotonic() - start)
        if status != 200:
            checks.check(f"{path} among dripping connections", False, f"status {status}")
    checks.check(f"80 dripping connections, worst other answer {worst:.3f} s", worst < 5.0, f"{worst} s")
    stop.set()
    for thread in threads:
        thread.join(timeout=10)


def attack_by_leaving(checks):
    body = b'{"prompt":"a","max_tokens":400,"ignore_eos":true,"stream":true}'
    for cut in range(0, 60):
        with connect() as sock:
            data = post(body)
            sock.sendall(data[: len(data) * cut // 50])
    deadline = time.monotonic() + 60
    load = b""
    while time.monotonic() < deadline:
        load = exchange(head("/load", "GET") + b"\r\n")
        if b'"server_load":0' in load:
            break
        time.sleep(0.05)
    checks.check("60 clients that left: nothing runs any more", b'"server_load":0' in load, load[-100:])


def main():
    global TARGET, KEY_HEADER
    arguments = live_server.parser(__doc__.splitlines()[0]).parse_args()
    checks = live_server.Checks()
    with live_server.server(arguments) as TARGET:
        if arguments.api_key:
            KEY_HEADER = f"X-Api-Key: {arguments.api_key}\r\n".encode()
        before = resident_mib(arguments.pid) if arguments.pid else 0
        for attack in (attack_heads, attack_framing, attack_json, attack_slowly, attack_by_leaving):
            checks.run(attack.__name__, lambda attack=attack: attack(checks))
        reply = exchange(post(b'{"prompt":"Once","max_tokens":2}'))
        checks.check("the server still answers", status_of(reply) == 200, reply[:200])
        if arguments.pid:
            grown = resident_mib(arguments.pid) - before
            checks.check(f"memory grew by {grown:.0f} MiB", grown < MEMORY_SLACK_MIB, f"{grown} MiB")
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
