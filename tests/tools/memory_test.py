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
        self.assertEqual(len(lines), 4, "one head has one KV head, listed or not")
        found = list(csv.DictReader(io.StringIO(memory(*TINY, "-o", "csv").stdout)))
        self.assertEqual([(row["num_heads"], row["num_kv_heads"]) for row in found], [("1", "1"), ("2", "2"), ("2", "1")])
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
                         [(2, 1), (2, 2), (4, 1), (4, 4)])
        self.assertIn("2 heads with 4 key/value heads are left out", done.stderr)
        self.assertEqual(done.stderr.count("left out"), 1)
        self.assertEqual(memory("--d-model", 256, "--heads", "2,4", "--kv-heads", "3,8").returncode, 2)

    def test_warnings_go_to_stderr_once(self):
        done = memory("--d-model", 64, "--heads", 4, "-c", "64,128", "-o", "json")
        self.assertEqual(done.stderr.count("warning: head_dim = 16"), 1)
        for row in json.loads(done.stdout):
            self.assertEqual(len(row["warnings"]), 1)


    def test_policies_count_what_they_attend_to(self):
        shape = ("--d-model", 4096, "--heads", 32, "-c", "32k")
        full, window, off = rows(*shape, "--kv-policy", "full,window(1024),off")
        model, = rows(*shape, "--window", 1024)
        self.assertEqual([row["kv_policy"] for row in (full, window, off)], ["full", "window(1024)", "off"])
        self.assertEqual(full["flops"]["scores_seen"], 4 * 4096 * 32768 * 32769 // 2)
        self.assertEqual(window["flops"]["scores_seen"], 4 * 4096 * (1024 * 1025 // 2 + 31744 * 1024))
        self.assertEqual(window["flops"]["scores_seen"], model["flops"]["scores_seen"])
        self.assertEqual(off["flops"]["scores_seen"], 0)
        self.assertEqual(window["decode_kv_bytes"], 1024 * window["kv_bytes_per_token"])
        for row in (full, window, off):
            flops = row["flops"]
            self.assertEqual(flops["total_seen"], flops["projections"] + flops["scores_seen"])
        lines = memory(*shape, "--kv-policy", "full,off").stdout.splitlines()
        self.assertIn("policy", lines[0].split())
        self.assertIn("attended", lines[0].split())

    def test_decode_speed_from_a_bandwidth(self):
        one, eight = rows("-m", "bundled", "-c", 512, "--batch", "1,8", "--bandwidth", "80G")
        model = json.loads(subprocess.run([COMMAND, "info", "-m", "bundled", "-o", "json"], capture_output=True,
                                          check=True).stdout)["model"]
        self.assertEqual(one["decode_weight_bytes"], model["weight_bytes_per_token"])
        self.assertEqual(one["decode_kv_bytes"], 512 * one["kv_bytes_per_token"])
        step = one["decode_weight_bytes"] + one["decode_kv_bytes"]
        self.assertEqual(one["decode_bytes_per_token"], step)
        self.assertAlmostEqual(one["predicted_tokens_per_second"], 80e9 / step, places=3)
        step = eight["decode_weight_bytes"] + eight["decode_kv_bytes"]
        self.assertEqual(eight["decode_kv_bytes"], 8 * one["decode_kv_bytes"])
        self.assertAlmostEqual(eight["predicted_tokens_per_second"], 8 * 80e9 / step, places=3)
        measured, = rows("-m", "bundled", "-c", 512, "--bandwidth", "measure")
        self.assertGreater(measured["predicted_tokens_per_second"], 0)
        plain, = rows("-m", "bundled", "-c", 512)
        self.assertIsNone(plain["predicted_tokens_per_second"])
        self.assertIn("tokens/s", memory("-m", "bundled", "--bandwidth", "80G").stdout.splitlines()[0])

    def test_fit_finds_the_largest_context_and_batch(self):
        shape = ("--d-model", 256, "--heads", 4, "--layers", 2, "--d-ff", 512, "--vocab", 100, "-t", 1)
        plan, = rows(*shape, "-c", 1000, "--batch", 3)
        bytes_ = plan["total_bytes"]
        found = rows(*shape, "--fit", bytes_, "-c", 1000, "--batch", "3,1", "--kv-type", "f16", "--kv-policy", "full")
        self.assertEqual([(row["solved_for"], row["batch"]) for row in found],
                         [("context", 3), ("context", 1), ("batch", 3)])
        self.assertGreaterEqual(found[0]["context"], 1000)
        for row in found[:2]:
            fits, more = rows(*shape, "-c", f"{row['context']},{row['context'] + 1}", "--batch", row["batch"])
            self.assertEqual(fits["total_bytes"], row["total_bytes"])
            self.assertLessEqual(fits["total_bytes"], bytes_)
            self.assertGreater(more["total_bytes"], bytes_)
            self.assertEqual(row["left_bytes"], bytes_ - fits["total_bytes"])
            self.assertEqual(row["kv_cap_bytes"], row["left_bytes"] + fits["kv_peak_bytes"])
        default = rows(*shape, "--fit", "32M")
        self.assertEqual([(row["kv_type"], row["kv_policy"]) for row in default],
                         [(kind, policy) for kind in ("f16", "int8", "int4")
                          for policy in ("full", "sink(4)+recent(4096)")])
        self.assertGreater(default[2]["context"], 1.8 * default[0]["context"])
        none, = rows(*shape, "--fit", 1000, "--kv-type", "f16", "--kv-policy", "full")
        self.assertEqual((none["context"], none["left_bytes"], none["limited_by"]), (None, None, "memory"))
        self.assertIn("nothing fits", memory(*shape, "--fit", 1000).stdout)

    def test_fit_of_a_mixed_70b(self):
        config = {**CONFIG, "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
                  "num_attention_heads": 64, "intermediate_size": 28672, "vocab_size": 128256,
                  "max_position_embeddings": 131072}
        found = rows("--config", "-", "--weight-type", "q4_k_m", "--fit", "64G", "-c", "8k", "--batch", "1", text=json.dumps(config))
        full = found[0]
        self.assertAlmostEqual(full["weight_bytes"], 42.512e9, delta=2e7)
        self.assertEqual(full["kv_bytes_per_token"], 80 * 8 * 128 * 2 * 2)
        room = 64 * 2**30 - full["weight_bytes"]
        self.assertAlmostEqual(full["context"], room / full["kv_bytes_per_token"], delta=0.03 * full["context"])
        self.assertIn("batch", {row["solved_for"] for row in found})
        self.assertEqual((found[1]["limited_by"], found[1]["context"]), ("model", 131072), "any context fits")
        self.assertEqual((found[2]["limited_by"], found[2]["context"] > 131072), ("memory", True))

    def test_groups_and_combinations_that_are_the_same(self):
        found = rows("--d-model", 512, "--heads", "8,4", "--group", "1,2,8")
        self.assertEqual([(row["num_heads"], row["num_kv_heads"]) for row in found],
                         [(8, 8), (8, 4), (8, 1), (4, 4), (4, 2)])
        found = rows("--d-model", 512, "--heads", 8, "--kv-heads", "0,8", "--head-dim", "0,64", "-c", "0,8192,8k",
                     "--kv-type", "f16,f16/f16", "--batch", "1,1")
        self.assertEqual(len(found), 1)
        for words, message in ((("--group", 3), "8 heads in groups of 3: not a multiple"),
                               (("--group", 2, "--kv-heads", 2), "excludes")):
            done = memory("--d-model", 512, "--heads", 8, *words)
            self.assertEqual(done.returncode, 2)
            self.assertIn(message, done.stderr)

    def test_parameters_have_a_unit_and_every_form_of_output(self):
        shape = ("--d-model", 4096, "--heads", 32, "-c", "2k")
        self.assertIn("67.1M", memory(*shape).stdout)
        self.assertTrue(memory(*shape, "-o", "md").stdout.startswith("| d_model | heads |"))
        line = json.loads(memory(*shape, "-o", "jsonl").stdout)
        self.assertEqual([line], rows(*shape))
        row, = csv.DictReader(io.StringIO(memory(*shape, "-o", "csv").stdout))
        self.assertEqual((row["parameters"], row["predicted_tokens_per_second"]), ("67108864", ""))
        self.assertIn("67108864,", memory(*shape, "-o", "csv").stdout)

    def test_answers_refuse_what_they_do_not_understand(self):
        shape = ("--d-model", 512, "--heads", 8)
        for words, message in ((("--fit", "64GB"), "'64GB' is no number of bytes"), (("--fit", 0), "'0'"),
                               (("--bandwidth", "fast"), "'fast' is neither"), (("--bandwidth", "0"), "'0'"),
                               (("--fit", "1G", "--measure"), "excludes"),
                               (("--kv-policy", "full,window(0)"), "window(0)"),
                               (("--weight-type", "q4_k_x"), "q4_k_m")):
            done = memory(*shape, *words)
            self.assertEqual((done.returncode, done.stdout), (2, ""), words)
            self.assertIn(message, done.stderr)
        done = memory(*shape, "--weight-type", "q5_k_m", "--measure", "-c", 32)
        self.assertEqual(done.returncode, 1)
        self.assertIn("in Q5_K; expected F32, F16", done.stderr)


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
                   "json", "-c", ",".join(map(str, [62, 63, 64, *range(60000, 60040)]))]
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
