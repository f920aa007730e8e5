#!/usr/bin/env python3
"""Measures how often `manyhead bench --compare` is right: on the same build, and with a planted slow-down.

usage: compare_noise.py [--command build/release/manyhead] [--other COMMAND] [-m MODEL] [-p 64] [-n 32] [-r N]
                        [--rounds 20] [--slow-down 10] [--strict]

Each round writes a record with --other (another build of the same commit; by default the same), compares the command
with it, and compares again with a record whose times are shortened, as if the command had become slower by that many
percent since. It prints the verdicts; with --strict the exit code is 1 where fewer than 19 of 20 are right.
"""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

RIGHT = 0.95  # the least share of right verdicts


def bench(command, flags, *more):
    done = subprocess.run([command, "bench", *flags, *map(str, more), "-o", "json"], capture_output=True, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"compare_noise.py: {done.stderr.strip()}")
    return json.loads(done.stdout)


def faster(rows, percent):
    """`rows` as a build would have written them that takes less time, so that the present one takes more by `percent`."""
    return [{**row, "samples_ns": [ns / (1 + percent / 100) for ns in row["samples_ns"]]} for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", default="build/release/manyhead")
    parser.add_argument("--other", default="", help="the command that writes the records")
    parser.add_argument("-m", "--model", default="bundled")
    parser.add_argument("-p", "--n-prompt", default="64")
    parser.add_argument("-n", "--n-gen", default="32")
    parser.add_argument("-r", "--repetitions", default="", help="the default of bench unless it is given")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--slow-down", type=float, default=10, help="in percent")
    parser.add_argument("--strict", action="store_true")
    args = parser.parse_args()
    flags = ["-m", args.model, "-p", args.n_prompt, "-n", args.n_gen]
    flags += ["-r", args.repetitions] if args.repetitions else []
    counts = {"no difference": [], "slower": []}
    with tempfile.TemporaryDirectory() as folder:
        record = pathlib.Path(folder, "earlier.json")
        for turn in range(args.rounds):
            earlier = bench(args.other or args.command, flags)
            for expected, rows in (("no difference", earlier), ("slower", faster(earlier, args.slow_down))):
                record.write_text(json.dumps(rows), encoding="utf-8")
                found = bench(args.command, flags, "--compare", record)
                for row in found:
                    counts[expected].append(row["compare_verdict"] == expected)
                text = ", ".join(f"{row['compare_time_ratio']:.3f} ({row['compare_time_ratio_corrected']:.3f}) {row['compare_verdict']}" for row in found)
                print(f"{turn + 1:3} load {os.getloadavg()[0]:5.2f}  {expected} expected: {text}", flush=True)
    shares = {expected: sum(right) / max(1, len(right)) for expected, right in counts.items()}
    for expected, right in counts.items():
        print(f"{expected}: {sum(right)} of {len(right)} right")
    return int(args.strict and min(shares.values()) < RIGHT)


if __name__ == "__main__":
    sys.exit(main())
