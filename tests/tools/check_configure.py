#!/usr/bin/env python3
"""Configures manyhead where oneDNN is missing, too old or broken: each ends in one clear message.

usage: check_configure.py SOURCE_DIR WORK_DIR
"""
import pathlib
import re
import shutil
import subprocess
import sys

VERSION_FILE = """
set(PACKAGE_VERSION {version})
set(PACKAGE_VERSION_COMPATIBLE TRUE)
"""


def configure(source: str, work: pathlib.Path, *options: str) -> str:
    build = work / "build"
    shutil.rmtree(build, ignore_errors=True)
    result = subprocess.run(
        ["cmake", "-S", source, "-B", str(build), "-G", "Ninja", "-DMANYHEAD_BUILD_TESTS=OFF",
         "-DMANYHEAD_BUILD_BENCH=OFF", "-DMANYHEAD_BUILD_TOOLS=OFF", *options],
        capture_output=True, text=True, check=False)
    assert result.returncode != 0, "configuring should have failed"
    return re.sub(r"\s+", " ", result.stderr)


def expect(name: str, message: str, wanted: str) -> None:
    if wanted not in message:
        sys.exit(f"{name}: expected '{wanted}' in: {message}")
    print(f"{name}: ok")


def fake_dnnl(work: pathlib.Path, version: str, config: str) -> str:
    folder = work / f"dnnl-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dnnl-config.cmake").write_text(config)
    (folder / "dnnl-config-version.cmake").write_text(VERSION_FILE.format(version=version))
    return f"-Ddnnl_DIR={folder}"


def main(source: str, work: pathlib.Path) -> None:
    expect("no oneDNN", configure(source, work, "-DCMAKE_DISABLE_FIND_PACKAGE_dnnl=ON"),
           "manyhead: found oneDNN '', needs 2.6 or later")
    expect("oneDNN 1.7", configure(source, work, fake_dnnl(work, "1.7", "")),
           "manyhead: found oneDNN '1.7', needs 2.6 or later")
    expect("oneDNN 2.7 without its target", configure(source, work, fake_dnnl(work, "2.7", "")),
           "manyhead: oneDNN 2.7 in")


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]))
