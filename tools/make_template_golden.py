#!/usr/bin/env python3
"""Makes tests/golden/templates/cases.json: our own templates rendered by the real Jinja2.

Run from the repository root with transformers installed:
    python3 tools/make_template_golden.py
Rendering goes through transformers' own environment (immutable sandbox, trim_blocks, lstrip_blocks,
its tojson), so the expected texts are what Hugging Face would feed to a model.
"""
import json
import pathlib

import jinja2
import transformers
from transformers.utils.chat_template_utils import render_jinja_template

FOLDER = pathlib.Path("tests/golden/templates")
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a \"place\" <now> & then",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Zürich, 東京"},
        "days": {"type": "integer", "minimum": 1, "maximum": 18446744073709551616},
        "scale": {"type": "number", "default": 1.0}}, "required": ["place"]}}}]
PLAIN = [{"role": "user", "content": "Hello, how are you?"}]
TURNS = [{"role": "system", "content": "  You are terse.\n"},
         {"role": "user", "content": " What is 2 + 2?\t"},
         {"role": "assistant", "content": "4\n"},
         {"role": "user", "content": "Und auf Deutsch? 😀 <|im_end|></s><|eot_id|>"}]
CALLS = [{"role": "user", "content": "Weather in Zürich?"},
         {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {
             "name": "get_weather", "arguments": {"place": "Zürich", "days": 2}}}]},
         {"role": "tool", "content": "{\"sky\": \"clear\"}"}]
THOUGHT = [{"role": "user", "content": "Think."},
           {"role": "assistant", "content": "<think>\nhm\n</think>\n\nDone.", },
           {"role": "user", "content": "Again."},
           {"role": "assistant", "content": "Yes.", "reasoning": "short thought"}]
PARTS = [{"role": "system", "content": [{"type": "text", "text": "Look."}]},
         {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": " What is this? "}]}]
BAD_ROLES = [{"role": "assistant", "content": "first"}, {"role": "user", "content": "second"}]
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}

CASES = [
    ("chatml", {"messages": PLAIN}), ("chatml", {"messages": TURNS, "add_generation_prompt": True}),
    ("llama2", {"messages": PLAIN}), ("llama2", {"messages": TURNS}),
    ("llama2", {"messages": BAD_ROLES}),
    ("llama3", {"messages": TURNS, "add_generation_prompt": True}),
    ("llama3", {"messages": CALLS, "tools": TOOLS, "add_generation_prompt": True}),
    ("llama3", {"messages": CALLS + CALLS[1:], "custom_tools": TOOLS, "date_string": "1 Jan 2026"}),
    ("mistral", {"messages": TURNS}), ("mistral", {"messages": CALLS, "tools": TOOLS}),
    ("mistral", {"messages": TURNS, "show_turns": True}),
    ("qwen3", {"messages": TURNS, "add_generation_prompt": True}),
    ("qwen3", {"messages": CALLS, "tools": TOOLS, "add_generation_prompt": True}),
    ("qwen3", {"messages": CALLS + [CALLS[2]], "tools": TOOLS}),
    ("qwen3", {"messages": THOUGHT}),
    ("qwen3", {"messages": PARTS, "add_generation_prompt": True, "enable_thinking": False}),
    ("gemma", {"messages": TURNS, "add_generation_prompt": True}), ("gemma", {"messages": PARTS}),
    ("gemma", {"messages": [{"role": "user", "content": 5}]}),
    ("phi3", {"messages": TURNS, "add_generation_prompt": True}), ("phi3", {"messages": TURNS}),
    ("features", {"messages": TURNS}), ("features", {"messages": CALLS, "missing": "here"}),
    ("format", {"messages": TURNS[1:]}),
]
# The last message goes on: with white space that some templates strip, said before, empty.
BEGUN = ["The answer", " The answer is ", "Hello, how are you?", "", "<think>\nhm", "a<|im_end|>\n\n"]
CASES += [(name, {"messages": PLAIN + [{"role": "assistant", "content": begun}], "continue_final_message": True})
          for name in ("chatml", "llama2", "llama3", "gemma", "phi3", "qwen3") for begun in BEGUN]


def render(template, inputs):
    """The text, or the message of the template's own exception."""
    inputs = json.loads(json.dumps({**TOKENS, **inputs}))
    messages = inputs.pop("messages")
    try:
        texts, _ = render_jinja_template([messages], chat_template=template, **inputs)
        return {"text": texts[0]}
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error)}
    except ValueError:  # of continue_final_message
        return {"error": "cannot be continued"}


def main():
    cases = []
    for name, inputs in CASES:
        source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
        # As text, so that key order and large numbers reach the test as they are.
        inputs_json = json.dumps({**TOKENS, **inputs}, ensure_ascii=False)
        cases.append({"template": name, "inputs_json": inputs_json, **render(source, inputs)})
    made_by = f"jinja2 {jinja2.__version__}, transformers {transformers.__version__}"
    out = {"made_by": made_by, "cases": cases}
    text = json.dumps(out, ensure_ascii=False, indent=1)
    (FOLDER / "cases.json").write_text(text + "\n", encoding="utf-8")
    print(f"{len(cases)} cases, {made_by}")


if __name__ == "__main__":
    main()
