#!/usr/bin/env python3
"""Makes tests/golden/tokenizer: small tokenizers of each kind we support, trained here on the texts
of this file, and the ids and texts that Hugging Face `tokenizers` gives for hard inputs.

    pip install tokenizers
    python3 tools/make_tokenizer_golden.py [output folder]

The result is deterministic for one version of `tokenizers`; the version is written into each
cases.json.
"""
import base64
import json
import pathlib
import random
import struct
import sys

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
# A pattern without a scanner of ours, so that PCRE2 does the work.
UNKNOWN = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
           r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

QWEN35 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+END"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*END"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = CASED.replace("END", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?")
TEKKEN = CASED.replace("END", "").replace(r"\p{N}{1,3}", r"\p{N}")
KIMI = r"[\p{Han}]+|" + O200K.replace(r"\p{M}]", r"\p{M}&&[^\p{Han}]]").replace("[\\r\\n/]", "[\\r\\n]")

CORPUS = """
The old miller kept three dogs and a grey horse, and every morning he walked down to the river.
"I don't think we'll go today," said his daughter; "it's raining, and they've shut the bridge."
He'd been there before. She's going to be there. You're late! I'm sure that we've met, didn't we?
There were 12 boats in 1847, 365 days a year, and 3.14159 is close enough to the number we need.
What is the time? It is half past nine. Where do the rivers go when the winter comes to the valley?
def main(argc, argv):\n    for i in range(100):\n        if x[i] == y[j] and not done:\n            return x
int main() {\n\tprintf("hello, world\\n");\n\treturn 0;\n}\n// the end of the file
Die alte Müllerin hörte über Nacht das Wasser rauschen; größer als früher war es geworden.
Le garçon a mangé une pêche à côté de la forêt, où l'été dure très longtemps déjà.
El niño pequeño preguntó mañana por qué el camino está cortado aquí.
Старый мельник каждое утро ходил к реке и смотрел на воду, и вода была холодная.
Ο γέρος μυλωνάς πήγαινε κάθε πρωί στο ποτάμι και κοίταζε το νερό.
古い水車小屋の主人は毎朝川まで歩いて行きました。水はとても冷たかったです。
老磨坊主每天早上都走到河边去看水，水很冷。我们今天不去河边。
늙은 방앗간 주인은 매일 아침 강까지 걸어갔다. 물이 차가웠다.
كان الطحان العجوز يمشي كل صباح إلى النهر وينظر إلى الماء البارد.
הטוחן הזקן הלך בכל בוקר אל הנהר והביט במים הקרים.
बूढ़ा चक्कीवाला हर सुबह नदी तक जाता था और पानी को देखता था।
ชายชราเดินไปที่แม่น้ำทุกเช้าและมองดูน้ำเย็น
So 🙂 they laughed 😂😂 and the dog 🐕 ran home 🏠 again and again, as dogs do.
the the and and that that with with which which would could should there their they then than
one two three four five six seven eight nine ten hundred thousand million
"""

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", "\t\n", " \n ", "\r\n", "\r\n\r\n", " \r\n\t x",
    "a", " a", "a ", "  a", "a  ", "a  b", "a   b", " a  b   c    d     ", "\na", "a\n", "a\n\nb", "a \n b", "a\n \n b",
    "Hello world", " Hello world", "Hello  world ", "HELLO World", "Hello, y'all! How are you?",
    "I'm you're they've we'll he'd it's don't", "I'M YOU'RE THEY'VE WE'LL HE'D IT'S DON'T", "I'Ve wE'Ll 'Re", "'", "''s",
    "' s", "'s't're've'm'll'd", "'S'T'RE'VE'M'LL'D", " 's 't", "x'", "it\u2019s", "'\u017f '\u017fa", "'l 'r 'v 'L", "'ll'", "can''t",
    "0", "12", "123", "1234", "1234567890", "3.14159", "1,000,000", "10x x10", "1e-7 0xFF", "\u00bd\u00b2\u00b3 \u0663\u0664\u0665 \uff11\uff12\uff13 \u2177 \u4e00\u4e8c",
    "!!!", "?!?!", "...", "--- ___ *** ### @@@ $$$", "a.b,c;d:e", "(a) [b] {c} <d>", " (a) [b]", "...\n\n...", "!\r\nx", " !\n", "#!/bin/sh\n",
    "def f(x):\n    return x + 1\n\n\tif y:\n\t\tpass\n", "for(int i=0;i<n;++i){a[i]+=b[i];}", "https://example.org/a?b=c&d=%20", "snake_case camelCase",
    "caf\u00e9", "cafe\u0301", "na\u00efve r\u00e9sum\u00e9 Z\u00fcrich", "e\u0301\u0301 o\u0323\u0302 o\u0302\u0323", "\u212b \u2126 \ufb01 \u00a0 \u2003x", "\u0130stanbul I\u0307 \u1e9e \u00df \u03a3\u03c2",
    "\u1100\u1161\u11a8 \uac01 \u1100\u1161", "\u0958 \u0915\u093c", "\u2460\u3392\u33a5 \uff76\uff9e \u30ab\u3099",
    "\u0421\u0442\u0430\u0440\u044b\u0439 \u043c\u0435\u043b\u044c\u043d\u0438\u043a", "\u0393\u03ad\u03c1\u03bf\u03c2", "\u53e4\u3044\u6c34\u8eca\u5c0f\u5c4b\u306e\u4e3b\u4eba", "\u8001\u78e8\u574a\u4e3b\u6bcf\u5929", "\ub299\uc740 \ubc29\uc557\uac04", "\u6211\u60f3\u5728apple\u5de5\u4f5c1314\u5929\uff5e",
    "\u0643\u0627\u0646 \u0627\u0644\u0637\u062d\u0627\u0646", "\u0643\u064e\u0627\u0646\u064e", "\u05d4\u05d8\u05d5\u05d7\u05df \u05d4\u05d6\u05e7\u05df", "\u200f\u05e9\u200e a\u202eb", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u0e0a\u0e32\u0e22\u0e0a\u0e23\u0e32", "\u1780\u17b6\u1793\u17cb\u178f\u17c2",
    "\U0001f642", "\U0001f602\U0001f602", " \U0001f415 ran", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd", "\u2764\ufe0f\u200d\U0001f525", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "1\ufe0f\u20e3", "\U0001f636\u200d\U0001f32b\ufe0f x",
    "\u0000", "a\u0000b", "\u0001\u0002\u001f\u007f", "\u0085x\u0085", "\u00a0\u00a0x", "x\u00a0", "\u2028\u2029", "\u3000\u3000a", "\u200b\u200bx", "\ufeffx", "\u180ex \u180e", "\ufffd\ufffe\uffff", "\U0010ffff \U000e0001", "\ue000",
    "\u2581", "\u2581a\u2581", "a\u2581 b", "\u0120a\u010a", "<0x41>", "<0x0A><0xE9>", "<|", "<|endoftext|", "endoftext|>", "<|end<|endoftext|>oftext|>",
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "a <|endoftext|> b", "<|endoftext|><|endoftext|>", "<|endoftext|>\n\n<|endoftext|>x", "<s>a</s>", "<s> a </s> b", "<unk>", "\n<s>\n",
    "<left>", "a <left> b", "a  <left>  b", "a \n\t<left>x", "<right>", "a <right> b", "a<right>  \n b", " <left><right> x", "<both>", " a \u3000<both>\u2003 b", "<right> <left>", "<left> <left>",
    "word", "a word b", "sword words", "word.word", "aword", "word\u00e9 \u00e9word", "word_ _word", "word1", " word ", "NORM", "norm Norm", "a norm b", "a <NORM> b <norm><NORM>", "No\u0301rm x", "n\u00f3rm",
    "<tool>", "a<tool>b</tool>c", "<TOOL>",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "thethethethethethe", "supercalifragilisticexpialidocious", " " * 70, "\n" * 40,
    # Marks of combining class 0 to Hugging Face's old tables, a composition they do not know, newer letters.
    "\u0e81\u0eba\u0301 \u0e81\u0301\u0eba", "\u1000\u1039\u0301a\u1abf\u0323", "\U00011935\U00011930", "\u1c89\ua7cbx\U00010d50\U00010d70\u0897",
    # Words by case, Han among them, slashes.
    "camelCase HTTPServer ABc aBC", "\u00c9Cole's \u01c5x\u02b0Y'LL", "\u4e2d\u6587ABC\u6df7\u6392Def3\u3007\u5e74", "path/to//file/\n/", "(Word (WORD (word -1 \u0301Aa",
    # What SentencePiece's rules make of clusters, quotes and blanks.
    "\ufb01\u0301 \u017f\u0301 \u017f\u0301\u0301", "``quoted'' \u2026", "\u200b\u200d a\u00adb  \t\u00a0c \x01d", " \n" * 20, "=" * 70, "-=" * 20,
]


def random_texts(count):
    """Mixtures that nobody would write by hand; fixed seed."""
    rng = random.Random(20261120)
    words = [w for w in CORPUS.split() if w]
    odd = [t for t in TEXTS if 0 < len(t) < 12]
    out = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randrange(2, 14)):
            kind = rng.random()
            if kind < 0.4:
                parts.append(rng.choice([" ", "", "\n"]) + rng.choice(words))
            elif kind < 0.7:
                parts.append(rng.choice(odd))
            elif kind < 0.85:
                parts.append(rng.choice(" \t\n\r\u00a0'\u3000") * rng.randrange(1, 4))
            else:
                parts.append(chr(rng.choice([rng.randrange(0x20, 0x500), rng.randrange(0x900, 0x3100),
                                             rng.randrange(0x1F000, 0x1FA00)])))
        out.append("".join(parts))
    return out


def added(normalized_words=True):
    """Added tokens with every flag, the same for all kinds."""
    tokens = [
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False),
        AddedToken("<both>", lstrip=True, rstrip=True, normalized=False, special=True),
        AddedToken("<tool>", normalized=False),
        AddedToken("</tool>", normalized=False),
    ]
    if normalized_words:
        tokens += [AddedToken("word", single_word=True, normalized=False), AddedToken("norm", normalized=True),
                   AddedToken("<NORM>", normalized=True)]
    return tokens


def train(tokenizer, vocab_size, alphabet=()):
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=list(alphabet), show_progress=False)
    tokenizer.train_from_iterator(CORPUS.split("\n") + [CORPUS], trainer)
    return tokenizer


def byte_level(pre_tokenizer, vocab_size, normalizer=None, **model_options):
    tokenizer = Tokenizer(models.BPE(**model_options))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, vocab_size, pre_tokenizers.ByteLevel.alphabet())


def add_tokens(tokenizer, special, plain):
    for token in special:
        token = token if isinstance(token, AddedToken) else AddedToken(token, normalized=False, special=True)
        tokenizer.add_special_tokens([token])
    for token in plain:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])


def make_gpt2():
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), 700)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    add_tokens(tokenizer, [AddedToken("<|endoftext|>", normalized=True, special=True)], added())
    return json.loads(tokenizer.to_str())


def make_llama3():
    tokenizer = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), 800, ignore_merges=True)
    spec = json.loads(tokenizer.to_str())
    # Whole words that no merge makes: only ignore_merges finds them.
    for word in ["\u0120supercalifragilisticexpialidocious", "aword", "\u0120\u0120\u0120"]:
        spec["model"]["vocab"].setdefault(word, len(spec["model"]["vocab"]))
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    add_tokens(tokenizer, ["<|begin_of_text|>", "<|endoftext|>", "<|eot_id|>"], added())
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=True),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])])
    return json.loads(tokenizer.to_str())


def make_qwen2():
    tokenizer = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), 800, normalizers.NFC())
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    add_tokens(tokenizer, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], added())
    spec = json.loads(tokenizer.to_str())
    spec["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]  # the older form
    return spec


def make_smollm():
    tokenizer = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False)]), 700)
    add_tokens(tokenizer, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], added(False))
    return json.loads(tokenizer.to_str())


def make_prefix_space():
    """Byte level with add_prefix_space, digits in runs, a bos and an eos."""
    tokenizer = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=False),
        pre_tokenizers.ByteLevel(add_prefix_space=True)]), 600, normalizers.Sequence([normalizers.NFD()]))
    add_tokens(tokenizer, ["<s>", "</s>", "<|endoftext|>"], added())
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[(t, tokenizer.token_to_id(t)) for t in ("<s>", "</s>")])
    return json.loads(tokenizer.to_str())


def make_unknown_pattern():
    tokenizer = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated"),
        pre_tokenizers.Split(Regex(UNKNOWN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), 700)
    add_tokens(tokenizer, ["<|endoftext|>"], added())
    return json.loads(tokenizer.to_str())


def sentencepiece_spec(vocab_size, control):
    """A trained BPE whose ids are laid out as SentencePiece does: control tokens, bytes, pieces."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    spec = json.loads(train(tokenizer, vocab_size).to_str())
    pieces = sorted(spec["model"]["vocab"], key=spec["model"]["vocab"].get)
    names = control + [f"<0x{byte:02X}>" for byte in range(256)] + [p for p in pieces if p not in "\n\t"]
    spec["model"]["merges"] = [m for m in spec["model"]["merges"] if not set("".join(m)) & set("\n\t")]
    keep = {a for m in spec["model"]["merges"] for a in ("".join(m),)}
    names = [n for n in names if not (set(n) & set("\n\t")) or n in keep]
    spec["model"].update(vocab={n: i for i, n in enumerate(names)}, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    spec["added_tokens"] = [
        {"id": i, "content": n, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for i, n in enumerate(control)]
    return spec


def finish(spec, control_tokens, plain):
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    add_tokens(tokenizer, control_tokens, plain)
    return json.loads(tokenizer.to_str())


PIECES = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]


def bos_template(tokenizer_json):
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer_json))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return json.loads(tokenizer.to_str())


def make_llama2():
    spec = sentencepiece_spec(500, ["<unk>", "<s>", "</s>"])
    spec["pre_tokenizer"] = None
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(PIECES + [decoders.Strip(" ", 1, 0)])
    return bos_template(finish(json.loads(tokenizer.to_str()), ["<|endoftext|>"], added()))


def make_metaspace(scheme, split):
    spec = sentencepiece_spec(450, ["<unk>", "<s>", "</s>"])
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=split)
    tokenizer.decoder = decoders.Sequence(PIECES + ([decoders.Strip(" ", 1, 0)] if scheme == "first" else []))
    return finish(json.loads(tokenizer.to_str()), ["<|endoftext|>"], added())


def make_odd():
    """No bytes at all: unknown tokens, NFKC and lower case, removing and joining splits, Metaspace decoder."""
    spec = sentencepiece_spec(450, ["<unk>", "<s>", "</s>"])
    vocab = [n for n in spec["model"]["vocab"] if not n.startswith("<0x")]
    spec["model"].update(vocab={n: i for i, n in enumerate(vocab)}, byte_fallback=False, fuse_unk=False)
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(Regex("[0-9]{2}"), "two"), normalizers.NFKD()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split("-", "removed"),
        pre_tokenizers.Split(Regex("[!?]"), "merged_with_previous"),
        pre_tokenizers.Split(Regex(r"[(<]"), "merged_with_next"),
        pre_tokenizers.Split(Regex("[=.]"), "contiguous"),
        pre_tokenizers.Split(Regex(r"\S+|\s+"), "removed", invert=True),
        pre_tokenizers.Split(Regex("(?=z)"), "isolated"),
        pre_tokenizers.Metaspace(prepend_scheme="never")])
    tokenizer.decoder = decoders.Metaspace()
    return finish(json.loads(tokenizer.to_str()), ["<|endoftext|>"], added())


def make_pattern(pattern, **options):
    tokenizer = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), 450, **options)
    add_tokens(tokenizer, ["<|endoftext|>"], added(False))
    return json.loads(tokenizer.to_str())


def make_falcon():
    """Stages behind ByteLevel, and RoBERTa's ends."""
    tokenizer = byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]), 450)
    add_tokens(tokenizer, ["<|endoftext|>", "<s>", "</s>"], added(False))
    tokenizer.post_processor = processors.RobertaProcessing(
        ("</s>", tokenizer.token_to_id("</s>")), ("<s>", tokenizer.token_to_id("<s>")))
    return json.loads(tokenizer.to_str())


def unigram_spec(byte_fallback):
    """A Unigram model of the pieces of a BPE, with scores that make many ties and many digits."""
    spec = sentencepiece_spec(400, ["<unk>", "<s>", "</s>"])
    rng = random.Random(7)
    pieces = [n for n in spec["model"]["vocab"] if byte_fallback or not n.startswith("<0x")]
    scores = [0.0 if i < 3 else rng.choice([-float(len(p)), round(-rng.random() * 9, 1), -rng.random() * 12])
              for i, p in enumerate(pieces)]
    spec["model"] = {"type": "Unigram", "unk_id": 0, "vocab": list(zip(pieces, scores)), "byte_fallback": byte_fallback}
    return spec


def charsmap(rules):
    """SentencePiece's precompiled_charsmap: a double array over the UTF-8 of the rules' left sides."""
    texts, values = b"", {}
    for left, right in sorted(rules.items()):
        values[left.encode()] = len(texts)
        texts += right.encode() + b"\0"
    units, used = {}, set()

    def place(base, prefix):
        keys = sorted({k[len(prefix)] for k in values if k.startswith(prefix) and len(k) > len(prefix)})
        has_value = prefix in values
        labels = ([0] if has_value else []) + keys
        offset = next(o for o in range(1, 1 << 20) if all((base ^ o ^ l) not in used for l in labels))
        used.update(base ^ offset ^ l for l in labels)
        units[base] = units.get(base, 0) | offset << 10 | has_value << 8
        if has_value:
            units[base ^ offset] = values[prefix] | 1 << 31
        for label in keys:
            units[base ^ offset ^ label] = label
            place(base ^ offset ^ label, prefix + bytes([label]))

    used.add(0)
    place(0, b"")
    size = (max(units) // 256 + 1) * 256
    trie = b"".join(struct.pack("<I", units.get(i, 0)) for i in range(size))
    return base64.b64encode(struct.pack("<I", len(trie)) + trie + texts).decode()


def make_unigram():
    """As T5, XLM-R and their kin: SentencePiece's rules, white space, Metaspace both ways."""
    spec = unigram_spec(False)
    spec["normalizer"] = {"type": "Sequence", "normalizers": [
        {"type": "Precompiled", "precompiled_charsmap": charsmap({
            "\u00a0": " ", "\u3000": " ", "\t": " ", "\n": " ", "\ufb01": "fi", "\u017f": "s", "\u2026": "...",
            "\x01": "", "\u00ad": "", "e\u0301": "\u00e9", "o\u0302": "\u00f4", "\uff11": "1", "\r": " "})},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]}
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return finish(json.loads(tokenizer.to_str()), ["<|endoftext|>"], added())


def make_unigram_bytes():
    """Byte fallback, the cleaning normalizers, Metaspace as one decoder of several, BERT's ends."""
    tokenizer = Tokenizer.from_str(json.dumps(unigram_spec(True)))
    tokenizer.normalizer = normalizers.Sequence([
        normalizers.Nmt(), normalizers.Strip(), normalizers.StripAccents(), normalizers.BertNormalizer(
            clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("merged_with_previous"), pre_tokenizers.Metaspace(prepend_scheme="first", split=False)])
    tokenizer.decoder = decoders.Sequence([
        decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never"), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = processors.BertProcessing(("</s>", 2), ("<s>", 1))
    return finish(json.loads(tokenizer.to_str()), ["<|endoftext|>"], added(False))


KINDS = {
    "gpt2": make_gpt2, "llama3": make_llama3, "qwen2": make_qwen2, "smollm": make_smollm,
    "prefix_space": make_prefix_space, "unknown_pattern": make_unknown_pattern, "llama2": make_llama2,
    "metaspace_first": lambda: make_metaspace("first", False),
    "metaspace_always": lambda: make_metaspace("always", True), "odd": make_odd,
    "qwen35": lambda: make_pattern(QWEN35, normalizer=normalizers.NFC()), "o200k": lambda: make_pattern(O200K),
    "tekken": lambda: make_pattern(TEKKEN, ignore_merges=True), "kimi": lambda: make_pattern(KIMI),
    "falcon": make_falcon, "unigram": make_unigram, "unigram_bytes": make_unigram_bytes,
}


def make_cases(spec, texts):
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    cases = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"ids": ids}
        decoded = tokenizer.decode(ids)
        decoded_all = tokenizer.decode(ids, skip_special_tokens=False)
        if decoded != text:
            case["decoded"] = decoded
        if decoded_all != decoded:
            case["decoded_all"] = decoded_all
        with_special = tokenizer.encode(text, add_special_tokens=True).ids
        if with_special != ids and len(cases) < 60:
            case["ids_with_special"] = with_special
        cases.append(case)
    return cases


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else "tests/golden/tokenizer")
    texts = TEXTS + random_texts(60)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.json").write_text(json.dumps(texts, indent=0) + "\n")
    for name, make in KINDS.items():
        spec = make()
        target = folder / name
        target.mkdir(exist_ok=True)
        (target / "tokenizer.json").write_text(json.dumps(spec, ensure_ascii=False, separators=(",", ":")) + "\n")
        cases = {"made_by": "tools/make_tokenizer_golden.py, tokenizers " + tokenizers.__version__,
                 "cases": make_cases(spec, texts)}
        (target / "cases.json").write_text(json.dumps(cases, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
