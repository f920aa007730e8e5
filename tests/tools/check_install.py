#!/usr/bin/env python3
"""Installs manyhead into an empty prefix and builds a program there that uses find_package alone.

usage: check_install.py BUILD_DIR CONSUMER_DIR WORK_DIR [CMAKE_OPTION...]

With options, BUILD_DIR is the source tree and is first configured and built with them.
"""
import os
import pathlib
import shutil
import subprocess
import sys


def run(*command: str) -> str:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"failed: {' '.join(command)}\n{result.stdout[-3000:]}{result.stderr[-3000:]}")
    return result.stdout


def main(build: str, consumer: str, work: pathlib.Path, options: list[str]) -> None:
    shutil.rmtree(work / "prefix", ignore_errors=True)
    shutil.rmtree(work / "consumer", ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    if options:
        source, build = build, str(work / "build")
        run("cmake", "-S", source, "-B", build, "-G", "Ninja", "-DMANYHEAD_BUILD_TESTS=OFF",
            "-DMANYHEAD_BUILD_BENCH=OFF", *options)
        run("cmake", "--build", build, "-j", str(min(2, os.cpu_count() or 1)))
    prefix = work / "prefix"
    run("cmake", "--install", build, "--prefix", str(prefix))
    run("cmake", "-S", consumer, "-B", str(work / "consumer"), "-G", "Ninja",
        f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", str(work / "consumer"))
    print(run(str(work / "consumer" / "consumer")).strip())
    command = prefix / "bin" / "manyhead"
    print(run(str(command), "--version").strip())
    if (prefix / "share" / "manyhead" / "bundled.gguf").exists():
        run(str(command), "generate", "-p", "a b a b a", "-n", "4")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4:])
