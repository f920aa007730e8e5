#!/usr/bin/env python3
"""Installs the Python package into build/venv, or runs its tests there.

usage: check_python.py install SOURCE_DIR BUILD_DIR BUILD_TYPE [CMAKE_OPTION...]
       check_python.py test SOURCE_DIR [onnx | torch | transformers | types]

Without a name, the tests that need no other project run.
Exit code 77 (skipped) where build/venv has not got the packages these need; tools/test.sh makes it.
"""
import os
import pathlib
import subprocess
import sys

SKIPPED = 77
# Packages that test modules need. Each is a test of its own, which ctest shows as skipped.
OTHERS = {"onnx": ("onnx", "ml_dtypes"), "torch": ("torch",),
          "transformers": ("torch", "transformers", "gguf"), "types": ("mypy",)}


def missing(python: pathlib.Path, modules: tuple[str, ...]) -> str:
    """Why `python` cannot import the modules, or nothing."""
    if not python.exists():
        return f"{python} does not exist"
    code = f"import importlib.util as i; print(*[m for m in {modules} if i.find_spec(m) is None])"
    run = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return f"{python} has no {run.stdout.strip()}" if run.stdout.strip() else run.stderr.strip()


def can_reuse(options: tuple[str, ...], build_type: str) -> bool:
    """Whether the build that the options name has a library that the package can take."""
    name = "-DMANYHEAD_BUILT_IN="
    folders = [pathlib.Path(o.removeprefix(name)) for o in options if o.startswith(name)]
    if not folders or build_type not in ("Release", "RelWithDebInfo"):
        return False
    cache = (folders[0] / "CMakeCache.txt").read_text()
    return (folders[0] / "libmanyhead.a").exists() and "\nMANYHEAD_SANITIZE:STRING=\n" in cache \
        and "\nCMAKE_CXX_FLAGS:STRING=\n" in cache


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
    if run.returncode == 0 and can_reuse(options, build_type) and \
            "manyhead_up_to_date" not in (pathlib.Path(build_dir) / "build.ninja").read_text():
        print("the library was compiled again although a build of the same kind has it")
        return 1
    return run.returncode


def test(python: pathlib.Path, folder: pathlib.Path, other: str | None) -> int:
    names = {path.stem for path in folder.glob("test_*.py")}
    chosen = {f"test_{other}"} if other else names - {f"test_{name}" for name in OTHERS}
    return subprocess.run([python, "-m", "unittest", "-v", *sorted(chosen)], cwd=folder,
                          check=False).returncode


def main(verb: str, root: pathlib.Path, options: list[str]) -> int:
    python = root / "build" / "venv" / "bin" / "python"
    other = options[0] if verb == "test" and options else None
    needed = ("pip", "nanobind", "scikit_build_core") if verb == "install" else \
        ("numpy", "manyhead", *OTHERS.get(other, ()))
    if why := missing(python, needed):
        print(f"skipped: {why}; tools/test.sh installs what is needed, but for torch")
        return SKIPPED
    if verb == "install":
        return install(python, root, *options)
    return test(python, root / "tools" / "python" / "tests", other)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3:]))
