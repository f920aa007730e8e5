#!/usr/bin/env python3
"""Installs manyhead into an empty prefix and builds programs against it that know nothing else.

usage: check_install.py BUILD_DIR CONSUMER_DIR WORK_DIR
       check_install.py --subdirectory SOURCE_DIR CONSUMER_DIR WORK_DIR CMAKE_OPTION...
       check_install.py --package BUILD_DIR CONSUMER_DIR WORK_DIR

What is installed is that of BUILD_DIR, or with --subdirectory that of a program's build which has
manyhead as a subfolder, configured with the options, or with --package the contents of the Debian
package that cpack makes of BUILD_DIR. Exit code 77 (skipped) where Debian's tools are missing.
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

SKIPPED = 77
ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command: str | pathlib.Path, **settings) -> str:
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, check=False, **settings)
    if result.returncode != 0:
        sys.exit(f"failed: {' '.join(words)}\n{result.stdout[-3000:]}{result.stderr[-3000:]}")
    return result.stdout.strip()


def configure_and_build(source: pathlib.Path, build: pathlib.Path, *options: str) -> None:
    run("cmake", "--fresh", "-S", source, "-B", build, "-G", "Ninja", *options)
    run("cmake", "--build", build, "-j", str(min(2, os.cpu_count() or 1)))


def build_with_pkg_config(consumer: pathlib.Path, work: pathlib.Path, prefix: pathlib.Path) -> None:
    """A C and a C++ program, from what pkg-config says alone."""
    folder = next(prefix.rglob("manyhead.pc")).parent
    environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
    flags = shlex.split(run("pkg-config", "--cflags", "--libs", "manyhead", env=environment))
    assert run("pkg-config", "--modversion", "manyhead", env=environment) == version()
    # The folder of a shared library; pkg-config leaves it to the program to find it.
    flags.append(f"-Wl,-rpath,{folder.parent}")
    for compiler, source in (("cc", "consumer.c"), ("c++ -std=c++20", "consumer.cc")):
        program = work / f"pkg_config_{source}.out"
        run(*compiler.split(), consumer / source, "-o", program, *flags)
        print("pkg-config:", run(program))


def version() -> str:
    found = re.search(r"project\(manyhead VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert found
    return found[1]


def check_library(prefix: pathlib.Path) -> None:
    """The library's name has the binary interface's version, and it shows what is ours alone."""
    shared = list(prefix.rglob("libmanyhead.so"))
    library = shared[0] if shared else next(prefix.rglob("libmanyhead.a"))
    if shared:
        soname = re.search(r"SONAME.*\[(.*)\]", run("readelf", "-d", library))
        assert soname and soname[1] == "libmanyhead.so." + version().rpartition(".")[0], soname
        assert library.resolve().name == f"libmanyhead.so.{version()}", library.resolve()
    print(run(sys.executable, ROOT / "tools/check_exports.py", library))


def build_as_the_page_says(work: pathlib.Path, prefix: pathlib.Path) -> None:
    """The program of the page on embedding in C++, with its CMakeLists.txt."""
    page = (ROOT / "tools/docs/embed_cpp.md").read_text(encoding="utf-8")
    block, = re.findall(r"^```cmake\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    source = work / "app"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    (source / "CMakeLists.txt").write_text(block, encoding="utf-8")
    shutil.copy(ROOT / "tools/examples/stream_text.cc", source)
    configure_and_build(source, source / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    text = run(source / "build" / "app", ROOT / "tools/models/bundled.gguf", "x7k2qz x7k2qz x7k")
    assert text.startswith("2qz x7k2qz x7k2qz"), text
    print("the page's program:", text.splitlines()[0])


def load_by_name(consumer: pathlib.Path, work: pathlib.Path, prefix: pathlib.Path) -> None:
    """A program that finds the shared library while it runs, and lets it go again."""
    program = work / "plugin.out"
    run("cc", consumer / "plugin.c", "-o", program, f"-I{prefix}/include", "-ldl", "-lpthread")
    library = next(prefix.rglob("libmanyhead.so"))
    print("dlopen:", run(program, library, ROOT / "tools/models/bundled.gguf"))


def check_prefix(consumer: pathlib.Path, work: pathlib.Path, prefix: pathlib.Path) -> None:
    check_library(prefix)
    for name, source in (("C++", consumer), ("C", consumer / "c")):
        build = work / f"consumer {name}"
        configure_and_build(source, build, f"-DCMAKE_PREFIX_PATH={prefix}")
        print(f"find_package, {name}:", run(build / "consumer"))
    build_as_the_page_says(work, prefix)
    build_with_pkg_config(consumer, work, prefix)
    if list(prefix.rglob("libmanyhead.so")):
        load_by_name(consumer, work, prefix)
    command = prefix / "bin" / "manyhead"
    assert run(command, "--version") == f"manyhead {version()}"
    run(command, "generate", "-p", "a b a b a", "-n", "4")


def unpack_package(build: pathlib.Path, work: pathlib.Path) -> pathlib.Path:
    """The prefix inside the Debian package, whose fields are looked at on the way."""
    run("cpack", "--config", build / "CPackConfig.cmake", "-B", work / "cpack", cwd=build)
    package, = (work / "cpack").glob("*.deb")
    field = {name: run("dpkg-deb", "-f", package, name)
             for name in ("Package", "Version", "Architecture", "Depends", "Description")}
    print(f"{package.name}: {field['Depends']}")
    assert (field["Package"], field["Version"]) == ("manyhead", version()), field
    assert field["Architecture"] == run("dpkg", "--print-architecture"), field
    depends = {re.match(r"\S+", part.strip())[0] for part in field["Depends"].split(",")}
    wanted = {"libc6", "libdnnl2", "libstdc++6", "libpcre2-8-0", "libutf8proc2"}
    if "static" in library_kind(build):
        wanted |= {"libdnnl-dev", "libpcre2-dev", "libutf8proc-dev", "ocl-icd-opencl-dev"}
    assert wanted <= depends, wanted - depends
    names = {line.split()[5] for line in run("dpkg-deb", "-c", package).splitlines()}
    for name in ("bin/manyhead", "include/manyhead/manyhead.h", "include/manyhead/c_api.h",
                 "lib/cmake/manyhead/manyheadConfig.cmake", "lib/pkgconfig/manyhead.pc",
                 "share/manyhead/bundled.gguf", "share/doc/manyhead/copyright"):
        assert f"./usr/{name}" in names, f"{name} is not in the package"
    run("dpkg-deb", "-x", package, work / "root")
    return work / "root" / "usr"


def library_kind(build: pathlib.Path) -> str:
    return "static" if (build / "libmanyhead.a").exists() else "shared"


def main(words: list[str]) -> int:
    mode = words.pop(0) if words[0].startswith("--") else ""
    build, consumer, work = (pathlib.Path(word).resolve() for word in words[:3])
    missing = [tool for tool in ("dpkg-deb", "dpkg-shlibdeps", "file") if not shutil.which(tool)]
    if mode == "--package" and missing:
        print(f"skipped: {missing} of the packages dpkg-dev and file are not installed")
        return SKIPPED
    for name in ("prefix", "consumer C++", "consumer C", "cpack", "root"):
        shutil.rmtree(work / name, ignore_errors=True)
    work.mkdir(parents=True, exist_ok=True)
    prefix = work / "prefix"
    if mode == "--package":
        prefix = unpack_package(build, work)
    else:
        if mode == "--subdirectory":
            source, build = build, work / "build"
            configure_and_build(consumer / "subdirectory", build, f"-DMANYHEAD_SOURCE_DIR={source}",
                                "-DMANYHEAD_INSTALL=ON", "-DMANYHEAD_BUILD_TOOLS=ON", *words[3:])
            print("add_subdirectory:", run(build / "consumer"))
        run("cmake", "--install", build, "--prefix", prefix)
    check_prefix(consumer, work, prefix)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
