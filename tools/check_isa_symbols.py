#!/usr/bin/env python3
"""Fails when an object built for one instruction set could lend its code to another.

usage: check_isa_symbols.py ISA OBJECT...

The linker keeps one copy of a weak function that two objects define. If the one from the AVX-512 object
survives, an AVX2 machine dies in code that looks portable. So every defined symbol that others can see must
carry the instruction set in its name.
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


def main() -> int:
    isa, objects = sys.argv[1], sys.argv[2:]
    if not objects:
        print(f"{isa}: no objects to check", file=sys.stderr)
        return 1
    found = [symbol for path in objects for symbol in shared_symbols(isa, path)]
    print("\n".join(found) or f"{isa}: {len(objects)} objects, no shared symbols")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
