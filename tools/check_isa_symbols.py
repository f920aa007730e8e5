#!/usr/bin/env python3
"""Fails when an object built for one instruction set could lend its code to another.

usage: check_isa_symbols.py ISA OBJECT...          objects for one instruction set
       check_isa_symbols.py baseline OBJECT...     those that run on every CPU

The linker keeps one copy of a weak function that two objects define. If the one from the AVX-512 object
survives, an AVX2 machine dies in code that looks portable. So every defined symbol that others can see must
carry the instruction set in its name. Objects that run before one has been chosen, constructors of
globals included, may have no instruction on registers that only some CPUs have.
"""
import re
import subprocess
import sys


def shared_symbols(isa: str, path: str) -> list[str]:
    own = re.compile(rf"\bmanyhead::kernels::{isa}::|\bmanyhead_xsimd_{isa}::|^DW\.ref\.|^__odr_asan")
    listing = subprocess.run(["nm", "-C", "--defined-only", path], check=True, capture_output=True, text=True)
    found = []
    for line in listing.stdout.splitlines():
        _, kind, name = line.split(maxsplit=2)
        visible = kind.isupper() or kind in "uvw"
        if visible and not own.search(name):
            found.append(f"{path}: {kind} {name}")
    return found


def wide_instructions(path: str) -> list[str]:
    listing = subprocess.run(["objdump", "-d", "-C", "--no-show-raw-insn", path], check=True,
                             capture_output=True, text=True)
    found, function = {}, ""
    for line in listing.stdout.splitlines():
        if line.endswith(">:"):
            function = line.split(maxsplit=1)[1]
        elif re.search("%[yz]mm|%k[0-7]|%tmm", line):
            found.setdefault(function, f"{path}: {function} {line.strip()}")
    return list(found.values())


def main() -> int:
    isa, objects = sys.argv[1], sys.argv[2:]
    if not objects:
        print(f"{isa}: no objects to check", file=sys.stderr)
        return 1
    if isa == "baseline":
        found = [instruction for path in objects for instruction in wide_instructions(path)]
        fine = "no instruction that only some CPUs have"
    else:
        found = [symbol for path in objects for symbol in shared_symbols(isa, path)]
        fine = "no shared symbols"
    print("\n".join(found) or f"{isa}: {len(objects)} objects, {fine}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
