#!/usr/bin/env python3
"""Keeps the docs readable: a short README, small table cells, links that lead somewhere, no page out of reach.

Run by ctest (label lint) on the files git knows, or by hand: docs_rules.py [ROOT]. Prints one line per problem,
"path:line: rule: sentence", and exits 1 when there is one. docs_rules_test.py shows for each of the rules that it
can fail. Standard library only.
"""

import collections
import posixpath
import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from include_rules import Problem, listed_files  # noqa: E402

MAX_README_LINES = 120
MAX_CELL_CHARACTERS = 120
START = "docs/index.md"
PAGES = re.compile(r"(?:README|CHANGELOG|CONTRIBUTING)\.md|docs/.*\.md")
# [text](target) and ![text](target); the text may itself hold a picture in brackets.
LINK = re.compile(r"\[(?:[^\[\]]|!?\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
HEADING = re.compile(r"#{1,6}\s+(.*?)\s*#*$")


def prose_lines(text):
    """(number, line) of the lines outside of fenced blocks."""
    fence = None
    for number, line in enumerate(text.splitlines(), 1):
        mark = re.match(r"\s*(```+|~~~+)", line)
        if fence is None and not mark:
            yield number, line
        elif mark and (fence is None or mark.group(1).startswith(fence)):
            fence = mark.group(1) if fence is None else None


def links_of(text):
    """(line, path, anchor) of each link that stays in the repository; path "" is the page itself."""
    for number, line in prose_lines(text):
        for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
            if not re.match(r"[a-z][a-z0-9+.-]*:", target, re.I):
                path, _, anchor = target.partition("#")
                yield number, path, anchor


def anchors_of(text):
    """As GitHub makes them: lower case, no punctuation, dashes for spaces, a number for the second of a name."""
    seen = collections.Counter()
    for _, line in prose_lines(text):
        heading = HEADING.match(line)
        if heading:
            words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).lower()
            slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
            yield f"{slug}-{seen[slug]}" if seen[slug] else slug
            seen[slug] += 1


def resolved(page, path):
    """The path from the root of what a page's link names."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page


def check_readme(pages):
    num_lines = len(pages.get("README.md", "").splitlines())
    if num_lines > MAX_README_LINES:
        yield Problem("README.md", num_lines, "readme-length", f"{num_lines} lines, at most {MAX_README_LINES}")


def check_cells(pages):
    for page in pages:
        for number, line in prose_lines(pages[page]):
            if not line.lstrip().startswith("|"):
                continue
            longest = max(len(cell.strip()) for cell in re.split(r"(?<!\\)\|", line))
            if longest > MAX_CELL_CHARACTERS:
                yield Problem(page, number, "cell-length",
                              f"a cell of {longest} characters, at most {MAX_CELL_CHARACTERS}; make it a list")


def check_links(pages, files):
    folders = {posixpath.dirname(file) for file in files}
    anchors = {page: set(anchors_of(text)) for page, text in pages.items()}
    for page, text in pages.items():
        for number, path, anchor in links_of(text):
            target = resolved(page, path)
            if target not in files and target not in folders:
                yield Problem(page, number, "link", f"there is no {target}")
            elif anchor and target in anchors and anchor not in anchors[target]:
                yield Problem(page, number, "anchor", f"{target} has no heading #{anchor}")


def check_reach(pages):
    reached, waiting = set(), [START]
    while waiting:
        page = waiting.pop()
        if page in pages and page not in reached:
            reached.add(page)
            waiting += [resolved(page, path) for _, path, _ in links_of(pages[page])]
    for page in pages:
        if page.startswith("docs/") and page not in reached:
            yield Problem(page, 1, "unreachable", f"no chain of links leads here from {START}")


def problems_of(root):
    files = set(listed_files(Path(root)))
    pages = {file: Path(root, file).read_text(encoding="utf-8") for file in files if PAGES.fullmatch(file)}
    return sorted({*check_readme(pages), *check_cells(pages), *check_links(pages, files), *check_reach(pages)})


def main():
    problems = problems_of(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])
    for problem in problems:
        print(f"{problem.path}:{problem.line}: {problem.rule}: {problem.sentence}")
    print(f"{len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
