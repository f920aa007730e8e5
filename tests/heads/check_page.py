#!/usr/bin/env python3
"""Fails when tools/docs/heads.md shows C++ that is not run.

usage: check_page.py SOURCE_DIR

Every C++ block must be a region between two "// [name]" lines of tests/heads/heads_page_test.cc.
"""
import pathlib
import re
import sys


def main(root: pathlib.Path) -> list[str]:
    page = (root / "tools/docs/heads.md").read_text(encoding="utf-8")
    source = (root / "tests/heads/heads_page_test.cc").read_text(encoding="utf-8")
    parts = re.split(r"^// \[\w+\]\n", source, flags=re.MULTILINE)
    regions = {part.strip() for part in parts[1::2]}
    blocks = {block.strip() for block in re.findall(r"^```cpp\n(.*?)^```", page,
                                                    flags=re.MULTILINE | re.DOTALL)}
    return ([f"heads.md: C++ block is not in heads_page_test.cc:\n{block}"
             for block in sorted(blocks - regions)]
            + [f"heads_page_test.cc: region is not in heads.md:\n{region}"
               for region in sorted(regions - blocks)])


if __name__ == "__main__":
    found = main(pathlib.Path(sys.argv[1]))
    print("\n".join(found) or "heads.md: every example is run")
    sys.exit(bool(found))
