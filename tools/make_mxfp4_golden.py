#!/usr/bin/env python3
"""Makes tests/golden/quantized/mxfp4: a tiny gpt-oss whose experts are MXFP4.

The 4-bit floats and their powers of two are drawn at random and packed here; transformers must read the same numbers
from the folder. Files and references are those of make_quantized_golden.py. Needs torch, transformers and
safetensors; run from anywhere, writes into the repository.
"""

import json
import shutil

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from make_model_golden import GPT_OSS, KEPT_POSITIONS, PROMPT_LEN, make_config, random_state, reference
from make_quantized_golden import OUT, fnv1a, write_config

SIZES = dict(GPT_OSS, intermediate_size=96, num_local_experts=4, num_experts_per_tok=2, sliding_window=12)
SPEC = dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                          "model.embed_tokens", "lm_head"])
FP4 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], dtype=np.float32)


class Experts:
    """One matrix of all experts, [experts, out, in]."""

    def __init__(self, rng, shape):
        experts, inputs, out = shape  # as the model has it
        self.codes = rng.integers(0, 16, size=(experts, out, inputs))
        middle = int(np.round(np.log2(0.6 / inputs ** 0.5)))
        self.powers = middle + rng.integers(-1, 2, size=(experts, out, inputs // 32))

    def values(self):
        return FP4[self.codes] * np.exp2(self.powers).astype(np.float32).repeat(32, axis=-1)

    def packed(self, name):
        blocks = (self.codes[..., 0::2] | self.codes[..., 1::2] << 4).astype(np.uint8)
        return {f"{name}_blocks": torch.from_numpy(blocks.reshape(*self.powers.shape, 16)),
                f"{name}_scales": torch.from_numpy((self.powers + 127).astype(np.uint8))}


def rounded(x):
    """To 8 bits, with one scale for each row and 32 inputs."""
    parts = x.reshape(*x.shape[:-1], -1, 32)
    largest = parts.abs().amax(-1, keepdim=True)
    return (torch.round(parts * (127.0 / largest)) * (largest / 127.0)).reshape(x.shape)


def rounded_forward(module):
    def forward(x, indices, weights):
        out = torch.zeros_like(x)
        for e in range(module.num_experts):
            rows, place = torch.where(indices == e)
            gate_up = rounded(x[rows]) @ module.gate_up_proj[e] + module.gate_up_proj_bias[e]
            down = rounded(module._apply_gate(gate_up)) @ module.down_proj[e] + module.down_proj_bias[e]
            out.index_add_(0, rows, down * weights[rows, place, None])
        return out
    return forward


@torch.no_grad()
def rounded_logits(model, tokens):
    for name, module in model.named_modules():
        if name.endswith(".experts"):
            module.forward = rounded_forward(module)
    return model(torch.tensor([tokens]), use_cache=False).logits[0].float()[KEPT_POSITIONS]


def draw(model, seed):
    rng = np.random.default_rng(seed)
    state = random_state(model, seed, torch.bfloat16)
    packed = {name: Experts(rng, tensor.shape) for name, tensor in state.items()
              if name.endswith(("experts.gate_up_proj", "experts.down_proj"))}
    full = {name: tensor.float() for name, tensor in state.items()}
    full.update({name: torch.from_numpy(p.values()).transpose(1, 2).contiguous() for name, p in packed.items()})
    return packed, {name: tensor for name, tensor in state.items() if name not in packed}, full


def check(folder, full):
    """Transformers reads the same numbers from the folder."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.bfloat16, quantization_config=transformers.Mxfp4Config(dequantize=True))
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor.float(), full[name]), name


def main():
    torch.set_num_threads(1)
    config = make_config("gpt_oss", SIZES)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for seed in range(200):
        packed, stored, full = draw(model, seed)
        model.load_state_dict(full)
        generator = torch.Generator().manual_seed(1000 + seed)
        prompt = torch.randint(3, config.vocab_size, (PROMPT_LEN,), generator=generator).tolist()
        result = reference(model, prompt, 16)
        if result is not None:
            break
    assert result is not None, "no seed gives a fair test"
    greedy, logits = result
    in_8_bits = rounded_logits(model, prompt + greedy[:-1])
    for name, p in packed.items():
        stored.update(p.packed(name))
    folder = OUT / "mxfp4"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_config(folder, config, "bfloat16", SPEC)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    check(folder, full)
    logits.numpy().astype("<f4").tofile(folder / "logits.f32")
    in_8_bits.numpy().astype("<f4").tofile(folder / "rounded.f32")
    golden = dict(made_by="tools/make_mxfp4_golden.py", transformers=transformers.__version__,
                  torch=torch.__version__.split("+")[0], seed=seed, prompt=prompt, greedy=greedy,
                  logit_positions=KEPT_POSITIONS,
                  projections={name: fnv1a(p.values()) for name, p in packed.items()})
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    moved = (in_8_bits - logits).pow(2).mean().sqrt() / logits.pow(2).mean().sqrt()
    print(f"seed {seed}, {len(set(greedy))} distinct tokens, logits std {logits.std():.2f}, moved by 8-bit inputs "
          f"{moved:.4f}")


if __name__ == "__main__":
    main()
