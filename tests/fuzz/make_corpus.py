#!/usr/bin/env python3
"""Writes the seeds of tests/fuzz/corpus that nobody would type: `python3 tests/fuzz/make_corpus.py`.

Files that a found defect left behind (found_*), and the corpora of heads, chunks and forms, are not its own.
"""
import json
import pathlib
import struct

CORPUS = pathlib.Path(__file__).parent / "corpus"
GOLDEN = CORPUS.parent.parent / "golden"


def seed(target, name, *parts):
    folder = CORPUS / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(b"".join(p.encode() if isinstance(p, str) else bytes(p) for p in parts))


def dump(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def json_requests():
    tool = {"type": "function", "function": {"name": "f", "description": "d", "strict": True, "parameters": {
        "type": "object", "properties": {"city": {"type": "string"}, "n": {"type": "integer"}}, "required": ["city"]}}}
    chat = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hé"}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{\"city\":\"X\"}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "r"}]
    bodies = {
        "completion": (0, {"model": "m", "prompt": ["a", "b"], "max_tokens": 5, "temperature": 0.5, "top_p": 0.9,
                           "top_k": 3, "seed": 7, "stop": ["x", "\n"], "logit_bias": {"65": -100}, "n": 2,
                           "logprobs": 2, "echo": True, "bad_words": ["no"], "min_tokens": 1}),
        "completion_ids": (0, {"prompt": [1, 2, 3], "stream": True, "stream_options": {"include_usage": True},
                               "truncate_prompt_tokens": 2, "allowed_token_ids": [65, 66], "stop_token_ids": [10],
                               "ignore_eos": True, "resume_token_ids": [70]}),
        "scored": (0, {"prompt": [[1, 2, 3], [4]], "prompt_logprobs": 1, "max_tokens": 0, "echo": True}),
        "chat": (1, {"messages": chat, "tools": [tool], "tool_choice": "auto", "logprobs": True, "top_logprobs": 2,
                     "parallel_tool_calls": False, "max_completion_tokens": 3, "stream": True}),
        "chat_forced": (1, {"messages": chat[:2], "tools": [tool], "tool_choice": {
            "type": "function", "function": {"name": "f"}}, "reasoning_effort": "low", "priority": 1}),
        "chat_schema": (1, {"messages": chat[:1], "response_format": {"type": "json_schema", "json_schema": {
            "name": "n", "schema": {"type": "object"}, "strict": True}}}),
        "responses": (2, {"input": [{"role": "user", "content": [{"type": "input_text", "text": "q"}]},
                                    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                                    {"type": "function_call_output", "call_id": "c", "output": "o"}],
                          "instructions": "i", "max_output_tokens": 9, "stream": True,
                          "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}}],
                          "text": {"format": {"type": "json_object"}}}),
        "responses_text": (2, {"input": "q", "reasoning": {"effort": "low"}, "temperature": 0.5}),
        "messages_text": (3, {"max_tokens": 9, "messages": [{"role": "user", "content": "q"}], "stream": True}),
        "messages": (3, {"max_tokens": 9, "system": [{"type": "text", "text": "s"}], "messages": [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "r"}]}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}], "stop_sequences": ["x"],
            "thinking": {"type": "enabled", "budget_tokens": 100}, "tool_choice": {"type": "any"}}),
        "count_tokens": (4, {"messages": [{"role": "user", "content": "q"}]}),
        "tokenize": (5, {"prompt": "a <|im_end|>", "with_pieces": True, "add_special_tokens": False}),
        "detokenize": (6, {"tokens": [1, 2, 228, 261]}),
        "apply_template": (7, {"messages": chat[:2]}),
    }
    for name, (path, body) in bodies.items():
        seed("json_request", name, [path], dump(body))
    lines = {"/v1/completions": {"prompt": "a", "n": 2}, "/v1/chat/completions": {"messages": chat[:2]},
             "/v1/responses": {"input": "q"}, "/v1/none": {}}
    seed("batch_lines", "lines", "\n".join(dump({"custom_id": f"c{i}", "method": "POST", "url": url, "body": body})
                                           for i, (url, body) in enumerate(lines.items())), "\n \r\n")


def answers():
    call = "{\"name\": \"f\", \"arguments\": {\"city\": \"X\"}}"
    texts = {
        "harmony": (0, 1, "<|channel|>analysis<|message|>t<|end|><|start|>assistant<|channel|>commentary "
                          "to=functions.f <|constrain|>json<|message|>{\"city\":\"X\"}<|call|>"),
        "qwen3_coder": (1, 0, "<tool_call>\n<function=f>\n<parameter=city>\nX\n</parameter>\n</function>\n</tool_call>"),
        "glm45": (2, 3, "<think>t</think><tool_call>f\n<arg_key>city</arg_key>\n<arg_value>X</arg_value>\n</tool_call>"),
        "deepseek_v3": (3, 0, "a<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"n\":1}"
                              "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"),
        "kimi_k2": (5, 0, "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}"
                          "<|tool_call_end|><|tool_calls_section_end|>"),
        "mistral": (6, 2, "[THINK]t[/THINK][TOOL_CALLS]f[ARGS]{\"city\": \"X\"}"),
        "mistral_list": (7, 0, "[TOOL_CALLS][" + call + ", " + call + "]"),
        "hermes": (8, 3, "<think>t</think>\n\ntext <tool_call>\n" + call + "\n</tool_call> \n<tool_call>\n" + call),
        "llama3_json": (9, 0, "<|python_tag|>" + call.replace("arguments", "parameters") + "; " + call),
        "json": (10, 0, " [" + call + "]"),
    }
    for name, (tool_calls, reasoning, text) in texts.items():
        seed("answer_parser", name, [tool_calls, reasoning, 0], text)


def tokens():
    seed("streaming_decoder", "bytes", [0], *[[0, b] for b in b"h\xc3\xa9 \xf0\x9f\x99\x82\xff"])
    seed("streaming_decoder", "fallback", [1], [1, 0], *[[0, b] for b in b"\xe6\x98\xc5\x05\x01\x02"])
    seed("stop_strings", "two", [0], "end\nde\n\n", *[[0, b] for b in b"the end comes"])
    seed("stop_strings", "shown", [0x21], "é\n\n", *[[0, b] for b in "aéé".encode()])


def tokenizer(pre, decoder, normalizer, model, **more):
    added = [{"id": 4, "content": "<s>", "single_word": False, "lstrip": True, "rstrip": False, "normalized": False,
              "special": True}]
    return dump({"version": "1.0", "added_tokens": added, "normalizer": normalizer, "pre_tokenizer": pre,
                 "decoder": decoder, "model": {"type": "BPE", **model}, **more})


def model_files():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    words = {"vocab": {"a": 0, "b": 1, "ab": 2, "Ġ": 3, "<s>": 4, "abab": 5}, "merges": ["a b", "ab ab"]}
    split = {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+(?!\\S)"}, "behavior": "Isolated", "invert": False}
    template = {"type": "TemplateProcessing", "single": [
        {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}], "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [4], "tokens": ["<s>"]}}}
    pieces = {"vocab": {"<unk>": 0, "▁": 1, "<0xC3>": 2, "<0xA9>": 3, "<s>": 4, "H": 5}, "merges": [],
              "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True}
    strip = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    seed("tokenizer", "byte_level", tokenizer(byte_level, {"type": "ByteLevel"}, {"type": "NFC"}, words), [0],
         dump({"bos_token": "<s>", "eos_token": {"content": "<s>"}, "add_bos_token": True}))
    seed("tokenizer", "split", tokenizer({"type": "Sequence", "pretokenizers": [
        split, {"type": "Digits", "individual_digits": True}, {**byte_level, "use_regex": False}]},
        {"type": "ByteLevel"}, None, words, post_processor=template))
    seed("tokenizer", "pieces", tokenizer(None, strip, {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Lowercase"}]}, pieces))
    seed("tokenizer", "metaspace", tokenizer({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                                              "split": True}, {"type": "Metaspace", "replacement": "▁",
                                                               "prepend_scheme": "first"}, None, pieces))

    llama = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 300, "max_position_embeddings": 256,
             "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "hidden_act": "silu", "bos_token_id": 1,
             "eos_token_id": [2, 3], "tie_word_embeddings": True}
    defaults = {"temperature": 0.6, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1,
                "eos_token_id": 2, "do_sample": True}
    chat = {"bos_token": "<s>", "chat_template": "{{ messages[0].content }}"}
    several = {"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]}
    for name, parts in {
        "llama": [llama, defaults, chat],
        "llama3": [{**llama, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                              "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
                   {}, several],
        "yarn": [{**llama, "model_type": "qwen3", "head_dim": 16, "rope_parameters": {
            "rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 64}}],
        "window": [{**llama, "model_type": "qwen2", "sliding_window": 12, "use_sliding_window": True,
                    "max_window_layers": 1, "layer_types": ["full_attention", "sliding_attention"]}],
        "awq": [{**llama, "model_type": "mistral", "sliding_window": None, "quantization_config": {
            "quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}}],
        "gptq": [{**llama, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32,
                                                   "desc_act": False, "sym": True}}],
        "compressed": [{**llama, "quantization_config": {
            "quant_method": "compressed-tensors", "format": "int-quantized", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {
                "num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}}}}}],
    }.items():
        seed("model_config", name, b"\0".join(dump(part).encode() for part in parts))

    header = dump({"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [2, 2], "data_offsets": [0, 8]},
                   "b": {"dtype": "I8", "shape": [], "data_offsets": [8, 9]}}).encode()
    seed("safetensors", "whole", [0], struct.pack("<Q", len(header)), header, b"123456789")
    seed("safetensors", "empty", [0], struct.pack("<Q", 2), "{}")
    seed("safetensors", "short", [0], b"1234567")
    seed("safetensors", "index", [1], dump({"metadata": {"total_size": 8}, "weight_map": {
        "w": "a.safetensors", "v": "b.safetensors"}}))


def gguf_files():
    def text(value):
        return struct.pack("<Q", len(value.encode())) + value.encode()

    def whole(keys, tensors):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
        for key, kind, value in keys:
            head += text(key) + struct.pack("<I", kind) + value
        for i, (name, shape) in enumerate(tensors):
            head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape)
            head += struct.pack("<IQ", 0, 64 * i)
        return head + bytes(-len(head) % 32) + bytes(64 * len(tensors))

    def array(kind, values):
        return struct.pack("<IQ", kind, len(values)) + b"".join(values)

    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 4, "feed_forward_length": 4,
             "attention.head_count": 2, "attention.head_count_kv": 1}
    model = [("general.architecture", 8, text("llama")), ("general.alignment", 4, struct.pack("<I", 32)),
             ("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5))]
    model += [("llama." + name, 4, struct.pack("<I", size)) for name, size in sizes.items()]
    shapes = [("token_embd.weight", [4, 3]), ("output_norm.weight", [4]), ("blk.0.attn_norm.weight", [4]),
              ("blk.0.attn_q.weight", [4, 4]), ("blk.0.attn_k.weight", [4, 2]), ("blk.0.attn_v.weight", [4, 2]),
              ("blk.0.attn_output.weight", [4, 4]), ("blk.0.ffn_norm.weight", [4]), ("blk.0.ffn_gate.weight", [4, 4]),
              ("blk.0.ffn_up.weight", [4, 4]), ("blk.0.ffn_down.weight", [4, 4])]
    tokens = array(8, [text(token) for token in ("a", "b", "ab")])
    ids = [("tokenizer.ggml.bos_token_id", 4, struct.pack("<I", 0)), ("tokenizer.chat_template", 8, text("{{ 1 }}"))]
    pieces = [("tokenizer.ggml.model", 8, text("llama")), ("tokenizer.ggml.tokens", 9, tokens),
              ("tokenizer.ggml.scores", 9, array(6, [struct.pack("<f", -i) for i in range(3)])),
              ("tokenizer.ggml.token_type", 9, array(5, [struct.pack("<i", 1)] * 3))]
    merges = [("tokenizer.ggml.model", 8, text("gpt2")), ("tokenizer.ggml.pre", 8, text("qwen2")),
              ("tokenizer.ggml.tokens", 9, tokens), ("tokenizer.ggml.merges", 9, array(8, [text("a b")]))]
    seed("gguf", "model", whole(model + pieces + ids, shapes))
    experts = [(key.replace("llama", "qwen3moe"), kind, text("qwen3moe") if key.endswith("architecture") else value)
               for key, kind, value in model]
    experts += [("qwen3moe." + name, 4, struct.pack("<I", 2))
                for name in ("expert_count", "expert_used_count", "expert_feed_forward_length")]
    shapes = [shape for shape in shapes if "ffn" not in shape[0] or "norm" in shape[0]]
    shapes += [("blk.0.attn_q_norm.weight", [2]), ("blk.0.attn_k_norm.weight", [2]),
               ("blk.0.ffn_gate_inp.weight", [4, 2]), ("blk.0.ffn_gate_exps.weight", [4, 2, 2]),
               ("blk.0.ffn_up_exps.weight", [4, 2, 2]), ("blk.0.ffn_down_exps.weight", [2, 4, 2])]
    seed("gguf", "experts", whole(experts + pieces + ids, shapes))
    seed("gguf", "byte_level", whole(model + merges, []))


def templates():
    for name in ("chatml", "features", "format"):
        seed("jinja", name, (GOLDEN / "templates" / f"{name}.jinja").read_bytes())


def grammars():
    schema = {"type": "object", "properties": {
        "a": {"type": "string", "pattern": "^[a-z]{1,3}$", "maxLength": 5}, "b": {"$ref": "#/$defs/d"},
        "c": {"anyOf": [{"type": "integer", "minimum": -3, "maximum": 12}, {"const": None}]},
        "e": {"type": "array", "items": {"enum": [1, "x"]}, "minItems": 1, "maxItems": 3},
        "f": {"type": "string", "format": "date-time"}},
        "required": ["a"], "additionalProperties": False, "$defs": {"d": {"type": "number"}}}
    tag = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<f="], "tags": [
        {"begin": "<f=x>", "content": {"type": "json_schema", "json_schema": {"type": "object"}}, "end": "</f>"}]}}
    recursive = {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}}}}
    seed("grammar", "schema", [0], dump(schema))
    seed("grammar", "recursive", [1], dump(recursive))
    seed("grammar", "regex", [2], "(a|b{2,3})+[^\\d\\n-]?\\u00e9*(?:x|\\.)")
    seed("grammar", "ebnf", [3], 'root ::= ("a" | b)* [^\\x00-\\x1f"]\nb ::= "é" root? (=[a-z])\n')
    seed("grammar", "lark", [4], 'start: "a" word+\nword: /[a-z]{1,3}/ | "x".."z"\n%ignore " "\n')
    seed("grammar", "tag", [5], dump(tag))


def settings():
    seed("settings", "yaml", [0], "model: m\nport: 8001  # c\nspeculative_config:\n  model: 'd'\n"
         "  num_speculative_tokens: auto\napi_key: [a, b]\nmax_batch_file_bytes: 3G\nwebui: no\n")
    seed("settings", "aliases", [0], "served_model_name: &a \"x\\u00e9\"\nmodel: *a\nallowed_origins:\n- '*'\n")
    seed("settings", "words", [1], "sim:llama-8b,jitter=0.1,alpha=0.5\n--port\n0\n--no-webui\n--max-model-len=512\n"
         "--speculative-config\n{\"method\": \"ngram\", \"prompt_lookup_max\": 3}\n--enforce-eager\n")


def numbers(form, values):
    return struct.pack("<I", len(values)) + b"".join(struct.pack("<" + form, v) for v in values)


def grammar():
    return b"\x02" + numbers("B", b"a+") + numbers("i", [2]) + numbers("i", []) + numbers("i", [9]) + b"\1"


def params():
    bias = struct.pack("<I", 1) + struct.pack("<if", 3, -1.0)
    words = struct.pack("<I", 1) + numbers("i", [1, 2])
    return (struct.pack("<ffiff", 0.7, 0.9, 5, 0.1, 1.0) + struct.pack("<fff", 1.1, 0, 0) + bias + numbers("i", [1, 4])
            + words + b"\1" + grammar() + b"\1" + struct.pack("<QQii", 7, 8, 33, 0) + numbers("i", [2])
            + struct.pack("<i", -1) + b"\0\1" + struct.pack("<i", 3) + b"\0\2")


def start():
    return struct.pack("<Q", 5) + params() + numbers("i", [1, 2, 3]) + struct.pack("<i", 1)


def messages():
    sequence = (struct.pack("<QIii", 5, 1, 3, 1) + numbers("i", [7, 8]) + b"\1" + struct.pack("<i", 9) + b"\0"
                + numbers("i", [0, 1]))
    plan = (b"OPLN" + struct.pack("<Q", 7) + b"\0" + numbers("Q", [4]) + struct.pack("<I", 1) + start()
            + struct.pack("<I", 1) + sequence + b"\1\0" + struct.pack("<i", 0) + struct.pack("<I", 1) + grammar()
            + numbers("i", [3]))
    token = struct.pack("<i", 6) + struct.pack("<Iifif", 2, 6, 0.75, 9, 0.25)
    seed("round_messages", "plan", [0], plan)
    seed("round_messages", "candidates", [1], b"OCND", struct.pack("<Q", 7), token[4:], token[4:], struct.pack("<I", 0))
    seed("round_messages", "late", [2], b"OAMD", struct.pack("<QIQ", 7, 1, 5), token)
    commit = struct.pack("<QIi", 5, 1, 3) + numbers("i", [7, 8]) + struct.pack("<ii", 4, -1)
    block = struct.pack("<QIiii", 5, 1, 3, -1, 0) + struct.pack("<I", 1) + numbers("B", token)
    frame = b"OFRM" + struct.pack("<HBIQI", 5, 3, 0x01020304, 0xcbf29ce484222325, 0)
    seed("draft_frames", "frame", [0], frame)
    whole = [3, 1, 1, 0, 0, 2, 5, 1, 0, 3, 1, 1, 1, 1]  # a block in one piece, and its round
    seed("draft_blocks", "rounds", *[[0, 0, 3] + [7] + whole[1:] + [1, 2]] * 4)
    seed("draft_blocks", "ahead", *[[0, 3, 2, 2, 9, 0, 2, 3, 1, 0, 4, 1, 0, 3, 2, 3, 4, 0, 1, 5, 1, 0, 0]] * 6)
    seed("draft_frames", "request", [1], struct.pack("<Q", 1), numbers("Q", [4]), struct.pack("<I", 1), start(),
         struct.pack("<I", 1), commit)
    seed("draft_frames", "hello", [3], b"OHLO", struct.pack("<H", 5), numbers("B", b"key"), numbers("B", b"d" * 64),
         struct.pack("<i", 3072), numbers("B", b"model on host"))
    seed("draft_frames", "welcome", [4], b"OWLM", struct.pack("<H", 5), numbers("B", b""), struct.pack("<I", 9),
         struct.pack("<9i", 3072, 16, 8, 512, 64, 32, 256, 16, 8))
    seed("draft_frames", "reply", [2], struct.pack("<QQI", 1, 20, 3), struct.pack("<I", 1), block,
         struct.pack("<IQ", 3, 5))


def benchmarks():
    seed("trace_rows", "prompts", [0], dump({"prompt": "p", "output_tokens": 3}), "\n",
         dump({"turns": ["t", "u"], "max_tokens": 4}), "\r\nplain\n")
    seed("trace_rows", "trace", [1], *[dump({"timestamp": ms, "input_length": 6, "output_length": 2,
                                             "hash_ids": [0, 1]}) + "\n" for ms in (0, 30.5, 31)])
    delta = {"choices": [{"index": 0, "delta": {"content": "hé"}, "finish_reason": None, "text_offset": [0, 1],
                          "token_origins": ["accepted", "bonus"]}],
             "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    end = {"choices": [{"text": "x", "finish_reason": "stop"}]}
    seed("event_stream", "chat", [1], f": ping\n\ndata: {dump(delta)}\n\ndata: {dump(end)}\r\n\r\ndata: [DONE]\n\n")
    seed("event_stream", "error", [1], "data: " + dump({"error": {"message": "no", "code": 500}}), "\n\n")
    seed("event_stream", "refused", [0], dump({"error": {"message": "no"}}))


for make in (json_requests, answers, tokens, model_files, gguf_files, templates, grammars, settings, messages, benchmarks):
    make()
