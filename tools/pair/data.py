"""Tokenizer, training windows and held-out windows of the embedded pair.

Used by train_pair.py only.
"""

import random

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers import AddedToken

from pair import texts


def train_tokenizer(books, n_vocab, path):
    """Byte-level BPE with single digits, the pre-tokenizer form SmolLM has."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel(
        add_prefix_space=True, trim_offsets=True, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=n_vocab, min_frequency=2, show_progress=False,
        special_tokens=[AddedToken(t, special=True, normalized=False)
                        for t in texts.SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    lines = []
    for name, (blocks, _) in sorted(books.items()):
        # The short books count twice, so that their words are whole tokens too.
        repeat = 1 if name == "war-and-peace.txt" else 2
        lines += ["\n\n".join(block) for block in blocks] * repeat
    prompts = texts.NOUN_PROMPTS + texts.NAME_PROMPTS + texts.PLAIN_PROMPTS + texts.NEXT_PROMPTS
    lines += [prompt.replace("{", "").replace("}", "") for prompt in prompts] * 20
    tokenizer.train_from_iterator(lines, trainer)
    tokenizer.save(str(path), pretty=False)
    return Tokenizer.from_file(str(path))


class Windows:
    """Random training windows: running prose of one book, or packed conversations."""

    def __init__(self, books, tokenizer, chat_share, seed):
        self.rng = random.Random(seed)
        self.tokenizer = tokenizer
        self.chat_share = chat_share
        self.names = sorted(books)
        self.weights = [texts.BOOKS[name] for name in self.names]
        self.sentences = {n: [texts.block_sentences(b) for b in books[n][0]] for n in self.names}
        self.streams = {n: self.encode("\n\n".join("\n\n".join(b) for b in books[n][0]))
                        for n in self.names}
        self.end_of_text = tokenizer.token_to_id(texts.END_OF_TEXT)

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prose(self, name, length):
        stream = self.streams[name]
        start = self.rng.randrange(len(stream) - length)
        ids = stream[start : start + length]
        # Sometimes as a document that begins here.
        return [self.end_of_text] + ids[:-1] if self.rng.random() < 0.1 else ids

    def chats(self, length):
        ids = []
        while len(ids) < length:
            name = self.rng.choices(self.names, self.weights)[0]
            turns = texts.make_chat(self.rng.choice(self.sentences[name]), self.rng)
            if turns:
                ids += self.encode(texts.render_chat(turns)) + [self.end_of_text]
        return ids[:length]

    def batch(self, rows, length):
        out = []
        for _ in range(rows):
            if self.rng.random() < self.chat_share:
                out.append(self.chats(length))
            else:
                out.append(self.prose(self.rng.choices(self.names, self.weights)[0], length))
        return torch.tensor(out)

    def prompts(self, count):
        """Chat prompts, cut after the assistant's mark, for sampling from the target."""
        out = []
        while len(out) < count:
            name = self.rng.choices(self.names, self.weights)[0]
            turns = texts.make_chat(self.rng.choice(self.sentences[name]), self.rng)
            if turns:
                first = [t for t in turns if t[0] != "system"][0]
                out.append(self.encode(texts.render_chat([first]) + texts.ASSISTANT))
        return out


def held_out_windows(books, tokenizer, length, per_book):
    """Fixed validation windows: {"prose": [n, length], "chat": [n, length]}."""
    held_out = {name: ([], blocks) for name, (_, blocks) in books.items()}
    encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids
    prose = []
    for name in sorted(held_out):
        ids = [i for block in held_out[name][1] for i in encode("\n\n".join(block) + "\n\n")]
        starts = range(0, len(ids) - length, length)
        step = max(1, len(starts) // per_book)
        prose += [ids[s : s + length] for s in list(starts)[::step][:per_book]]
    chat_source = Windows({n: (blocks, []) for n, (_, blocks) in held_out.items()},
                          tokenizer, 1.0, seed=77)
    return {"prose": torch.tensor(prose), "chat": chat_source.batch(2 * per_book, length)}
