#!/usr/bin/env python3
"""Writes blocks of every GGUF weight type with the numbers they stand for, by gguf-py's NumPy reference.

usage: make_quant_golden.py > tests/linear/data/quant_golden.txt     (needs: pip install numpy gguf)

Blocks are random bytes (seed below) whose f16 scales are set to one extreme after the other, so that every
bit of a block counts and nothing is merely typical. One block is all ones: its scales are NaN.
"""
import sys

import gguf
import numpy as np

SEED = 20240607
# Offsets of the f16 scales in a block.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82],
          "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
VALUES = [0.0123, -1.75, 65504.0, 6e-8]
PLAIN = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


def blocks_of(name: str, rng: np.random.Generator) -> np.ndarray:
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]][1]
    rows = []
    for i, value in enumerate(VALUES):
        block = rng.integers(0, 256, size, dtype=np.uint8)
        for j, at in enumerate(SCALES[name]):
            scale = np.float16(value if j == 0 else VALUES[i - 1])
            block[at:at + 2] = np.frombuffer(scale.tobytes(), np.uint8)
        rows.append(block)
    rows.append(np.full(size, 255, np.uint8))
    return np.stack(rows)


def plain_bytes(name: str, rng: np.random.Generator) -> np.ndarray:
    # Zeros, subnormals, the largest, infinities, NaN, then anything.
    special = {"F32": [0, 1 << 31, 1, 0x7f7fffff, 0x7f800000, 0xff800000, 0x7fc00000],
               "F16": [0, 1 << 15, 1, 0x3ff, 0x7bff, 0x7c00, 0xfc00, 0x7e00],
               "BF16": [0, 1 << 15, 0x80, 0x7f7f, 0x7f80, 0xff80, 0x7fc0]}[name]
    integer = np.uint32 if name == "F32" else np.uint16
    rest = rng.normal(size=37 - len(special)).astype(np.float32)
    bits = {"F32": rest.view(np.uint32), "F16": rest.astype(np.float16).view(np.uint16),
            "BF16": (rest.view(np.uint32) >> 16).astype(np.uint16)}[name]
    return np.concatenate([np.array(special, integer), bits.astype(integer)]).view(np.uint8)


def widen(name: str, data: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        if name in ("F32", "F16"):
            return data.view(PLAIN[name]).astype(np.float32)
        return gguf.quants.dequantize(data, gguf.GGMLQuantizationType[name]).astype(np.float32)


def main() -> None:
    rng = np.random.default_rng(SEED)
    out = sys.stdout
    out.write("# quant golden 1: type, bytes of a row, bits of the f32 numbers they stand for\n"
              f"# tools/make_quant_golden.py, seed {SEED}, gguf.quants.dequantize\n")
    for name in PLAIN:
        data = plain_bytes(name, rng)
        out.write(f"{name} {data.tobytes().hex()} {widen(name, data).tobytes().hex()}\n")
    for name in SCALES:
        for block in blocks_of(name, rng):
            values = widen(name, block.reshape(1, -1)).reshape(-1)
            out.write(f"{name} {block.tobytes().hex()} {values.tobytes().hex()}\n")


if __name__ == "__main__":
    main()
