#!/usr/bin/env python3
"""The real `openai` package against a live server: list, create, stream, abort, errors.

    python3 tests/e2e/openai_client.py --base-url http://127.0.0.1:8000 [--api-key K] [--no-chat]

One line per check; exits 1 when one fails, 77 (skipped) when the package is not installed.
"""
import json
import sys
import time
import urllib.request

import live_server

try:
    import openai
except ImportError:
    print("skipped: the openai package is not installed")
    sys.exit(77)

PROMPT = "Once upon a time"


def greedy(client, model, **fields):
    fields = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, **fields}
    return client.completions.create(model=model, **fields)


def check_models(checks, client, model):
    listed = client.models.list().data[0]
    checks.check("models.list", listed.id == model and listed.object == "model", listed)
    extra = listed.model_dump()
    checks.check("models.list has root and max_model_len",
                 "root" in extra and isinstance(extra.get("max_model_len"), int), extra)
    checks.check("models.retrieve", client.models.retrieve(model).id == model)
    try:
        client.models.retrieve("no-such-model")
        checks.check("models.retrieve of an unknown model", False, "accepted")
    except openai.NotFoundError as error:
        checks.check("models.retrieve of an unknown model", error.status_code == 404)


def check_completions(checks, client, model):
    first = greedy(client, model)
    checks.check("completions.create", first.object == "text_completion" and first.choices[0].text != "", first)
    usage = first.usage
    checks.check("usage adds up", usage.total_tokens == usage.prompt_tokens + usage.completion_tokens > 0, usage)
    checks.check("greedy twice is the same", greedy(client, model).choices[0].text == first.choices[0].text)
    plain = greedy(client, model, extra_body={"speculative": {"enabled": False}})
    checks.check("greedy without speculation is the same", plain.choices[0].text == first.choices[0].text, plain)
    seeded = [client.completions.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0.9, seed=7)
              .choices[0].text for _ in range(2)]
    checks.check("seeded twice is the same", seeded[0] == seeded[1], seeded)
    chunks = list(greedy(client, model, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)
    checks.check("stream equals the whole", text == first.choices[0].text, text)
    checks.check("stream ends with usage", not chunks[-1].choices and
                 chunks[-1].usage.completion_tokens == usage.completion_tokens, chunks[-1])
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    checks.check("one finish reason, in the last chunk",
                 reasons[-1] is not None and all(reason is None for reason in reasons[:-1]), reasons)
    many = client.completions.create(model=model, prompt=[PROMPT, "The end"], n=2, max_tokens=4)
    checks.check("two prompts, n=2: four choices", [c.index for c in many.choices] == [0, 1, 2, 3], many)


def check_stops_and_ids(checks, client, model):
    text = greedy(client, model).choices[0].text
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    stopped = greedy(client, model, stop=[stop]).choices[0]
    checks.check("stop string", stopped.text == text[: text.index(stop)] and stopped.finish_reason == "stop",
                 (stop, stopped.text))
    with_ids = greedy(client, model, extra_body={"return_token_ids": True}).choices[0].model_dump()
    ids = with_ids["prompt_token_ids"]
    checks.check("return_token_ids", len(ids) > 0 and len(with_ids["token_ids"]) > 0, with_ids)
    again = greedy(client, model, prompt=ids).choices[0].text
    checks.check("prompt of token ids", again == text, again)


def check_logprobs(checks, client, model):
    choice = greedy(client, model, logprobs=3, max_tokens=4).choices[0]
    logprobs = choice.logprobs
    checks.check("legacy logprobs", len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset)
                 and all(value <= 0 for value in logprobs.token_logprobs), logprobs)
    scored = greedy(client, model, logprobs=1, max_tokens=0, echo=True).choices[0]
    checks.check("echo scores the prompt", scored.logprobs.token_logprobs[0] is None and
                 len(scored.logprobs.tokens) > 1 and scored.text.strip() == PROMPT, scored)


def check_chat(checks, client, model):
    messages = [{"role": "system", "content": "You tell stories."}, {"role": "user", "content": "Tell me one."}]
    whole = client.chat.completions.create(model=model, messages=messages, max_tokens=24, temperature=0)
    message = whole.choices[0].message
    checks.check("chat.completions.create", whole.object == "chat.completion" and message.role == "assistant" and
                 isinstance(message.content, str), whole)
    stream = client.chat.completions.create(model=model, messages=messages, max_tokens=24, temperature=0, stream=True)
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    checks.check("chat stream equals the whole", text == message.content, (text, message.content))
    checks.check("chat stream names the role first", chunks[0].choices[0].delta.role == "assistant", chunks[0])
    parts = [{"role": "user", "content": [{"type": "text", "text": "Tell me one."}]}]
    detailed = client.chat.completions.create(model=model, messages=parts, max_completion_tokens=3, logprobs=True,
                                              top_logprobs=2)
    content = detailed.choices[0].logprobs.content
    checks.check("chat logprobs", len(content) >= 1 and len(content[0].top_logprobs) == 2 and
                 isinstance(content[0].bytes, list), content)


def expect_error(checks, name, error_type, action, param=None):
    try:
        action()
    except error_type as error:
        body = error.body if isinstance(error.body, dict) else {}
        ok = bool(body.get("message")) and {"type", "param", "code"} <= body.keys()
        checks.check(name, ok and (param is None or body["param"] == param), error)
    else:
        checks.check(name, False, "accepted")


def check_errors(checks, client, model, base_url, api_key):
    bad = openai.BadRequestError
    expect_error(checks, "temperature out of range", bad, lambda: greedy(client, model, temperature=5), "temperature")
    expect_error(checks, "n of 0", bad, lambda: greedy(client, model, n=0), "n")
    expect_error(checks, "max_tokens beyond the context", bad, lambda: greedy(client, model, max_tokens=10**8),
                 "max_tokens")
    expect_error(checks, "bad request for a stream", bad, lambda: greedy(client, model, stream=True, top_p=2), "top_p")
    expect_error(checks, "suffix", bad, lambda: greedy(client, model, suffix="x"), "suffix")
    expect_error(checks, "unknown model", openai.NotFoundError, lambda: greedy(client, "no-such-model"), "model")
    expect_error(checks, "embeddings", openai.NotFoundError,
                 lambda: client.embeddings.create(model=model, input="x"))
    if api_key:
        stranger = openai.OpenAI(base_url=base_url + "/v1", api_key="wrong", max_retries=0)
        expect_error(checks, "wrong key", openai.AuthenticationError, lambda: greedy(stranger, model))


def get_json(base_url, path, api_key):
    request = urllib.request.Request(base_url + path, headers={"X-Api-Key": api_key} if api_key else {})
    with urllib.request.urlopen(request, timeout=10) as reply:
        return json.load(reply)


def check_abort(checks, client, model, base_url, api_key):
    limit = client.models.retrieve(model).model_dump()["max_model_len"]
    stream = client.completions.create(model=model, prompt=PROMPT, max_tokens=limit // 2, stream=True,
                                       extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 30
    while get_json(base_url, "/load", api_key)["server_load"] and time.monotonic() < deadline:
        time.sleep(0.02)
    load = get_json(base_url, "/load", api_key)["server_load"]
    checks.check("an aborted stream stops running", load == 0, load)
    checks.check("and the next request works", greedy(client, model).choices[0].text != "")


def main():
    parser = live_server.parser(__doc__.splitlines()[0])
    parser.add_argument("--no-chat", action="store_true", help="the model has no chat template")
    arguments = parser.parse_args()
    checks = live_server.Checks()
    with live_server.server(arguments):
        base_url, key = arguments.base_url.rstrip("/"), arguments.api_key
        client = openai.OpenAI(base_url=base_url + "/v1", api_key=key or "none", max_retries=0, timeout=120)
        model = client.models.list().data[0].id
        checks.run("models", lambda: check_models(checks, client, model))
        checks.run("completions", lambda: check_completions(checks, client, model))
        checks.run("stops and ids", lambda: check_stops_and_ids(checks, client, model))
        checks.run("logprobs", lambda: check_logprobs(checks, client, model))
        if not arguments.no_chat:
            checks.run("chat", lambda: check_chat(checks, client, model))
        checks.run("errors", lambda: check_errors(checks, client, model, base_url, key))
        checks.run("abort", lambda: check_abort(checks, client, model, base_url, key))
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
