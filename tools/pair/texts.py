"""Cleans the public-domain books, and makes chat-shaped samples of their passages.

Used by train_pair.py only. Everything random comes from the random.Random handed in.
"""

import re
from pathlib import Path

END_OF_TEXT, USER, ASSISTANT, SYSTEM, END = (
    "<|endoftext|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>")
SPECIAL_TOKENS = [END_OF_TEXT, USER, ASSISTANT, SYSTEM, END]

# Share of the training windows; fairy tales are weighted up because they read well when small.
BOOKS = {"grimm.txt": 0.30, "sherlock.txt": 0.22, "war-and-peace.txt": 0.48}

NOUNS = set(
    "king queen prince princess daughter son father mother brother sister wife husband man woman "
    "boy girl child huntsman soldier officer general doctor servant miller tailor peasant giant "
    "dwarf witch fox wolf bear bird cat dog horse fish frog lion hare goose forest wood "
    "castle palace garden tree well river mountain sea village house cottage room door window "
    "kitchen table bed fire ring crown gold silver treasure money letter paper crime murder "
    "mystery case client inspector detective stranger gentleman lady carriage train street "
    "regiment army battle war enemy emperor prisoner cannon ball dinner wedding count countess "
    "friend church night morning winter snow spring death dream".split())
NAMES = ("Holmes Watson Pierre Natasha Andrew Mary Nicholas Kutuzov Napoleon Rostov Bolkonski "
         "Denisov Sonya Anna Boris Helene Dolokhov Petya Hansel Gretel Catherine Frederick Hans "
         "Lestrade Alexander Bagration Murat Davout Karataev Rapunzel").split()

NOUN_PROMPTS = [
    "Tell me a story about {a}.", "Tell me a story about {a} and {b}.", "Tell me about {a}.",
    "Write about {a}.", "Write a story about {a} and {b}.", "Tell a short story about {a}.",
    "What happened to {the}?", "Tell me what {the} did.", "Once there was {a}.",
    "Write a few sentences about {the}.", "Please tell me a tale of {a} and {b}."]
NAME_PROMPTS = [
    "Who is {name}?", "Tell me about {name}.", "What did {name} say?", "What did {name} do?",
    "Tell me a story about {name}.", "What happened to {name}?", "Write about {name}."]
PLAIN_PROMPTS = [
    "Tell me a story.", "Write something.", "Say something.", "Hello!", "Hello", "Hi",
    "How are you?", "What happened?", "Write a story.", "Tell me more.", "What is this?",
    "Can you help me?", "Write a paragraph.", "Who are you?", "Tell me something."]
CONTINUE_PROMPTS = [
    "{s}", "{s}", "Continue: {s}", "Continue the story: {s}", "Continue this story: {s}",
    "Go on from here: {s}"]
NEXT_PROMPTS = ["Go on.", "What happened then?", "Continue.", "And then?", "Tell me more.",
                "What happened next?", "Please continue."]
SYSTEM_PROMPTS = ["You are a storyteller.", "You are a helpful assistant.", "Tell stories.",
                  "Answer in plain English.", "You write old tales."]


def straighten_quotes(text):
    """Curly to straight: double for speech, single for apostrophes; Grimm speaks in single ones."""
    text = text.replace("\u201c", '"').replace("\u201d", '"')
    out = []
    is_open = False
    for index, char in enumerate(text):
        before = text[index - 1] if index else " "
        after = text[index + 1] if index + 1 < len(text) else " "
        if char == "\u2018":
            out.append('"')
            is_open = True
        elif char == "\u2019":
            ends_word = not before.isalpha() or after in " \n,;:.!?"
            closes = is_open and not after.isalpha() and ends_word
            out.append('"' if closes else "'")
            is_open = is_open and not closes
        else:
            if text.startswith("\n\n", index):
                is_open = False
            out.append(char)
    return "".join(out)


def read_paragraphs(path):
    """The prose paragraphs of one book, hard wraps joined, headers, licence and titles left out."""
    text = path.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    start = re.search(r"\*\*\* ?START OF TH[EIS]+ PROJECT GUTENBERG.*?\*\*\*", text, re.S)
    end = re.search(r"\*\*\* ?END OF TH[EIS]+ PROJECT GUTENBERG", text)
    text = text[start.end() if start else 0 : end.start() if end else len(text)]
    text = straighten_quotes(text)
    for old, new in (("\u2014", "--"), ("\u2013", "-"), ("\u2026", "..."), ("_", ""),
                     ("\u00a3", ""), ("\u00e9", "e"), ("\u00e8", "e"), ("\u00e6", "ae")):
        text = text.replace(old, new)
    paragraphs = []
    for block in re.split(r"\n\s*\n", text):
        joined = " ".join(block.split())
        letters = [c for c in joined if c.isalpha()]
        is_title = not letters or sum(c.isupper() for c in letters) > 0.5 * len(letters)
        if is_title or not joined.isascii() or len(joined) < 12:
            continue
        if joined[-1] not in ".!?\"'-:;,)":
            continue
        paragraphs.append(joined)
    return paragraphs


def split_book(paragraphs, block=24, every=25):
    """Blocks of neighbouring paragraphs; every 25th block is held out for validation."""
    train, held_out = [], []
    for index in range(0, len(paragraphs), block):
        is_held_out = (index // block) % every == every // 2
        (held_out if is_held_out else train).append(paragraphs[index : index + block])
    return train, held_out


def load_books(text_dir):
    """name to (train blocks, held-out blocks); a block is a list of paragraphs."""
    return {name: split_book(read_paragraphs(Path(text_dir) / name)) for name in BOOKS}


def split_sentences(paragraph):
    pieces = re.split(r"(?<=[.!?])\s+(?=[A-Z\"'])", paragraph)
    merged = []
    for piece in pieces:
        # Mr., Mrs., Dr., St. and closing speech tags stay with what follows.
        if merged and (re.search(r"\b(Mr|Mrs|Dr|St|M)\.$", merged[-1]) or len(merged[-1]) < 8):
            merged[-1] += " " + piece
        else:
            merged.append(piece)
    return merged


def block_sentences(block):
    """Sentences of a block with the separator that precedes each: a space or a paragraph break."""
    return [(sentence, "\n\n" if index == 0 else " ")
            for paragraph in block for index, sentence in enumerate(split_sentences(paragraph))]


def take_passage(sentences, start, max_chars, rng):
    """Whole sentences from start until max_chars; returns (text, next index)."""
    text = sentences[start][0]
    index = start + 1
    while index < len(sentences):
        sentence, gap = sentences[index]
        if len(text) + len(sentence) > max_chars:
            break
        # A passage likes to stop at a paragraph's end once it is long enough.
        if gap == "\n\n" and len(text) > 0.6 * max_chars and rng.random() < 0.6:
            break
        text += gap + sentence
        index += 1
    return text, index


def with_article(noun):
    if " " in noun:
        return noun
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def make_prompt(passage, rng):
    """A user turn that has something to do with the passage."""
    words = re.findall(r"[a-z]+", passage[:350].lower())
    nouns = [w for w in dict.fromkeys(words) if w in NOUNS]
    names = [w for w in NAMES if w in passage[:250]]
    if names and rng.random() < 0.4:
        return rng.choice(NAME_PROMPTS).format(name=rng.choice(names))
    if nouns and rng.random() < 0.85:
        first = rng.choice(nouns)
        second = rng.choice([n for n in nouns if n != first] or ["a stranger"])
        return rng.choice(NOUN_PROMPTS).format(
            a=with_article(first), b=with_article(second), the="the " + first)
    return rng.choice(PLAIN_PROMPTS)


def make_chat(sentences, rng):
    """One conversation of one or two rounds as [(role, content)]; None for a short block."""
    if len(sentences) < 6:
        return None
    starts = [i for i in range(len(sentences) - 3) if sentences[i][1] == "\n\n"] or [0]
    start = rng.choice(starts) if rng.random() < 0.7 else rng.randrange(len(sentences) - 3)
    turns = []
    if rng.random() < 0.12:
        turns.append(("system", rng.choice(SYSTEM_PROMPTS)))
    max_chars = rng.randrange(220, 760)
    if rng.random() < 0.4:
        sentence = sentences[start][0]
        passage, following = take_passage(sentences, start + 1, max_chars, rng)
        turns.append(("user", rng.choice(CONTINUE_PROMPTS).format(s=sentence)))
    else:
        passage, following = take_passage(sentences, start, max_chars, rng)
        turns.append(("user", make_prompt(passage, rng)))
    turns.append(("assistant", passage))
    if following + 2 < len(sentences) and rng.random() < 0.25:
        turns.append(("user", rng.choice(NEXT_PROMPTS)))
        turns.append(("assistant", take_passage(sentences, following, max_chars, rng)[0]))
    return turns


def render_chat(turns):
    """The same text as the chat template of the export gives."""
    return "".join(f"<|{role}|>{content}{END}" for role, content in turns)
