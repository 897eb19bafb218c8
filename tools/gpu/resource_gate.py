#!/usr/bin/env python3
"""Judges what the compiler said about each kernel: no spills, no stack frame, no more registers than budgeted.

    resource_gate.py BUILD_FOLDER [--budget FILE] [--list]

Reads BUILD_FOLDER/compile_commands.json for the device sources (.cu) and the report beside each object
(X.cu.o.ptxas, kept by tools/gpu/keep_report.sh). The budget has lines "PATTERN REGISTERS [stack BYTES]", the first
pattern (as in file names) that fits a kernel's name counts. A kernel's name is without parameters and unnamed
namespaces, such as outrider::cuda::skinny_gemm<4, true>. --list prints every kernel. Exit code 1 and a line per
problem when there is one. Standard library only (and c++filt, for the names).
"""

import argparse
import collections
import fnmatch
import json
import pathlib
import re
import shlex
import subprocess
import sys

BUDGET = pathlib.Path(__file__).parents[2] / "runtime/ops/cuda/resource_budget.txt"

Kernel = collections.namedtuple("Kernel", "name architecture registers stack spills")


def demangled(names):
    """Kernel names as people write them; c++filt missing leaves them as they are."""
    try:
        done = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return list(names)
    return [plain_name(name) for name in done.stdout.split("\n")[:len(names)]]


def plain_name(name):
    name = re.sub(r"\(anonymous namespace\)::|_GLOBAL__N__\w+::|_INTERNAL_\w+::", "", name)
    depth, end = 0, len(name)
    for place, letter in enumerate(name):  # the parameter list begins at the first bracket outside <>
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            end = place
            break
    return re.sub(r"^.* (?=[\w:]+(<|$))", "", name[:end])


def kernels_of(report):
    """The kernels of one report's text. Raises ValueError when it is not understood."""
    found, current = [], None
    for line in report.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            current = {"name": match[1], "architecture": match[2]}
        elif current is None:
            continue
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if "stack" not in current:  # a function that the kernel calls has a line of its own
                current["stack"], current["spills"] = int(match[1]), int(match[2]) + int(match[3])
            else:
                current["stack"] = max(current["stack"], int(match[1]))
                current["spills"] += int(match[2]) + int(match[3])
        elif match := re.search(r"Used (\d+) registers", line):
            current["registers"] = int(match[1])
            if "stack" not in current:
                raise ValueError(f"no stack frame line for {current['name']}")
            found.append(Kernel(**current))
            current = None
    if current is not None:
        raise ValueError(f"the report ends inside {current['name']}")
    if report.count("Compiling entry function") != len(found):
        raise ValueError("some kernels have no figures")
    names = demangled([kernel.name for kernel in found])
    return [kernel._replace(name=name) for kernel, name in zip(found, names)]


def read_budget(text):
    """[(pattern, registers, stack)]; raises ValueError on a line that is not understood."""
    lines = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.partition("#")[0].strip()
        match = re.fullmatch(r"(\S.*?)\s+(\d+)(?:\s+stack\s+(\d+))?", line)
        if match:
            lines.append((match[1], int(match[2]), int(match[3] or 0)))
        elif line:
            raise ValueError(f"budget line {number} is not understood: {line}")
    return lines


def problems_of(kernel, budget):
    where = f"{kernel.name} for {kernel.architecture}"
    allowed = next(((registers, stack) for pattern, registers, stack in budget
                    if fnmatch.fnmatchcase(kernel.name, pattern)), None)
    if allowed is None:
        yield f"{where}: no line of the budget fits it"
        return
    if kernel.spills > 0:
        yield f"{where}: spills {kernel.spills} bytes"
    if kernel.stack > allowed[1]:
        yield f"{where}: a stack frame of {kernel.stack} bytes, allowed are {allowed[1]}"
    if kernel.registers > allowed[0]:
        yield f"{where}: {kernel.registers} registers, budgeted are {allowed[0]}"


def device_objects(build):
    commands = json.loads((build / "compile_commands.json").read_text())
    for command in commands:
        # The emulated device compiles the same files as C++; what is made for tests of overlap is built when asked for.
        if " -x cu " in command["command"] and "-DOUTRIDER_TEST_" not in command["command"]:
            words = shlex.split(command["command"])
            yield pathlib.Path(command["directory"], words[words.index("-o") + 1])


def judge(build, budget, list_all=False):
    """Prints problems; the number of kernels seen and of problems."""
    kernels, problems, seen = [], [], 0
    for built in device_objects(build):
        seen += 1
        report = built.with_name(built.name + ".ptxas")
        if not report.is_file():
            problems.append(f"{built.name}: no report beside it; build it, and name its target to "
                            "outrider_cuda_reports()")
            continue
        try:
            kernels += kernels_of(report.read_text(errors="replace"))
        except ValueError as error:
            problems.append(f"{report.name}: {error}")
    if seen == 0:
        problems.append(f"{build}: no device source in compile_commands.json")
    for kernel in kernels:
        problems += problems_of(kernel, budget)
        if list_all:
            print(f"{kernel.registers:4} registers {kernel.stack:4} stack {kernel.spills:4} spilled  "
                  f"{kernel.architecture:7} {kernel.name}")
    for problem in problems:
        print(problem)
    return len(kernels), len(problems)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--budget", type=pathlib.Path, default=BUDGET)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    num_kernels, num_problems = judge(arguments.build, read_budget(arguments.budget.read_text()), arguments.list)
    print(f"{num_kernels} kernels, {num_problems} problems")
    return 1 if num_problems or not num_kernels else 0


if __name__ == "__main__":
    sys.exit(main())
