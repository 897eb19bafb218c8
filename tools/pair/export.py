"""Writes one model of the pair as a Hugging Face folder.

Used by train_pair.py only.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from pair import texts

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def config_of(shape, ids):
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "vocab_size": shape.n_vocab, "hidden_size": shape.n_hidden,
        "intermediate_size": shape.n_ffn, "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads, "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.n_head_dim, "max_position_embeddings": shape.n_positions,
        "rope_theta": shape.rope_theta, "rope_scaling": None, "rms_norm_eps": shape.norm_eps,
        "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "attention_dropout": 0.0, "tie_word_embeddings": True, "initializer_range": 0.02,
        "bos_token_id": ids[texts.END_OF_TEXT], "eos_token_id": ids[texts.END_OF_TEXT],
        "pad_token_id": ids[texts.END_OF_TEXT], "torch_dtype": "bfloat16", "use_cache": True}


def export_model(folder, shape, weights, tokenizer, tokenizer_path):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    ids = {token: tokenizer.token_to_id(token) for token in texts.SPECIAL_TOKENS}
    tensors = {name: value.to(torch.bfloat16).contiguous() for name, value in weights.items()}
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    write_json(folder / "config.json", config_of(shape, ids))
    shutil.copyfile(tokenizer_path, folder / "tokenizer.json")
    write_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": shape.n_positions,
        "bos_token": texts.END_OF_TEXT, "eos_token": texts.END_OF_TEXT,
        "pad_token": texts.END_OF_TEXT, "add_bos_token": False, "add_eos_token": False,
        "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE,
        "added_tokens_decoder": {str(ids[token]): {
            "content": token, "lstrip": False, "normalized": False, "rstrip": False,
            "single_word": False, "special": True} for token in texts.SPECIAL_TOKENS}})
    write_json(folder / "generation_config.json", {
        "bos_token_id": ids[texts.END_OF_TEXT], "pad_token_id": ids[texts.END_OF_TEXT],
        "eos_token_id": [ids[texts.END], ids[texts.END_OF_TEXT]],
        "do_sample": True, "temperature": 0.7})
