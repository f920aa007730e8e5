#!/usr/bin/env python3
"""Ctrl-C at any moment of a run: it ends with what there is, or at once while the program starts.

usage: interrupt_test.py COMMAND SOURCE_DIR
"""
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

DELAYS = [0.004 * 1.35**i for i in range(16)]  # 4 ms to 0.36 s
JOBS = (
    ("generate", "-p", "x7k2qz x7k2qz x7k", "-n", "100000000", "-c", "100000", "-o", "json"),
    # It spends nearly all of its time on the prompt.
    ("generate", "-f", "{text}", "-n", "1", "-c", "100000", "-o", "json"),
    ("perplexity", "-f", "{text}", "-c", "4096", "-o", "json"),
)


def interrupt(command: str, job: list[str], delay: float) -> tuple[int, bytes, bytes]:
    process = subprocess.Popen([command, *job], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def long_text(root: pathlib.Path, folder: str) -> pathlib.Path:
    """A file of about 80,000 tokens, which no machine evaluates before the last signal."""
    path, text = pathlib.Path(folder) / "text.txt", (root / "LICENSE").read_text(encoding="utf-8")
    path.write_text(text * (80_000 // len(text) + 1), encoding="utf-8")
    return path


def main(command: str, root: pathlib.Path) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return interrupt_all(command, long_text(root, folder))


def interrupt_all(command: str, text: pathlib.Path) -> int:
    errors, results = [], 0
    for job in JOBS:
        words = [word.replace("{text}", str(text)) for word in job]
        for delay in DELAYS:
            code, output, messages = interrupt(command, words, delay)
            where = f"{job[0]} after {delay:.3f} s"
            # Before the handler is there, and for jobs without one, the system ends the process.
            if code not in (0, -signal.SIGINT):
                errors.append(f"{where}: exit code {code}: {messages.decode()}")
            elif code == 0 and output.strip():
                json.loads(output)
                results += 1
    if results == 0:
        errors.append("no run gave a result")
    print("\n".join(errors) or f"{results} interrupted runs gave what there was")
    return bool(errors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2])))
