#!/usr/bin/env python3
"""Fails when the tree's dependencies point the wrong way, or a file is out of place or too long.

usage: check_layers.py SOURCE_DIR

tools, bench, tests -> include -> runtime -> kernels; README draws it. Tests and benchmarks may also
look inside.
"""
import pathlib
import re
import subprocess
import sys

FOLDERS = ("runtime", "kernels", "include", "tests", "bench", "tools")
TOP_LEVEL = {*FOLDERS, "CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE", "build"}
MAX_LINES = 599

# Which rooms of runtime/ a room may include, besides itself.
ROOMS = {
    "platform": set(),
    "cache": {"platform"},
    "linear": {"platform"},
    "formats": {"platform"},
    "attention": {"cache", "platform"},
    "layer": {"attention", "cache", "linear", "platform"},
    "text": {"formats", "platform"},
    "model": {"formats", "text", "layer", "linear", "attention", "cache", "platform"},
    "heads": {"platform", "cache", "linear", "formats", "attention", "text", "model"},
    "session": {"platform", "cache", "linear", "formats", "attention", "layer", "text", "model",
                "heads"},
    "calibrate": {"platform", "cache", "attention", "model"},
    "memory": {"platform", "cache", "linear", "formats", "attention", "layer", "text", "model",
               "session"},
    "c_api": set(),
}
# The only project headers kernels share with the rest.
KERNEL_HEADERS = {"manyhead/types.h", "manyhead/isa.h"}
STD_HEADER = re.compile(r"[a-z_]+|std(?:def|int)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


def allowed(path: str, quoted: bool, name: str) -> bool:
    """Whether the file `path` may include `name`."""
    top, room = (path.split("/") + [""])[:2]
    target, target_room = (name.split("/") + [""])[:2]
    if not quoted:
        return top != "include" or STD_HEADER.fullmatch(name) is not None
    if top == "include":
        return target == "manyhead"
    if top == "kernels":
        return target == "kernels" or name in KERNEL_HEADERS
    if top == "runtime":
        if target == "runtime":
            return target_room == room or target_room in ROOMS[room]
        return target in ("kernels", "manyhead")
    if top == "tools":
        return target in ("tools", "manyhead")
    return target in (top, "tools", "runtime", "kernels", "manyhead")


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    done: set[str] = set()

    def visit(node: str, trail: list[str]) -> list[str]:
        if node in trail:
            return trail[trail.index(node):] + [node]
        if node in done:
            return []
        for target in sorted(graph.get(node, ())):
            if found := visit(target, trail + [node]):
                return found
        done.add(node)
        return []

    for node in sorted(graph):
        if found := visit(node, []):
            return found
    return []


def project_files(root: pathlib.Path) -> list[str]:
    """What git tracks, or would track in the folders; outside a checkout, every file but those of build/."""
    names: list[str] = []
    for kind, *where in (["-c"], ["-o", "--exclude-standard", "--", *FOLDERS]):
        listed = subprocess.run(["git", "-C", str(root), "ls-files", kind, *where], capture_output=True, text=True,
                                check=False)
        if listed.returncode != 0:
            break
        names += listed.stdout.splitlines()
    else:
        return [name for name in names if (root / name).is_file()]
    return [str(path.relative_to(root)) for path in root.rglob("*")
            if path.is_file() and path.relative_to(root).parts[0] != "build"]


def check(root: pathlib.Path) -> list[str]:
    errors = []
    graph: dict[str, set[str]] = {}
    for name in project_files(root):
        top = name.split("/")[0]
        if top not in TOP_LEVEL and not top.startswith("."):
            errors.append(f"{name}: '{top}' does not belong at the top level")
        if not name.endswith((".h", ".cc", ".c", ".py", ".sh", ".cmake", "CMakeLists.txt")):
            continue
        text = (root / name).read_text(encoding="utf-8")
        if (lines := text.count("\n")) > MAX_LINES:
            errors.append(f"{name}: {lines} lines, at most {MAX_LINES} are allowed")
        if not name.endswith((".h", ".cc", ".c")) or name.startswith("tests/tools/consumer/"):
            continue
        includes = [(mark == '"', target) for mark, target in INCLUDE.findall(text)]
        errors += [f"{name}: must not include {target}" for quoted, target in includes
                   if not allowed(name, quoted, target)]
        node = name.removeprefix("include/")
        graph[node] = {target for quoted, target in includes if quoted}
    if cycle := find_cycle(graph):
        errors.append("cycle of includes: " + " -> ".join(cycle))
    return errors


def self_test() -> None:
    """The rules refuse what they are for."""
    assert not allowed("kernels/x.h", True, "runtime/platform/team.h")
    assert not allowed("kernels/x.h", True, "manyhead/kv_cache.h")
    assert not allowed("runtime/cache/x.cc", True, "runtime/model/y.h")
    assert not allowed("runtime/platform/x.cc", True, "tools/manyhead/parse.h")
    assert not allowed("tools/manyhead/x.cc", True, "runtime/platform/threads.h")
    assert not allowed("include/manyhead/x.h", False, "xsimd/xsimd.hpp")
    assert not allowed("include/manyhead/x.h", False, "omp.h")
    assert allowed("include/manyhead/x.h", False, "stdint.h")
    assert not allowed("runtime/c_api/x.cc", True, "runtime/session/y.h")
    assert allowed("runtime/session/x.cc", True, "runtime/model/y.h")
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert not find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


if __name__ == "__main__":
    self_test()
    found = check(pathlib.Path(sys.argv[1]))
    print("\n".join(found) or "layers: every dependency points the right way")
    sys.exit(bool(found))
