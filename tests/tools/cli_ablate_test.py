#!/usr/bin/env python3
"""Runs `manyhead heads ablate`, `manyhead heads prune` and `--ablate` as their users do.

usage: cli_ablate_test.py COMMAND SOURCE_DIR
"""
import csv
import io
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import time

import cli_testing
from cli_testing import TEXT

EXACT = ("--math", "exact", "--kv-type", "f32")


class AblateTest(cli_testing.CommandTest):
    def nll(self, *flags):
        return self.json("perplexity", "-f", "-", *flags, text=TEXT.read_bytes()[:299])["mean_nll"]

    def test_each_head(self):
        flags = ("heads", "ablate", "-f", str(TEXT), "-c", "300")
        result = self.json(*flags, "--each")
        self.assertEqual((result["text"], result["tokens"], result["math"], result["interrupted"]),
                         ({"file": str(TEXT)}, 300, "fast", False))
        effects = result["heads"]
        self.assertEqual([(effect["layer"], effect["head"]) for effect in effects],
                         [(layer, head) for layer in range(4) for head in range(4)])
        self.assertEqual({tuple(effect) for effect in effects},
                         {("layer", "head", "kv_head", "loss_before", "loss_after", "rise")})
        self.assertAlmostEqual(effects[0]["loss_before"], self.nll(), places=5)
        for index, edits in ((2, "0.2"), (13, "3.1")):
            self.assertAlmostEqual(effects[index]["loss_after"], self.nll("--ablate", edits), places=5)
        some = self.json(*flags, "--each", "1.k1")["heads"]
        rows = csv.DictReader(io.StringIO(self.succeed(*flags, "--each", "1.k1", "-o", "csv").stdout.decode()))
        self.assertEqual([{name: float(value) for name, value in row.items()} for row in rows], some)
        self.assertEqual(some, effects[6:8])
        table = self.succeed(*flags, "--each", "2.3").stdout.decode()
        self.assertRegex(table, r"(?m)^ +2 +3 +1 +\d\.\d{6} +\d\.\d{6} +-?\d\.\d{6}$")

    def test_heads_together(self):
        flags = ("heads", "ablate", "-f", str(TEXT), "-c", "300", "0.k1,1.0=0.5,3.2=mean",
                 "--ablate-means", str(TEXT))
        result = self.json(*flags)
        self.assertEqual((result["tokens"], len(result["edits"])), (300, 4))
        self.assertAlmostEqual(result["rise"], result["loss_after"] - result["loss_before"])
        nll = self.nll("--ablate", "0.k1,1.0=0.5,3.2=mean", "--ablate-means", str(TEXT))
        self.assertAlmostEqual(result["loss_after"], nll, places=4)
        self.assertIn("heads edited", self.succeed(*flags).stdout.decode())

    def test_a_kv_head_that_nobody_reads_takes_no_bytes(self):
        flags = ("generate", "-p", "abcabc" * 30, "-n", "3")
        whole = self.json(*flags)["kv"]
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "edits.json")
            file.write_text('[{"layers": [1, 2], "kv_heads": [0]}]', encoding="utf-8")
            less = self.json(*flags, "--ablate", str(file))["kv"]
        self.assertEqual(less["used_bytes"] * 8, whole["used_bytes"] * 6)

    def test_what_is_pruned_is_what_it_promises(self):
        with tempfile.TemporaryDirectory() as folder:
            policy, model = (str(pathlib.Path(folder, name)) for name in ("policy", "less.gguf"))
            result = self.json("heads", "prune", "-f", str(TEXT), "-c", "300", "--max-rise", "0.5",
                               "--heads", "2", "-s", policy, "--gguf", model)
            saved = json.loads(pathlib.Path(policy).read_text(encoding="utf-8"))
            by_policy = self.nll("--kv-policy", policy, *EXACT)
            by_model = self.nll("-m", model, *EXACT)
            after = self.nll("--kv-policy", policy)
            self.assertEqual(sorted(path.name for path in pathlib.Path(folder).iterdir()),
                             ["less.gguf", "policy"])
        self.assertEqual(saved, result["policy"])
        self.assertEqual(len(saved["heads"]), len(result["removed"]))
        self.assertGreater(len(result["removed"]), 0)
        self.assertAlmostEqual(by_policy, by_model, places=5)
        self.assertAlmostEqual(after, result["after"]["mean_nll"], places=4)
        self.assertLessEqual(result["fit_rise"], 0.5)
        self.assertEqual(result["after"]["kv_bytes"] * 8,
                         result["before"]["kv_bytes"] * (8 - len(result["removed"])))
        self.assertLess(result["after"]["weight_bytes"], result["before"]["weight_bytes"])
        table = self.succeed("heads", "prune", "-f", str(TEXT), "-c", "256", "--max-rise", "0",
                             "--uniform").stdout.decode()
        self.assertRegex(table, r"(?m)^held out +\d\.\d{4} +\d\.\d{4} +-?\d\.\d{4}$")
        self.assertIn("of 8 KV heads removed; 256 tokens, 64 held out", table)

    def test_what_it_refuses(self):
        ablate, prune = ("heads", "ablate", "-p", "abcd"), ("heads", "prune", "-p", "abcd")
        self.fail_with(2, "EDITS, --patch or --each is needed", *ablate)
        self.fail_with(1, "item \"4.0\": layer = 4; expected 0..3", *ablate, "4.0")
        self.fail_with(1, "head = 4 of layer 3; expected 0..3", *ablate, "--each", "3.4")
        self.fail_with(1, "layer 0 would have 4 of its 4 heads off; expected at most 3", *ablate, "0.*")
        self.fail_with(1, "expected no =EDIT", *ablate, "--each", "0.1=0.5")
        self.fail_with(1, "--ablate-means FILE names it", *ablate, "0.1=mean")
        self.fail_with(1, "the text has 1 tokens; expected at least 2", "heads", "ablate", "-f", "-",
                       "0.1", text=b"")
        self.fail_with(1, "head 0.1 is named by two items", "generate", "-p", "a", "--ablate", "0.1,0.*")
        self.fail_with(1, "the text has 5 tokens; expected at least 256", *prune, "--max-rise", "1")
        self.fail_with(2, "--max-rise is required", *prune)
        self.fail_with(2, "'-1' is not a number, at least 0", *prune, "--max-rise=-1")
        self.fail_with(1, "no/such/x", "heads", "prune", "-f", str(TEXT), "-c", "256", "--max-rise",
                       "0", "-s", "no/such/x")

    def test_interrupted_it_keeps_what_is_done(self):
        for delay in (0.2, 0.4, 0.8, 1.6, 3.2, 6.4):  # until one is late enough, and early enough
            process = subprocess.Popen([cli_testing.COMMAND, "heads", "ablate", "-f", str(TEXT), "-c", "1000",
                                        "--each", "-t", "1", "--math", "exact", "-o", "json"],
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env={**os.environ, "MANYHEAD_ISA": "scalar"})
            time.sleep(delay)
            process.send_signal(signal.SIGINT)
            out, errors = process.communicate(timeout=120)
            if process.returncode != 0:  # nothing was known yet
                self.assertIn(process.returncode, (1, -signal.SIGINT), errors)
                self.assertEqual(out, b"")
                continue
            result = json.loads(out)
            done = result["heads"]
            self.assertEqual(result["interrupted"], len(done) < 16)
            self.assertIn(len(done), range(17))
            self.assertEqual(f"interrupted: {len(done)} heads done" in errors.decode(), len(done) < 16)
            if 0 < len(done) < 16:
                return
        self.fail("no interrupt came between the first head and the last")


if __name__ == "__main__":
    cli_testing.main()
