#!/usr/bin/env python3
"""Fails when README.md or a page of tools/docs shows code that no test runs, or a command that is refused.

usage: check_pages.py SOURCE_DIR COMMAND     checks all pages with the built `manyhead`
       check_pages.py SOURCE_DIR --write     copies the programs of tools/examples into the pages

- README.md has at most MAX_README_LINES lines; it and index.md link every page.
- A block of C++ or C follows a link to a program of tools/examples and equals it, or it equals a region of the page's
  test program. Every program is shown.
- Every command line of a console block is checked by what it runs: `manyhead` on the bundled model is run, and the
  first line of its output must be the first line that the page shows; with another model its flags and values are
  parsed, up to the point where it opens the model.
  Scripts must exist and Python scripts accept their flags, expressions of ctest match a test, and for the rest
  COVERED names the test that runs it.
- Policies in JSON are parsed. Every claim of claims.md has a command, and every link leads somewhere.

Python blocks are run by tools/python/tests/test_pages.py, the CMake block by check_install.py.
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

MAX_README_LINES = 250
MAX_EXAMPLE_LINES = 79
LANGUAGES = {"", "c", "cmake", "console", "cpp", "json", "python"}
# A link to a program, then its text.
EXAMPLE = re.compile(r"(\]\((?:tools|\.\.)/examples/(\w+\.(?:cc|c))\)[^\n]*\n\n```(?:cpp|c)\n)(.*?)(^```$)",
                     re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Pages whose blocks of C++ are regions between two "// [name]" lines of a test program.
REGIONS = {"heads.md": "tests/heads/heads_page_test.cc"}
# The test that runs what begins so.
COVERED = {"cmake --install": "^install$", "cmake -S": "^install$", "cmake --build": "^install$",
           "app/build/app": "^install$", "python3 -m venv": "^python_install$",
           "~/manyhead-python/bin/pip": "^python_install$", "~/manyhead-python/bin/python": "^python$"}


def run(words: list, **options) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, **options)


def unknown_flags(program: list, flags: list[str]) -> str:
    """Returns the errors in flags of a program that lists them with --help; empty if there are none."""
    done = run([*program, "--help"])
    if done.returncode != 0:
        return done.stderr.strip()
    return ", ".join(f"no flag {flag}" for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", done.stdout))


class Page:
    def __init__(self, root: pathlib.Path, path: pathlib.Path):
        self.path, self.name = path, str(path.relative_to(root))
        self.text = path.read_text(encoding="utf-8")
        self.blocks = FENCE.findall(self.text)
        self.prose = FENCE.sub("", self.text)

    def of(self, *languages: str) -> list[str]:
        return [text for language, text in self.blocks if language in languages]

    def links(self) -> list[str]:
        return re.findall(r"\]\((?!https?:)([^)]+)\)", self.prose)


class Commands:
    """Runs command lines of the pages in a copy of the tree in which they may write, each once."""

    def __init__(self, root: pathlib.Path, command: pathlib.Path, folder: pathlib.Path):
        self.root, self.command, self.folder, self.known = root, command, folder, {}
        for entry in root.iterdir():
            if entry.name != "build":
                (folder / entry.name).symlink_to(entry)
        (folder / "build/release").mkdir(parents=True)

    def missing_test(self, *arguments: str) -> str:
        listed = run(["ctest", "--test-dir", self.command.parent, "-N", *arguments]).stdout
        return "" if re.search(r"^Total Tests: [1-9]", listed, flags=re.MULTILINE) else "no test matches"

    def manyhead(self, words: list[str], only_parse: bool) -> tuple[str, str]:
        """(error, output) of the command; the output of a run on the bundled model only."""
        if "-m" in words:  # everything is parsed before the model is opened
            place = words.index("-m") + 1
            done = run([self.command, *words[:place], "missing.gguf", *words[place + 1:]], cwd=self.folder)
            opened = done.returncode == 1 and "missing.gguf: cannot open" in done.stderr
            return "" if opened else f"ended with {done.returncode}: {done.stderr.strip()}", ""
        if only_parse:
            flags = [word for word in words if word.startswith("-")]
            commands = [word for word in words if re.fullmatch(r"[a-z]+", word)]
            return unknown_flags([self.command, *commands], flags), ""
        done = run([self.command, *words], cwd=self.folder)
        return ("", done.stdout) if done.returncode == 0 else (f"ended with {done.returncode}: {done.stderr.strip()}", "")

    def script(self, name: str, arguments: list[str]) -> str:
        if not os.access(self.root / name, os.X_OK):
            return "no such program"
        flags = [word for word in arguments if word.startswith("-")]
        return unknown_flags([sys.executable, self.root / name], flags) if name.endswith(".py") else ""

    def check_part(self, words: list[str], only_parse: bool) -> tuple[str, str]:
        while words and re.match(r"[A-Z_]+=", words[0]):
            words = words[1:]
        if not words:
            return "", ""
        if words[0] in ("manyhead", "build/release/manyhead"):
            return self.manyhead(words[1:], only_parse)
        if words[0] == "ctest":
            return self.missing_test(*words[1:]), ""
        if words[0] == "python3" and words[1].endswith(".py"):
            words = words[1:]
        if words[0].startswith(("tools/", "bench/")):
            return self.script(words[0], words[1:]), ""
        if words[:2] == ["cmake", "--preset"]:
            presets = json.loads((self.root / "CMakePresets.json").read_text(encoding="utf-8"))
            names = [preset["name"] for preset in presets["configurePresets"]]
            return "" if words[2] in names else "no such preset", ""
        for beginning, test in COVERED.items():
            if " ".join(words).startswith(beginning):
                return self.missing_test("-R", test), ""
        return "no test runs this", ""

    def check(self, line: str, only_parse: bool = False) -> tuple[str, str]:
        """(error, output) of one line; pipes and comments are left out."""
        if (line, only_parse) not in self.known:
            error, output = "", ""
            for part in line.split(" && "):
                words = shlex.split(part.split(" | ")[0], comments=True)
                error, output = self.check_part(words, only_parse) if not error else (error, "")
            self.known[line, only_parse] = error, output
        return self.known[line, only_parse]


def check_examples(root: pathlib.Path, pages: list[Page]) -> list[str]:
    errors, seen = [], set()
    files = {path.name: path.read_text(encoding="utf-8") for path in (root / "tools/examples").glob("*.c*")}
    for page in pages:
        regions = set()
        if page.path.name in REGIONS:
            source = (root / REGIONS[page.path.name]).read_text(encoding="utf-8")
            regions = {part.strip() for part in re.split(r"^// \[\w+\]\n", source, flags=re.MULTILINE)[1::2]}
        shown = {name: block for _, name, block, _ in EXAMPLE.findall(page.text)}
        seen |= shown.keys()
        blocks = {block.strip() for block in page.of("cpp", "c")}
        errors += [f"{page.name}: tools/examples/{name} does not exist" for name in shown.keys() - files.keys()]
        errors += [f"{page.name}: tools/examples/{name} differs; run tests/tools/check_pages.py . --write"
                   for name in shown.keys() & files.keys() if shown[name] != files[name]]
        errors += [f"{page.name}: no test runs this block:\n{block}"
                   for block in sorted(blocks - regions - {block.strip() for block in shown.values()})]
        errors += [f"{page.name}: does not show this region of {REGIONS[page.path.name]}:\n{region}"
                   for region in sorted(regions - blocks)]
    tests = (root / "tools/examples/CMakeLists.txt").read_text(encoding="utf-8")
    for name, text in sorted(files.items()):
        if name not in seen:
            errors.append(f"tools/examples/{name}: no page shows it")
        if text.count("\n") > MAX_EXAMPLE_LINES:
            errors.append(f"tools/examples/{name}: {text.count(chr(10))} lines, at most {MAX_EXAMPLE_LINES}")
        if f" {name} " not in tests:
            errors.append(f"tools/examples/{name}: no test runs it")
    return errors


def first_line(text: str) -> str:
    return " ".join(next((line for line in text.splitlines() if line.strip()), "").split())


def check_commands(pages: list[Page], commands: Commands) -> list[str]:
    errors, count = [], 0
    for page in pages:
        for block in page.of("console"):
            before, *parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)
            if before.strip() or not parts:
                errors.append(f"{page.name}: a console block does not begin with a command: {first_line(block)}")
            for line, shown in zip(parts[::2], parts[1::2]):
                count += 1
                error, output = commands.check(line)
                if not error and output and shown.strip() and first_line(shown) != first_line(output):
                    error = f"prints '{first_line(output)}', the page shows '{first_line(shown)}'"
                if error:
                    errors.append(f"{page.name}: '{line}': {error}")
        for line in re.findall(r"`((?:manyhead|ctest|cmake --preset) [^`]+)`", page.prose):
            error = "" if page.path.name == "claims.md" else commands.check(line, only_parse=True)[0]
            if error:
                errors.append(f"{page.name}: '{line}': {error}")
        for block in page.of("json"):
            error = commands.manyhead(["memory", "--d-model", "64", "--heads", "4", "--kv-heads", "2", "--layers", "12",
                                       "-c", "4k", "--kv-policy", block], False)[0]
            if error:
                errors.append(f"{page.name}: this policy is refused: {block}{error}")
    return errors + ([] if count >= 40 else [f"only {count} command lines found"])


def check_claims(page: Page, commands: Commands) -> list[str]:
    section = page.text.partition("\n## What shows it\n")[2].partition("\n## ")[0]
    rows = [(claim, shown.split("`, `")) for claim, shown in
            re.findall(r"^\| ([^|]+) \| `([^|]+)` \|$", section, flags=re.MULTILINE)]
    lines = len(re.findall(r"^\|", section, flags=re.MULTILINE)) - 2
    errors = [] if len(rows) == lines >= 20 else [f"{page.name}: {len(rows)} of {lines} claims have a command"]
    return errors + [f"{page.name}: '{line}', which shows '{claim}': {error}" for claim, shown in rows
                     for line in shown if (error := commands.check(line, only_parse=True)[0])]


def anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def check_links(root: pathlib.Path, pages: list[Page]) -> list[str]:
    errors = []
    linked = {page.name: set() for page in pages}
    for page in pages:
        for link in page.links():
            path, _, anchor = link.partition("#")
            target = (page.path.parent / path).resolve() if path else page.path
            if not target.exists():
                errors.append(f"{page.name}: link to {link}, which does not exist")
            elif anchor and anchor not in anchors(target.read_text(encoding="utf-8")):
                errors.append(f"{page.name}: link to {link}, which has no such heading")
            elif target.suffix == ".md":
                linked[page.name].add(target)
        errors += [f"{page.name}: a block in '{language}', which no test runs"
                   for language, _ in page.blocks if language not in LANGUAGES]
    for overview in ("README.md", "tools/docs/index.md"):
        errors += [f"{overview}: does not link {page.name}" for page in pages
                   if page.path.parent != root and page.path.name != "index.md"
                   and page.path not in linked[overview]]
    return errors


def main(root: pathlib.Path, command: str) -> int:
    pages = [Page(root, path) for path in (root / "README.md", *sorted((root / "tools/docs").glob("*.md")))]
    if command == "--write":
        for page in pages:
            page.path.write_text(EXAMPLE.sub(lambda found: found[1] + (root / "tools/examples" / found[2]).read_text(
                encoding="utf-8") + found[4], page.text), encoding="utf-8")
        return 0
    errors = check_examples(root, pages) + check_links(root, pages)
    lines = pages[0].text.count("\n")
    if lines > MAX_README_LINES:
        errors.append(f"README.md: {lines} lines, at most {MAX_README_LINES}; the rest belongs into tools/docs")
    with tempfile.TemporaryDirectory() as folder:
        commands = Commands(root, pathlib.Path(command).resolve(), pathlib.Path(folder))
        errors += check_commands(pages, commands)
        errors += check_claims(next(page for page in pages if page.path.name == "claims.md"), commands)
    print("\n".join(errors) or f"{len(pages)} pages: every example and command works")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]))
