#!/usr/bin/env python3
"""Installs the Python package into build/venv, or runs its tests there.

usage: check_python.py install SOURCE_DIR BUILD_DIR BUILD_TYPE [CMAKE_OPTION...]
       check_python.py test SOURCE_DIR

Exit code 77 (skipped) where build/venv has not got the packages these need; tools/test.sh makes it.
"""
import os
import pathlib
import subprocess
import sys

SKIPPED = 77


def missing(python: pathlib.Path, modules: tuple[str, ...]) -> str:
    """Why `python` cannot import the modules, or nothing."""
    if not python.exists():
        return f"{python} does not exist"
    code = f"import importlib.util as i; print(*[m for m in {modules} if i.find_spec(m) is None])"
    run = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return f"{python} has no {run.stdout.strip()}" if run.stdout.strip() else run.stderr.strip()


def install(python: pathlib.Path, root: pathlib.Path, build_dir: str, build_type: str,
            *options: str) -> int:
    settings = {"CMAKE_ARGS": " ".join(options), "SKBUILD_CMAKE_BUILD_TYPE": build_type,
                "SKBUILD_BUILD_DIR": build_dir,  # kept, so that the next run compiles what changed
                "CMAKE_BUILD_PARALLEL_LEVEL": str(min(2, os.cpu_count() or 1))}
    run = subprocess.run(
        [python, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--force-reinstall",
         root / "tools" / "python"],
        env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    print(run.stdout[-3000:], run.stderr[-3000:])
    return run.returncode


def main(verb: str, root: pathlib.Path, options: list[str]) -> int:
    python = root / "build" / "venv" / "bin" / "python"
    needed = {"install": ("pip", "nanobind", "scikit_build_core"), "test": ("numpy", "manyhead")}[verb]
    if why := missing(python, needed):
        print(f"skipped: {why}; tools/test.sh installs what is needed")
        return SKIPPED
    if verb == "install":
        return install(python, root, *options)
    # Verbose, so that the log tells which tests were skipped, and why.
    return subprocess.run([python, "-m", "unittest", "discover", "-v", "-s",
                           root / "tools" / "python" / "tests"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]))
