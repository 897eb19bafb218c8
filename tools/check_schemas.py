#!/usr/bin/env python3
"""Asks a server for one document of each JSON schema under a folder, and validates it with the package jsonschema.

    python3 tools/check_schemas.py FOLDER [--url http://127.0.0.1:8000] [--most 2000] [--max-tokens 600]

A schema file is the schema itself, or an object whose "schema" (or "json_schema") is one. Counted are documents that
are valid, invalid, or unfinished after --max-tokens, and schemas the server or jsonschema refuses. Exits 1 when a
document is invalid.
"""
import argparse
import collections
import concurrent.futures
import json
import pathlib
import sys
import urllib.error
import urllib.request

import jsonschema


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--most", type=int, default=0, help="schemas, evenly spread over the folder; 0 = all")
    parser.add_argument("--max-tokens", type=int, default=600)
    parser.add_argument("--in-flight", type=int, default=16)
    return parser.parse_args()


def schema_in(path):
    content = json.loads(path.read_text())
    if isinstance(content, dict):
        for name in ("schema", "json_schema"):
            if isinstance(content.get(name), dict):
                return content[name]
    return content


def post(url, body):
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


# A small model seldom ends a string or a list by itself.
def closing_bias(url):
    bias = {}
    for text in ('"', '",', '"}', "}", "]"):
        ids = post(url + "/tokenize", {"prompt": text, "add_special_tokens": False})[1]["tokens"]
        if len(ids) == 1:
            bias[str(ids[0])] = 9
    return bias


def judge(path, url, bias, max_tokens):
    schema = schema_in(path)
    validator_class = jsonschema.validators.validator_for(schema)
    try:
        validator_class.check_schema(schema)
        validator = validator_class(schema)
    except Exception:  # noqa: BLE001 - whatever jsonschema says
        return "no schema to jsonschema", ""
    status, reply = post(url + "/v1/completions", {
        "prompt": "A document:\n", "max_tokens": max_tokens, "temperature": 1, "logit_bias": bias,
        "response_format": {"type": "json_schema",
                            "json_schema": {"name": "checked", "strict": True, "schema": schema}}})
    if status != 200:
        return ("refused" if status == 400 else f"status {status}"), reply["error"]["message"]
    choice = reply["choices"][0]
    if choice["finish_reason"] != "stop":
        return "unfinished", choice["text"]
    try:
        validator.validate(json.loads(choice["text"]))
    except (ValueError, jsonschema.ValidationError) as error:
        return "invalid", f"{getattr(error, 'validator', 'json')} of {list(getattr(error, 'absolute_schema_path', []))}: {choice['text']}"
    except Exception as error:  # noqa: BLE001 - references that jsonschema cannot follow
        return "not judged", f"{type(error).__name__}"
    return "valid", ""


def main():
    options = arguments()
    paths = sorted(options.folder.rglob("*.json"))
    if options.most and len(paths) > options.most:
        paths = [paths[i * len(paths) // options.most] for i in range(options.most)]
    bias = closing_bias(options.url)
    counts = collections.Counter()
    with concurrent.futures.ThreadPoolExecutor(options.in_flight) as pool:
        judged = pool.map(lambda path: judge(path, options.url, bias, options.max_tokens), paths)
        for path, (verdict, detail) in zip(paths, judged):
            counts[verdict] += 1
            if verdict not in ("valid", "unfinished"):
                print(f"{verdict}: {path.name}: {detail[:300]}".replace("\n", " "), flush=True)
    for verdict, count in counts.most_common():
        print(f"{count:6} {verdict}")
    return 1 if counts["invalid"] else 0


if __name__ == "__main__":
    sys.exit(main())
