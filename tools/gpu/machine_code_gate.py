#!/usr/bin/env python3
"""Judges the machine code of the kernels: whether the compiler has left what their sources mean.

    machine_code_gate.py LIBRARY [--list]

Reads every kernel of LIBRARY (liboutrider_cuda.so) with cuobjdump and nvdisasm, which are looked for in this Python's
environment (machine_code_tools.txt), then on the PATH. RULES says what must be in which kernel, what must stand before
the wait for the launch before (sm_90 and later), and what must not be there; for all of them: registers are not kept in
local memory, nothing is written before the wait, the next launch is let begin only after it, and matrix instructions of
four warps are not waited for one by one. Order is that of addresses. --list prints what was counted. Exit code 1 and a
line per problem when there is one, 77 without the tools. Standard library only (and c++filt, for the names).
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import resource_gate

WAIT = r"ACQBULK"
LET_BEGIN = r"PREEXIT"
COPY_128 = r"LDGSTS(\..*)?\.128(\.|$)"
COPY_BULK = r"UBLKCP"
COPY_WEIGHTS = f"{COPY_BULK}|{COPY_128}"
COPY_TILES = r"UTMALDG"
LOAD_128 = r"LDG(\..*)?\.128(\.|$)"
LOAD_64 = r"LDG(\..*)?\.64(\.|$)"
STORE_128 = r"STG(\..*)?\.128(\.|$)"
MATRIX = r"HMMA\.16816\.F32"
GROUP_MATRIX = r"HGMMA\."  # HGMMA.64x64x16.F32
GROUP_WAIT = r"WARPGROUP\.DEPBAR"
LOCAL = r"LDL|STL"
WRITES = r"STG|ST\.|RED|ATOM"

# What follows it reads nothing but weights before it waits.
LETS_BEGIN_FIRST = r"outrider::gpu::norm_rows(\(.*)?"

# kernels: a pattern of whole names. number: of them, per architecture. early, present: {pattern of an instruction: how
# many at least}, before the wait and anywhere. absent: a pattern of instructions, or nothing. since_90: as present, on
# sm_90 and later.
Rule = collections.namedtuple("Rule", "kernels number early present absent since_90", defaults=[{}])


def skinny(weights):
    return rf"outrider::gpu::skinny_product<outrider::gpu::Skinny<\(outrider::gpu::Type\){weights}, \d, \d> ?>"


RULES = [
    # A ring of two pieces at least: the first are asked for early, none comes by way of registers.
    Rule(skinny("[12]"), 26, {COPY_BULK: 2}, {COPY_WEIGHTS: 3, r"LDS\.128": 4, MATRIX: 4}, LOAD_128),
    Rule(skinny("3"), 13, {COPY_BULK: 2}, {COPY_WEIGHTS: 3, r"LDS\.64": 8, MATRIX: 8}, LOAD_128),
    # A tile's weights come by way of the same ring.
    Rule(r"outrider::gpu::skinny_experts<.*>", 6, {}, {COPY_WEIGHTS: 3, MATRIX: 4}, LOAD_128),
    Rule(r"outrider::gpu::wide_product<.*>", 6, {}, {f"{COPY_128}|{COPY_TILES}": 2}, LOAD_128,
         {GROUP_MATRIX: 3, COPY_TILES: 2}),
    # Keys and values that earlier steps have stored.
    Rule(r"outrider::gpu::attend<.*>", 10, {COPY_128: 1}, {COPY_128: 2, MATRIX: 8, "LDSM": 4}, None),
    # The weights.
    Rule(r"outrider::gpu::norm_rows", 1, {COPY_128: 1}, {LOAD_128: 2, STORE_128: 1, r"STS\.128": 1}, None),
    Rule(r"outrider::gpu::sum_(values|and_norm)", 2, {}, {r"LDG\.E\.128$": 1}, None),  # of its own part
    # Where blocks lie is read on the device, so stores do not name the kind of memory.
    Rule(r"outrider::gpu::fill_listed_blocks", 1, {}, {r"ST\.E\.128": 1}, None),
    # Products read weights before they wait.
    Rule(r"outrider::gpu::fill_with_random", 1, {}, {}, LET_BEGIN),
]

Kernel = collections.namedtuple("Kernel", "name architecture instructions")


def kernels_of(listing, architecture):
    """The kernels in what `nvdisasm -c` says of one cubin; instructions: [opcode with its suffixes]."""
    found = []
    for line in listing.splitlines():
        if match := re.match(r"\s*\.section\s+\.text\.([\w$]+)", line):
            found.append(Kernel(match[1], architecture, []))
        elif match := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@\S+\s+)?([A-Z][A-Z0-9_.]*)", line):
            if not found:
                raise ValueError("an instruction outside a kernel")
            found[-1].instructions.append(match[1])
    names = resource_gate.demangled([kernel.name for kernel in found])
    return [kernel._replace(name=name) for kernel, name in zip(found, names)]


def count(instructions, pattern):
    return sum(1 for instruction in instructions if re.match(pattern, instruction))


def places(instructions, pattern):
    return [place for place, instruction in enumerate(instructions) if re.match(pattern, instruction)]


def has_wait(architecture):
    return int(re.search(r"\d+", architecture)[0]) >= 90


def early_part(kernel):
    """What stands before the wait; of a kernel without one nothing."""
    waits = places(kernel.instructions, WAIT)
    return kernel.instructions[:waits[0]] if waits else []


def problems_of_any(kernel):
    if not kernel.instructions:
        yield "no instruction was understood"
    if num := count(kernel.instructions, LOCAL):
        yield f"{num} loads and stores of local memory"
    waits, lets = places(kernel.instructions, WAIT), places(kernel.instructions, LET_BEGIN)
    if lets and (not waits or lets[0] < waits[0]) and not re.fullmatch(LETS_BEGIN_FIRST, kernel.name):
        yield "lets the next launch begin before it has waited"
    if num := count(early_part(kernel), WRITES):
        yield f"{num} writes before the wait"
    num = count(kernel.instructions, GROUP_MATRIX)
    if 0 < num <= count(kernel.instructions, GROUP_WAIT):
        yield f"each of {num} HGMMA is waited for by itself"


def problems_by_rule(kernel, rule):
    wanted = [(rule.present, kernel.instructions, "")]
    if has_wait(kernel.architecture):
        wanted.append((rule.early, early_part(kernel), " before the wait"))
        wanted.append((rule.since_90, kernel.instructions, ""))
    for patterns, instructions, where in wanted:
        for pattern, least in patterns.items():
            if (num := count(instructions, pattern)) < least:
                yield f"{num} of {pattern}{where}, wanted are {least}"
    if rule.absent and (num := count(kernel.instructions, rule.absent)):
        yield f"{num} of {rule.absent}, wanted are none"


def judge(kernels, rules):
    """A line for every problem."""
    problems = []
    for kernel in kernels:
        fitting = [rule for rule in rules if re.fullmatch(rule.kernels, kernel.name)]
        found = list(problems_of_any(kernel))
        for rule in fitting:
            found += problems_by_rule(kernel, rule)
        problems += [f"{kernel.name} for {kernel.architecture}: {problem}" for problem in found]
    for architecture in sorted({kernel.architecture for kernel in kernels}):
        names = [kernel.name for kernel in kernels if kernel.architecture == architecture]
        for rule in rules:
            num = sum(1 for name in names if re.fullmatch(rule.kernels, name))
            if num != rule.number:
                problems.append(f"{num} kernels for {architecture} are {rule.kernels}, wanted are {rule.number}")
    if not kernels:
        problems.append("no kernel was found")
    return problems


def tool(name):
    installed = pathlib.Path(sysconfig.get_paths()["purelib"], "nvidia/cu13/bin", name)
    return str(installed) if installed.is_file() else shutil.which(name)


def read_library(library, cuobjdump, nvdisasm):
    """All kernels of a library."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([cuobjdump, "-xelf", "all", str(library.resolve())], cwd=folder, capture_output=True, check=True)

        def read(cubin):
            said = subprocess.run([nvdisasm, "-c", str(cubin)], capture_output=True, text=True, check=True).stdout
            return kernels_of(said, re.search(r"\.(sm_\w+)\.cubin$", cubin.name)[1])

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            return [kernel for kernels in pool.map(read, sorted(pathlib.Path(folder).glob("*.cubin")))
                    for kernel in kernels]


def print_counts(kernels):
    for kernel in kernels:
        early = early_part(kernel)
        print(f"{kernel.architecture:7} {len(kernel.instructions):6} instructions, {count(early, COPY_BULK):3} bulk copies, "
              f"{count(early, COPY_128):3} of 128 bits, {count(early, LOAD_128):3} loads of 128 and {count(early, LOAD_64):3} of 64 before the wait, "
              f"{count(kernel.instructions, MATRIX):4} matrix instructions  {kernel.name}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    tools = [tool("cuobjdump"), tool("nvdisasm")]
    if None in tools:
        print("skipped: no cuobjdump and nvdisasm; tools/python_for_tests.sh installs them")
        return 77
    kernels = read_library(arguments.library, *tools)
    if arguments.list:
        print_counts(kernels)
    problems = judge(kernels, RULES)
    for problem in problems:
        print(problem)
    print(f"{len(kernels)} kernels, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
