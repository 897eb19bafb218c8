#!/usr/bin/env python3
"""Keeps the architecture visible: who may include whom, and what every file must have.

Run by ctest (label lint) on the files git knows, or by hand: include_rules.py [ROOT]. Prints one line per
problem, "path:line: rule: sentence", and exits 1 when there is one. The rules are those of docs/architecture.md;
include_rules_test.py shows for each of them that it can fail. Standard library only.
"""

import collections
import os
import re
import subprocess
import sys
from pathlib import Path, PurePosixPath

AREAS = ("runtime/base", "runtime/ops", "runtime/comm", "runtime/ranks", "runtime/commands", "models",
         "scheduler", "http")
ABOVE = {
    "runtime/base": {"runtime/base"},
    "runtime/ops": {"runtime/base", "runtime/ops"},
    "runtime/comm": {"runtime/base", "runtime/ops", "runtime/comm"},
    "models": {"runtime/base", "runtime/ops", "runtime/comm", "models"},
    "scheduler": {"runtime/base", "scheduler"},
    "http": {"runtime/base", "models", "scheduler", "http"},
    "runtime/ranks": set(AREAS) - {"runtime/commands"},
    "runtime/commands": set(AREAS),
}
# An area's rooms, from the ground up: a room may look into those before it. "" holds the files outside of rooms.
ROOMS = {
    "runtime/base": ("numbers", "", "files", "telemetry", "settings"),
    "runtime/comm": ("", "group", "world", "device"),
    "models": ("gguf", "checkpoint", "families", "weights", "forward", "text", "synthetic", "gpu", "simulated"),
    "scheduler": ("", "rows", "sampling", "verification", "drafting", "pacing", "batching", "exactness"),
    "http": ("wire", "answers", "api", "dialects", "batches", "webui", ""),
    "runtime/ranks": ("", "messages", "loading", "startup", "target", "draft", "coordinator", "job"),
}
# Where an area is seen in part only. http needs of models: text to tokens and back, off the round; models know
# the other ranks only as the group they sum with.
ONLY = {
    ("http", "models"): {"models/checkpoint/model_config.h"} | {
        f"models/text/{name}.h" for name in ("tokenizer", "streaming_decoder", "chat_template", "text_span")},
    ("models", "runtime/comm"): {"runtime/comm/group/target_group.h", "runtime/comm/device/device_group.h"},
}
# Folders that only one area may look into.
PRIVATE = {"models/text/jinja/": "models", "models/text/tokenizer/": "models", "runtime/ops/cpu/": "runtime/ops",
           "runtime/ops/cuda/": "runtime/ops"}

# Kernels are compiled once more for a device that stands in for the real one in tests.
EMULATED = ("runtime/ops/cuda/platform.h", "tests/emulated/platform_emulated.h")

Fence = collections.namedtuple("Fence", "header allowed most sentence")
# header: pattern of the included name; allowed: pattern of paths that may; most: how many files may, None = any.
FENCES = (
    Fence(r"mpi\.h", r"runtime/comm/world/mpi_internal\.h", 1,
          "mpi.h belongs in runtime/comm/world/mpi_internal.h alone"),
    Fence(r"runtime/comm/world/mpi_internal\.h", r"runtime/comm/world/mpi(_group)?\.cpp", None,
          "mpi_internal.h is for mpi.cpp and mpi_group.cpp alone"),
    Fence(r"nccl\.h", r"runtime/comm/device/nccl_library\.cpp", 1,
          "nccl.h belongs in runtime/comm/device/nccl_library.cpp alone"),
    Fence(r"(cuda|cublas|curand|nvml|cub/|thrust/|mma\.h|cooperative_groups).*", r"runtime/ops/cuda/.*", None,
          "CUDA headers belong under runtime/ops/cuda"),
    Fence(r"httplib\.h", r"http/wire/http_client\.cpp", 1, "httplib.h belongs in http/wire/http_client.cpp alone"),
    Fence(r"openssl/.*", r"http/wire/transport\.cpp", 1, "OpenSSL belongs in http/wire/transport.cpp alone"),
    Fence(r"xgrammar/.*", r"scheduler/sampling/grammar_engine\.cpp", 1,
          "xgrammar belongs in scheduler/sampling/grammar_engine.cpp"),
    Fence(r"yaml-cpp/.*", r"runtime/base/[a-z_/]+\.cpp", 1, "yaml-cpp belongs in one .cpp of runtime/base"),
    Fence(r"nlohmann/json\.hpp", r".*\.cpp", None, "the JSON library stays out of headers"),
    Fence(r"nlohmann/json_fwd\.hpp", r".*\.cpp|models/text/tokenizer/json\.h", None,
          "the JSON library stays out of headers"),
    Fence(r".*mmintrin\.h|x86intrin\.h|arm_neon\.h",
          r"runtime/ops/cpu/(int8/)?kernels_[a-z0-9]+\.cpp|scheduler/rows/row_(mass|noise)\.cpp", None,
          "vector intrinsics belong in the kernels of one instruction set"),
)
MAX_LINES = 600
CODE = (".h", ".cpp", ".cu", ".cuh", ".inc")
WRITTEN = CODE + (".py", ".sh", ".txt", ".cmake", ".md", ".yaml", ".yml")
# In pieces, or this file would break its own rules.
LEFT_OVER = re.compile(r"\b(?:TO" r"DO|FIX" r"ME)\b")
ABSOLUTE = re.compile(r"(?<![\w.~})\]*>-])/(?:work|tmp|root|home|mnt)(?![\w.-])")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)

Problem = collections.namedtuple("Problem", "path line rule sentence")


def listed_files(root):
    """The committed files, as paths from the root; without git, all but build folders."""
    done = subprocess.run(["git", "-C", str(root), "ls-files", "-z"], capture_output=True, text=True, check=False)
    top = subprocess.run(["git", "-C", str(root), "rev-parse", "--show-prefix"], capture_output=True, text=True,
                         check=False)
    if done.returncode == 0 and done.stdout and not top.stdout.strip():
        names = done.stdout.split("\0")
    else:
        names = []
        for folder, folders, files in os.walk(root):
            folders[:] = [f for f in folders if not f.startswith(("build", ".git", ".venv", "__pycache__"))]
            names += [Path(folder, name).relative_to(root).as_posix() for name in files]
    return sorted(name for name in names if name and (root / name).is_file())


def without_comments_and_strings(text):
    """C++ text with comments and literals blanked; line numbers stay."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
    return pattern.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def area_of(path):
    return next((area for area in AREAS if path.startswith(area + "/")), None)


def room_of(area, path):
    room, slash, _ = path[len(area) + 1:].partition("/")
    return room if slash else ""


def is_below(area, included, path):
    """Whether the included file lies in the same room as `path`, or in one further down."""
    rooms = ROOMS.get(area, ())
    below, above = room_of(area, included), room_of(area, path)
    return below not in rooms or above not in rooms or rooms.index(below) <= rooms.index(above)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1


class Tree:
    """The files of one repository with their texts, read once."""

    def __init__(self, root):
        self.root = Path(root)
        self.paths = listed_files(self.root)
        self.texts = {}
        for path in self.paths:
            content = (self.root / path).read_bytes()
            if b"\0" not in content[:8192]:
                self.texts[path] = content.decode("utf-8", "replace")

    def ending(self, *suffixes, under=""):
        return [p for p in self.texts if p.endswith(suffixes) and p.startswith(under)]

    def includes(self):
        """(path, line, is_quoted, included) of every C++ file."""
        for path in self.ending(*CODE):
            text = self.texts[path]
            for match in INCLUDE.finditer(text):
                yield path, line_of(text, match.start(1)), match.group(1) == '"', match.group(2)


def check_include_order(tree):
    known = set(tree.paths)
    for path, line, is_quoted, included in tree.includes():
        if not is_quoted:
            continue
        if included not in known:
            yield Problem(path, line, "include-root", f'"{included}" is no path from the repository\'s root')
            continue
        source, target = area_of(path), area_of(included)
        if source is None:
            continue
        if (path, included) == EMULATED:
            continue
        if target is None:
            yield Problem(path, line, "include-order", f"{source} may not include {included}")
        elif target == source and not is_below(source, included, path):
            yield Problem(path, line, "include-order", f"{source}/{room_of(source, path)} may not include {included}")
        elif target not in ABOVE[source] or included not in ONLY.get((source, target), {included}):
            yield Problem(path, line, "include-order", f"{source} may not include {included}")
        for folder, owner in PRIVATE.items():
            if included.startswith(folder) and source != owner:
                yield Problem(path, line, "include-private", f"{included} is private to {owner}")


def check_rooms(tree):
    for path in tree.ending(*CODE):
        area = area_of(path)
        if area in ROOMS and room_of(area, path) not in ROOMS[area]:
            yield Problem(path, 1, "room", f"{area}/{room_of(area, path)} has no place in the order of rooms")


def check_fences(tree):
    users = collections.defaultdict(list)
    for path, line, _, included in tree.includes():
        if included == "regex":
            yield Problem(path, line, "regex", "std::regex recurses on its input; use PCRE2 or a scanner")
        if area_of(path) is None:
            continue
        for fence in FENCES:
            if not re.fullmatch(fence.header, included):
                continue
            if not re.fullmatch(fence.allowed, path):
                yield Problem(path, line, "fence", fence.sentence)
            else:
                users[fence].append((path, line))
    for fence, places in users.items():
        files = sorted({path for path, _ in places})
        if fence.most is not None and len(files) > fence.most:
            yield Problem(files[-1], 1, "fence", f"{fence.sentence}, now {', '.join(files)}")


def check_shape(tree):
    for path in tree.ending(*CODE):
        text = tree.texts[path]
        if path.endswith(".h") and not re.search(r"^#pragma once$", text, re.M):
            yield Problem(path, 1, "pragma-once", "a header needs #pragma once")
        if not text.startswith("//"):
            yield Problem(path, 1, "file-comment", "the file's first line must say what it is for")
        code = without_comments_and_strings(text)
        for match in re.finditer(r"\busing\s+namespace\b", code):
            before = code[:match.start()]
            if path.endswith((".h", ".cuh")) or before.count("{") == before.count("}"):
                yield Problem(path, line_of(text, match.start()), "using-namespace",
                              "names the whole file (or whoever includes it) would see")
    for path in tree.ending(".py"):
        text = re.sub(r"\A#![^\n]*\n", "", tree.texts[path])
        if text.strip() and not text.startswith(('"""', "#")):
            yield Problem(path, 1, "file-comment", "the file's first line must say what it is for")
    for path in tree.ending(*CODE, ".py", ".sh", ".cmake", "CMakeLists.txt"):
        lines = tree.texts[path].count("\n")
        if lines > MAX_LINES:
            yield Problem(path, lines, "file-length", f"{lines} lines; split by idea, at most {MAX_LINES}")


def check_executable(tree):
    for path, text in tree.texts.items():
        if text.startswith("#!") != os.access(tree.root / path, os.X_OK):
            yield Problem(path, 1, "executable", "a file is executable when it begins with #!, and only then")


def check_words(tree):
    for path, text in tree.texts.items():
        for match in ABSOLUTE.finditer(text):
            yield Problem(path, line_of(text, match.start()), "absolute-path", f"'{match.group()}' is some machine's")
        if path.endswith(WRITTEN):
            for match in LEFT_OVER.finditer(text):
                yield Problem(path, line_of(text, match.start()), "left-over", f"'{match.group()}': do it or drop it")


def registered_files(tree):
    """What the CMake files name, foreach lists and sources of included .cmake files spelled out."""
    found = set()
    for path in tree.ending("CMakeLists.txt", ".cmake"):
        folder = PurePosixPath(path).parent
        text = re.sub(r"#[^\n]*", "", tree.texts[path])
        for variable, items, body in re.findall(r"foreach\((\w+)((?:\s+[^\s)]+)+)\)(.*?)endforeach", text, re.S):
            text += "".join(f"\n{body.replace('${' + variable + '}', item)}" for item in items.split())
        for name in re.findall(r"[\w./${}-]+\.(?:cpp|cu|py)\b", text):
            name = re.sub(r"\$\{(?:CMAKE_CURRENT_(?:LIST|SOURCE)_DIR)\}/", "", name)
            if name.startswith("${PROJECT_SOURCE_DIR}/"):
                found.add(name.partition("/")[2])
            else:
                found.add(os.path.normpath(str(folder / name)))
    return found


def check_registered(tree):
    registered = registered_files(tree)
    for path in tree.texts:
        is_test = path.startswith("tests/") and path.endswith(("_test.cpp", "_test.py"))
        is_source = path.endswith((".cpp", ".cu")) and (area_of(path) or path.startswith("tests/"))
        if (is_test or is_source) and path not in registered:
            yield Problem(path, 1, "unregistered", "no CMake file names it, so nothing builds or runs it")
        if is_test and path.endswith(".cpp"):
            code = without_comments_and_strings(tree.texts[path])
            if not re.search(r"\b(?:EXPECT|ASSERT)_\w+\s*\(", code):
                yield Problem(path, 1, "no-assertion", "a test that expects nothing cannot fail")


def check_golden(tree):
    """Every file of tests/golden and tests/*/data: its folder and its name occur in a test, a tool or an index
    beside it."""
    readers = "\n".join(tree.texts[p] for p in tree.ending(".h", ".cpp", ".py", ".txt", ".cmake", ".sh")
                        if p.startswith(("tests/", "tools/")))
    for path in tree.paths:
        match = re.match(r"tests/((?:golden|[a-z0-9_]+/data)(?:/[^/]+(?=/))?)/", path)
        if not match or path.endswith(".py"):
            continue
        name = PurePosixPath(path).name
        stem = re.escape(PurePosixPath(path).stem)
        beside = "\n".join(tree.texts[p] for p in tree.ending(".json", under=str(PurePosixPath(path).parent) + "/")
                           if p != path and len(tree.texts[p]) < 1 << 20)
        named = name in readers or name in beside or re.search(rf'"{stem}"', beside)
        if match.group(1) not in readers or not named:
            yield Problem(path, 1, "unused-golden", "no test or script names it")


def namespaces_at(code):
    """[(offset, depth, path)] of the code's scopes of named or nameless namespaces, in order: from that offset on."""
    scopes, stack, depth = [(0, 0, ())], [], 0
    pattern = re.compile(r"\bnamespace((?:\s+[\w:]+)?)\s*\{|[{}]")
    for match in pattern.finditer(code):
        if match.group() == "}":
            depth -= 1
            if stack and stack[-1][0] == depth:
                stack.pop()
        else:
            if match.group(1) is not None:
                stack.append((depth, match.group(1).strip() or "(nameless)"))
            depth += 1
        scopes.append((match.end(), depth, tuple(name for _, name in stack)))
    return scopes


def check_type_names(tree):
    """One type of a name in a namespace: two of them in one program are undefined behaviour that nothing reports."""
    places = collections.defaultdict(set)
    definition = re.compile(r"\b(?:class|struct|union|enum(?:\s+class)?)\s+(?:alignas\([^)]*\)\s*)?(\w+)"
                            r"(?:\s+final)?\s*(?::[^:;{}]+)?\{")
    for path in tree.ending(".h", ".cpp", ".cu", ".cuh"):
        if area_of(path) is None:
            continue
        code = without_comments_and_strings(tree.texts[path])
        scopes = namespaces_at(code)
        at = 0
        for match in definition.finditer(code):
            while at + 1 < len(scopes) and scopes[at + 1][0] <= match.start():
                at += 1
            _, depth, names = scopes[at]
            if depth == len(names) and "(nameless)" not in names:
                places[names, match.group(1)].add((path, line_of(code, match.start())))
    for (names, name), found in places.items():
        first, *others = sorted(found)
        for path, line in others:
            if path != first[0]:
                yield Problem(path, line, "type-name", f"{'::'.join((*names, name))} is also defined in {first[0]}")


CHECKS = (check_include_order, check_rooms, check_fences, check_shape, check_executable, check_words, check_registered,
          check_golden, check_type_names)


def problems_of(root):
    tree = Tree(root)
    return sorted({problem for check in CHECKS for problem in check(tree)})


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])
    problems = problems_of(root)
    for problem in problems:
        print(f"{problem.path}:{problem.line}: {problem.rule}: {problem.sentence}")
    print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
