#!/usr/bin/env python3
"""Outputs of heads exported, patched from another text, and losses token by token, by the command.

usage: cli_research_test.py COMMAND SOURCE_DIR
"""
import ast
import csv
import io
import math
import pathlib
import struct
import tempfile
import unittest
import zipfile

import cli_testing

TEXT = "x7k2qz x7k2qz x7k2qz"
OTHER = "abc9de abc9de fgh1ij"


def read_npz(path):
    """{name: (shape, numbers)}, read by the standard library alone, which checks every CRC."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for entry in archive.infolist():
            data = archive.read(entry)
            assert data[:8] == b"\x93NUMPY\x01\x00" and entry.filename.endswith(".npy")
            size = struct.unpack("<H", data[8:10])[0]
            assert (10 + size) % 64 == 0
            header = ast.literal_eval(data[10:10 + size].decode())
            assert not header["fortran_order"]
            kind = {"<f4": "f", "<i8": "q"}[header["descr"]]
            count = math.prod(header["shape"])
            arrays[entry.filename.removesuffix(".npy")] = (
                header["shape"], struct.unpack(f"<{count}{kind}", data[10 + size:]))
    return arrays


class ResearchTest(cli_testing.CommandTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.other = self.folder / "other.txt"
        self.other.write_text(OTHER, encoding="utf-8")

    def export(self, *flags, text=TEXT):
        path = self.folder / "heads.npz"
        self.succeed("heads", "export", "-p", text, "-o", str(path), "--math", "exact", *flags)
        return read_npz(path)

    def test_export_has_every_head(self):
        arrays = self.export()
        n = len(TEXT) + 1
        self.assertEqual(arrays["tokens"][0], (1, n))
        self.assertEqual(sorted(arrays), sorted(
            ["tokens", *(f"blocks.{l}.attn.hook_{k}" for l in range(4) for k in ("pattern", "z"))]))
        for layer in range(4):
            shape, weights = arrays[f"blocks.{layer}.attn.hook_pattern"]
            self.assertEqual(shape, (1, 4, n, n))
            for row in range(4 * n):
                self.assertAlmostEqual(sum(weights[row * n:(row + 1) * n]), 1, places=5)
                self.assertEqual(set(weights[row * n + row % n + 1:(row + 1) * n]) - {0.0}, set())
            shape, outputs = arrays[f"blocks.{layer}.attn.hook_z"]
            self.assertEqual(shape[:3], (1, n, 4))
            self.assertTrue(all(map(math.isfinite, outputs)) and any(outputs))

    def test_export_of_some_heads_and_arrays(self):
        everything = self.export()
        some = self.export("--heads", "1.2,3.*", "--what", "pattern")
        n = len(TEXT) + 1
        self.assertEqual(sorted(some), ["blocks.1.attn.hook_pattern", "blocks.3.attn.hook_pattern",
                                        "tokens"])
        self.assertEqual(some["blocks.3.attn.hook_pattern"], everything["blocks.3.attn.hook_pattern"])
        self.assertEqual(some["blocks.1.attn.hook_pattern"],
                         ((1, 1, n, n), everything["blocks.1.attn.hook_pattern"][1][2 * n * n:3 * n * n]))
        self.fail_with(1, "layer = 4; expected 0..3", "heads", "export", "-p", TEXT, "-o",
                       str(self.folder / "no.npz"), "--heads", "4.0")
        self.fail_with(1, "--heads takes no positions", "heads", "export", "-p", TEXT, "-o",
                       str(self.folder / "no.npz"), "--heads", "1.0@3")
        self.assertFalse((self.folder / "no.npz").exists())
        self.fail_with(2, "--output", "heads", "export", "-p", TEXT)

    def test_numpy_reads_it(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("numpy is not installed")
        arrays = self.export()
        with numpy.load(self.folder / "heads.npz") as file:
            self.assertEqual(set(file.files), set(arrays))
            for name, (shape, numbers) in arrays.items():
                self.assertEqual(file[name].shape, shape)
                self.assertEqual(tuple(file[name].ravel().tolist()), numbers)

    def test_a_patched_head_has_the_outputs_of_the_other_text(self):
        source = self.export(text=OTHER)["blocks.1.attn.hook_z"]
        patched = self.export("--patch", "1.2@3-5:8", "--patch-from", str(self.other))
        plain = self.export()
        (_, n, heads, width), values = patched["blocks.1.attn.hook_z"]
        for t in range(n):
            for head in range(heads):
                at = (t * heads + head) * width
                mine = values[at:at + width]
                if head == 2 and 8 <= t <= 10:
                    other = ((t - 5) * heads + head) * width
                    for a, b in zip(mine, source[1][other:other + width], strict=True):
                        self.assertAlmostEqual(a, b, places=2)  # the source's cache is f16
                else:
                    self.assertEqual(mine, plain["blocks.1.attn.hook_z"][1][at:at + width])
        self.assertNotEqual(patched["blocks.2.attn.hook_z"], plain["blocks.2.attn.hook_z"])

    def test_patches_change_losses_and_texts(self):
        flags = ("--patch", "*.*@5-9", "--patch-from", str(self.other))
        result = self.json("heads", "ablate", "-p", TEXT, *flags)
        self.assertEqual((len(result["patches"]), result["edits"]), (16, []))
        self.assertEqual(result["patches"][0], {"layer": 0, "head": 0, "position": 5, "count": 5})
        self.assertNotEqual(result["loss_before"], result["loss_after"])
        nll = self.json("perplexity", "-p", TEXT, *flags)["mean_nll"]
        self.assertAlmostEqual(result["loss_after"], nll, places=5)
        own = self.folder / "own.txt"
        own.write_text(TEXT, encoding="utf-8")
        same = self.json("heads", "ablate", "-p", TEXT, "--math", "exact", "--patch", "2.*",
                         "--patch-from", str(own))
        self.assertAlmostEqual(same["rise"], 0, places=6)
        text = self.succeed("generate", "-p", TEXT, "-n", "6").stdout
        other = self.succeed("generate", "-p", TEXT, "-n", "6", "--patch", "*.*@1-15", "--patch-from",
                             str(self.other)).stdout
        self.assertNotEqual(text, other)

    def test_bad_patches(self):
        flags = ("heads", "ablate", "-p", TEXT, "--patch")
        self.fail_with(1, "positions 99..99 of head 0.0; expected some of 0..", *flags, "0.0@99",
                       "--patch-from", str(self.other))
        self.fail_with(1, "expected a position after @", *flags, "0.0@x", "--patch-from", str(self.other))
        self.fail_with(1, "No such file", *flags, "0.0", "--patch-from", str(self.folder / "none"))
        self.fail_with(2, "--patch-from", *flags, "0.0")
        self.fail_with(2, "expected no --patch", *flags, "0.0", "--patch-from", str(self.other), "--each")

    def test_losses_of_every_token(self):
        for context in ("64", "8"):  # one window, and windows that advance by half a context
            flags = ("perplexity", "-p", TEXT, "-c", context)
            result = self.json(*flags, "--per-token")
            tokens = result["per_token"]
            self.assertEqual(len(tokens), result["tokens"])
            self.assertEqual("".join(token["text"] for token in tokens[1:]), TEXT)
            self.assertIsNone(tokens[0]["nll"])
            losses = [token["nll"] for token in tokens[1:]]
            self.assertAlmostEqual(sum(losses) / len(losses), result["mean_nll"])
            rows = list(csv.DictReader(io.StringIO(
                self.succeed(*flags, "--per-token", "-o", "csv").stdout.decode())))
            self.assertEqual([float(row["nll"]) for row in rows[1:]], losses)
        self.assertNotIn("per_token", self.json("perplexity", "-p", TEXT))
        table = self.succeed("perplexity", "-p", TEXT, "--per-token").stdout.decode()
        self.assertRegex(table, r"(?m)^ +3 +\d+ +\d+\.\d{4} +k$")
        self.fail_with(2, "-o csv needs --per-token", "perplexity", "-p", TEXT, "-o", "csv")


if __name__ == "__main__":
    cli_testing.main()
