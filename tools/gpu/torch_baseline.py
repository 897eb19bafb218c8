#!/usr/bin/env python3
"""What PyTorch makes of the same shapes: the figures our CUDA backend is measured against.

    torch_baseline.py --model 1b|8b [--json FILE]      decode, batch 1, bf16, random weights, KV cache of 1,024
    torch_baseline.py --assisted [--json FILE]         transformers' assisted generation, 8B shapes

Decode in several ways, best known last: eager in a CUDA graph, layers compiled, layers compiled and tuned, the whole
step compiled. Every way is one CUDA graph per token, so the host is not in it. tokens/s is the median of 5 runs of 64
tokens; GB/s counts the weights read per token (all but the embedding) and nothing else. A way that fails or takes
longer than its share of --budget-s is a line in the output. Needs torch; --assisted needs transformers. --device cpu
and --tiny are for trying the script itself.
"""

import argparse
import contextlib
import dataclasses
import json
import pathlib
import signal
import statistics
import sys
import time

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Shape:
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int = 1024


SHAPES = {
    "1b": Shape(2048, 16, 32, 8, 64, 8192, 128256),
    "8b": Shape(4096, 32, 32, 8, 128, 14336, 128256),
    "tiny": Shape(64, 10, 4, 2, 16, 128, 512, 128),
}


def random_matrix(outputs, inner, device, dtype):
    return torch.empty(outputs, inner, device=device, dtype=dtype).normal_(0, 0.02)


class Layer(torch.nn.Module):
    """One decoder layer for one token; weights fused as an engine would (qkv, gate and up)."""

    def __init__(self, shape, device, dtype):
        super().__init__()
        self.shape = shape
        make = lambda outputs, inner: torch.nn.Parameter(random_matrix(outputs, inner, device, dtype), False)
        self.qkv = make((shape.heads + 2 * shape.kv_heads) * shape.head_dim, shape.hidden)
        self.o = make(shape.hidden, shape.heads * shape.head_dim)
        self.gate_up = make(2 * shape.ffn, shape.hidden)
        self.down = make(shape.hidden, shape.ffn)
        self.norm_1 = torch.nn.Parameter(torch.ones(shape.hidden, device=device, dtype=dtype), False)
        self.norm_2 = torch.nn.Parameter(torch.ones(shape.hidden, device=device, dtype=dtype), False)
        cache = (shape.kv_heads, shape.context, shape.head_dim)
        self.register_buffer("keys", torch.zeros(cache, device=device, dtype=dtype))
        self.register_buffer("values", torch.zeros(cache, device=device, dtype=dtype))

    def forward(self, x, position, cos, sin, mask):
        s = self.shape
        qkv = F.linear(F.rms_norm(x, (s.hidden,), self.norm_1, 1e-5), self.qkv)
        q, k, v = qkv.view(-1, s.head_dim).split((s.heads, s.kv_heads, s.kv_heads))
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        self.keys.index_copy_(1, position, k.unsqueeze(1))
        self.values.index_copy_(1, position, v.unsqueeze(1))
        q = q.view(s.kv_heads, s.heads // s.kv_heads, s.head_dim)
        scores = torch.matmul(q, self.keys.transpose(1, 2)).float() * s.head_dim ** -0.5 + mask
        mixed = torch.matmul(scores.softmax(-1).to(x.dtype), self.values)
        x = x + F.linear(mixed.reshape(1, -1), self.o)
        gate, up = F.linear(F.rms_norm(x, (s.hidden,), self.norm_2, 1e-5), self.gate_up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, self.down)


def rotated(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Decoder(torch.nn.Module):
    """Token in, next token out (argmax), position moved on: all state on the device, so a step can be replayed."""

    def __init__(self, shape, device, dtype):
        super().__init__()
        self.shape = shape
        self.layers = torch.nn.ModuleList(Layer(shape, device, dtype) for _ in range(shape.layers))
        self.embedding = torch.nn.Parameter(random_matrix(shape.vocab, shape.hidden, device, dtype), False)
        self.head = torch.nn.Parameter(random_matrix(shape.vocab, shape.hidden, device, dtype), False)
        self.norm = torch.nn.Parameter(torch.ones(shape.hidden, device=device, dtype=dtype), False)
        angles = torch.outer(torch.arange(shape.context, device=device),
                             500000.0 ** -(torch.arange(0, shape.head_dim, 2, device=device) / shape.head_dim))
        self.register_buffer("cos", angles.cos().to(dtype))
        self.register_buffer("sin", angles.sin().to(dtype))
        self.register_buffer("places", torch.arange(shape.context, device=device))

    def forward(self, token, position):
        x = F.embedding(token, self.embedding)
        cos, sin = self.cos[position], self.sin[position]
        mask = torch.where(self.places <= position, 0.0, float("-inf"))
        for layer in self.layers:
            x = layer(x, position, cos, sin, mask)
        logits = F.linear(F.rms_norm(x, (self.shape.hidden,), self.norm, 1e-5), self.head)
        return logits.float().argmax(-1)

    def bytes_per_token(self):
        return sum(p.numel() * p.element_size() for p in self.parameters()) - \
            self.embedding.numel() * self.embedding.element_size()


@contextlib.contextmanager
def at_most(seconds):
    """TimeoutError in this block after so many seconds."""
    def stop(*_):
        raise TimeoutError(f"not done within {seconds:.0f} s")
    old = signal.signal(signal.SIGALRM, stop)
    signal.alarm(max(1, int(seconds)))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, old)


class Stepper:
    """A step that feeds itself; on a GPU one CUDA graph."""

    def __init__(self, step, device, start):
        self.device, self.start = device, start
        self.token = torch.zeros(1, dtype=torch.long, device=device)
        self.position = torch.full((1,), start, dtype=torch.long, device=device)

        def once():
            self.token.copy_(step(self.token, self.position))
            self.position.add_(1)
        self.once = once
        if device == "cuda":
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):
                    once()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                once()
            self.once = graph.replay
        else:
            once()

    def texts(self, tokens):
        """The tokens of one run, for comparing ways with each other."""
        self.token.zero_()
        self.position.fill_(self.start)
        made = []
        for _ in range(tokens):
            self.once()
            made.append(int(self.token))
        return made

    def seconds_per_token(self, tokens, runs=5):
        times = []
        for _ in range(runs):
            self.position.fill_(self.start)
            if self.device == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(tokens):
                self.once()
            if self.device == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter() - begin) / tokens)
        return statistics.median(times)


def compile_layers(decoder, **options):
    """Every layer through the same compiled code, so that compiling takes as long as one layer."""
    torch._dynamo.reset()
    for layer in decoder.layers:
        layer.compile(fullgraph=True, **options)
    return decoder


def whole_step(decoder, **options):
    torch._dynamo.reset()
    for layer in decoder.layers:
        layer._compiled_call_impl = None
    return torch.compile(decoder, fullgraph=True, **options)


WAYS = (
    ("eager", lambda decoder: decoder),
    ("layers compiled", compile_layers),
    ("layers compiled, coordinate descent tuning",
     lambda decoder: compile_layers(decoder, options={"coordinate_descent_tuning": True})),
    ("whole step compiled, coordinate descent tuning",
     lambda decoder: whole_step(decoder, options={"coordinate_descent_tuning": True})),
)


def decode_rows(arguments, deadline, save):
    shape = SHAPES["tiny" if arguments.tiny else arguments.model]
    torch.manual_seed(1)
    decoder = Decoder(shape, arguments.device, torch.bfloat16).eval()
    start = shape.context // 2
    first_text = None
    for name, prepare in WAYS:
        row = {"case": f"{arguments.model} decode, {name}", "what": "one CUDA graph per token"}
        try:
            with at_most(deadline - time.monotonic()), torch.no_grad():
                stepper = Stepper(prepare(decoder), arguments.device, start)
                text = stepper.texts(16)
                seconds = stepper.seconds_per_token(64 if shape.context >= 1024 else 16)
            first_text = first_text or text
            same = sum(a == b for a, b in zip(text, first_text))
            row |= {"tokens_per_s": round(1 / seconds, 1),
                    "gb_per_s": round(decoder.bytes_per_token() / seconds / 1e9, 1),
                    "ms_per_token": round(1e3 * seconds, 3),
                    "what": f"one CUDA graph per token; {same} of 16 tokens as eager"}
        except Exception as error:  # a way that fails is a line, whatever it was
            row["what"] = f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        save(row)


def llama_config(shape, layers):
    from transformers import LlamaConfig
    return LlamaConfig(hidden_size=shape.hidden, num_hidden_layers=layers, num_attention_heads=shape.heads,
                       num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, intermediate_size=shape.ffn,
                       vocab_size=shape.vocab, max_position_embeddings=4096, bos_token_id=1, eos_token_id=None,
                       pad_token_id=0, tie_word_embeddings=False)


def target_and_draft(shape, draft_layers, device):
    """A model and its first layers as the draft (the same weights). What the layers behind them add is made small, so
    that random weights agree now and then; how often is counted and printed."""
    from transformers import LlamaForCausalLM
    torch.manual_seed(1)
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16)
        target = LlamaForCausalLM(llama_config(shape, shape.layers)).eval()
        draft = LlamaForCausalLM(llama_config(shape, draft_layers)).eval()
        torch.set_default_dtype(torch.float32)
    with torch.no_grad():
        for layer in target.model.layers[draft_layers:]:
            layer.self_attn.o_proj.weight.mul_(0.05)
            layer.mlp.down_proj.weight.mul_(0.05)
    draft.load_state_dict(target.state_dict(), strict=False)
    return target, draft


def count_calls(module):
    calls = [0]
    module.register_forward_hook(lambda *_: calls.__setitem__(0, calls[0] + 1))
    return calls


def assisted_rows(arguments, deadline, save):
    shape = SHAPES["tiny" if arguments.tiny else "8b"]
    draft_len, tokens = 4, 64
    try:
        import transformers
        draft_layers = max(1, shape.layers // 8)
        target, draft = target_and_draft(shape, draft_layers, arguments.device)
    except Exception as error:
        save({"case": "assisted generation", "what": f"failed: {type(error).__name__}: {error}"})
        return
    draft.generation_config.num_assistant_tokens = draft_len
    draft.generation_config.num_assistant_tokens_schedule = "constant"
    draft.generation_config.assistant_confidence_threshold = 0.0
    target_calls, draft_calls = count_calls(target), count_calls(draft)
    prompt = torch.randint(1, shape.vocab, (1, 128), device=arguments.device)
    texts = []
    for name, extra in (("plain", {}), ("assisted", {"assistant_model": draft})):
        row = {"case": f"transformers {transformers.__version__}, 8b, {name}"}
        try:
            with at_most(deadline - time.monotonic()), torch.no_grad():
                generate = lambda: target.generate(prompt, do_sample=False, max_new_tokens=tokens,
                                                   min_new_tokens=tokens, **extra)
                generate()
                target_calls[0] = draft_calls[0] = 0
                begin = time.perf_counter()
                texts.append(generate()[0].tolist())
                if arguments.device == "cuda":
                    torch.cuda.synchronize()
                seconds = time.perf_counter() - begin
            row["tokens_per_s"] = round(tokens / seconds, 1)
            row["what"] = f"{tokens} tokens in {target_calls[0]} target steps"
            if extra:
                accepted = tokens - target_calls[0]
                row["what"] += (f", {draft_calls[0]} draft steps ({draft_layers} of {shape.layers} layers, "
                                f"{draft_len} per block); {accepted / max(1, draft_calls[0]):.2f} accepted per draft "
                                f"step; text {'as' if texts[0] == texts[-1] else 'not as'} plain")
        except Exception as error:
            row["what"] = f"failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        save(row)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=("1b", "8b"), default="8b")
    parser.add_argument("--assisted", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--budget-s", type=float, default=100)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a toy shape")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("torch_baseline: no GPU can be used here: torch sees none", file=sys.stderr)
        return 3
    rows = []

    def save(row):
        rows.append(row)
        print(json.dumps(row), flush=True)
        if arguments.json:
            device = torch.cuda.get_device_name() if arguments.device == "cuda" else arguments.device
            arguments.json.write_text(json.dumps({"torch": torch.__version__, "device": device, "rows": rows}))

    deadline = time.monotonic() + arguments.budget_s
    (assisted_rows if arguments.assisted else decode_rows)(arguments, deadline, save)
    return 0 if any("tokens_per_s" in row for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
