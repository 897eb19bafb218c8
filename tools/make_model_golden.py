#!/usr/bin/env python3
"""Makes tests/golden/models: tiny random models of every family with what transformers computes from them.

Each folder holds config.json, the weights as safetensors, golden.json (prompt, greedy continuation, positions of the
kept logits, versions) and logits.f32 ([positions, vocab], little-endian). The reference runs in float32 from the
stored weights. Needs torch, transformers and safetensors; run from anywhere, writes into the repository.
"""

import json
import pathlib
import shutil

import torch
import transformers
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "models"
PROMPT_LEN = 40
NUM_GREEDY = 64
KEPT_POSITIONS = [0, 20, PROMPT_LEN - 1, 70, PROMPT_LEN + NUM_GREEDY - 2]

BASE = dict(
    hidden_size=48, intermediate_size=100, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, vocab_size=259, max_position_embeddings=256,
    rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, rope_theta=10000.0,
)


def rope(kind, **values):
    return dict(rope_type=kind, **values)


# name -> (model_type, dtype, changes to BASE, form): form "old" writes rope_scaling and torch_dtype as transformers
# 4 does, "new" rope_parameters and dtype; "sharded" splits the weights over two files.
MODELS = {
    "llama-tied-f32": ("llama", "float32", dict(tie_word_embeddings=True, num_key_value_heads=4, head_dim=None,
                                                vocab_size=256), "new"),
    "llama-untied-bf16": ("llama", "bfloat16", dict(), "new"),
    "llama-bias-f16": ("llama", "float16", dict(attention_bias=True, mlp_bias=True), "new"),
    "llama3-rope-bf16": ("llama", "bfloat16", dict(rope_scaling=rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=64)), "old"),
    "llama-linear-bf16": ("llama", "bfloat16", dict(rope_scaling=rope("linear", factor=4.0)), "new"),
    "llama-dynamic-bf16": ("llama", "bfloat16", dict(rope_scaling=rope("dynamic", factor=2.0)), "old"),
    "llama-yarn-bf16": ("llama", "bfloat16", dict(rope_scaling=rope(
        "yarn", factor=8.0, original_max_position_embeddings=32)), "old"),
    "mistral-window-sharded": ("mistral", "bfloat16", dict(sliding_window=12), "sharded"),
    "mistral-full-f16": ("mistral", "float16", dict(sliding_window=None), "new"),
    "qwen2-tied-bf16": ("qwen2", "bfloat16", dict(tie_word_embeddings=True, head_dim=None), "old"),
    "qwen2-window-f16": ("qwen2", "float16", dict(use_sliding_window=True, sliding_window=12, max_window_layers=1,
                                                  num_hidden_layers=3, head_dim=None), "new"),
    "qwen3-bf16": ("qwen3", "bfloat16", dict(num_attention_heads=6, num_key_value_heads=3, rms_norm_eps=1e-6), "new"),
    "qwen3-tied-f32": ("qwen3", "float32", dict(tie_word_embeddings=True, attention_bias=True, hidden_size=32), "new"),
}


def make_config(model_type, changes):
    values = {**BASE, **changes}
    values = {key: value for key, value in values.items() if value is not None or key == "sliding_window"}
    theta = values.pop("rope_theta")
    scaling = values.pop("rope_scaling", {"rope_type": "default"})
    return transformers.AutoConfig.for_model(
        model_type, **values, rope_parameters={**scaling, "rope_theta": theta}, attn_implementation="eager")


def random_state(model, seed, dtype):
    """Every tensor random, norms and biases too, large enough that logits differ and text does not loop."""
    generator = torch.Generator().manual_seed(seed)
    state = {}
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if "norm" in name:
            value = 1.0 + 0.2 * noise
        elif name.endswith(".bias"):
            value = 0.4 * noise
        elif "embed_tokens" in name:
            value = noise * (0.4 if model.config.tie_word_embeddings else 1.0)
        else:
            value = noise * 1.6 / tensor.shape[1] ** 0.5
        state[name] = value.to(dtype).contiguous()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return state


@torch.no_grad()
def reference(model, prompt):
    """Greedy continuation by whole passes, and the logits of the last one. None when the text is not a fair test."""
    tokens = list(prompt)
    for _ in range(NUM_GREEDY):
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0].float()
        best = logits[-1].topk(2).values
        if best[0] - best[1] < 2e-3 * logits[-1].abs().max():
            return None  # a tie would make equality of tokens a matter of luck
        tokens.append(int(logits[-1].argmax()))
    logits = model(torch.tensor([tokens[:-1]]), use_cache=False).logits[0].float()
    greedy = tokens[PROMPT_LEN:]
    if len(set(greedy)) < 16 or logits.std() < 0.5 or not torch.isfinite(logits).all():
        return None
    return greedy, logits[KEPT_POSITIONS]


def write_weights(folder, state, sharded):
    if not sharded:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = sorted(state)
    halves = [names[: len(names) // 2], names[len(names) // 2:]]
    weight_map = {}
    for number, half in enumerate(halves, start=1):
        file_name = f"model-{number:05}-of-00002.safetensors"
        save_file({name: state[name] for name in half}, folder / file_name, metadata={"format": "pt"})
        weight_map.update({name: file_name for name in half})
    total = sum(t.numel() * t.element_size() for t in state.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def write_config(folder, config, dtype, form):
    values = config.to_dict()
    for key in ("id2label", "label2id", "_name_or_path", "chunk_size_feed_forward", "return_dict", "problem_type",
                "output_attentions", "output_hidden_states", "is_encoder_decoder"):
        values.pop(key, None)
    values["architectures"] = [type(transformers.AutoModelForCausalLM.from_config(config)).__name__]
    values["dtype"] = dtype
    if form == "old":
        parameters = dict(values.pop("rope_parameters"))
        values["rope_theta"] = parameters.pop("rope_theta")
        values["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
        values["torch_dtype"] = values.pop("dtype")
        values.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


def make(name, model_type, dtype, changes, form):
    config = make_config(model_type, changes)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for seed in range(200):
        state = random_state(model, seed, getattr(torch, dtype))
        missing, unexpected = model.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        model.tie_weights()
        generator = torch.Generator().manual_seed(1000 + seed)
        prompt = torch.randint(3, config.vocab_size, (PROMPT_LEN,), generator=generator).tolist()
        result = reference(model, prompt)
        if result is not None:
            break
    assert result is not None, f"{name}: no seed gives a fair test"
    greedy, logits = result
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_config(folder, config, dtype, form)
    write_weights(folder, state, form == "sharded")
    logits.numpy().astype("<f4").tofile(folder / "logits.f32")
    golden = dict(made_by="tools/make_model_golden.py", transformers=transformers.__version__,
                  torch=torch.__version__.split("+")[0], seed=seed, prompt=prompt, greedy=greedy,
                  logit_positions=KEPT_POSITIONS)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{name}: seed {seed}, {len(set(greedy))} distinct tokens, logits std {logits.std():.2f}, "
          f"max {logits.abs().max():.2f}")


def main():
    torch.set_num_threads(1)
    for name, spec in MODELS.items():
        make(name, *spec)
    total = sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file())
    assert total < 3_000_000, total
    print(f"{total} bytes in all")


if __name__ == "__main__":
    main()
