#!/usr/bin/env python3
"""Fails when the tree's dependencies point the wrong way, or a file is out of place.

usage: check_layers.py SOURCE_DIR

tools, bench, tests -> include -> runtime -> kernels. Tests and benchmarks may also look inside. Within
runtime/ a room is a folder of the table ROOMS; a public header belongs to the room that implements it, so
that a circle through include/manyhead/ is seen as well.
"""
import pathlib
import re
import subprocess
import sys

FOLDERS = ("runtime", "kernels", "include", "tests", "bench", "tools")
TOP_LEVEL = {*FOLDERS, "CMakeLists.txt", "CMakePresets.json", "README.md", "LICENSE", "build"}

# The rooms of runtime/ from the ground up, each with the rooms whose headers in runtime/ it includes: its
# neighbours. A room may include the public headers of every room above it in this table, and no others.
ROOMS: dict[str, set[str]] = {
    "platform": set(),
    "cache": {"platform"},
    "linear": {"platform"},
    "formats": {"platform"},
    "attention": {"cache", "platform"},
    "layer": {"attention", "cache", "linear", "platform"},
    "architecture": {"formats", "platform"},
    "text": {"formats", "platform"},
    "model": {"formats", "architecture", "text", "layer", "linear", "attention", "cache", "platform"},
    "heads/observe": {"model", "attention", "linear", "platform"},
    "heads/ablate": {"model", "cache", "platform"},
    "heads/prune": {"heads/ablate", "model", "architecture", "formats", "linear", "platform"},
    "heads/circuits": {"model", "cache", "linear", "platform"},
    "session": {"heads/observe", "heads/ablate", "model", "cache", "platform"},
    "heads/classify": {"text", "platform"},
    "calibrate": {"model", "cache", "platform"},
    "memory": {"session", "model", "architecture", "text", "formats", "cache", "linear", "platform"},
    "c_api": set(),
}
# The room that implements each header of include/manyhead/, but for manyhead.h, which includes them all.
PUBLIC = {
    "export": "platform", "isa": "platform", "output_file": "platform", "status": "platform", "threads": "platform",
    "types": "platform", "kinds": "platform", "version": "platform", "kv_cache": "cache", "attention": "attention",
    "rope": "layer", "multi_head_attention": "layer", "tokenizer": "text", "head_id": "model",
    "model": "model", "model_config": "architecture", "step_profile": "model", "heads": "heads/observe", "ablation": "heads/ablate",
    "prune": "heads/prune", "circuits": "heads/circuits", "sampling": "session", "session": "session",
    "head_classes": "heads/classify", "calibrate": "calibrate", "memory": "memory", "c_api": "c_api",
}
UMBRELLA = "manyhead/manyhead.h"
# The only project headers kernels share with the rest.
KERNEL_HEADERS = {"manyhead/types.h", "manyhead/isa.h"}
STD_HEADER = re.compile(r"[a-z_]+|std(?:def|int)\.h")
INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)


def room_of(path: str) -> str:
    """The room that the file `path`, as an #include names it, belongs to; empty for none."""
    top, _, rest = path.partition("/")
    if top == "manyhead":
        return PUBLIC.get(rest.removesuffix(".h"), "")
    folders = rest.split("/")[:-1] if top == "runtime" else []
    return next((name for end in range(len(folders), 0, -1) if (name := "/".join(folders[:end])) in ROOMS), "")


def refuse_within_runtime(path: str, name: str) -> str:
    """Why a file of runtime/ or include/ may not include `name`, of one of these two; empty if it may."""
    if UMBRELLA in (path, name):
        return "the umbrella header is for users" if name == UMBRELLA else ""
    room, target = room_of(path), room_of(name)
    if not room:
        return f"{path} belongs to no room"
    if not target:
        return "it belongs to no room"
    order = list(ROOMS)
    if order.index(target) > order.index(room):
        return f"{target} is above {room}"
    if name.startswith("runtime/") and target not in {room, *ROOMS[room]}:
        return f"{target} is no neighbour of {room}"
    return ""


def allowed(path: str, quoted: bool, name: str) -> bool:
    """Whether the file `path` may include `name`, as far as top-level folders tell."""
    top = path.split("/")[0]
    target = name.split("/")[0]
    if not quoted:
        return top != "include" or STD_HEADER.fullmatch(name) is not None
    if top == "include":
        return target == "manyhead"
    if top == "kernels":
        return target == "kernels" or name in KERNEL_HEADERS
    if top == "runtime":
        return target in ("runtime", "kernels", "manyhead")
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
    """Returns the files that git tracks, or would track; outside a checkout, every file but those of build/."""
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


def check_source(name: str, includes: list[tuple[bool, str]]) -> list[str]:
    """Returns the includes of the file `name` that are not allowed."""
    errors = [f"{name}: must not include {target}" for quoted, target in includes
              if not allowed(name, quoted, target)]
    if name.startswith(("runtime/", "include/")):
        path = name.removeprefix("include/")
        errors += [f"{name}: must not include {target}: {why}" for quoted, target in includes
                   if quoted and target.startswith(("runtime/", "manyhead/"))
                   and (why := refuse_within_runtime(path, target))]
    return errors


def unused_entries(graph: dict[str, set[str]]) -> list[str]:
    """Entries of the tables that no file needs: neighbours without an include, public headers without a file."""
    used = {(room_of(name), room_of(target)) for name, targets in graph.items()
            for target in targets if name.startswith("runtime/") and target.startswith("runtime/")}
    headers = {name.removeprefix("manyhead/").removesuffix(".h") for name in graph if name.startswith("manyhead/")}
    return [f"ROOMS: no file of {room} includes one of {target}; take it out of the table"
            for room, targets in ROOMS.items() for target in sorted(targets) if (room, target) not in used
            ] + [f"PUBLIC: there is no manyhead/{name}.h; take it out of the table"
                 for name in PUBLIC if name not in headers]


def check(root: pathlib.Path) -> list[str]:
    errors = []
    graph: dict[str, set[str]] = {}
    for name in project_files(root):
        top = name.split("/")[0]
        if top not in TOP_LEVEL and not top.startswith("."):
            errors.append(f"{name}: '{top}' does not belong at the top level")
        if not name.endswith((".h", ".cc", ".c")) or name.startswith("tests/tools/consumer/"):
            continue
        includes = [(mark == '"', target)
                    for mark, target in INCLUDE.findall((root / name).read_text(encoding="utf-8"))]
        errors += check_source(name, includes)
        graph[name.removeprefix("include/")] = {target for quoted, target in includes if quoted}
    if cycle := find_cycle(graph):
        errors.append("cycle of includes: " + " -> ".join(cycle))
    return errors + unused_entries(graph)


def self_test() -> None:
    """The rules refuse what they are for."""
    assert not allowed("kernels/x.h", True, "runtime/platform/team.h")
    assert not allowed("kernels/x.h", True, "manyhead/kv_cache.h")
    assert not allowed("tools/manyhead/x.cc", True, "runtime/platform/threads.h")
    assert not allowed("include/manyhead/x.h", False, "xsimd/xsimd.hpp")
    assert not allowed("include/manyhead/x.h", False, "omp.h")
    assert not allowed("include/manyhead/x.h", True, "runtime/platform/team.h")
    assert allowed("include/manyhead/x.h", False, "stdint.h")
    assert room_of("runtime/heads/observe/deeper/x.h") == "heads/observe"
    assert room_of("runtime/heads/x.h") == room_of("manyhead/unheard_of.h") == room_of("tests/x.h") == ""
    for path, name in (
            ("runtime/cache/x.cc", "runtime/model/y.h"),           # a room above
            ("runtime/session/x.cc", "manyhead/head_classes.h"),   # through a public header
            ("runtime/session/y.h", "runtime/heads/classify/scores.h"),
            ("manyhead/heads.h", "manyhead/session.h"),            # between public headers
            ("runtime/platform/x.cc", "tools/manyhead/parse.h"),   # not of a room
            ("runtime/heads/classify/x.cc", "runtime/model/decoder.h"),  # around its neighbour
            ("runtime/c_api/x.cc", "runtime/session/y.h"),
            ("runtime/session/x.cc", "manyhead/manyhead.h"),
            ("runtime/heads/x.cc", "manyhead/heads.h")):   # a file outside the rooms
        assert refuse_within_runtime(path, name), (path, name)
    for path, name in (
            ("runtime/heads/classify/x.cc", "manyhead/session.h"),
            ("runtime/session/x.cc", "runtime/model/y.h"),
            ("runtime/c_api/x.cc", "manyhead/memory.h"),
            ("manyhead/manyhead.h", "manyhead/memory.h")):
        assert not refuse_within_runtime(path, name), (path, name)
    for room, targets in ROOMS.items():
        assert targets <= set(list(ROOMS)[:list(ROOMS).index(room)]), f"{room}: a neighbour is above it"
    whole = {f"runtime/{room}/x.cc": {f"runtime/{target}/y.h" for target in targets} for room, targets in ROOMS.items()}
    whole |= {f"manyhead/{name}.h": set() for name in PUBLIC}
    assert not unused_entries(whole)
    whole["runtime/attention/x.cc"].remove("runtime/cache/y.h")
    del whole["manyhead/rope.h"]
    assert [entry.split(";")[0] for entry in unused_entries(whole)] == [
        "ROOMS: no file of attention includes one of cache", "PUBLIC: there is no manyhead/rope.h"]
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert not find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()})


if __name__ == "__main__":
    self_test()
    found = check(pathlib.Path(sys.argv[1]))
    print("\n".join(found) or "layers: every dependency points the right way")
    sys.exit(bool(found))
