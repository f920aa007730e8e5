#!/usr/bin/env python3
"""Fails when a C++ file differs from what clang-format makes of it.

usage: check_format.py SOURCE_DIR

Exit code 77 (skipped) where clang-format 14 is not installed: other versions format differently.
"""
import pathlib
import shutil
import subprocess
import sys

FOLDERS = ("include", "kernels", "runtime", "tools", "tests", "bench")
SKIPPED = 77


def main(root: pathlib.Path) -> int:
    program = shutil.which("clang-format-14") or shutil.which("clang-format")
    version = subprocess.run([program, "--version"], capture_output=True, text=True,
                             check=True).stdout if program else ""
    if " 14." not in version:
        print("skipped: clang-format 14 is not installed")
        return SKIPPED
    files = sorted(str(path) for folder in FOLDERS for path in (root / folder).rglob("*")
                   if path.suffix in (".h", ".cc", ".c"))
    run = subprocess.run([program, "--dry-run", "--Werror", "--style=file", *files],
                         capture_output=True, text=True, check=False)
    wrong = sorted({line.split(":")[0] for line in run.stderr.splitlines() if ": error:" in line})
    for name in wrong:
        print(f"{name}: run clang-format -i on it")
    return run.returncode


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
