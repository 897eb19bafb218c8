"""Structured output over HTTP: one process and `mpirun -np 3`, raw fields and the openai client's parse()."""

import json
import re
import subprocess
import unittest

from cluster import DRAFTED_PAIR, PROGRAM, Server

try:
    import openai
    import pydantic
except ImportError:
    openai = None
try:
    import anthropic
except ImportError:
    anthropic = None

SCHEMA = {"type": "object", "required": ["name", "age"], "additionalProperties": False,
          "properties": {"name": {"type": "string", "maxLength": 10}, "age": {"type": "integer", "maximum": 99}}}
COMPACT = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}


def is_built():
    told = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
    return "xgrammar" in told


def complete(server, **fields):
    body = {"prompt": "Once upon a time", "max_tokens": 80, "temperature": 1, **fields}
    status, reply = server.post("/v1/completions", body)
    if status != 200:
        raise AssertionError(f"{status}: {reply}")
    return reply["choices"][0]


@unittest.skipUnless(is_built(), "built without xgrammar")
class StructuredOutput(unittest.TestCase):
    def check_fields(self, server):
        for seed in range(5):
            plain = complete(server, seed=seed, speculative={"enabled": False}, **COMPACT)
            self.assertEqual(plain["finish_reason"], "stop", plain)
            person = json.loads(plain["text"])
            self.assertEqual(set(person), {"name", "age"})
            self.assertLessEqual(person["age"], 99)
            self.assertEqual(complete(server, seed=seed, **COMPACT)["text"], plain["text"])
            said = complete(server, seed=seed, guided_regex="(yes|no), [a-z]{4}")["text"]
            self.assertTrue(re.fullmatch("(yes|no), [a-z]{4}", said), said)
            self.assertIn(complete(server, seed=seed, guided_choice=["north", "south"])["text"], ("north", "south"))
            listed = complete(server, seed=seed, grammar='root ::= "a" ("b" | "c"){2}')["text"]
            self.assertTrue(re.fullmatch("a[bc]{2}", listed), listed)

    def check_errors(self, server):
        for fields, param in (({"guided_json": {"type": "objekt"}}, "guided_json"),
                              ({"guided_regex": "(a"}, "guided_regex"),
                              ({"grammar": "root ::= ("}, "grammar"),
                              ({"response_format": {"type": "xml"}}, "response_format")):
            status, reply = server.post("/v1/completions", {"prompt": "a", **fields})
            self.assertEqual((status, reply["error"]["param"]), (400, param), reply)

    def check_client(self, server):
        class Person(pydantic.BaseModel):
            name: str = pydantic.Field(max_length=8)
            age: int = pydantic.Field(ge=0, le=99)

        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        ask = {"model": client.models.list().data[0].id, "max_tokens": 400, "temperature": 0.7,
               "messages": [{"role": "user", "content": "Who is the king?"}], "response_format": Person}
        for seed in range(3):
            answer = client.chat.completions.parse(**ask, seed=seed).choices[0]
            self.assertIsInstance(answer.message.parsed, Person, answer)
        with client.chat.completions.stream(**ask, seed=0) as stream:
            final = stream.get_final_completion().choices[0].message
        self.assertIsInstance(final.parsed, Person)
        self.assertEqual(final.content, client.chat.completions.parse(**ask, seed=0).choices[0].message.content)

    def check_dialects(self, server):
        class Person(pydantic.BaseModel):
            name: str
            age: int

        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none")
        model = client.models.list().data[0].id
        question = "Who is the king?"
        ask = {"model": model, "input": question, "max_output_tokens": 450, "text_format": Person}
        response = client.responses.parse(**ask, extra_body={"seed": 0})
        self.assertIsInstance(response.output_parsed, Person, response)
        with client.responses.stream(**ask, extra_body={"seed": 0}) as stream:
            self.assertEqual(stream.get_final_response().output_parsed, response.output_parsed)
        if anthropic is None:
            return
        client = anthropic.Anthropic(base_url=server.url, api_key="none")
        message = client.messages.parse(model=model, max_tokens=450, output_format=Person, extra_body={"seed": 0},
                                        messages=[{"role": "user", "content": question}])
        self.assertEqual(message.parsed_output, response.output_parsed)

    def check(self, server):
        self.check_fields(server)
        self.check_errors(server)
        if openai is not None:
            self.check_client(server)
            self.check_dialects(server)
        self.assertEqual(server.stop(), 0, server.text_of_log())

    def test_two_targets_and_a_draft(self):
        with Server(3, *DRAFTED_PAIR) as server:
            self.check(server)

    def test_forced_tokens_without_a_draft_model(self):
        with Server(0, "--model", "embedded", "--speculative-config.method", "grammar") as server:
            self.check_fields(server)
            drafted = server.metric("vllm:spec_decode_num_draft_tokens_total")
            accepted = server.metric("vllm:spec_decode_num_accepted_tokens_total")
            self.assertGreater(drafted, 30)
            self.assertGreater(accepted, drafted / 3)


if __name__ == "__main__":
    unittest.main()
