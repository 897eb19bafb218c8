#!/usr/bin/env python3
"""Makes tests/golden/quantized: tiny models whose projections are integers, in every layout that is read.

Integers, scales and zero points are drawn at random; this file's own packer writes them as the formats define it, and
transformers computes logits in float32 from what they stand for, scale * (integer - zero). Each folder holds
config.json, model.safetensors, golden.json and two references, [positions, vocab] float32 little-endian: logits.f32
from the weights as they are, and rounded.f32 where the input of each quantised projection is rounded to 8 bits too, as
the runtime's integer products do. golden.json also has the FNV-1a hash of every projection's weights as float32.
Needs torch, transformers and safetensors; run from anywhere, writes into the repository. Arguments: names of models to
make, all by default.
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from make_model_golden import (KEPT_POSITIONS, NUM_GREEDY, PROMPT_LEN, hub_experts, make_config, random_state,
                               reference)

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "quantized"
SMALL = dict(hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
             vocab_size=96)
MIDDLE = dict(SMALL, hidden_size=128, intermediate_size=160, num_hidden_layers=1, head_dim=32)
LARGE = dict(SMALL, hidden_size=256, intermediate_size=128, num_hidden_layers=1, head_dim=32, vocab_size=64)
EXPERTS = dict(SMALL, num_hidden_layers=1, intermediate_size=64, num_experts_per_tok=2, num_local_experts=4)
QWEN_EXPERTS = dict(EXPERTS, num_experts=4, moe_intermediate_size=64, norm_topk_prob=True)


def gptq(bits, group, v2=False, act_order=False, symmetric=False):
    return dict(quant_method="gptq", bits=bits, group_size=group, desc_act=act_order, sym=symmetric,
                checkpoint_format="gptq_v2" if v2 else "gptq", lm_head=False, true_sequential=True, damp_percent=0.01)


def awq(group):
    return dict(quant_method="awq", bits=4, group_size=group, version="gemm", zero_point=True,
                modules_to_not_convert=None)


def compressed(layout, bits, group, symmetric=True):
    weights = dict(num_bits=bits, type="int", symmetric=symmetric, strategy="group" if group > 0 else "channel",
                   group_size=group if group > 0 else None, dynamic=False, actorder=None, observer="minmax")
    tokens = dict(num_bits=8, type="int", symmetric=True, strategy="token", dynamic=True, group_size=None)
    inputs = tokens if layout == "int-quantized" else None
    return dict(quant_method="compressed-tensors", format=layout, quantization_status="compressed", ignore=["lm_head"],
                kv_cache_scheme=None, global_compression_ratio=None,
                config_groups=dict(group_0=dict(targets=["Linear"], weights=weights, input_activations=inputs,
                                                output_activations=None)))


# name -> (model_type, dtype of the file's floats, sizes, quantization_config)
MODELS = {
    "gptq-128": ("llama", "float16", LARGE, gptq(4, 128)),
    "gptq-v2-32-bias": ("qwen2", "float16", dict(SMALL, head_dim=None), gptq(4, 32, v2=True)),
    "gptq-act-order-32": ("llama", "float16", MIDDLE, gptq(4, 32, act_order=True)),
    "gptq-8bit-channel": ("llama", "bfloat16", dict(SMALL, num_hidden_layers=1), gptq(8, -1, symmetric=True)),
    "gptq-8bit-zeros": ("llama", "float16", dict(SMALL, num_hidden_layers=1), gptq(8, 32)),
    "gptq-experts-32": ("qwen3_moe", "float16", QWEN_EXPERTS, gptq(4, 32)),
    "awq-experts-64": ("mixtral", "float16", dict(EXPERTS, sliding_window=None), awq(64)),
    "ct-int8-experts": ("qwen3_moe", "bfloat16", QWEN_EXPERTS, compressed("int-quantized", 8, 32)),
    "awq-128": ("llama", "float16", LARGE, awq(128)),
    "awq-64": ("mistral", "float16", dict(MIDDLE, sliding_window=None), awq(64)),
    "ct-int8-channel": ("llama", "bfloat16", MIDDLE, compressed("int-quantized", 8, -1)),
    "ct-int8-group": ("qwen3", "bfloat16", dict(SMALL, tie_word_embeddings=True),
                      compressed("int-quantized", 8, 32)),
    "ct-int8-zeros": ("llama", "float32", dict(SMALL, num_hidden_layers=1), compressed("int-quantized", 8, 32, symmetric=False)),
    "ct-pack4": ("llama", "bfloat16", MIDDLE, compressed("pack-quantized", 4, 64)),
    "ct-pack4-zeros": ("llama", "bfloat16", dict(SMALL, num_hidden_layers=1), compressed("pack-quantized", 4, 32, symmetric=False)),
    "ct-pack8": ("llama", "bfloat16", dict(SMALL, num_hidden_layers=1), compressed("pack-quantized", 8, 32)),
}


class Integers:
    """One projection [out, in]: integers and zero points from 0, one group number per input."""

    def __init__(self, rng, shape, spec, scale_dtype):
        out, inputs = shape
        arguments = spec.get("config_groups", {}).get("group_0", {}).get("weights", spec)
        self.bits = arguments.get("num_bits", arguments.get("bits"))
        size = arguments["group_size"] or -1
        self.size = min(size, inputs) if size > 0 else inputs
        groups = -(-inputs // self.size)
        symmetric = arguments.get("symmetric", arguments.get("sym", False))
        half = 1 << (self.bits - 1)
        self.group = np.arange(inputs) // self.size
        if spec.get("desc_act"):
            self.group = rng.permutation(self.group)
        # About normal, so that the largest integers are rare as in real files.
        drawn = rng.normal(half, half / 3.0, size=(out, inputs))
        self.q = np.clip(np.rint(drawn), 0, 2 * half - 1).astype(np.int64)
        spread = half // 4
        self.zeros = (np.full((out, groups), half) if symmetric
                      else rng.integers(half - spread, half + spread + 1, size=(out, groups)))
        if not symmetric and self.bits == 4:
            self.zeros[0, 0] = 0  # the least there can be; before v2 gptq stores it as -1
        sigma = 1.6 / (half / 3.0) / inputs ** 0.5
        scales = sigma * rng.uniform(0.7, 1.3, size=(out, groups))
        self.scales = torch.tensor(scales, dtype=torch.float64).to(scale_dtype)

    def dequantized(self):
        integers = (self.q - self.zeros[:, self.group]).astype(np.float32)
        return self.scales.float().numpy()[:, self.group] * integers


def words(values, axis):
    """Packs unsigned integers along an axis into 32-bit words, the first in the lowest bits. values: (array, bits)."""
    array, bits = values
    per = 32 // bits
    array = np.moveaxis(array, axis, -1).astype(np.uint64)
    pad = -array.shape[-1] % per
    array = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, pad)]).reshape(*array.shape[:-1], -1, per)
    packed = np.zeros(array.shape[:-1], dtype=np.uint64)
    for place in range(per):
        packed |= array[..., place] << np.uint64(bits * place)
    return np.moveaxis(packed.astype(np.uint32), -1, axis)


def as_tensor(array, dtype=np.int32):
    return torch.from_numpy(np.ascontiguousarray(array).view(dtype).copy())


def pack_gptq(name, p, spec):
    zeros = words((p.zeros.T, p.bits), 1)
    if spec["checkpoint_format"] == "gptq":
        zeros = zeros - np.uint32(0x11111111 if p.bits == 4 else 0x01010101)
    return {f"{name}.qweight": as_tensor(words((p.q.T, p.bits), 0)), f"{name}.qzeros": as_tensor(zeros),
            f"{name}.scales": p.scales.T.contiguous(), f"{name}.g_idx": as_tensor(p.group.astype(np.int32))}


def pack_awq(name, p, _):
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def shuffled(array):  # [.., out]
        return array.reshape(array.shape[0], -1, 8)[:, :, order].reshape(array.shape[0], -1)
    return {f"{name}.qweight": as_tensor(words((shuffled(p.q.T), 4), 1)),
            f"{name}.qzeros": as_tensor(words((shuffled(p.zeros.T), 4), 1)),
            f"{name}.scales": p.scales.T.contiguous()}


def pack_compressed(name, p, spec):
    half = 1 << (p.bits - 1)
    symmetric = spec["config_groups"]["group_0"]["weights"]["symmetric"]
    tensors = {f"{name}.weight_scale": p.scales.contiguous()}
    if spec["format"] == "int-quantized":
        tensors[f"{name}.weight"] = as_tensor((p.q - half).astype(np.int8), np.int8)
        if not symmetric:
            tensors[f"{name}.weight_zero_point"] = as_tensor((p.zeros - half).astype(np.int8), np.int8)
        return tensors
    tensors[f"{name}.weight_packed"] = as_tensor(words((p.q, p.bits), 1))
    tensors[f"{name}.weight_shape"] = torch.tensor(p.q.shape, dtype=torch.int64)
    if not symmetric:
        tensors[f"{name}.weight_zero_point"] = as_tensor(words((p.zeros, p.bits), 0))
    return tensors


PACKERS = {"gptq": pack_gptq, "awq": pack_awq, "compressed-tensors": pack_compressed}


def rounded(x, size):
    """A projection's input in 8 bits, with one scale per row and stretch: up to the end of a group of `size` inputs and
    to a multiple of 128."""
    x = x.clone()
    begin = 0
    while begin < x.shape[-1]:
        end = min(x.shape[-1], begin + size - begin % size, begin + 128 - begin % 128)
        largest = x[..., begin:end].abs().amax(-1, keepdim=True)
        x[..., begin:end] = torch.round(x[..., begin:end] * (127.0 / largest)) * (largest / 127.0)
        begin = end
    return x


def rounded_experts(module, size):
    """The forward of a module that holds all experts of a layer, with the inputs of its projections rounded."""
    def forward(hidden, index, weights):
        out = torch.zeros_like(hidden)
        x = rounded(hidden, size)
        for e in range(module.gate_up_proj.shape[0]):
            rows, place = torch.where(index == e)
            gate, up = torch.nn.functional.linear(x[rows], module.gate_up_proj[e]).chunk(2, dim=-1)
            inner = rounded(module.act_fn(gate) * up, size)
            mine = torch.nn.functional.linear(inner, module.down_proj[e])
            out.index_add_(0, rows, mine * weights[rows, place, None])
        return out
    return forward


def fused_experts(model_type, names, tensors):
    """What hub_experts() took apart, for the model, which has all experts of a layer in two tensors."""
    is_mixtral = model_type == "mixtral"
    parts = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    out = {}
    for name in names:
        own = name.replace(".mlp.", ".block_sparse_moe.") if is_mixtral else name
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[name] = tensors[own]
            continue
        base = own.rpartition(".")[0]
        count = sum(key.startswith(base) for key in tensors) // 3
        pieces = parts[:2] if name.endswith("gate_up_proj") else parts[2:]
        out[name] = torch.stack([torch.cat([tensors[f"{base}.{e}.{part}.weight"] for part in pieces])
                                 for e in range(count)])
    return out


def is_projection(name):
    return name.endswith(("_proj.weight", ".w1.weight", ".w2.weight", ".w3.weight"))


def fnv1a(array):
    """Over the little-endian words of float32s."""
    value = 0xCBF29CE484222325
    for word in array.astype("<f4").view("<u4").ravel().tolist():
        value = (value ^ word) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def write_config(folder, config, dtype, spec):
    values = config.to_dict()
    for key in ("id2label", "label2id", "_name_or_path", "chunk_size_feed_forward", "return_dict", "problem_type",
                "output_attentions", "output_hidden_states", "is_encoder_decoder"):
        values.pop(key, None)
    values["architectures"] = [type(transformers.AutoModelForCausalLM.from_config(config)).__name__]
    values["dtype"] = dtype
    values["quantization_config"] = spec
    (folder / "config.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


@torch.no_grad()
def rounded_logits(model, projections, tokens):
    hooks = []
    for name, p in projections.items():
        # Zero points of 8 bits do not fit the runtime's integer products, nor do inputs out of order.
        if (p.bits == 8 and (p.zeros != 128).any()) or (np.diff(p.group) < 0).any():
            continue
        if ".experts." in name:
            continue
        module = model.get_submodule(name)
        hooks.append(module.register_forward_pre_hook(lambda _, inputs, size=p.size: (rounded(inputs[0], size),)))
    for name, module in model.named_modules():
        if name.endswith(".experts"):
            module.forward = rounded_experts(module, next(iter(projections.values())).size)
    logits = model(torch.tensor([tokens]), use_cache=False).logits[0].float()[KEPT_POSITIONS]
    for hook in hooks:
        hook.remove()
    return logits


def draw(model, spec, dtype, seed):
    rng = np.random.default_rng(seed)
    own_state = random_state(model, seed, getattr(torch, dtype))
    state = hub_experts(model.config.model_type, own_state)
    scale_dtype = torch.float16 if spec["quant_method"] != "compressed-tensors" else getattr(torch, dtype)
    projections = {}
    full = {}
    for name, tensor in state.items():
        if is_projection(name):
            projections[name[:-len(".weight")]] = p = Integers(rng, tensor.shape, spec, scale_dtype)
            full[name] = torch.from_numpy(p.dequantized())
        else:
            full[name] = tensor.float()
    plain = {name: tensor for name, tensor in state.items() if not is_projection(name)}
    return projections, plain, fused_experts(model.config.model_type, own_state, full)


def make(name, model_type, dtype, sizes, spec):
    config = make_config(model_type, sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    result = None
    for seed in range(200):
        projections, stored, full = draw(model, spec, dtype, seed)
        missing, unexpected = model.load_state_dict(full, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        model.tie_weights()
        generator = torch.Generator().manual_seed(1000 + seed)
        prompt = torch.randint(3, config.vocab_size, (PROMPT_LEN,), generator=generator).tolist()
        result = reference(model, prompt, 16)
        if result is not None:
            break
    assert result is not None, f"{name}: no seed gives a fair test"
    greedy, logits = result
    in_8_bits = rounded_logits(model, projections, prompt + greedy[:-1])
    for projection, p in projections.items():
        stored.update(PACKERS[spec["quant_method"]](projection, p, spec))
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_config(folder, config, dtype, spec)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    logits.numpy().astype("<f4").tofile(folder / "logits.f32")
    in_8_bits.numpy().astype("<f4").tofile(folder / "rounded.f32")
    hashes = {projection: fnv1a(p.dequantized()) for projection, p in projections.items()}
    golden = dict(made_by="tools/make_quantized_golden.py", transformers=transformers.__version__,
                  torch=torch.__version__.split("+")[0], seed=seed, prompt=prompt, greedy=greedy,
                  logit_positions=KEPT_POSITIONS, projections=hashes)
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    moved = (in_8_bits - logits).pow(2).mean().sqrt() / logits.pow(2).mean().sqrt()
    print(f"{name}: seed {seed}, {len(set(greedy))} distinct tokens of {NUM_GREEDY}, logits std {logits.std():.2f}, "
          f"moved by 8-bit inputs {moved:.4f}")


def main():
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    for name, spec in MODELS.items():
        if not wanted or name in wanted:
            make(name, *spec)
    total = sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file())
    assert total < 1_800_000, total
    print(f"{total} bytes in all")


if __name__ == "__main__":
    main()
