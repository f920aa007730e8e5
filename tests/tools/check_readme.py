#!/usr/bin/env python3
"""Fails when README.md shows code that is not compiled and run, or a command line that is refused.

usage: check_readme.py SOURCE_DIR COMMAND

Every C++ and C block must be a file of tools/examples as a whole, each of which is a test, and each
file must be shown; with --write instead of the command README.md takes them over. Every
"manyhead ..." line of a console block is parsed; those on the bundled model are run. So is every
command of the table under "What shows it", as far as that takes no time: tests and claims of its
expressions must exist, scripts too. Python blocks are run by tools/python/tests/test_readme.py.
"""
import os
import pathlib
import re
import shlex
import subprocess
import sys

# A link to the file, then its text.
EXAMPLE = re.compile(r"(\]\((tools/examples/(\w+\.(?:cc|c)))\)[^\n]*\n(?:</summary>\n)?\n```(?:cpp|c)\n)"
                     r"(.*?)(^```$)", re.MULTILINE | re.DOTALL)
MAX_EXAMPLE_LINES = 79


def check_examples(root: pathlib.Path, readme: str) -> list[str]:
    errors = []
    files = {path.name for path in (root / "tools/examples").glob("*.c*")}
    shown = EXAMPLE.findall(readme)
    blocks = len(re.findall(r"^```(?:cpp|c)$", readme, flags=re.MULTILINE))
    if blocks != len(shown):
        errors.append(f"README.md: {blocks} blocks of C++ or C, of which {len(shown)} follow a link to "
                      "their file in tools/examples")
    for _, path, name, block, _ in shown:
        if name not in files:
            errors.append(f"README.md: {path} does not exist")
        elif block != (root / path).read_text(encoding="utf-8"):
            errors.append(f"README.md: {path} differs; run tests/tools/check_readme.py . --write")
    missing = files - {name for _, _, name, _, _ in shown}
    errors += [f"README.md: does not show tools/examples/{name}" for name in sorted(missing)]
    for name in sorted(files):
        lines = (root / "tools/examples" / name).read_text(encoding="utf-8").count("\n")
        if lines > MAX_EXAMPLE_LINES:
            errors.append(f"tools/examples/{name}: {lines} lines, at most {MAX_EXAMPLE_LINES}")
        if f" {name} " not in (root / "tools/examples/CMakeLists.txt").read_text(encoding="utf-8"):
            errors.append(f"tools/examples/{name}: no test runs it")
    return errors


def check_commands(root: pathlib.Path, readme: str, command: str) -> list[str]:
    errors = []
    lines = re.findall(r"^\$ (?:build/release/)?manyhead (.*)$", readme, flags=re.MULTILINE)
    if len(lines) < 5:
        errors.append(f"README.md: {len(lines)} command lines found")
    for line in lines:
        words = shlex.split(line.split(" | ")[0])
        needs_model = "-m" in words
        run = subprocess.run([command, *words, *(["--help"] if needs_model else [])],
                             capture_output=True, text=True, cwd=root, check=False)
        if run.returncode != 0:
            errors.append(f"README.md: '{line}' ended with {run.returncode}: {run.stderr}")
    return errors


def check_claim(root: pathlib.Path, line: str, command: str) -> str:
    """What is wrong with the command that shows a claim; empty if nothing."""
    words = shlex.split(line)
    if words[0] == "ctest":
        listed = subprocess.run(["ctest", "--test-dir", pathlib.Path(command).parent, "-N", *words[1:]],
                                capture_output=True, text=True, check=False).stdout
        return "" if re.search(r"^Total Tests: [1-9]", listed, flags=re.MULTILINE) else "no test matches"
    if words[0] == "manyhead":
        run = subprocess.run([command, *words[1:], "--help"], capture_output=True, text=True, check=False)
        return run.stderr
    if not os.access(root / words[0], os.X_OK):
        return "no such program"
    if words[0].endswith(".py"):
        run = subprocess.run([sys.executable, root / words[0], *words[1:], "--help"], capture_output=True, text=True,
                             check=False)
        return run.stderr
    return ""


def check_claims(root: pathlib.Path, readme: str, command: str) -> list[str]:
    section = readme.partition("\n## What shows it\n")[2].partition("\n## ")[0]
    rows = [(claim, commands.split("`, `")) for claim, commands in
            re.findall(r"^\| ([^|]+) \| `([^|]+)` \|$", section, flags=re.MULTILINE)]
    lines = len(re.findall(r"^\|", section, flags=re.MULTILINE)) - 2
    errors = [] if len(rows) == lines >= 20 else [f"README.md: {len(rows)} claims with a command of {lines}"]
    return errors + [f"README.md: '{line}', which shows '{claim}': {error}" for claim, lines in rows for line in lines
                     if (error := check_claim(root, line, command))]


def check_links(root: pathlib.Path, readme: str) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", readme, flags=re.MULTILINE | re.DOTALL)
    return [f"README.md: link to {path}, which does not exist"
            for path in re.findall(r"\]\((?!http)([^)#]+)\)", prose) if not (root / path).exists()]


def main(root: pathlib.Path, command: str) -> int:
    path = root / "README.md"
    readme = path.read_text(encoding="utf-8")
    if command == "--write":
        path.write_text(EXAMPLE.sub(lambda found: found[1] + (root / found[2]).read_text(
            encoding="utf-8") + found[5], readme), encoding="utf-8")
        return 0
    errors = [*check_examples(root, readme), *check_commands(root, readme, command),
              *check_claims(root, readme, command),
              *check_links(root, readme)]
    print("\n".join(errors) or "README.md: every example works")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), sys.argv[2]))
