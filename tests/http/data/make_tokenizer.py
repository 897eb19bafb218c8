"""Writes tokenizer.json and tokenizer_config.json beside this file: a byte-level BPE small enough to read.

Ids 0..255 are the bytes, then a few merges ("he", "ll", "hell", "hello", " w"), then the special tokens. Needs only
the standard library: python3 make_tokenizer.py
"""
import json
import pathlib

HERE = pathlib.Path(__file__).parent


def byte_symbols():
    """GPT-2's printable stand-ins for the 256 bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            symbols[byte] = chr(byte)
        else:
            symbols[byte] = chr(256 + extra)
            extra += 1
    return [symbols[b] for b in range(256)]


symbols = byte_symbols()
merges = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), (symbols[32], "w")]
pieces = symbols + [a + b for a, b in merges]
specials = ["<|bos|>", "<|eos|>", "<|im_start|>", "<|im_end|>"]
added = [
    dict(id=len(pieces) + i, content=text, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    for i, text in enumerate(specials)
]
tokenizer = dict(
    version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None,
    pre_tokenizer=dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True),
    post_processor=None, decoder=dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True),
    model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None,
               fuse_unk=False, byte_fallback=False, ignore_merges=False,
               vocab={piece: i for i, piece in enumerate(pieces)}, merges=[f"{a} {b}" for a, b in merges]))
config = dict(bos_token="<|bos|>", eos_token="<|eos|>")
(HERE / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=True, indent=0) + "\n")
(HERE / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
