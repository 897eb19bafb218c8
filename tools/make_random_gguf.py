#!/usr/bin/env python3
"""Writes a GGUF file of TinyLlama's shape (1.1B) with random blocks, for measuring speed.

    pip install gguf numpy
    python3 tools/make_random_gguf.py TYPE OUT.gguf

TYPE: Q4_0, Q8_0, or Q4_K_M (llama.cpp's mixture of Q4_K and Q6_K). The text it makes means nothing.
"""
import sys

import gguf
import numpy as np

HIDDEN, FFN, LAYERS, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 2048, 5632, 22, 32000, 32, 4, 64
# Where the float16 of a block stand, and about how large they are.
HALVES = {"Q4_0": [(0, 4e-3)], "Q8_0": [(0, 3e-4)], "Q4_K": [(0, 1.2e-4), (2, 9e-4)], "Q6_K": [(208, 2e-5)]}


def random_blocks(rng, name, n_rows, n_columns):
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (n_rows * n_columns // block_values, block_bytes), dtype=np.uint8)
    if name == "Q6_K":  # scales are signed
        blocks[:, 192:208] = rng.integers(20, 64, (len(blocks), 16), dtype=np.uint8)
    for at, size in HALVES[name]:
        halves = (size * rng.uniform(0.8, 1.2, len(blocks))).astype(np.float16)
        blocks[:, at:at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(n_rows, -1)


def type_of(mixture, name, layer):
    if mixture != "Q4_K_M":
        return mixture
    eighth = LAYERS // 8
    more_bits = layer < eighth or layer >= 7 * LAYERS // 8 or (layer - eighth) % 3 == 2
    return "Q6_K" if name == "output" or (name in ("attn_v", "ffn_down") and more_bits) else "Q4_K"


def write_keys(writer):
    writer.add_context_length(2048)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_vocab_size(VOCAB)
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    num_words = VOCAB - len(tokens)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens + [f"\u2581w{word}" for word in range(num_words)])
    writer.add_token_scores([0.0] * len(tokens) + [-float(word) for word in range(num_words)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * num_words)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def main():
    mixture, path = sys.argv[1:]
    rng = np.random.default_rng(7)
    writer = gguf.GGUFWriter(path, "llama")
    write_keys(writer)

    def matrix(prefix, name, n_rows, n_columns, layer=0):
        kind = type_of(mixture, name, layer)
        writer.add_tensor(f"{prefix}{name}.weight", random_blocks(rng, kind, n_rows, n_columns),
                          raw_dtype=gguf.GGMLQuantizationType[kind])

    def norm(name):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))

    matrix("", "token_embd", VOCAB, HIDDEN)
    matrix("", "output", VOCAB, HIDDEN)
    norm("output_norm")
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        norm(prefix + "attn_norm")
        norm(prefix + "ffn_norm")
        for name, n_rows, n_columns in [("attn_q", HEADS * HEAD_DIM, HIDDEN), ("attn_k", KV_HEADS * HEAD_DIM, HIDDEN),
                                        ("attn_v", KV_HEADS * HEAD_DIM, HIDDEN),
                                        ("attn_output", HIDDEN, HEADS * HEAD_DIM), ("ffn_gate", FFN, HIDDEN),
                                        ("ffn_up", FFN, HIDDEN), ("ffn_down", HIDDEN, FFN)]:
            matrix(prefix, name, n_rows, n_columns, layer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
