#!/usr/bin/env python3
"""Shows that docs_rules.py can fail: a small good tree has no problem, and each bad page put into it is found under
exactly the rule it breaks. Run by ctest (label lint); standard library only.
"""

import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import docs_rules  # noqa: E402

CELL = "x" * docs_rules.MAX_CELL_CHARACTERS
GOOD = {
    "README.md": "line\n" * (docs_rules.MAX_README_LINES - 2) + "[all](docs/index.md), [folder](docs)\n",
    "CHANGELOG.md": "# Changes\n",
    "docs/index.md": "# All\n[one](one.md#two--words-and-code), [out](https://a.b/c.md#d), ![p](how-to/p.svg)\n",
    "docs/one.md": "# One\n## Two — words, and `code`\n## Same\n## Same\n[again](#same-1) [deep](how-to/deep.md \"T\")\n"
                   f"| a | {CELL} |\n```\n# no heading\n[no](link.md) | {CELL}x |\n```\n`[no](link.md)`\n",
    "docs/how-to/deep.md": "[![p](p.svg)](../one.md)\n",
    "docs/how-to/p.svg": "<svg/>\n",
    "docs/config.md": f"| {CELL} |\n",
    "models/page.md": f"| {CELL}x | [no](link.md)\n",
}
GOOD["docs/index.md"] += "[options](config.md)\n"

# (rule, file, what is added to its text)
BAD = [
    ("readme-length", "README.md", "two\nmore\n"),
    ("cell-length", "README.md", f"| {CELL}x |\n"),
    ("cell-length", "docs/how-to/deep.md", f"| a | {CELL}x | b |\n"),
    ("cell-length", "CHANGELOG.md", f"  |{CELL}x|\n"),
    ("link", "docs/one.md", "[gone](two.md)\n"),
    ("link", "docs/how-to/deep.md", "![gone](one.md)\n"),
    ("link", "CONTRIBUTING.md", "[out](../README.md)\n"),
    ("anchor", "docs/one.md", "[no heading](#no-heading)\n"),
    ("anchor", "docs/how-to/deep.md", "[a third](../one.md#same-2)\n"),
    ("unreachable", "docs/lost.md", "# Lost\n[one](one.md)\n"),
    ("unreachable", "docs/how-to/lost.md", "[itself](lost.md)\n"),
]


def problems_with(changed):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in {**GOOD, **changed}.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return docs_rules.problems_of(folder)


def main():
    failures = [f"the good tree: {problem}" for problem in problems_with({})]
    for rule, path, added in BAD:
        found = problems_with({path: GOOD.get(path, "") + added})
        if {problem.rule for problem in found} != {rule}:
            failures.append(f"{path} should break '{rule}' alone, found {found}: {added!r}")
    script = Path(docs_rules.__file__).read_text(encoding="utf-8")
    rules = set(re.findall(r'Problem\([^\n]*?, "([a-z-]+)"', script))
    failures += [f"no bad example for rule '{rule}'" for rule in sorted(rules ^ {bad[0] for bad in BAD})]
    print("\n".join(failures) or f"{len(BAD)} bad examples found")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
