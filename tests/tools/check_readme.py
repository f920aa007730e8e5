#!/usr/bin/env python3
"""Fails when README.md shows C++ that is not compiled, or a command line that the command refuses.

usage: check_readme.py SOURCE_DIR COMMAND

Every C++ block must be a region between two "// [name]" lines of tests/tools/readme_example.cc. Every
"manyhead ..." line of a console block is parsed; those on the bundled model are run.
"""
import pathlib
import re
import shlex
import subprocess
import sys


def regions(source: str) -> set[str]:
    parts = re.split(r"^// \[\w+\]\n", source, flags=re.MULTILINE)
    return {part.strip() for part in parts[1::2]}


def main(root: pathlib.Path, command: str) -> list[str]:
    readme = (root / "README.md").read_text(encoding="utf-8")
    errors = []
    compiled = regions((root / "tests/tools/readme_example.cc").read_text(encoding="utf-8"))
    blocks = re.findall(r"^```cpp\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    errors += [f"README.md: C++ block is not in readme_example.cc:\n{block}" for block in blocks
               if block.strip() not in compiled]
    lines = re.findall(r"^\$ (?:build/release/)?manyhead (.*)$", readme, flags=re.MULTILINE)
    if len(blocks) < 2 or len(lines) < 5:
        errors.append(f"README.md: {len(blocks)} C++ blocks and {len(lines)} command lines found")
    for line in lines:
        words = shlex.split(line.split(" | ")[0])
        needs_model = "-m" in words
        run = subprocess.run([command, *words, *(["--help"] if needs_model else [])],
                             capture_output=True, text=True, cwd=root, check=False)
        if run.returncode != 0:
            errors.append(f"README.md: '{line}' ended with {run.returncode}: {run.stderr}")
    prose = re.sub(r"^```.*?^```", "", readme, flags=re.MULTILINE | re.DOTALL)
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", prose):
        if not (root / path).exists():
            errors.append(f"README.md: link to {path}, which does not exist")
    return errors


if __name__ == "__main__":
    found = main(pathlib.Path(sys.argv[1]), sys.argv[2])
    print("\n".join(found) or "README.md: every example works")
    sys.exit(bool(found))
