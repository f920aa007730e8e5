#!/usr/bin/env python3
"""Fails when Doxygen has anything to say: a public symbol without a comment, a link that leads nowhere.

usage: check_docs.py SOURCE_DIR WORK_DIR

Exit code 77 (skipped) where doxygen is not installed.
"""
import pathlib
import re
import shutil
import subprocess
import sys

SKIPPED = 77


def file_mentions(root: pathlib.Path) -> list[str]:
    """Files and folders that the pages name but the tree has not."""
    errors = []
    for page in sorted((root / "tools/docs").glob("*.md")):
        for name in re.findall(r"`((?:runtime|kernels|tests|tools|include|bench)/[\w./-]+)`",
                               page.read_text(encoding="utf-8")):
            if not (root / name).exists():
                errors.append(f"{page.name}: {name} does not exist")
    return errors


def main(root: pathlib.Path, work: pathlib.Path) -> int:
    errors = file_mentions(root)
    if errors:
        print("\n".join(errors))
        return 1
    if shutil.which("doxygen") is None:
        print("skipped: doxygen is not installed")
        return SKIPPED
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    settings = (root / "tools/docs/Doxyfile").read_text(encoding="utf-8")
    settings += f"\nOUTPUT_DIRECTORY = {work}\n"
    run = subprocess.run(["doxygen", "-"], input=settings, capture_output=True, text=True, cwd=root,
                         check=False)
    warnings = [line for line in run.stderr.splitlines() if line.strip()]
    pages = len(list((work / "html").glob("*.html")))
    print("\n".join(warnings) or f"{pages} pages, every public symbol is documented")
    # Without a class's page, nothing was read at all.
    return bool(warnings) or run.returncode or not (work / "html/classmanyhead_1_1KvCache.html").exists()


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()))
