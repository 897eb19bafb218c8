#!/usr/bin/env python3
"""Makes tests/golden/models: tiny random models of every family with what transformers computes from them.

Each folder holds config.json, the weights as safetensors, golden.json (prompt, greedy continuation, positions of the
kept logits, versions) and logits.f32 ([positions, vocab], little-endian). The reference runs in float32 from the
stored weights. Needs torch, transformers and safetensors; run from anywhere, writes into the repository. Arguments:
names of models to make, all by default.
"""

import json
import pathlib
import re
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "models"
PROMPT_LEN = 40
NUM_GREEDY = 64
FINAL_NORM = re.compile(r"^(model\.norm|transformer\.ln_f|model\.decoder\.final_layer_norm)\.weight")
POSITIONS = re.compile(r"embed_positions|wpe")
ROUTER = re.compile(r"\.(gate|router|router\.proj)\.weight")
EMBEDDING = re.compile(r"embed_tokens|embed_in|word_embeddings|wte")
KEPT_POSITIONS = [0, 20, PROMPT_LEN - 1, 70, PROMPT_LEN + NUM_GREEDY - 2]

BASE = dict(
    hidden_size=48, intermediate_size=100, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16, vocab_size=259, max_position_embeddings=256,
    rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2, rope_theta=10000.0,
)


def rope(kind, **values):
    return dict(rope_type=kind, **values)


# Of the families beside llama and its kin: as small as the switches allow.
SMALL = dict(hidden_size=32, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, vocab_size=64, max_position_embeddings=256, bos_token_id=1, eos_token_id=2, pad_token_id=0)
RMS = dict(SMALL, rms_norm_eps=1e-5)
HEADS = dict(RMS, head_dim=8)
NEOX = {key: value for key, value in SMALL.items() if key != "num_key_value_heads"}
FALCON = dict({key: value for key, value in NEOX.items() if key != "intermediate_size"}, ffn_hidden_size=24)
GPT2 = dict(n_embd=32, n_inner=24, n_layer=2, n_head=4, vocab_size=64, n_positions=128, bos_token_id=1,
            eos_token_id=2)
OPT = dict({key: value for key, value in NEOX.items() if key != "intermediate_size"}, ffn_dim=24,
           max_position_embeddings=128)
GEMMA3 = dict(HEADS, query_pre_attn_scalar=12, sliding_window=12, num_hidden_layers=3,
              layer_types=["sliding_attention", "full_attention", "sliding_attention"],
              rope_parameters=dict(full_attention=rope("linear", factor=4.0, rope_theta=1000.0),
                                   sliding_attention=rope("default", rope_theta=100.0)))
# Of lengths whose roots are whole, for these are rounded to the type of the weights.
GEMMA4 = dict(HEADS, hidden_size=16, global_head_dim=16, sliding_window=12, num_hidden_layers=4,
              layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
              rope_parameters=dict(full_attention=rope("proportional", partial_rotary_factor=0.25, rope_theta=1000.0),
                                   sliding_attention=rope("default", rope_theta=100.0)),
              hidden_size_per_layer_input=0, vocab_size_per_layer_input=64, tie_word_embeddings=True)
# Experts: more rows of a step than experts, more experts than rows, odd numbers of units.
EXPERTS = dict(HEADS, num_experts_per_tok=3, num_local_experts=8)
GPT_OSS = dict(EXPERTS, intermediate_size=20, rope_parameters=rope(
    "yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=4.0, beta_slow=1.0, truncate=False,
    rope_theta=100.0))
QWEN_EXPERTS = dict(HEADS, num_experts_per_tok=3, num_experts=8, moe_intermediate_size=20)
LATENT = dict({**RMS, "num_key_value_heads": 4}, q_lora_rank=20, kv_lora_rank=18, qk_nope_head_dim=10, qk_rope_head_dim=8,
              v_head_dim=6, n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=12, n_group=1, topk_group=1)
YARN = dict(factor=4.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0)


def longrope(original, partial):
    pairs = range(int(8 * partial) // 2)
    return dict(rope_parameters=rope("longrope", short_factor=[1.0 + 0.1 * i for i in pairs],
                                     long_factor=[2.0 + i for i in pairs], rope_theta=10000.0,
                                     original_max_position_embeddings=original, partial_rotary_factor=partial),
                original_max_position_embeddings=original)


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
# The same with all sizes given. Forms beside those above: "bare" leaves the model's own prefix out of the names,
# "wrapped" is the text part of a model that sees, "kimi" a deepseek_v3 of another name,
# "fp8" has its projections in blocks of e4m3.
FAMILIES = {
    "ministral3-f16": ("ministral3", "float16", dict(HEADS, sliding_window=None, rope_parameters=rope(
        "yarn", **YARN, rope_theta=1000.0, llama_4_scaling_beta=0.3, mscale=1.0, mscale_all_dim=1.0)), "new"),
    "ministral3-window-wrapped": ("ministral3", "bfloat16", dict(HEADS, sliding_window=12, rope_parameters=rope(
        "yarn", **YARN, rope_theta=1000.0, llama_4_scaling_beta=0.1)), "wrapped"),
    "smollm3-bf16": ("smollm3", "bfloat16", dict(RMS, num_hidden_layers=3, no_rope_layers=[1, 0, 1]), "old"),
    "smollm3-window-f16": ("smollm3", "float16", dict(
        RMS, num_hidden_layers=3, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=12,
        attention_bias=True, mlp_bias=True, tie_word_embeddings=False), "new"),
    "granite-bf16": ("granite", "bfloat16", dict(
        RMS, embedding_multiplier=3.0, attention_multiplier=0.5, residual_multiplier=0.6, logits_scaling=0.5,
        tie_word_embeddings=True, attention_bias=True, mlp_bias=True), "old"),
    "olmo2-f16": ("olmo2", "float16", dict(RMS), "old"),
    "olmo2-bf16": ("olmo2", "bfloat16", dict(RMS, num_key_value_heads=4, attention_bias=True), "new"),
    "olmo3-bf16": ("olmo3", "bfloat16", dict(
        RMS, num_hidden_layers=3, sliding_window=12,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_parameters=dict(
            full_attention=rope("yarn", **YARN, rope_theta=1000.0, attention_factor=1.2),
            sliding_attention=rope("default", rope_theta=1000.0))), "old"),
    "olmo3-f16": ("olmo3", "float16", dict(RMS, num_hidden_layers=4, sliding_window=9), "new"),
    "phi3-window-bf16": ("phi3", "bfloat16", dict(RMS, sliding_window=12), "old"),
    "phi3-long-f16": ("phi3", "float16", dict(RMS, **longrope(32, 1.0)), "new"),
    "phi3-short-bf16": ("phi3", "bfloat16", dict(RMS, **longrope(128, 0.5), tie_word_embeddings=True), "old"),
    "glm4-bf16": ("glm4", "bfloat16", dict(HEADS), "new"),
    "glm4-f16": ("glm4", "float16", dict(HEADS, attention_bias=False, tie_word_embeddings=True), "old"),
    "gemma2-bf16": ("gemma2", "bfloat16", dict(HEADS, hidden_size=64, query_pre_attn_scalar=12, sliding_window=12,
                                               attn_logit_softcapping=4.0, final_logit_softcapping=6.0), "old"),
    "gemma2-f32": ("gemma2", "float32", dict(HEADS, query_pre_attn_scalar=8, sliding_window=20, attention_bias=True,
                                             attn_logit_softcapping=None, final_logit_softcapping=None), "new"),
    "gemma3-f32": ("gemma3_text", "float32", GEMMA3, "new"),
    "gemma3-wrapped": ("gemma3_text", "bfloat16", dict(GEMMA3, hidden_size=64, num_hidden_layers=3), "wrapped"),
    "gemma3-old": ("gemma3_text", "float32", dict(GEMMA3, attention_bias=True), "old"),
    "gemma4-bf16": ("gemma4_text", "bfloat16", GEMMA4, "new"),
    "gemma4-k_eq_v-f32": ("gemma4_text", "float32", dict(
        GEMMA4, hidden_size=32, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"],
        attention_k_eq_v=True,
        num_attention_heads=8, num_key_value_heads=4, num_global_key_value_heads=2, final_logit_softcapping=6.0,
        attention_bias=True), "wrapped"),
    "gemma4-shared-f16": ("gemma4_text", "float16", dict(
        GEMMA4, hidden_size=64, num_hidden_layers=5, num_kv_shared_layers=2, use_double_wide_mlp=True,
        hidden_size_per_layer_input=16, layer_types=[
            "sliding_attention", "full_attention", "sliding_attention", "sliding_attention", "full_attention"]), "new"),
    "gemma4-shared-hub": ("gemma4_text", "bfloat16", dict(
        GEMMA4, num_kv_shared_layers=2, hidden_size_per_layer_input=4, final_logit_softcapping=8.0), "wrapped"),
    "gemma4-experts-bf16": ("gemma4_text", "bfloat16", dict(
        GEMMA4, num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"], enable_moe_block=True,
        num_experts=8, top_k_experts=3, moe_intermediate_size=12), "new"),
    "cohere2-bf16": ("cohere2", "bfloat16", dict(
        SMALL, num_hidden_layers=3, layer_norm_eps=1e-5, logit_scale=0.8, sliding_window=12,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]), "old"),
    "cohere2-f16": ("cohere2", "float16", dict(SMALL, num_hidden_layers=4, layer_norm_eps=1e-5, logit_scale=2.0,
                                               sliding_window=9, attention_bias=True), "new"),
    "starcoder2-bf16": ("starcoder2", "bfloat16", dict(SMALL, norm_epsilon=1e-5, sliding_window=12), "old"),
    "starcoder2-f16": ("starcoder2", "float16", dict(SMALL, use_bias=False, tie_word_embeddings=False), "new"),
    "stablelm-bf16": ("stablelm", "bfloat16", dict(SMALL, use_qkv_bias=True, rope_parameters=rope(
        "default", rope_theta=10000.0, partial_rotary_factor=0.25)), "old"),
    "stablelm-parallel-f16": ("stablelm", "float16", dict(
        SMALL, qk_layernorm=True, use_parallel_residual=True, rope_parameters=rope(
            "default", rope_theta=1000.0, partial_rotary_factor=0.5)), "new"),
    "gpt_neox-bf16": ("gpt_neox", "bfloat16", dict(NEOX, rope_parameters=rope(
        "default", rope_theta=10000.0, partial_rotary_factor=0.25)), "old"),
    "gpt_neox-serial-f16": ("gpt_neox", "float16", dict(
        NEOX, use_parallel_residual=False, hidden_act="gelu_new", rope_parameters=rope(
            "default", rope_theta=1000.0, partial_rotary_factor=1.0)), "new"),
    "gpt2-bf16": ("gpt2", "bfloat16", GPT2, "new"),
    "gpt2-bare-f16": ("gpt2", "float16", dict(GPT2, n_layer=1, n_inner=None, scale_attn_weights=False), "bare"),
    "opt-bf16": ("opt", "bfloat16", OPT, "new"),
    "opt-f16": ("opt", "float16", dict(OPT, activation_function="gelu", enable_bias=False), "new"),
    "falcon-bf16": ("falcon", "bfloat16", dict(FALCON, multi_query=True, parallel_attn=True), "old"),
    "falcon-new-f16": ("falcon", "float16", dict(FALCON, new_decoder_architecture=True, num_kv_heads=2,
                                                    bias=True), "new"),
    "falcon-alibi-bf16": ("falcon", "bfloat16", dict(
        FALCON, num_attention_heads=6, hidden_size=48, alibi=True, multi_query=False, parallel_attn=False,
        tie_word_embeddings=False), "new"),
    "mixtral-bf16": ("mixtral", "bfloat16", dict(EXPERTS, num_experts_per_tok=2, sliding_window=12), "old"),
    "mixtral-f16": ("mixtral", "float16", dict(EXPERTS, num_local_experts=4, sliding_window=None), "new"),
    "qwen2_moe-bf16": ("qwen2_moe", "bfloat16", dict(
        QWEN_EXPERTS, num_hidden_layers=3, decoder_sparse_step=2, shared_expert_intermediate_size=28), "old"),
    "qwen2_moe-f16": ("qwen2_moe", "float16", dict(
        QWEN_EXPERTS, num_hidden_layers=3, mlp_only_layers=[1], shared_expert_intermediate_size=20, qkv_bias=False,
        norm_topk_prob=True, use_sliding_window=True, sliding_window=12,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"]), "new"),
    "qwen3_moe-bf16": ("qwen3_moe", "bfloat16", dict(QWEN_EXPERTS, norm_topk_prob=True), "old"),
    "qwen3_moe-f16": ("qwen3_moe", "float16", dict(
        QWEN_EXPERTS, num_hidden_layers=3, mlp_only_layers=[1], use_sliding_window=True, sliding_window=12,
        attention_bias=True, hidden_act="gelu"), "new"),
    "granitemoe-bf16": ("granitemoe", "bfloat16", dict(
        EXPERTS, embedding_multiplier=3.0, attention_multiplier=0.5, residual_multiplier=0.6, logits_scaling=0.5,
        tie_word_embeddings=True, attention_bias=True), "old"),
    "glm4_moe-bf16": ("glm4_moe", "bfloat16", dict(
        EXPERTS, num_hidden_layers=2, moe_intermediate_size=20, n_group=4, topk_group=2, routed_scaling_factor=1.5,
        use_qk_norm=True, attention_bias=True, first_k_dense_replace=1), "old"),
    "glm4_moe-f16": ("glm4_moe", "float16", dict(
        EXPERTS, moe_intermediate_size=20, n_shared_experts=2, norm_topk_prob=False, first_k_dense_replace=0), "new"),
    "gpt_oss-bf16": ("gpt_oss", "bfloat16", dict(GPT_OSS, sliding_window=12, swiglu_limit=1.5), "old"),
    "gpt_oss-f16": ("gpt_oss", "float16", dict(
        GPT_OSS, sliding_window=9, layer_types=["full_attention", "sliding_attention"], swiglu_alpha=1.2,
        num_local_experts=4, num_experts_per_tok=2, attention_bias=False), "new"),
    "minimax_m2-bf16": ("minimax_m2", "bfloat16", dict(EXPERTS, rotary_dim=4), "old"),
    "deepseek_v3-bf16": ("deepseek_v3", "bfloat16", dict(
        {**LATENT, "n_group": 4, "topk_group": 2}, routed_scaling_factor=1.5, first_k_dense_replace=1, rope_parameters=rope(
            "yarn", **YARN, rope_theta=1000.0, mscale=0.5, mscale_all_dim=1.5)), "old"),
    "deepseek_v3-f16": ("deepseek_v3", "float16", dict(
        {**LATENT, "q_lora_rank": None, "v_head_dim": 12}, first_k_dense_replace=2, rope_interleave=False), "new"),
    "deepseek_v3-fp8": ("deepseek_v3", "bfloat16", dict(LATENT, first_k_dense_replace=2), "fp8"),
    "kimi_k2-bf16": ("deepseek_v3", "bfloat16", dict(
        LATENT, routed_scaling_factor=2.8, n_shared_experts=2, first_k_dense_replace=1,
        attention_bias=True, rope_parameters=rope(
            "yarn", **dict(YARN, beta_fast=1.0), rope_theta=1000.0, mscale=1.0, mscale_all_dim=1.0)), "kimi"),
}
FP8_BLOCK = [16, 12]
SERVED = {"phi3-short-bf16": 128}  # the longest context served, where it counts


def make_config(model_type, changes):
    if "bos_token_id" in changes:  # all sizes given
        # Eager Falcon adds ALiBi twice.
        attention = "sdpa" if model_type == "falcon" else "eager"
        return transformers.AutoConfig.for_model(model_type, **changes, attn_implementation=attention)
    values = {**BASE, **changes}
    values = {key: value for key, value in values.items() if value is not None or key == "sliding_window"}
    theta = values.pop("rope_theta")
    scaling = values.pop("rope_scaling", {"rope_type": "default"})
    return transformers.AutoConfig.for_model(
        model_type, **values, rope_parameters={**scaling, "rope_theta": theta}, attn_implementation="eager")


def random_state(model, seed, dtype):
    """Every tensor random, norms and biases too, large enough that logits differ and text does not loop."""
    generator = torch.Generator().manual_seed(seed)
    is_small = model.config.vocab_size == SMALL["vocab_size"]
    state = {}
    for name, tensor in model.state_dict().items():
        noise = torch.randn(tensor.shape, generator=generator)
        if name.endswith((".bias", "proj_bias")):
            value = 0.4 * noise
        elif name.endswith("e_score_correction_bias"):
            value = 0.2 * noise
        elif name.endswith("sinks"):
            value = 1.5 * noise
        elif tensor.dim() == 1:
            # A small embedding that is tied wants large outputs, or every token would name itself.
            is_last = FINAL_NORM.search(name) and model.config.tie_word_embeddings and is_small
            value = 1.0 + 0.2 * noise + (2.5 if is_last else 0.0)
            value -= 1.0 if model.config.model_type.startswith(("gemma2", "gemma3")) else 0.0
            if model.config.model_type == "gemma4_text" and name.endswith(("q_norm.weight", "k_norm.weight")):
                value *= 0.6  # scores are not scaled
        elif POSITIONS.search(name):
            value = 0.6 * noise
        elif "embed_tokens_per_layer" in name:
            value = noise / model.config.hidden_size_per_layer_input ** 0.5
        elif EMBEDDING.search(name):
            tied = (0.15 if is_small else 0.4) / getattr(model.config, "embedding_multiplier", 1.0)
            value = noise * (tied if model.config.tie_word_embeddings else 1.0)
            value /= model.config.hidden_size ** 0.5 if model.config.model_type.startswith("gemma") else 1.0
        else:
            turned = dict(gpt2=".h.", gpt_oss=".experts.").get(model.config.model_type, "\n") in name
            inputs = tensor.shape[-2 if turned else -1]
            value = noise * (4.0 if ROUTER.search(name) else 1.6) / inputs ** 0.5
        state[name] = value.to(dtype).contiguous()
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    return state


def to_fp8(state, block):
    """Projections in e4m3, a scale for each block; and what they stand for, rounded to bf16 as DeepSeek's own tool does."""
    stored, meant = {}, {}
    for name, tensor in state.items():
        stored[name] = meant[name] = tensor
        if not re.search(r"_proj(_with_mqa)?\.weight$", name):
            continue
        blocks = [-(-size // of) for size, of in zip(tensor.shape, block)]
        scales = torch.zeros(blocks)
        values = torch.zeros(tensor.shape)
        for i in range(blocks[0]):
            for j in range(blocks[1]):
                at = (slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1]))
                scales[i, j] = tensor[at].float().abs().max() / 448
                values[at] = tensor[at].float() / scales[i, j]
        stored[name] = values.to(torch.float8_e4m3fn)
        stored[name + "_scale_inv"] = scales
        spread = scales.repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)
        meant[name] = (stored[name].float() * spread[: tensor.shape[0], : tensor.shape[1]]).to(torch.bfloat16)
    return stored, meant


def hub_experts(model_type, state):
    """Experts under the names the files of the hub have: most have a tensor for each."""
    if model_type in ("gpt_oss", "gemma4_text"):
        return state
    if model_type == "granitemoe":
        names = {"experts.gate_up_proj": "input_linear.weight", "experts.down_proj": "output_linear.weight",
                 "router.weight": "router.layer.weight"}
        return {re.sub("|".join(names), lambda found: names[found[0]], name): tensor for name, tensor in state.items()}
    is_mixtral = model_type in ("mixtral", "minimax_m2")
    parts = ("w1", "w3", "w2") if is_mixtral else ("gate_proj", "up_proj", "down_proj")
    out = {}
    for name, tensor in state.items():
        name = name.replace(".mlp.", ".block_sparse_moe.") if is_mixtral else name
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[name] = tensor
            continue
        for e, own in enumerate(tensor):
            pieces = own.chunk(2) if name.endswith("gate_up_proj") else [own]
            for part, piece in zip(parts if len(pieces) == 2 else parts[2:], pieces):
                out[f"{name.rpartition('.')[0]}.{e}.{part}.weight"] = piece.contiguous()
    return out


def names_of_form(model_type, state, form):
    """The names as the files of the hub have them."""
    state = hub_experts(model_type, state)
    state = {re.sub("^lm_head", "embed_out", name) if "gpt_neox.embed_in.weight" in state else name: tensor
             for name, tensor in state.items()}
    if form == "bare":
        return {name.removeprefix("transformer."): tensor for name, tensor in state.items()}
    if form == "wrapped":
        return {"language_model." + name: tensor for name, tensor in state.items()}
    return state


@torch.no_grad()
def reference(model, prompt, least_distinct):
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
    if len(set(greedy)) < least_distinct or logits.std() < 0.5 or not torch.isfinite(logits).all():
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
    layers = values.pop("per_layer_config", None)
    if values["model_type"] == "gemma4_text":
        if form == "new":
            values["per_layer_config"] = layers
        else:  # as the files of the hub have it
            own = next(iter(layers.values()))
            values.update(global_head_dim=own["head_dim"], num_global_key_value_heads=own.get("num_key_value_heads"))
    if form == "fp8":
        values["quantization_config"] = dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic",
                                             weight_block_size=FP8_BLOCK)
    if form == "kimi":
        values["model_type"] = "kimi_k2"
    if form == "wrapped":
        outer = {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3",
                 "dtype": values.pop("dtype"), "vision_config": {"hidden_size": 8},
                 "tie_word_embeddings": values["tie_word_embeddings"]}
        values.pop("architectures")
        values = {**outer, "text_config": values}
    if form == "old":
        parameters = dict(values.pop("rope_parameters"))
        if "full_attention" in parameters:
            values["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
            parameters = dict(parameters["full_attention"])
        theta, partial = "rope_theta", "partial_rotary_factor"
        if values["model_type"] == "gpt_neox":
            theta, partial = "rotary_emb_base", "rotary_pct"
        values[theta] = parameters.pop("rope_theta")
        if "partial_rotary_factor" in parameters:
            values[partial] = parameters.pop("partial_rotary_factor")
        values["rope_scaling"] = None if parameters["rope_type"] == "default" else parameters
        values["torch_dtype"] = values.pop("dtype")
        if values["model_type"] not in ("gemma3_text", "olmo3", "cohere2"):
            values.pop("layer_types", None)
    (folder / "config.json").write_text(json.dumps(values, indent=1, sort_keys=True) + "\n")


def make(name, model_type, dtype, changes, form):
    config = make_config(model_type, changes)
    model = transformers.AutoModelForCausalLM.from_config(config).float().eval()
    for seed in range(200):
        state = random_state(model, seed, getattr(torch, dtype))
        stored, state = to_fp8(state, FP8_BLOCK) if form == "fp8" else (state, state)
        missing, unexpected = model.load_state_dict({k: v.float() for k, v in state.items()}, strict=False)
        assert not unexpected and set(missing) <= {"lm_head.weight"}, (missing, unexpected)
        model.tie_weights()
        generator = torch.Generator().manual_seed(1000 + seed)
        prompt = torch.randint(3, config.vocab_size, (PROMPT_LEN,), generator=generator).tolist()
        # Without rope a tiny model soon repeats itself.
        result = reference(model, prompt, 8 if "alibi" in name else 16)
        if result is not None:
            break
    assert result is not None, f"{name}: no seed gives a fair test"
    greedy, logits = result
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_config(folder, config, dtype, form)
    write_weights(folder, names_of_form(model_type, stored, form), form == "sharded")
    logits.numpy().astype("<f4").tofile(folder / "logits.f32")
    golden = dict(made_by="tools/make_model_golden.py", transformers=transformers.__version__,
                  torch=torch.__version__.split("+")[0], seed=seed, prompt=prompt, greedy=greedy,
                  logit_positions=KEPT_POSITIONS)
    if name in SERVED:
        golden["max_model_len"] = SERVED[name]
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")
    print(f"{name}: seed {seed}, {len(set(greedy))} distinct tokens, logits std {logits.std():.2f}, "
          f"max {logits.abs().max():.2f}")


def main():
    torch.set_num_threads(1)
    wanted = sys.argv[1:]
    for name, spec in {**MODELS, **FAMILIES}.items():
        if not wanted or name in wanted:
            make(name, *spec)
    total = sum(path.stat().st_size for path in OUT.rglob("*") if path.is_file())
    assert total < 5_500_000, total
    print(f"{total} bytes in all")


if __name__ == "__main__":
    main()
