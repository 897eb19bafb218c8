#!/usr/bin/env python3
"""Writes tests/golden/gguf/recipes.json: what llama.cpp's own converter makes of folders of tests/golden/models; and
mxfp4.gguf, which it makes of tests/golden/quantized/mxfp4.

    pip install torch transformers safetensors && \
        python3 tools/make_gguf_recipes.py LLAMA_CPP_SOURCE tests/golden

The converter runs on a copy of each folder whose weights are numbers that say where they stand, so that the file it
writes says of each element which one of the folder it is. So the tests can write the file that it would write.
"""
import json
import pathlib
import sys
import tempfile

import numpy as np
import safetensors.torch
import torch

# Of each folder: what of its config.json is set otherwise, because the format has no place for it (null: taken out),
# beginnings of names of tensors that are put in place of others, of the same length, and what of the metadata is set
# otherwise, because the converter takes a size for granted.
GEMMA = {"query_pre_attn_scalar": 8}
CASES = {
    "mixtral-bf16": {"config": {"sliding_window": None, "rope_theta": 1000000.0}},
    "mixtral-f16": {},
    "qwen2_moe-bf16": {"config": {"num_hidden_layers": 1, "decoder_sparse_step": 1},
                       "rename": [["model.layers.0.", "model.layers.8."], ["model.layers.1.", "model.layers.0."],
                                  ["model.layers.2.", "model.layers.9."]]},
    "qwen3_moe-bf16": {},
    "gemma2-bf16": {"config": GEMMA},
    "gemma3-old": {"config": {**GEMMA, "torch_dtype": "bfloat16", "layer_types": ["sliding_attention"] * 3}},
    "gemma3-f32": {"config": {**GEMMA, "dtype": "bfloat16",
                              "layer_types": ["sliding_attention"] * 3}},
    "phi3-long-f16": {},
    "phi3-short-bf16": {},
    "phi3-window-bf16": {},
    "gpt_oss-bf16": {"config": {"swiglu_limit": 7.0}},
    "gpt_oss-f16": {"config": {"swiglu_alpha": 1.702, "layer_types": ["sliding_attention", "full_attention"]}},
    "glm4-bf16": {},
    "glm4-f16": {},
    "glm4_moe-bf16": {},
    "glm4_moe-f16": {},
    "olmo2-bf16": {},
    "olmo2-f16": {},
    "olmo3-bf16": {"config": {"rope_local_base_freq": 500000.0,
                              "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.25,
                                               "beta_fast": 32.0, "beta_slow": 1.0,
                                               "original_max_position_embeddings": 32}}},
    "olmo3-f16": {},
    "granite-bf16": {},
    "granitemoe-bf16": {},
    "smollm3-bf16": {"config": {"no_rope_layers": [1, 1, 1]}},
    "cohere2-bf16": {"config": {"rotary_pct": 1.0, "layer_types": ["sliding_attention"] * 3}},
    "starcoder2-bf16": {"config": {"sliding_window": 4096}},
    "starcoder2-f16": {"config": {"sliding_window": 4096}},
    "stablelm-bf16": {},
    "stablelm-parallel-f16": {"config": {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                             "partial_rotary_factor": 0.5}}},
    "falcon-bf16": {"config": {"num_kv_heads": 1}, "keys": {"falcon.feed_forward_length": 24}},
    "gpt2-bf16": {"config": {"n_ctx": 128}, "keys": {"gpt2.feed_forward_length": 24}},
    "minimax_m2-bf16": {},
    "gpt_neox-bf16": {},
    "ministral3-f16": {},
    "deepseek_v3-bf16": {"config": {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "mscale": 1.5,
                                                     "mscale_all_dim": 1.5, "beta_fast": 32.0, "beta_slow": 1.0,
                                                     "original_max_position_embeddings": 32}}},
    "deepseek_v3-f16": {"config": {"rope_interleave": True}},
    "llama-bias-f16": {},
    "qwen3-bf16": {},
}
SPACING = 4  # between two codes, so that a norm with 1 added is seen


def edited_config(folder, edits):
    config = json.loads((folder / "config.json").read_text())
    for key, value in edits.get("config", {}).items():
        config.pop(key, None) if value is None else config.update({key: value})
    return config


def write_coded(folder, edits, to):
    """The folder with codes for weights; returns the first code of every tensor."""
    config = edited_config(folder, edits)
    tensors, begins, next_code = {}, {}, 0
    for name, tensor in safetensors.torch.load_file(folder / "model.safetensors").items():
        for old, new in edits.get("rename", []):
            if name.startswith(old):
                name = new + name[len(old):]
                break
        is_left_out = any(name.startswith(f"model.layers.{layer}.") for layer in (8, 9))
        if is_left_out:
            continue
        codes = torch.arange(next_code, next_code + tensor.numel(), dtype=torch.float32) * SPACING
        tensors[name] = codes.reshape(tensor.shape)
        begins[name] = next_code
        next_code += tensor.numel()
    assert next_code * SPACING < 1 << 24, "codes must be exact in float32"
    safetensors.torch.save_file(tensors, to / "model.safetensors")
    (to / "config.json").write_text(json.dumps(config))
    vocab = {f"t{i}": i for i in range(config["vocab_size"])}  # gemma's converter counts them
    (to / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocab}, "added_tokens": []}))
    return begins


def convert(folder, to):
    import conversion
    import gguf
    from conversion.base import ModelBase, ModelType, get_model_architecture
    from conversion.stablelm import StableLMModel

    def stack(self, bid, n_head, norms, layer_name="q_layernorm"):  # a generator whose result is dropped
        names = [f"model.layers.{bid}.self_attn.{layer_name}.norms.{i}.weight" for i in range(n_head)]
        data = torch.stack([norms.pop(name) for name in names], dim=0)
        self.gguf_writer.add_tensor(self.map_tensor_name(f"model.layers.{bid}.self_attn.{layer_name}.weight"),
                                    data.numpy())

    StableLMModel._stack_qk_norm = stack
    architecture = get_model_architecture(ModelBase.load_hparams(folder, False), ModelType.TEXT)
    model_class = conversion.get_model_class(architecture, mmproj=False)
    model_class.set_vocab = lambda self: None
    model = model_class(folder, gguf.LlamaFileType.ALL_F32, to, eager=True)
    model.hparams.setdefault("rotary_pct", 0.25)  # which newer transformers call otherwise
    model.write()
    return gguf.GGUFReader(to)


def runs_of(codes, begins):
    """Runs of rows: [tensor, first element, step between columns, step between rows, rows]."""
    names = sorted(begins, key=begins.get)
    starts = np.array([begins[name] for name in names])
    runs = []
    for row in codes:
        step = int(row[1] - row[0]) if len(row) > 1 else 1
        assert (np.diff(row) == step).all() or len(row) == 1
        which = int(np.searchsorted(starts, row[0], side="right")) - 1
        first = int(row[0] - starts[which])
        if runs and runs[-1][0] == names[which] and runs[-1][2] == step:
            last = runs[-1]
            if last[4] == 1:
                last[3] = first - last[1]
            if first == last[1] + last[3] * last[4]:
                last[4] += 1
                continue
        runs.append([names[which], first, step, 0, 1])
    return runs


def recipe(tensor, begins):
    shape = [int(n) for n in reversed(tensor.shape)]
    data = np.asarray(tensor.data).reshape(shape).astype(np.float64)
    entry = {"name": tensor.name, "shape": shape}
    if tensor.name.startswith("rope_"):
        return {**entry, "values": data.tolist()}
    added = int(data.flat[0]) % SPACING
    codes = (data - added) / SPACING
    assert added in (0, 1) and (codes == np.floor(codes)).all(), tensor.name
    rows = codes.reshape(-1, 1) if len(shape) == 1 else codes.reshape(-1, shape[-1])
    runs = runs_of(rows.astype(np.int64), begins)
    return {**entry, **({"added": added} if added else {}), "runs": runs}


def case(folder, edits):
    with tempfile.TemporaryDirectory() as scratch:
        to = pathlib.Path(scratch) / folder.name
        to.mkdir()
        begins = write_coded(folder, edits, to)
        file = convert(to, to / "model.gguf")
        keys = {}
        for key, field in file.fields.items():
            if key.startswith(("GGUF.", "tokenizer.")) or key.startswith("general.") and key != "general.architecture":
                continue
            keys[key] = edits.get("keys", {}).get(key, field.contents())
        tensors = [recipe(tensor, begins) for tensor in file.tensors]
    return {"folder": folder.name, **edits, "keys": keys, "tensors": tensors}


def main():
    source, golden = map(pathlib.Path, sys.argv[1:])
    to = golden / "gguf"
    sys.path[:0] = [str(source / "gguf-py"), str(source)]
    cases = [case(golden / "models" / name, edits) for name, edits in CASES.items()]
    lines = ",\n".join(json.dumps(one, separators=(",", ":")) for one in cases)
    (to / "recipes.json").write_text('{"cases":[\n' + lines + "\n]}\n")
    convert(golden / "quantized" / "mxfp4", to / "mxfp4.gguf")


if __name__ == "__main__":
    main()
