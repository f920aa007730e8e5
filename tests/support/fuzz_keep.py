#!/usr/bin/env python3
"""Chooses inputs of a fuzzer to keep: fuzz_keep.py CONTROL_FILE FOLDER.

CONTROL_FILE is what libFuzzer's -merge=1 -merge_control_file= wrote: the features of each input. Those that cover most,
at most 60 of 16 KiB and 24 KiB together, replace those that were chosen before in FOLDER, which are named by their
contents; files of other names, such as crash-*, stay.
"""
import hashlib
import pathlib
import re
import sys

MOST_FILES, MOST_BYTES, MOST_BYTES_IN_ALL = 60, 16 << 10, 24 << 10


def main(control, folder):
    lines = pathlib.Path(control).read_text().splitlines()
    count = int(lines[0])
    features = {i: set() for i in range(count)}
    for line in lines[2 + count:]:
        kind, index, *values = line.split()
        if kind == "FT":
            features[int(index)] = set(values)
    inputs = {i: pathlib.Path(lines[2 + i]).read_bytes() for i in range(count)}
    left = {i: found for i, found in features.items() if len(inputs[i]) <= MOST_BYTES}
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    for old in pathlib.Path(folder).iterdir():
        if re.fullmatch("[0-9a-f]{16}", old.name):
            old.unlink()
    covered, bytes_kept, kept = set(), 0, 0
    while left and kept < MOST_FILES:
        # The most new features; of equals the smallest.
        best = max(left, key=lambda i: (len(left[i] - covered), -len(inputs[i]), inputs[i]))
        new = left.pop(best) - covered
        if not new:
            break
        if bytes_kept + len(inputs[best]) > MOST_BYTES_IN_ALL:
            continue
        covered |= new
        pathlib.Path(folder, hashlib.sha256(inputs[best]).hexdigest()[:16]).write_bytes(inputs[best])
        kept, bytes_kept = kept + 1, bytes_kept + len(inputs[best])
    everything = set().union(*features.values())
    print(f"{folder}: {kept} of {count} inputs, {bytes_kept} bytes, {len(covered)} of {len(everything)} features")


main(*sys.argv[1:])
