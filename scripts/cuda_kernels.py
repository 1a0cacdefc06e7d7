#!/usr/bin/env python3
"""Compiles device kernels and keeps an eye on what they use.

  cuda_kernels.py compile --log FILE -- nvcc ...
      Runs nvcc. Its warnings, and ptxas's (spills), are the caller's to make
      errors of; what ptxas says about each kernel goes to FILE.
  cuda_kernels.py check --table FILE --compiler VERSION --shared PROGRAM
                        [--write] LOG..
      Compares registers, shared memory and local memory of every kernel and
      architecture in the logs with the committed table. PROGRAM says how much
      shared memory kernels are launched with, which no log does: "SYMBOL BYTES"
      a line. Fails when a kernel uses more than its line says, has no line, has
      one and is gone, is never launched, or has more shared memory than a block
      may have; with --write, rewrites the lines of the logs' architectures
      instead. Other versions of the compiler allocate otherwise: with them only
      spills and that limit count.
"""
import argparse
import re
import subprocess
import sys

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(sm_\w+)'")
SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, "
                    r"(\d+) bytes spill loads")
USED = re.compile(r"Used (\d+) registers")
# What a block may have on sm_80, the smallest of them.
MOST_SHARED = 163 << 10
SHARED = re.compile(r"(\d+) bytes smem")


def compile_kernels(log, command):
    result = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    with open(log, "w") as out:
        out.write(result.stderr)
    noise = ("ptxas info", "    ", "Compiling entry")
    for line in result.stderr.splitlines():
        if result.returncode != 0 or not line.startswith(noise):
            print(line, file=sys.stderr)
    return result.returncode


def demangle(names):
    """Readable names, without what all of them have in common."""
    try:
        text = subprocess.run(["c++filt"], input="\n".join(names), text=True,
                              capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return {name: name for name in names}
    readable = {}
    for name, line in zip(names, text.splitlines()):
        for prefix in ("blockmgr::", "device_code::", "emulated_code::",
                       "simt::"):
            line = line.replace(prefix, "")
        # Without result and parameters: the last '(' that closes the line.
        depth = 0
        for i in range(len(line) - 1, -1, -1):
            depth += (line[i] == ")") - (line[i] == "(")
            if depth == 0:
                line = line[:i]
                break
        line = line.removeprefix("void ")
        readable[name] = re.sub(r"\((\w+)\)(-?\d)", r"\2", line).replace(" ", "")
    return readable


def read_logs(paths):
    """{(kernel, architecture): (registers, shared, local)}, [spilling]"""
    found = {}
    spilling = []
    for path in paths:
        kernel = None
        local = 0
        for line in open(path):
            if match := ENTRY.search(line):
                kernel = match.groups()
            elif match := SPILLS.search(line):
                local = int(match[1])
                if int(match[2]) or int(match[3]):
                    spilling.append(kernel)
            elif (match := USED.search(line)) and kernel:
                shared = SHARED.search(line)
                found[kernel] = (int(match[1]), int(shared[1]) if shared else 0,
                                 local)
                kernel = None
    readable = demangle(sorted({name for name, _ in found}))
    return ({(readable[name], arch): used
             for (name, arch), used in found.items()},
            [f"{readable.get(name, name)} {arch}" for name, arch in spilling])


def read_shared(program):
    """{kernel: bytes of shared memory that it is launched with}"""
    lines = subprocess.run([program], stdout=subprocess.PIPE, text=True,
                           check=True).stdout.splitlines()
    shared = dict(line.split() for line in lines)
    readable = demangle(sorted(shared))
    return {readable[name]: int(size) for name, size in shared.items()}


def read_table(path):
    compiler = ""
    table = {}
    try:
        lines = open(path).read().splitlines()
    except FileNotFoundError:
        lines = []
    for line in lines:
        if line.startswith("# compiler: "):
            compiler = line.removeprefix("# compiler: ")
        elif line and not line.startswith("#"):
            kernel, arch, *used = line.split()
            table[kernel, arch] = tuple(map(int, used))
    return compiler, table


def write_table(path, compiler, found):
    with open(path, "w") as out:
        out.write("# What each device kernel uses: registers per thread, bytes "
                  "of shared memory per\n# block, bytes of local memory. Written "
                  "by `ninja cuda_resources_update`, checked by\n# CTest.\n"
                  f"# compiler: {compiler}\n")
        for (kernel, arch), used in sorted(found.items()):
            out.write(f"{kernel} {arch} {used[0]} {used[1]} {used[2]}\n")


def check(arguments):
    found, spilling = read_logs(arguments.logs)
    problems = [f"spills: {kernel}" for kernel in spilling]
    launched = read_shared(arguments.shared)
    for kernel in sorted({kernel for kernel, _ in found} - set(launched)):
        problems.append(f"never launched: {kernel}")
    found = {(kernel, arch): (used[0], used[1] + launched.get(kernel, 0), used[2])
             for (kernel, arch), used in found.items()}
    if not found:
        problems.append("no kernel in the logs")
    archs = {arch for _, arch in found}
    if arguments.write:
        compiler, table = read_table(arguments.table)
        kept = {key: used for key, used in table.items()
                if compiler == arguments.compiler and key[1] not in archs}
        write_table(arguments.table, arguments.compiler, kept | found)
    for (kernel, arch), used in sorted(found.items()):
        if used[1] > MOST_SHARED:
            problems.append(f"too much shared memory: {kernel} {arch}: expected "
                            f"at most {MOST_SHARED} bytes, got {used[1]}")
    compiler, table = read_table(arguments.table)
    if compiler != arguments.compiler:
        print(f"the table is of {compiler or 'no compiler'}, this is "
              f"{arguments.compiler}: only spills are checked")
        table = found
    # A compiler that knows fewer architectures leaves lines without a kernel.
    for (kernel, arch), used in sorted(found.items()):
        line = table.get((kernel, arch))
        if line is None:
            problems.append(f"not in the table: {kernel} {arch} {used}")
        elif any(u > t for u, t in zip(used, line)):
            problems.append(f"grew: {kernel} {arch}: expected at most {line} "
                            f"(registers, shared, local), got {used}")
    for kernel, arch in sorted(set(table) - set(found)):
        if arch in archs:
            problems.append(f"in the table, but gone: {kernel} {arch}")
    print("\n".join(problems) or f"{len(found)} kernels as in the table")
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    compiling = commands.add_parser("compile")
    compiling.add_argument("--log", required=True)
    compiling.add_argument("nvcc", nargs="+")
    checking = commands.add_parser("check")
    checking.add_argument("--table", required=True)
    checking.add_argument("--compiler", required=True)
    checking.add_argument("--shared", required=True)
    checking.add_argument("--write", action="store_true")
    checking.add_argument("logs", nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "compile":
        return compile_kernels(arguments.log, arguments.nvcc)
    return check(arguments)


if __name__ == "__main__":
    sys.exit(main())
