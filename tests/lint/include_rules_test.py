#!/usr/bin/env python3
"""Shows that include_rules.py can fail: a small good tree has no problem, and each bad file put into it is found
under exactly the rule it breaks. Run by ctest (label lint); standard library only.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import include_rules  # noqa: E402

HEADER = "// What it is for.\n#pragma once\n"
SOURCE = "// What it is for.\n"
GOOD = {
    "runtime/base/error.h": HEADER,
    "runtime/base/settings/config.cpp": SOURCE + "#include <yaml-cpp/yaml.h>\n",
    "runtime/base/CMakeLists.txt": "add_library(base settings/config.cpp)\n",
    "runtime/comm/world/mpi_internal.h": HEADER + "#include <mpi.h>\n",
    "runtime/comm/world/world.h": HEADER,
    "runtime/comm/group/target_group.h": HEADER,
    "runtime/comm/world/mpi.cpp": SOURCE + '#include "runtime/comm/world/mpi_internal.h"\n',
    "runtime/comm/CMakeLists.txt": "add_library(comm world/mpi.cpp)\n",
    "runtime/ops/cpu/kernels_avx2.cpp": SOURCE + "#include <immintrin.h>\n",
    "runtime/ops/CMakeLists.txt": "add_library(ops cpu/kernels_avx2.cpp)\n",
    "models/text/tokenizer.h": HEADER + '#include "runtime/base/error.h"\n',
    "models/weights/weights.h": HEADER + '#include "runtime/comm/group/target_group.h"\n',
    "models/text/jinja/lexer.h": HEADER,
    "scheduler/request.h": HEADER + "namespace a { class Sizes { struct Own {}; }; namespace { struct Two {}; } }\n"
                           "namespace a::b { enum class Sizes { kOne }; }\nnamespace a { class Later; struct Own {}; }\n",
    "scheduler/rows/row_view.h": HEADER + '#include "scheduler/request.h"\n',
    "scheduler/batching/planner.h": HEADER + '#include "scheduler/rows/row_view.h"\n',
    "http/server.h": HEADER + '#include "models/text/tokenizer.h"\n',
    "http/wire/transport.cpp": SOURCE + "#include <openssl/ssl.h>\n",
    "http/wire/http_client.cpp": SOURCE + "#include <httplib.h>\n",
    "http/CMakeLists.txt": "add_library(http ${CMAKE_CURRENT_LIST_DIR}/wire/transport.cpp wire/http_client.cpp)\n",
    "runtime/ranks/job/job.h": HEADER + '#include "http/server.h"\n#include "models/weights/weights.h"\n',
    "tests/models/one_test.cpp": SOURCE + '#include "models/text/jinja/lexer.h"\nvoid f() { EXPECT_EQ(1, 1); }\n'
                                 "namespace a { using namespace b; }\n// tests/golden/ids cases.json\n",
    "tests/models/two_test.cpp": SOURCE + "void f() { ASSERT_TRUE(true); }\n",
    "tests/models/CMakeLists.txt": "foreach(name one two)\n  outrider_test(${name} ${name}_test.cpp)\nendforeach()\n",
    "tests/golden/ids/cases.json": '[{"name": "plain"}]',
    "tests/golden/ids/plain.txt": "1 2 3\n",
    "tools/make.py": '"""Makes it."""\n',
    "tools/run.sh": "#!/bin/sh\n",
}
EXECUTABLE = {"tools/run.sh", "tools/bad_run.py", "docs/bad_run.md"}
LONG = SOURCE + "int x;\n" * include_rules.MAX_LINES
MARK = "TO" + "DO"

# (rule, file, its text, what the CMake file beside it says or None)
BAD = [
    ("include-order", "runtime/base/bad.h", HEADER + '#include "models/weights/weights.h"\n'),
    ("include-order", "runtime/comm/bad.h", HEADER + '#include "models/weights/weights.h"\n'),
    ("include-order", "models/forward/bad.h", HEADER + '#include "scheduler/request.h"\n'),
    ("include-order", "scheduler/bad.h", HEADER + '#include "models/text/tokenizer.h"\n'),
    ("include-order", "models/forward/bad.h", HEADER + '#include "runtime/comm/world/world.h"\n'),
    ("include-order", "http/bad.h", HEADER + '#include "models/weights/weights.h"\n'),
    ("include-order", "http/bad.h", HEADER + '#include "runtime/ranks/job/job.h"\n'),
    ("include-order", "models/forward/bad.h", HEADER + '#include "tests/models/one_test.cpp"\n'),
    ("include-order", "scheduler/request.h", GOOD["scheduler/request.h"] + '#include "scheduler/rows/row_view.h"\n'),
    ("include-order", "scheduler/rows/row_view.h", HEADER + '#include "scheduler/batching/planner.h"\n'),
    ("room", "models/bad.h", HEADER),
    ("room", "scheduler/attic/bad.h", HEADER),
    ("include-private", "runtime/ranks/bad.h", HEADER + '#include "models/text/jinja/lexer.h"\n'),
    ("include-root", "models/forward/bad.h", HEADER + '#include "weights.h"\n'),
    ("include-root", "models/forward/bad.h", HEADER + '#include "../scheduler/request.h"\n'),
    ("fence", "runtime/comm/bad.h", HEADER + "#include <mpi.h>\n"),
    ("fence", "runtime/comm/world/bad.h", HEADER + '#include "runtime/comm/world/mpi_internal.h"\n'),
    ("fence", "runtime/comm/bad.h", HEADER + "  #  include <nccl.h>\n"),
    ("fence", "runtime/ops/bad.h", HEADER + "#include <cuda_runtime.h>\n"),
    ("fence", "http/bad.h", HEADER + "#include <httplib.h>\n"),
    ("fence", "http/second.cpp", SOURCE + "#include <httplib.h>\n"),
    ("fence", "http/bad.h", HEADER + "#include <openssl/ssl.h>\n"),
    ("fence", "runtime/base/second.cpp", SOURCE + "#include <yaml-cpp/yaml.h>\n"),
    ("fence", "models/forward/bad.h", HEADER + "#include <nlohmann/json.hpp>\n"),
    ("fence", "models/forward/bad.h", HEADER + "#include <nlohmann/json_fwd.hpp>\n"),
    ("fence", "runtime/ops/bad.h", HEADER + "#include <immintrin.h>\n"),
    ("regex", "tests/models/one_test.cpp", GOOD["tests/models/one_test.cpp"] + "#include <regex>\n"),
    ("pragma-once", "models/forward/bad.h", "// What it is for.\n"),
    ("file-comment", "models/forward/bad.h", "#pragma once\n// Too late.\n"),
    ("file-comment", "tools/bad_run.py", "#!/usr/bin/env python3\nimport sys\n"),
    ("executable", "tools/bad.sh", "#!/bin/sh\n"),
    ("executable", "docs/bad_run.md", "# It\n"),
    ("using-namespace", "models/forward/bad.h", HEADER + "namespace a { using namespace std; }\n"),
    ("using-namespace", "http/wire/http_client.cpp", GOOD["http/wire/http_client.cpp"] + "namespace a {}\nusing  namespace std;\n"),
    ("file-length", "models/forward/bad.h", HEADER + LONG),
    ("type-name", "models/weights/weights.h",
     GOOD["models/weights/weights.h"] + "namespace a { struct Sizes final : B<int> { int x; }; }\n"),
    ("file-length", "tools/bad.py", '"""It."""\n' + "x = 1\n" * include_rules.MAX_LINES),
    ("absolute-path", "docs/bad.md", "See /" + "tmp/build.\n"),
    ("absolute-path", "configs/bad.yaml", "model: /" + "home/me/model\n"),
    ("left-over", "models/forward/bad.h", HEADER + f"// {MARK}: later\n"),
    ("left-over", "docs/bad.md", f"{MARK}\n"),
    ("unregistered", "tests/http/bad_test.cpp", SOURCE + "void f() { EXPECT_EQ(1, 1); }\n"),
    ("unregistered", "tests/e2e/bad_test.py", '"""It."""\n'),
    ("unregistered", "scheduler/bad.cpp", SOURCE),
    ("no-assertion", "tests/models/two_test.cpp", SOURCE + "// EXPECT_EQ(1, 1);\nvoid f() {}\n"),
    ("unused-golden", "tests/golden/ids/other.txt", "4 5 6\n"),
    ("unused-golden", "tests/golden/unknown/cases.json", "[]"),
]
CMAKE = {
    "http/second.cpp": ("http/CMakeLists.txt", "add_library(http wire/transport.cpp wire/http_client.cpp second.cpp)\n"),
    "runtime/base/second.cpp": ("runtime/base/CMakeLists.txt", "add_library(base settings/config.cpp second.cpp)\n"),
}


def problems_with(changed):
    with tempfile.TemporaryDirectory() as folder:
        for path, text in {**GOOD, **changed}.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            file.chmod(0o755 if path in EXECUTABLE else 0o644)
        return include_rules.problems_of(folder)


def main():
    failures = [f"the good tree: {problem}" for problem in problems_with({})]
    for rule, path, text in BAD:
        changed = {path: text}
        if path in CMAKE:
            cmake_path, cmake_text = CMAKE[path]
            changed[cmake_path] = cmake_text
        found = problems_with(changed)
        if {problem.rule for problem in found} != {rule}:
            failures.append(f"{path} should break '{rule}' alone, found {found}: {text[:100]!r}")
    uncovered = rules_in_script() - {bad[0] for bad in BAD}
    failures += [f"no bad example for rule '{rule}'" for rule in sorted(uncovered)]
    print("\n".join(failures) or f"{len(BAD)} bad examples found")
    return 1 if failures else 0


def rules_in_script():
    """Every rule's name, so that a new rule without a bad example fails here."""
    script = Path(include_rules.__file__).read_text(encoding="utf-8")
    return set(include_rules.re.findall(r'Problem\([^"\n]+?,\s*"([a-z-]+)",?', script))


if __name__ == "__main__":
    sys.exit(main())
