#!/usr/bin/env python3
"""`manyhead memory` plans, measures, draws and refuses as it should. No time is compared with anything.

usage: memory_test.py COMMAND SOURCE_DIR
"""
import csv
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree

COMMAND, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
FIELDS = ["d_model", "num_heads", "num_kv_heads", "head_dim", "layers", "context", "batch", "kv_type", "parameters",
          "weight_bytes", "kv_bytes_per_token", "kv_bytes", "scratch_bytes", "total_bytes", "flops"]
CONFIG = {"model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 32,
          "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 14336, "vocab_size": 131072}
TINY = "--d-model 64 --heads 1,2 --kv-heads 0,1 --layers 2 --d-ff 96 --vocab 100 -c 70 -t 1".split()


def memory(*words, text=""):
    return subprocess.run([COMMAND, "memory", *map(str, words)], input=text, capture_output=True, text=True,
                          check=False)


def rows(*words, text=""):
    done = memory(*words, "-o", "json", text=text)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class PlanTest(unittest.TestCase):
    def test_fields_and_order_of_combinations(self):
        found = rows("--d-model", 256, "--heads", "2,4", "-c", "1k,2k", "--kv-type", "f16,int8", "--batch", "1,4")
        self.assertEqual(len(found), 16)
        for row in found:
            self.assertEqual(list(row)[:len(FIELDS)], FIELDS)
            self.assertEqual(list(row["flops"])[:3], ["projections", "scores", "total"])
            self.assertEqual(row["kv_bytes"], row["kv_bytes_per_token"] * row["context"] * row["batch"])
        self.assertEqual([(r["num_heads"], r["context"], r["batch"], r["kv_type"]) for r in found[:5]],
                         [(2, 1024, 1, "f16"), (2, 1024, 1, "int8"), (2, 1024, 4, "f16"), (2, 1024, 4, "int8"),
                          (2, 2048, 1, "f16")])
        self.assertEqual(found[8]["num_heads"], 4)

    def test_one_layer_of_attention(self):
        for row in rows("--d-model", 1024, "--heads", "8,16,32"):
            self.assertEqual(row["parameters"], 4194304)
        row, = rows("--d-model", 4096, "--heads", 32, "-c", 2048)
        self.assertEqual(row["flops"]["projections"], 8 * 2048 * 4096**2)
        self.assertEqual(row["flops"]["scores"], 4 * 2048**2 * 4096)
        self.assertEqual(row["flops"]["total"], 8 * 2048 * 4096**2 + 4 * 2048**2 * 4096)
        mha, gqa = rows("--d-model", 4096, "--heads", 32, "--kv-heads", "32,8", "-c", "2k")
        few, = rows("--d-model", 4096, "--heads", 8, "-c", "2k")
        self.assertEqual(few["parameters"], mha["parameters"])
        self.assertEqual(few["flops"]["scores"], mha["flops"]["scores"])
        self.assertEqual(4 * few["score_matrix_bytes"], mha["score_matrix_bytes"])
        self.assertEqual(few["kv_bytes"], mha["kv_bytes"])
        self.assertEqual(4 * gqa["kv_bytes"], mha["kv_bytes"])
        self.assertIn("head_dim = 512", few["warnings"][0])

    def test_config_on_standard_input(self):
        row, = rows("--config", "-", "-c", "1k", text=json.dumps(CONFIG))
        self.assertEqual(row["parameters"], 12247782400)
        self.assertEqual(row["kv_bytes_per_token"], 163840)
        self.assertEqual(row["weight_bytes"], 2 * 12247782400 + 2 * 81 * 5120)  # norms are f32

    def test_layers_and_heads(self):
        row, = rows("-m", "bundled", "-c", 512, "--per-head", "--kv-policy", "sink(4)+recent(64)")
        layers = row["per_layer"]
        self.assertEqual(len(layers), row["layers"])
        for key in ("kv_bytes", "kv_bytes_per_token"):
            self.assertEqual(sum(layer[key] for layer in layers), row[key])
            for layer in layers:
                self.assertEqual(sum(head[key] for head in layer["per_head"]), layer[key])
        self.assertEqual(layers[0]["per_head"][0]["kv_policy"], "sink(4)+recent(64)")
        text = memory("-m", "bundled", "-c", 512, "--per-head").stdout
        self.assertIn("each KV head of", text)

    def test_table_and_csv(self):
        lines = memory(*TINY).stdout.splitlines()
        self.assertEqual(lines[0].split()[:2], ["d_model", "heads"])
        self.assertEqual(len(lines), 5)
        found = list(csv.DictReader(io.StringIO(memory(*TINY, "-o", "csv").stdout)))
        self.assertEqual(len(found), 4)
        self.assertEqual([row["num_heads"] for row in found], ["1", "1", "2", "2"])
        self.assertIn("flops.projections", found[0])

    def test_refusals(self):
        for words, code, message in [
            ((), 2, "-m, --config, or --d-model and --heads"),
            (("--d-model", 100, "--heads", 7), 2, "d_model = 100 is not a multiple of num_heads = 7"),
            (("--d-model", 64, "--heads", 4, "--kv-heads", 3), 2,
             "num_heads = 4 is not a multiple of num_kv_heads = 3"),
            (("--d-model", -4, "--heads", 4), 2, "--d-model"),
            (("--d-model", "9999999999999999k", "--heads", 4), 2, "is not a whole number"),
            (("--d-model", "64,", "--heads", 4), 2, "--d-model"),
            (("--d-model", 64, "--heads", 4, "--kv-type", "f16,f15"), 2, "'f15' is not one of"),
            (("--d-model", 64, "--heads", 4, "-m", "bundled"), 2, "excludes"),
            (("--config", "a", "-m", "bundled"), 2, "excludes"),
            (("--d-model", 64, "--heads", 4, "--measure", "--batch", 2), 2, "runs one sequence"),
            (("-m", "/nowhere.gguf"), 1, "/nowhere.gguf"),
            (("--config", "/nowhere.json"), 1, "/nowhere.json"),
            (("--d-model", "1,2,3,4,5,6,7,8,9,10", "--heads", ",".join(["1"] * 400), "--layers",
              ",".join(["1"] * 300)), 2, "combinations"),
        ]:
            done = memory(*words)
            self.assertEqual(done.returncode, code, (words, done.stderr))
            self.assertIn(message, done.stderr)
            self.assertEqual(done.stdout, "")
        done = memory("--config", "-", text=json.dumps({**CONFIG, "num_attention_heads": 0}))
        self.assertEqual(done.returncode, 1)
        self.assertIn("num_attention_heads = 0; expected a whole number from 1 to", done.stderr)

    def test_devices_pipes_and_endless_files_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            fifo = pathlib.Path(folder, "pipe")
            os.mkfifo(fifo)
            for path in ("/dev/zero", fifo, folder):
                for flags in (("--config", path), ("--d-model", 64, "--heads", 1, "--kv-policy", path)):
                    done = memory(*flags)
                    self.assertIn(done.returncode, (1, 2), flags)
                    self.assertIn(str(path), done.stderr)
        done = memory("--d-model", 64, "--heads", 1, "--kv-policy", "budget(16)+recent(8)")
        self.assertEqual(done.returncode, 2)
        self.assertIn("at least sink + recent + 32", done.stderr)

    def test_what_cannot_be_held_is_refused_before_it_is_written(self):
        done = memory("--measure", "--d-model", 1 << 20, "--heads", 8192, "--layers", 100, "-c", 64)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "random weights take .*; .* has room for|of memory; .* are available")
        done = memory("--measure", "--d-model", 1, "--heads", 1, "-c", 4, "-n", 1)
        self.assertEqual(done.returncode, 1)
        self.assertIn("head_dim = 1 cannot be measured", done.stderr)
        done = memory(*TINY, "--measure", "--figure", "x.png")
        self.assertEqual(done.returncode, 2)
        self.assertIn("x.png", done.stderr)

    def test_combinations_of_lists_that_do_not_divide_are_left_out(self):
        done = memory("--d-model", 256, "--heads", "2,4", "--kv-heads", "1,4,0", "-o", "json")
        self.assertEqual([(row["num_heads"], row["num_kv_heads"]) for row in json.loads(done.stdout)],
                         [(2, 1), (2, 2), (4, 1), (4, 4), (4, 4)])
        self.assertIn("2 heads with 4 key/value heads are left out", done.stderr)
        self.assertEqual(done.stderr.count("left out"), 1)
        self.assertEqual(memory("--d-model", 256, "--heads", "2,4", "--kv-heads", "3,8").returncode, 2)

    def test_warnings_go_to_stderr_once(self):
        done = memory("--d-model", 64, "--heads", 4, "-c", "64,128", "-o", "json")
        self.assertEqual(done.stderr.count("warning: head_dim = 16"), 1)
        for row in json.loads(done.stdout):
            self.assertEqual(len(row["warnings"]), 1)


class MeasureTest(unittest.TestCase):
    def test_measured_beside_planned(self):
        for words in (TINY, ("-m", "bundled", "-c", "70,200", "-t", 1), (*TINY, "--qk-norm", "--weight-type", "q8_0")):
            for row in rows(*words, "--measure", "-n", 4):
                measured = row["measured"]
                for key in ("kv_bytes", "kv_table_bytes", "scratch_bytes"):
                    self.assertEqual(measured[key], row[key], key)
                self.assertGreater(measured["resident_bytes"], row["kv_bytes"] + row["weight_bytes"])
                for key in ("prefill_tokens_per_second", "decode_tokens_per_second", "seconds_per_head",
                            "of_roofline"):
                    self.assertGreater(measured[key], 0, key)

    def test_every_weight_type_runs(self):
        for name in "f16 bf16 f32 q8_0 q4_0 q4_k q6_k".split():
            row, = rows("--d-model", 256, "--heads", 2, "--d-ff", 256, "--vocab", 16, "-c", 12, "--measure", "-n", 2,
                        "--weight-type", name)
            self.assertGreater(row["measured"]["decode_tokens_per_second"], 0)

    def test_what_cannot_run_is_named(self):
        config = {**CONFIG, "model_type": "mixtral", "hidden_size": 64, "num_hidden_layers": 1, "head_dim": 16,
                  "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 32, "vocab_size": 16,
                  "num_local_experts": 2, "num_experts_per_tok": 1}
        done = memory("--config", "-", "-c", 16, "--measure", "-o", "json", text=json.dumps(config))
        self.assertEqual(done.returncode, 1)
        self.assertIn("experts", done.stderr)
        self.assertEqual(json.loads(done.stdout), [])

    def test_interrupt_keeps_what_is_done(self):
        command = [COMMAND, "memory", "--d-model", "64", "--heads", "1", "--layers", "1", "--measure", "-t", "1", "-o",
                   "json", "-c", ",".join(["64"] * 3 + ["60000"] * 40)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            time.sleep(1.5)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertLess(len(json.loads(out)), 43)

    def test_figure(self):
        with tempfile.TemporaryDirectory() as folder:
            page, picture = pathlib.Path(folder, "a.html"), pathlib.Path(folder, "a.svg")
            for path in (page, picture):
                done = memory(*TINY, "--measure", "-n", 2, "--figure", path)
                self.assertEqual(done.returncode, 0, done.stderr)
            text = page.read_text(encoding="utf-8")
            self.assertIn("prefers-color-scheme: dark", text)
            self.assertIn("@media print", text)
            root = xml.etree.ElementTree.fromstring(picture.read_text(encoding="utf-8"))
            words = [element.text or "" for element in root.iter()]
            for word in ("MHA", "MQA", "query heads", "Resident memory, all", "KV cache"):
                self.assertIn(word, words)
            for found in (text, picture.read_text(encoding="utf-8")):
                links = found.replace("http://www.w3.org/2000/svg", "")
                for word in ("http:", "https:", "src=", "@import", "url("):
                    self.assertNotIn(word, links)
            self.assertNotIn("nan", text)
            done = memory(*TINY, "--figure", pathlib.Path(folder, "none", "a.html"))
            self.assertEqual(done.returncode, 1)
            self.assertIn("cannot create", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
