#!/usr/bin/env python3
"""Ctrl-C at any moment of a run: it ends with what there is, or at once while the program starts.

usage: interrupt_test.py COMMAND SOURCE_DIR
"""
import json
import pathlib
import signal
import subprocess
import sys
import time

DELAYS = [0.004 * 1.35**i for i in range(16)]  # 4 ms to 0.36 s
JOBS = (
    ("generate", "-p", "x7k2qz x7k2qz x7k", "-n", "100000000", "-c", "100000", "-o", "json"),
    # Nearly all its time it reads the prompt.
    ("generate", "-f", "{root}/README.md", "-n", "1", "-c", "100000", "-o", "json"),
    ("perplexity", "-f", "{root}/README.md", "-c", "4096", "-o", "json"),
)


def interrupt(command: str, job: list[str], delay: float) -> tuple[int, bytes, bytes]:
    process = subprocess.Popen([command, *job], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    return process.returncode, output, errors


def main(command: str, root: pathlib.Path) -> int:
    errors, results = [], 0
    for job in JOBS:
        words = [word.replace("{root}", str(root)) for word in job]
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
