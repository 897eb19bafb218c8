"""What others wrote, unchanged, against the embedded pair: each library asks in its own ways for a text, for a document
of a schema, for a call of a tool. The schema leaves the model a choice but no way to be wrong."""

import functools
import importlib.util
import os
import sys
import typing
import unittest

from cluster import DRAFTED_PAIR, Server
from structured_output_test import is_built

try:
    import pydantic
except ImportError:
    print("skipped: pydantic is not installed, nor any client library")
    sys.exit(77)

QUESTION = "Who is king?"
TOKENS = {"max_tokens": 200, "temperature": 0}
# Some libraries look for a newer table of prices, or for a key of a service, unless they are told.
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", OPENAI_API_KEY="none", ANTHROPIC_API_KEY="none")


class King(pydantic.BaseModel):
    """A king."""
    name: typing.Literal["Olaf", "Otto"]
    age: typing.Literal[41, 42]


class Anything(pydantic.BaseModel):
    """What json_object promises: an object. Its members are the model's."""


class Crown(pydantic.BaseModel):
    """The arguments of crown()."""
    model_config = {"extra": "forbid"}
    name: typing.Literal["Olaf", "Otto"]


def crown(name: typing.Literal["Olaf", "Otto"]) -> str:
    """Crowns a king."""
    return f"King {name}"


CROWN = {"name": "crown", "description": "Crowns a king.", "parameters": Crown.model_json_schema()}


class Served:
    """The server as a library is told of it."""

    model = "kings"  # pydantic-ai takes a name that begins with o for one of OpenAI's, and sends it no temperature

    def __init__(self, server):
        self.root = server.url
        self.url = server.url + "/v1"
        # json_object lets the model write for ever; this makes it close the object as soon as it may.
        status, reply = server.post("/tokenize", {"prompt": "}"})
        assert status == 200, reply
        self.closing = {str(reply["tokens"][0]): 100}

    def openai(self):
        import openai
        return openai.OpenAI(base_url=self.url, api_key="none", max_retries=0, timeout=60)


def user(text=QUESTION):
    return [{"role": "user", "content": text}]


def openai_cases(served):
    ask = functools.partial(served.openai().chat.completions.create, model=served.model, messages=user(), **TOKENS)
    tool = {"type": "function", "function": CROWN}

    def call(**fields):
        message = ask(tools=[tool], parallel_tool_calls=False, **fields).choices[0].message
        return [(made.function.name, made.function.arguments) for made in message.tool_calls]

    def streamed():
        with served.openai().chat.completions.stream(model=served.model, messages=user(), tools=[tool],
                                                     parallel_tool_calls=False, tool_choice="required",
                                                     **TOKENS) as stream:
            message = stream.get_final_completion().choices[0].message
        return [(made.function.name, made.function.arguments) for made in message.tool_calls]

    def responses():
        made = served.openai().responses.create(model=served.model, input=QUESTION, max_output_tokens=200,
                                                tools=[{"type": "function", **CROWN}], tool_choice="required",
                                                parallel_tool_calls=False)
        return [(item.name, item.arguments) for item in made.output if item.type == "function_call"]

    return {"required": lambda: call(tool_choice="required"),
            "named": lambda: call(tool_choice={"type": "function", "function": {"name": "crown"}}),
            "streamed tool": streamed, "responses, tool": responses}


def anthropic_cases(served):
    import anthropic
    client = anthropic.Anthropic(base_url=served.root, api_key="none", max_retries=0, timeout=60)
    fields = {"model": served.model, "max_tokens": 200}
    tool = {"name": "crown", "description": CROWN["description"], "input_schema": CROWN["parameters"]}
    used = {**fields, "tools": [tool], "messages": user()}
    forced = {**used, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}

    def calls(message):
        return [(block.name, block.input) for block in message.content if block.type == "tool_use"]

    def streamed():
        with client.messages.stream(**forced) as stream:
            return calls(stream.get_final_message())

    def answered():
        message = client.messages.create(**forced)
        turns = user() + [{"role": "assistant", "content": [block.model_dump() for block in message.content]}]
        results = [{"type": "tool_result", "tool_use_id": block.id, "content": crown(**block.input)}
                   for block in message.content]
        return client.messages.parse(**fields, output_format=King, tools=[tool], tool_choice={"type": "none"},
                                     messages=turns + [{"role": "user", "content": results}]).parsed_output

    return {"parse": lambda: client.messages.parse(**fields, messages=user(), output_format=King).parsed_output,
            "any": lambda: calls(client.messages.create(**forced)),
            "named": lambda: calls(client.messages.create(**used, tool_choice={"type": "tool", "name": "crown"})),
            "streamed tool": streamed, "result of a tool": answered}


def litellm_cases(served):
    import litellm
    litellm.suppress_debug_info = True
    where = {"api_base": served.url, "api_key": "none"}
    ask = functools.partial(litellm.completion, model=f"hosted_vllm/{served.model}", messages=user(), **where, **TOKENS)
    tool = {"tools": [{"type": "function", "function": CROWN}], "tool_choice": "required",
            "parallel_tool_calls": False}

    def streamed(**fields):
        chunks = list(ask(stream=True, **fields))
        return litellm.stream_chunk_builder(chunks).choices[0].message

    def calls(message):
        return [(made.function.name, made.function.arguments) for made in message.tool_calls]

    def responses(**fields):
        return litellm.responses(model=f"openai/{served.model}", input=QUESTION, max_output_tokens=200, **where,
                                 **fields)

    return {"text": lambda: ask().choices[0].message.content,
            "stream": lambda: streamed().content,
            "text completion": lambda: litellm.text_completion(
                model=f"text-completion-openai/{served.model}", prompt=QUESTION, max_tokens=9, **where).choices[0].text,
            "response_format": lambda: King.model_validate_json(ask(response_format=King).choices[0].message.content),
            "responses": lambda: King.model_validate_json(responses(text_format=King).output[0].content[0].text),
            "required": lambda: calls(ask(**tool).choices[0].message),
            "streamed tool": lambda: calls(streamed(**tool)),
            "responses, tool": lambda: [(item.name, item.arguments) for item in responses(
                tools=[{"type": "function", **CROWN}], tool_choice="required", parallel_tool_calls=False).output]}


def langchain_openai_cases(served):
    import langchain_openai
    chat = functools.partial(langchain_openai.ChatOpenAI, model=served.model, base_url=served.url, api_key="none",
                             max_retries=0, **TOKENS)

    def structured(method, schema=King, **fields):
        return chat(**fields).with_structured_output(schema, method=method).invoke(QUESTION)

    def streamed():
        message = None
        for chunk in bound().stream(QUESTION):
            message = chunk if message is None else message + chunk
        return [(made["name"], made["args"]) for made in message.tool_calls]

    def bound(**fields):
        return chat(**fields).bind_tools([crown], tool_choice="any", parallel_tool_calls=False, strict=True)

    def called(**fields):
        return [(made["name"], made["args"]) for made in bound(**fields).invoke(QUESTION).tool_calls]

    return {"invoke": lambda: chat().invoke(QUESTION).content,
            "stream": lambda: "".join(chunk.content for chunk in chat().stream(QUESTION)),
            "json_schema": lambda: structured("json_schema"),
            "json_mode": lambda: structured("json_mode", Anything, logit_bias=served.closing),
            "responses": lambda: chat(use_responses_api=True).invoke(QUESTION).text,
            "responses, json_schema": lambda: structured("json_schema", use_responses_api=True),
            "function_calling": lambda: structured("function_calling"),
            "bind_tools": called, "streamed tool": streamed,
            "responses, bind_tools": lambda: called(use_responses_api=True)}


def llama_index_cases(served):
    from llama_index.core.prompts import PromptTemplate
    from llama_index.core.tools import FunctionTool
    from llama_index.llms.openai_like import OpenAILike
    like = functools.partial(OpenAILike, model=served.model, api_base=served.url, api_key="none", is_chat_model=True,
                             max_retries=0, context_window=1024, **TOKENS)

    def structured(**fields):
        return like(**fields).structured_predict(King, PromptTemplate(QUESTION))

    def called():
        llm = like(is_function_calling_model=True)
        answer = llm.chat_with_tools([FunctionTool.from_defaults(fn=crown)], user_msg=QUESTION, tool_required=True)
        return [(made.tool_name, made.tool_kwargs) for made in llm.get_tool_calls_from_response(answer)]

    return {"complete": lambda: like().complete(QUESTION).text,
            "stream": lambda: "".join(part.delta for part in like().stream_complete(QUESTION)),
            "structured_predict, response_format": lambda: structured(should_use_structured_outputs=True),
            "structured_predict, tool": lambda: structured(is_function_calling_model=True),
            "chat_with_tools": called}


def instructor_cases(served):
    import instructor

    def asked(mode, schema=King, **fields):
        client = instructor.from_openai(served.openai(), mode=mode)
        return client.create(model=served.model, response_model=schema, messages=user(), max_retries=0, **TOKENS,
                             **fields)

    return {"JSON_SCHEMA": lambda: asked(instructor.Mode.JSON_SCHEMA),
            "JSON": lambda: asked(instructor.Mode.JSON, Anything, logit_bias=served.closing),
            "TOOLS": lambda: asked(instructor.Mode.TOOLS),
            "TOOLS_STRICT": lambda: asked(instructor.Mode.TOOLS_STRICT)}


def pydantic_ai_cases(served):
    from pydantic_ai import Agent, NativeOutput, PromptedOutput
    from pydantic_ai.capabilities import PrepareOutputTools
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    provider = OpenAIProvider(base_url=served.url, api_key="none")

    def asked(output, kind=OpenAIChatModel, **settings):
        agent = Agent(kind(served.model, provider=provider), output_type=output, retries=0)
        return agent.run_sync(QUESTION, model_settings={**TOKENS, **settings}).output

    def with_a_tool():
        """The first step may call the tool alone, the second answer alone: so the model cannot choose."""
        crowned = []
        later = PrepareOutputTools(lambda context, tools: tools if context.run_step > 1 else [])
        agent = Agent(OpenAIChatModel(served.model, provider=provider), output_type=King, capabilities=[later],
                      retries=0)

        @agent.tool_plain(prepare=lambda context, tool: tool if context.run_step == 1 else None)
        def crown(name: typing.Literal["Olaf", "Otto"]) -> str:
            crowned.append(("crown", {"name": name}))
            return f"King {name}"

        settings = {**TOKENS, "parallel_tool_calls": False}
        assert isinstance(agent.run_sync(QUESTION, model_settings=settings).output, King)
        return crowned

    return {"text": lambda: asked(str),
            "NativeOutput": lambda: asked(NativeOutput(King)),
            "PromptedOutput": lambda: asked(PromptedOutput(Anything), logit_bias=served.closing),
            "responses": lambda: asked(NativeOutput(King), OpenAIResponsesModel),
            "output_type": lambda: asked(King), "tool": with_a_tool}


# Library, the module that is asked for, its cases: each answers with a text, a document or a list of calls.
LIBRARIES = [("openai", "openai", openai_cases), ("anthropic", "anthropic", anthropic_cases),
             ("litellm", "litellm", litellm_cases), ("langchain", "langchain_openai", langchain_openai_cases),
             ("llama_index", "llama_index.llms.openai_like", llama_index_cases),
             ("instructor", "instructor", instructor_cases), ("pydantic_ai", "pydantic_ai", pydantic_ai_cases)]


@unittest.skipUnless(is_built(), "built without xgrammar")
class ClientLibraries(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(3, *DRAFTED_PAIR, "--served-model-name", Served.model,
                            "--structured-outputs-config.disable-any-whitespace")
        cls.addClassCleanup(cls.server.kill)
        cls.served = Served(cls.server)

    def check(self, answer):
        if isinstance(answer, list):
            self.assertEqual(len(answer), 1, answer)
            name, arguments = answer[0]
            self.assertEqual(name, "crown")
            (Crown.model_validate_json if isinstance(arguments, str) else Crown.model_validate)(arguments)
        else:
            self.assertIsInstance(answer, (str, King, Anything))
            self.assertTrue(answer)

    def run_cases(self, cases):
        for name, ask in cases(self.served).items():
            with self.subTest(name):
                self.check(ask())


def is_there(module):
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


for library, module, cases in LIBRARIES:
    run = functools.partialmethod(ClientLibraries.run_cases, cases)
    setattr(ClientLibraries, f"test_{library}",
            unittest.skipUnless(is_there(module), f"{library} is not installed")(run))

if __name__ == "__main__":
    result = unittest.main(verbosity=2, exit=False).result
    sys.exit(1 if not result.wasSuccessful() else 77 if result.skipped else 0)
