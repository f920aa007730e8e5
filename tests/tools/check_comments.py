#!/usr/bin/env python3
"""Fails where a comment hides a label in a line, is a fragment, or uses a word that has a plainer one.

usage: check_comments.py SOURCE_DIR

- A label such as Errors begins a line of its own, and the lines that continue it are aligned with its text.
- A comment is a sentence, such as "Returns the ...": it does not begin with "Of", "What", "How" and the like.
- WORDS lists words that tools/docs/glossary.md replaces.
- A comment of C++ ends within COLUMNS: the formatter does not break comments.
"""
import pathlib
import re
import sys

from check_layers import project_files

FOLDERS = ("include/", "kernels/", "runtime/", "tools/", "tests/", "bench/")
CPP = (".h", ".cc", ".c")
COLUMNS = 100
SCRIPTS = (".py", ".sh", ".cmake", "CMakeLists.txt")
LABELS = ("Shapes|Units|Aliasing|Errors|Threads|Accuracy|Source|Cost|Rows|Bits|Positions|Policies|Sharing|Growth|"
          "Memory|Handles|Structs|Numbers|Norms|Rotation|Groups")
COMMENT = re.compile(r"^\s*//[/!]?(?!<)( ?)(.*)$")
LABEL = re.compile(rf"^(?:(?:{LABELS})  +|(?:Aliasing|Accuracy|Policies|Rotation) |lse  +)(?=\S)")
# A label inside a line: two spaces follow it, or one where the label fills its column of eight letters.
INSIDE = re.compile(rf"\S.*\s((?:{LABELS})  +\S|(?<=[.;:] )(?:Aliasing|Accuracy|Rotation|Policies) [a-z`|])")
# Words that begin no sentence, and words that begin one only if a main clause follows after a comma or colon.
FRAGMENT = re.compile(r"(?:Of|What|How|Whose|Likewise)\b", re.IGNORECASE)
PHRASE = re.compile(r"(?:By|That|Where|With|Without|Over|As|From)\b(?!`)[^,:;(]*\.(?:\s|$)")
TRAILING = re.compile(r"\s*\S.*?\s//[/!]?<? (?=((?:of|what|how|whose|that|by|with|without|over|likewise)\b.*))")
WORDS = {
    r"texts? in the making": "sequence",
    r"one text of a model": "one sequence of a model",
    r"stands? back": "is evicted",
    r"beginnings? of prompts?": "cached prefix",
    r"carvers?": "bump allocator",
    r"halves of": "fp16 numbers",
    r"surprise": "entropy",
    r"(?:gives?|giving) (?:its|their|the) memory back": "release memory",
    r"many rows'? steps?|steps? of many rows": "prefill chunk",
}


def blocks(lines: list[str]):
    """Yields (number of the first line, [text of each line]) for every run of comment lines."""
    block, first = [], 0
    for number, line in enumerate([*lines, ""], 1):
        found = COMMENT.match(line)
        if found:
            first = first or number
            block.append(found[1] + found[2])
        elif block:
            yield first, block
            block, first = [], 0


def check_labels(first: int, block: list[str]) -> list[tuple[int, str]]:
    """Returns (line number, error) for each label of a block that does not begin a line."""
    errors = []
    column = 0  # column of the text after the last label; 0 where there is none
    for number, text in enumerate(block, first):
        label = LABEL.match(text.strip())
        indent = len(text) - len(text.lstrip())
        if inside := INSIDE.search(text):
            errors.append((number, f"label '{inside[1].split()[0]}' in the middle of a line"))
        if label:
            column = indent + label.end()
        elif not text.strip():
            column = 0
        elif column and indent < column:
            errors.append((number, "continues a label, but is not aligned with its text"))
            column = 0
        elif not column and number > first and re.match(r"^ {9,11}[a-zA-Z`(]", text):
            before = block[number - first - 1]
            if before.strip() and not before.startswith("  "):
                errors.append((number, "is aligned with a label, but continues none"))
    return errors


def check_sentence(first: int, block: list[str]) -> list[tuple[int, str]]:
    """Returns an error where a block begins with a fragment in place of a sentence."""
    text = " ".join(block).strip()
    found = FRAGMENT.match(text) or PHRASE.match(text)
    return [(first, f"'{' '.join(text.split()[:4])} ...' is a fragment; write a sentence")] if found else []


def check_line(number: int, line: str) -> list[tuple[int, str]]:
    """Returns errors of the comment of one line: a fragment behind code, and words that have plainer ones."""
    if "//" not in line:
        return []
    errors = []
    found = TRAILING.match(line)
    if found and line.strip()[:2] != "//" and line.count('"', 0, found.end()) % 2 == 0:
        errors.append((number, f"'{' '.join(found[1].split()[:4])} ...' is a fragment; name the thing"))
    for word, better in WORDS.items():
        if used := re.search(rf"\b(?:{word})\b", line[line.find("//"):], flags=re.IGNORECASE):
            errors.append((number, f"'{used[0]}'; write '{better}'"))
    return errors


def check_text(text: str) -> list[tuple[int, str]]:
    """Returns (line number, error) for the comments of a file, in the order of the lines."""
    lines = text.splitlines()
    errors = []
    for first, block in blocks(lines):
        errors += check_labels(first, block) + check_sentence(first, block)
    for number, line in enumerate(lines, 1):
        errors += check_line(number, line)
    return sorted(errors)


def as_cpp(text: str) -> str:
    """Returns the text of a script with its comments, and the beginnings of its documentation, as in C++."""
    text = re.sub(r'^(\s*)(?:#(?!!)|"""(?=[A-Z]))', r"\1//", text, flags=re.MULTILINE)
    return re.sub(r"(?<=\S)  # ", "  // ", text)


def self_test() -> None:
    """Each wrong comment gives one error, each right one none."""
    for wrong in ("/// Of the model.\nint a;", "// What a head keeps.\nint a;", "  int a;  ///< of one block",
                  "// With the defaults filled in.\nint a;", "/// It stands" + " back.\nint a;",
                  "/// Reads it. Errors   kIoError.\nint a;", "/// Errors   kIoError, which says\n/// why.\nint a;",
                  "/// Reads.\n///          why.\nint a;"):
        assert len(check_text(wrong)) == 1, (wrong, check_text(wrong))
    for right in ("/// Returns the number of tokens.\nint a;", "int a;  ///< bytes of one block",
                  "// With a window, the first tokens go.\nint a;", 'f("// of");',
                  "/// Reads it.\n/// Errors   kIoError, which says\n///          why.\nint a;"):
        assert not check_text(right), (right, check_text(right))
    for wrong in ("# What a head keeps.\na = 1", "a = 1  # of one block", 'def f():\n    """How it works."""'):
        assert len(check_text(as_cpp(wrong))) == 1, wrong


def main(root: pathlib.Path) -> int:
    errors = []
    for name in project_files(root):
        is_script = name.endswith(SCRIPTS)
        if not name.startswith(FOLDERS) or not (is_script or name.endswith(CPP)):
            continue
        text = (root / name).read_text(encoding="utf-8")
        found = check_text(as_cpp(text) if is_script else text)
        if not is_script:
            found += [(number, f"a comment of {len(line)} columns; at most {COLUMNS} are allowed")
                      for number, line in enumerate(text.splitlines(), 1)
                      if len(line) > COLUMNS and COMMENT.match(line)]
        for number, error in found:
            errors.append(f"{name}:{number}: {error}")
    print("\n".join(errors) or "comments: every label begins a line, every comment is a sentence")
    return bool(errors)


if __name__ == "__main__":
    self_test()
    sys.exit(main(pathlib.Path(sys.argv[1])))
