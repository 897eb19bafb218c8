#!/usr/bin/env python3
"""The real `openai` package on /v1/responses and the real `anthropic` package on /v1/messages, against a live server.

    python3 tests/e2e/dialects_client.py --base-url http://127.0.0.1:8000 [--api-key K]

One line per check; exits 1 when one fails, 77 (skipped) when neither package is installed.
"""
import json
import sys
import urllib.request

import live_server

try:
    import openai
except ImportError:
    openai = None
try:
    import anthropic
except ImportError:
    anthropic = None

QUESTION = "Tell me one."
SYSTEM = "You tell stories."


def answer(client, model, **fields):
    return client.responses.create(model=model, **{"input": QUESTION, "max_output_tokens": 24, "temperature": 0, **fields})


def call(base_url, path, api_key, body=None):
    headers = {"Content-Type": "application/json", **({"X-Api-Key": api_key} if api_key else {})}
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(base_url + path, data, headers), timeout=60) as reply:
        return json.load(reply)


def check_responses(checks, client, model, text):
    whole = answer(client, model, instructions=SYSTEM, top_p=0.9, metadata={"k": "v"}, store=True)
    checks.check("responses.create answers as chat does", whole.output_text == text, (whole, text))
    checks.check("a response's shape", whole.object == "response" and whole.id.startswith("resp_") and
                 [item.type for item in whole.output] == ["message"] and whole.instructions == SYSTEM and
                 whole.metadata == {"k": "v"} and whole.top_p == 0.9, whole)
    checks.check("nothing is stored", whole.model_dump()["store"] is False, whole)
    usage = whole.usage
    checks.check("usage", usage.total_tokens == usage.input_tokens + usage.output_tokens and usage.output_tokens == 24 and
                 usage.input_tokens_details.cached_tokens >= 0, usage)
    checks.check("a cut response is incomplete", whole.status == "incomplete" and
                 whole.incomplete_details.reason == "max_output_tokens", whole)
    turns = [{"role": "developer", "content": SYSTEM},
             {"type": "message", "role": "user", "content": [{"type": "input_text", "text": QUESTION}]}]
    checks.check("input of items", answer(client, model, input=turns).output_text == text)
    history = [{"role": "user", "content": QUESTION}, *[item.model_dump() for item in whole.output],
               {"role": "user", "content": "Go on."}]
    checks.check("output goes back as input", answer(client, model, input=history).usage.input_tokens > usage.input_tokens)
    scored = answer(client, model, max_output_tokens=3, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = scored.output[0].content[0].logprobs
    checks.check("logprobs", len(logprobs) == 3 and len(logprobs[0].top_logprobs) == 2, scored)


# What comes between the first event and the last, without the deltas' number.
EVENTS = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
          "response.output_text.delta", "response.output_text.done", "response.content_part.done",
          "response.output_item.done", "response.incomplete"]


def check_responses_stream(checks, client, model):
    whole = answer(client, model)
    events = list(answer(client, model, stream=True))
    kinds = [event.type for event in events]
    checks.check("events in order", list(dict.fromkeys(kinds)) == EVENTS, kinds)
    checks.check("events are numbered", [event.sequence_number for event in events] == list(range(len(events))))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    checks.check("deltas add up", "".join(deltas) == whole.output_text, deltas)
    last = events[-1].response
    checks.check("the last event has the whole response", last.output_text == whole.output_text and
                 last.usage.output_tokens == whole.usage.output_tokens and last.output[0].status == "incomplete", last)
    stop = whole.output_text[-4:]
    with client.responses.stream(model=model, input=QUESTION, max_output_tokens=24, temperature=0,
                                 extra_body={"stop": stop}) as stream:
        final = stream.get_final_response()
    text = whole.output_text
    checks.check("responses.stream", final.status == "completed" and final.output_text == text[: text.index(stop)], final)


def refused(checks, name, error_type, action, words=""):
    try:
        action()
    except error_type as error:
        checks.check(name, words in str(error), error)
        return error
    checks.check(name, False, "accepted")
    return None


def check_responses_errors(checks, client, model):
    bad = openai.BadRequestError
    for name, value in (("previous_response_id", "resp_1"), ("conversation", "conv_1"), ("background", True),
                        ("truncation", "auto"), ("tools", [{"type": "web_search"}]), ("temperature", 5),
                        ("max_output_tokens", 10**8), ("max_output_tokens", "x"),
                        ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}])):
        error = refused(checks, f"{name}: {str(value)[:20]}", bad, lambda: answer(client, model, **{name: value}), name)
        checks.check("names its field", error and error.body["param"].startswith(name), error and error.body)
    refused(checks, "stream of a bad request", bad, lambda: answer(client, model, stream=True, top_p=2), "top_p")
    refused(checks, "unknown model", openai.NotFoundError, lambda: answer(client, "no-such-model"))
    refused(checks, "retrieve", openai.NotFoundError, lambda: client.responses.retrieve("resp_1"), "not stored")
    unknown = answer(client, model, max_output_tokens=1, extra_body={"temprature": 1}).model_dump()
    checks.check("unknown fields are told", "temperature" in unknown["warnings"][0], unknown)


def say(client, model, **fields):
    return client.messages.create(model=model, **{"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 24,
                                                  "extra_body": {"temperature": 0}, **fields})


def check_messages(checks, client, model, text):
    whole = say(client, model, system=SYSTEM)
    checks.check("messages.create answers as chat does", whole.content[0].text == text, (whole, text))
    checks.check("a message's shape", whole.type == "message" and whole.role == "assistant" and
                 whole.id.startswith("msg_") and whole.stop_reason == "max_tokens" and whole.stop_sequence is None, whole)
    blocks = say(client, model, system=[{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}],
                 messages=[{"role": "user", "content": [{"type": "text", "text": QUESTION}]}])
    checks.check("blocks of text", blocks.content[0].text == text, blocks)
    count = client.messages.count_tokens(model=model, system=SYSTEM, messages=[{"role": "user", "content": QUESTION}])
    usage = whole.usage
    checks.check("count_tokens counts what is sent", count.input_tokens ==
                 usage.input_tokens + usage.cache_read_input_tokens and usage.output_tokens == 24, (count, usage))
    stop = text[len(text) // 2 : len(text) // 2 + 2]
    stopped = say(client, model, system=SYSTEM, stop_sequences=[stop])
    checks.check("stop sequence", stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == stop and
                 stopped.content[0].text == text[: text.index(stop)], stopped)


def check_messages_stream(checks, client, model, text):
    events = list(say(client, model, system=SYSTEM, stream=True))
    kinds = [event.type for event in events]
    checks.check("events of a message in order", list(dict.fromkeys(kinds)) == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop"], kinds)
    checks.check("the start has the prompt's tokens", events[0].message.usage.input_tokens +
                 events[0].message.usage.cache_read_input_tokens > 0, events[0])
    with client.messages.stream(model=model, system=SYSTEM, max_tokens=24, extra_body={"temperature": 0},
                                messages=[{"role": "user", "content": QUESTION}]) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    checks.check("messages.stream", "".join(pieces) == text, pieces)
    checks.check("its final message", final.stop_reason == "max_tokens" and final.usage.output_tokens == 24 and
                 final.content[0].text == text, final)


def check_messages_errors(checks, client, model, base_url, api_key):
    bad = anthropic.BadRequestError
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}
    cases = {"max_tokens": 0, "stop_sequences": [""], "messages": [{"role": "user", "content": [image]}],
             "tools": [{"type": "web_search_20250305", "name": "web_search"}], "tool_choice": {"type": "some"}}
    for name, value in cases.items():
        error = refused(checks, f"{name}: {str(value)[:20]}", bad, lambda: say(client, model, **{name: value}), name)
        checks.check("Anthropic's error body", error and error.body["type"] == "error" and
                     error.body["error"]["type"] == "invalid_request_error", error and error.body)
    refused(checks, "unknown model", anthropic.NotFoundError, lambda: say(client, "no-such-model"), "not_found_error")
    if api_key:
        stranger = anthropic.Anthropic(base_url=base_url, api_key="wrong", max_retries=0)
        error = refused(checks, "wrong key", anthropic.AuthenticationError, lambda: say(stranger, model))
        checks.check("its body", error and error.body["error"]["type"] == "authentication_error", error)


def check_warnings(checks, client, model):
    told = say(client, model, max_tokens=1, thinking={"type": "enabled", "budget_tokens": 1024}).model_dump()
    checks.check("a thinking budget is told to be ignored", "budget" in told["warnings"][0], told)


def main():
    arguments = live_server.parser(__doc__.splitlines()[0]).parse_args()
    if not openai and not anthropic:
        print("skipped: neither the openai nor the anthropic package is installed")
        return 77
    checks = live_server.Checks()
    with live_server.server(arguments):
        url, key = arguments.base_url.rstrip("/"), arguments.api_key
        model = call(url, "/v1/models", key)["data"][0]["id"]
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": QUESTION}]
        chat = call(url, "/v1/chat/completions", key,
                    {"messages": messages, "max_tokens": 24, "temperature": 0})
        text = chat["choices"][0]["message"]["content"]
        if openai:
            client = openai.OpenAI(base_url=url + "/v1", api_key=key or "none", max_retries=0, timeout=120)
            checks.run("responses", lambda: check_responses(checks, client, model, text))
            checks.run("responses stream", lambda: check_responses_stream(checks, client, model))
            checks.run("responses errors", lambda: check_responses_errors(checks, client, model))
        else:
            print("skipped: the openai package is not installed")
        if anthropic:
            client = anthropic.Anthropic(base_url=url, api_key=key or "none", max_retries=0, timeout=120)
            checks.run("messages", lambda: check_messages(checks, client, model, text))
            checks.run("messages stream", lambda: check_messages_stream(checks, client, model, text))
            checks.run("messages errors", lambda: check_messages_errors(checks, client, model, url, key))
            checks.run("messages warnings", lambda: check_warnings(checks, client, model))
        else:
            print("skipped: the anthropic package is not installed")
    return checks.finish()


if __name__ == "__main__":
    sys.exit(main())
