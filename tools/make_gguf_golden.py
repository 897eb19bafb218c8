#!/usr/bin/env python3
"""Writes tests/golden/gguf/blocks.json: blocks of every type, and what gguf-py's reference dequantisation makes of them.

    pip install gguf numpy && python3 tools/make_gguf_golden.py tests/golden/gguf
"""
import importlib.metadata
import json
import pathlib
import sys
import zlib

import gguf
import numpy as np

TYPES = ["F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL",
         "IQ4_XS", "BF16", "MXFP4"]
# Where the half-precision scales of a block stand: random bits there may be NaN.
SCALES = {"F16": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}


def random_blocks(rng, name, num_values):
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (num_values // block_values, block_bytes), dtype=np.uint8)
    for at in SCALES.get(name, []):
        scales = rng.normal(0, 0.05, len(blocks)).astype(np.float16)
        blocks[:, at:at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if name in ("F32", "BF16"):
        values = rng.normal(0, 1, num_values).astype(np.float32)
        bits = values.view(np.uint32)
        blocks = (values if name == "F32" else (bits >> 16).astype(np.uint16)).view(np.uint8).reshape(blocks.shape)
    return blocks


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20261125)
    cases = []
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        blocks = random_blocks(rng, name, 1024 if gguf.GGML_QUANT_SIZES[kind][0] == 256 else 256)
        values = gguf.quants.dequantize(blocks.reshape(1, -1), kind).astype(np.float32)
        cases.append({"type": int(kind), "name": name, "blocks": blocks.tobytes().hex(),
                      "num_values": values.size, "crc32": zlib.crc32(values.tobytes())})
    golden = {"made_by": f"gguf {importlib.metadata.version('gguf')}, numpy {np.__version__}", "cases": cases}
    (folder / "blocks.json").write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main()
