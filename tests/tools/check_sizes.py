#!/usr/bin/env python3
"""Fails when a file or a function is too long to be read in one go.

usage: check_sizes.py SOURCE_DIR

Files of code have at most MAX_LINES lines, wherever they stand. Functions of the library, the kernels and
the tools have at most the lines that FUNCTION_LINES says, from the first line of the signature to the
closing brace; in Python from the `def` to the last line of the body, without the documentation string.
"""
import ast
import pathlib
import re
import sys

from check_layers import project_files

MAX_LINES = 500
SOURCES = (".h", ".cc", ".c", ".py", ".sh", ".js", ".css", ".cmake", "CMakeLists.txt")
FUNCTION_LINES = {"runtime": 60, "include": 60, "tools": 60, "kernels": 80}

# Comments, and literals: their braces and parentheses open nothing.
NO_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Fa-f])\'(?:\\.|[^\'\\\n])+\'',
                     re.DOTALL)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
# Words before a brace that opens a scope of declarations: their functions are checked one by one.
SCOPE = re.compile(r'\b(?:namespace|class|struct|union|enum|extern)\b')


def blank(match: re.Match) -> str:
    """As many lines as the match has, without a word."""
    return "\n" * match.group().count("\n")


def cpp_functions(text: str) -> list[tuple[str, int, int]]:
    """(signature, first line, number of lines) of every function that `text` defines; a lambda belongs to
    the function around it."""
    text = DIRECTIVE.sub(blank, NO_CODE.sub(blank, text))
    found: list[tuple[str, int, int]] = []
    stack: list[tuple[str, int] | None] = []  # for every open brace the function that it opens, if any
    inside = 0  # open braces of the function at hand
    begin = 0  # start of the current declaration
    for at in (match.start() for match in re.finditer(r"[{};]", text)):
        if text[at] == "{":
            head = text[begin:at].strip()
            opens = inside == 0 and "(" in head and not SCOPE.match(re.sub(r"^template\s*<.*?>\s*(?=\w)", "", head,
                                                                             flags=re.DOTALL))
            inside += bool(inside) or opens
            stack.append((head, at - len(text[begin:at].lstrip())) if opens else None)
            if inside == 0:
                begin = at + 1
        elif text[at] == "}":
            opened = stack.pop() if stack else None
            inside -= bool(inside)
            if opened and inside == 0 and re.match(r"\s*[,{]", text[at + 1:at + 200]):
                begin = opened[1]  # a member's initialiser: the body is still to come
                continue
            if opened and inside == 0:
                first = text.count("\n", 0, opened[1]) + 1
                found.append((" ".join(opened[0].split()), first, text.count("\n", 0, at) + 2 - first))
            if inside == 0:
                begin = at + 1
        elif inside == 0:
            begin = at + 1
    return found


def python_functions(text: str) -> list[tuple[str, int, int]]:
    """The same for Python, but that a function inside another is looked at by itself as well."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        lines = node.end_lineno - node.lineno + 1
        if ast.get_docstring(node) is not None:
            lines -= node.body[0].end_lineno - node.body[0].lineno + 1
        found.append((f"def {node.name}", node.lineno, lines))
    return found


def long_functions(name: str, text: str) -> list[str]:
    most = FUNCTION_LINES.get(name.split("/")[0])
    if most is None or not name.endswith((".h", ".cc", ".c", ".py")):
        return []
    functions = python_functions(text) if name.endswith(".py") else cpp_functions(text)
    return [f"{name}:{first}: {lines} lines, at most {most} are allowed: {signature[:60]}"
            for signature, first, lines in functions if lines > most]


def check(root: pathlib.Path) -> list[str]:
    errors = []
    for name in project_files(root):
        if not name.endswith(SOURCES):
            continue
        text = (root / name).read_text(encoding="utf-8")
        if (lines := text.count("\n")) > MAX_LINES:
            errors.append(f"{name}: {lines} lines, at most {MAX_LINES} are allowed")
        errors += long_functions(name, text)
    return errors


CPP_EXAMPLE = """\
namespace a {
struct S {
  S() : x_{1}, y_(2), z_{3} {
    if (f(1)) { g(); }
  }
  int Short() const { return '{' + 1; }  // not a brace: {
  template <class T>
  int Long(
      int x) const noexcept {
    const auto add = [&](int y) {
      if (y > 0) { return "}"; }
      return R"(})";
    };
    return Pair{x, 1}.x;
  }
  int x_ = 0;
};
#define OPEN(x) \\
  { x
constexpr int kTable[] = {f(1), 2};
}  // namespace a
extern "C" {
int Plain(void)
{
  return 1'000;
}
}
"""


def self_test() -> None:
    """Lengths are those that a reader counts."""
    assert [(first, lines) for _, first, lines in cpp_functions(CPP_EXAMPLE)] == [
        (3, 3), (6, 1), (7, 9), (23, 4)], cpp_functions(CPP_EXAMPLE)
    body = "  x += 1;\n"
    for lines, folder, expected in ((60, "runtime", 0), (61, "runtime", 1), (80, "kernels", 0), (81, "kernels", 1),
                                    (99, "tests", 0)):
        code = "void F() {\n" + body * (lines - 2) + "}\n"
        assert len(long_functions(f"{folder}/x.cc", code)) == expected, (lines, folder)
    code = 'def f():\n    """Says.\n    More."""\n' + "    x = 1\n" * 60
    assert python_functions(code) == [("def f", 1, 61)]
    assert long_functions("tools/x.py", code) and not long_functions("tools/x.py", code[:-10])


if __name__ == "__main__":
    self_test()
    found = check(pathlib.Path(sys.argv[1]))
    print("\n".join(found) or "sizes: every file and function is short enough")
    sys.exit(bool(found))
