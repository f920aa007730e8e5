#!/usr/bin/env python3
"""Lists what a library shows to programs that link it; fails where a symbol is not manyhead's own.

usage: check_exports.py LIBRARY [--list]

A shared library may show the public headers' part of namespace manyhead and the C functions mh_*. In
an archive all objects see each other; there, symbols that could clash with another library's are
refused: strong ones outside the namespace.
"""
import collections
import re
import subprocess
import sys

OURS = re.compile(r"(?:(?:vtable|typeinfo|typeinfo name|guard variable) for |(?:non-)?virtual thunk to )?"
                  r"(manyhead::\S|mh_\w+$)")
INSIDE = re.compile(r"\bmanyhead::(?:kernels|internal)::")
# One of each kind that has to be there.
WANTED = ("manyhead::Session::Generate(", "manyhead::KvTypeName(", "manyhead::Version()", "mh_abi_version")


def symbols(library: str, shared: bool) -> set[str]:
    """Demangled names that `library` defines; of an archive without those the linker may merge."""
    listed = subprocess.run(["nm", "-C", "--defined-only", "-D" if shared else "-g", library],
                            capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^[0-9a-f]+ (\w) (.*)$", listed, flags=re.MULTILINE)
    return {name.split("@")[0] for kind, name in found if shared or kind not in "VWu"}


def check(library: str, names: set[str], shared: bool) -> list[str]:
    errors = [f"{library}: shows {name}, which is not manyhead's" for name in sorted(names)
              if not OURS.match(name)]
    errors += [f"{library}: does not show {name}" for name in WANTED
               if not any(shown.startswith(name) for shown in names)]
    if shared:
        errors += [f"{library}: shows {name}, which is internal" for name in sorted(names)
                   if INSIDE.search(name)]
    return errors


def summary(names: set[str]) -> str:
    groups = collections.Counter(
        "C functions" if name.startswith("mh_") else
        re.sub(r"^.* for ", "", re.split(r"[(<]", name)[0]).rpartition("::")[0] or "C++"
        for name in names)
    return ", ".join(f"{count} {name}" for name, count in sorted(groups.items()))


def self_test() -> None:
    assert OURS.match("manyhead::Model::Load(std::string const&)") and OURS.match("mh_plan_run")
    assert not OURS.match("std::vector<manyhead::HeadId>::push_back(manyhead::HeadId&&)")
    assert OURS.match("non-virtual thunk to manyhead::File::~File()")
    assert not OURS.match("non-virtual thunk to other::File::~File()")
    assert not OURS.match("other::manyhead::f()") and not OURS.match("mhash")
    assert check("x", {"manyhead::internal::F()", *WANTED}, True) == [
        "x: shows manyhead::internal::F(), which is internal"]


def main(library: str, listing: bool) -> int:
    self_test()
    shared = ".so" in library
    names = symbols(library, shared)
    if listing:
        print("\n".join(sorted(names)))
    errors = check(library, names, shared)
    print("\n".join(errors) or f"{len(names)} symbols, all of manyhead: {summary(names)}")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], "--list" in sys.argv))
