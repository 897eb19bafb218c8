#!/usr/bin/env python3
"""Makes tests/golden/gguf/tensors.json: what llama.cpp's converter makes of the models of tests/golden/models, as name,
type, shape (as in the file) and FNV-1a hash of every tensor. Needs a llama.cpp source tree and Python with torch,
transformers and numpy: make_gguf_golden.py LLAMA_CPP_FOLDER. The vocabulary is left out: those models have none.
"""

import json
import os
import runpy
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "tests" / "golden" / "gguf" / "tensors.json"
MODELS = ("llama-bias-f16", "llama-tied-f32", "llama-untied-bf16", "llama3-rope-bf16", "mistral-window-sharded",
          "qwen2-tied-bf16", "qwen3-bf16", "qwen3-tied-f32")
TYPES = ("f32", "f16", "bf16", "q8_0")


def convert(llama_cpp, model, path, kind):
    """In a child, since the converter is a script that ends its process; what it imports is there already."""
    child = os.fork()
    if child == 0:
        import conversion.base
        conversion.base.TextModel._set_vocab_sentencepiece = lambda self, add_to_gguf=True: None
        sys.argv = ["convert_hf_to_gguf.py", str(ROOT / "tests" / "golden" / "models" / model), "--outfile", str(path),
                    "--outtype", kind]
        runpy.run_path(str(Path(llama_cpp, "convert_hf_to_gguf.py")), run_name="__main__")
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"the converter failed on {model} as {kind}")


def fnv1a64(data):
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def tensors_of(path):
    from gguf import GGUFReader
    return [[tensor.name, tensor.tensor_type.name.lower(), [int(size) for size in tensor.shape],
             fnv1a64(tensor.data.tobytes())] for tensor in GGUFReader(str(path)).tensors]


def main():
    llama_cpp = sys.argv[1]
    sys.path[:0] = [llama_cpp, str(Path(llama_cpp, "gguf-py"))]
    import conversion.base  # noqa: F401  (once, for all children)
    golden = {}
    with tempfile.TemporaryDirectory() as folder:
        for model in MODELS:
            for kind in TYPES:
                path = Path(folder, "out.gguf")
                convert(llama_cpp, model, path, kind)
                golden.setdefault(model, {})[kind] = sorted(tensors_of(path))
    OUT.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"made_by": "tools/make_gguf_golden.py", "models": golden}, separators=(",", ":"))
    OUT.write_text(text.replace("],[\"", "],\n[\"") + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
