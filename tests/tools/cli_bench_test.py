#!/usr/bin/env python3
"""Runs `manyhead bench` and `manyhead bench attention` as their users do.

usage: cli_bench_test.py COMMAND SOURCE_DIR
"""
import csv
import io
import json
import os
import pathlib
import subprocess
import tempfile
import time

import cli_testing
from cli_testing import BUNDLED, COMMAND, CommandTest


class BenchTest(CommandTest):
    FLAGS = ("bench", "-p", "16", "-n", "4,6", "-d", "0,32", "-r", "2", "-t", "1,2")

    def test_rows_and_fields(self):
        rows = self.json(*self.FLAGS)
        self.assertEqual(len(rows), 12)
        for row in rows:
            self.assertEqual(len(row["samples_ts"]), 2)
            self.assertAlmostEqual(row["avg_ts"], sum(row["samples_ts"]) / 2, delta=1e-6 * row["avg_ts"])
            self.assertGreater(row["peak_resident_bytes"], row["model_size"] // 2)
            self.assertGreater(row["kv_bytes_per_token"], 0)
            if row["n_gen"]:
                self.assertGreater(row["bandwidth_percent"], 0)
                self.assertGreaterEqual(row["kv_read_bytes_per_token"], row["kv_bytes_per_token"])
            else:
                self.assertIsNone(row["bandwidth_percent"])
        for name in ("model_type", "model_filename", "model_n_params", "n_prompt", "n_depth",
                     "n_threads", "stddev_ts", "type_k", "type_v", "weight_bytes_per_token"):
            self.assertIn(name, rows[0])
        by_test = {}
        for row in rows:
            key = (row["n_prompt"], row["n_gen"], row["n_depth"])
            by_test.setdefault(key, set()).add(row["ids_checksum"])
        self.assertEqual({len(sums) for sums in by_test.values()}, {1}, "threads change the ids")

    def test_profiled_heads_leave_the_ids_alone(self):
        flags = ("bench", "-p", "0", "-n", "6", "-d", "40", "-r", "1")
        (plain,), (profiled,) = self.json(*flags), self.json(*flags, "--profile-heads")
        self.assertEqual((plain["profiles_heads"], profiled["profiles_heads"]), (False, True))
        self.assertEqual(plain["ids_checksum"], profiled["ids_checksum"])

    def test_medians_and_the_environment(self):
        row, = self.json("bench", "-p", "8", "-n", "0", "-r", "9", "--warmup", "2")
        samples = sorted(row["samples_ts"])
        self.assertEqual(row["median_ts"], samples[4])
        self.assertEqual((row["median_low_ts"], row["median_high_ts"]), (samples[1], samples[7]))
        self.assertAlmostEqual(row["median_coverage"], 0.9609375)
        for name in ("build_commit", "compiler", "cpus_allowed", "isa", "kv_policy", "weights"):
            self.assertTrue(row[name], name)
        for name in ("cpu_governor", "cpu_mhz_before", "cpu_mhz_after", "load_average"):
            self.assertIn(name, row)
        self.assertGreater(row["probe_flops_per_second"], 0)
        self.assertGreater(row["model_file_bytes"], row["model_size"])
        one, = self.json("bench", "-p", "8", "-n", "0", "-r", "1", "--warmup", "0")
        self.assertEqual((one["median_ts"], one["median_low_ts"], one["median_coverage"]),
                         (one["samples_ts"][0], None, None))

    def test_several_models_types_and_a_prompt_with_tokens(self):
        flags = ("bench", "-m", "bundled," + str(BUNDLED), "-m", "bundled", "--kv-type", "f16,int8/int4", "-r", "1",
                 "-t", "1")
        rows = self.json(*flags, "-pg", "6,1k", "-pg", "3,4")
        self.assertEqual([(row["type_k"], row["type_v"], row["n_prompt"], row["n_gen"]) for row in rows],
                         [(*types, *test) for _ in range(3) for types in (("f16", "f16"), ("int8", "int4"))
                          for test in ((6, 1024), (3, 4))])
        self.assertEqual({row["bandwidth_bytes_per_second"] for row in rows},
                         {rows[0]["bandwidth_bytes_per_second"]}, "measured once a run")
        for row in rows:
            self.assertIsNone(row["bandwidth_percent"])
            self.assertAlmostEqual(row["avg_ts"], (row["n_prompt"] + row["n_gen"]) * 1e9 / row["samples_ns"][0],
                                   delta=1e-6 * row["avg_ts"])
        whole, = self.json(*flags[:1], "-p", "0", "-n", "6", "-d", "5", "-r", "1")
        self.assertNotIn("+", whole["model_type"])

    def test_rows_come_as_they_are_done(self):
        with subprocess.Popen([COMMAND, "bench", "-p", "4", "-n", "0", "-r", "1", "-d", "0,0", "--delay", "3", "-o",
                               "jsonl"], stdout=subprocess.PIPE, text=True) as process:
            first = json.loads(process.stdout.readline())
            begin = time.monotonic()
            second = json.loads(process.stdout.readline())
            self.assertGreater(time.monotonic() - begin, 2, "the second row waits, the first does not")
        self.assertEqual((first["n_prompt"], second["n_prompt"]), (4, 4))

    def test_every_form_of_output(self):
        flags = ("bench", "-p", "4", "-n", "2", "-r", "2", "-t", "1")
        lines = self.succeed(*flags, "-o", "jsonl").stdout.decode().splitlines()
        self.assertEqual([json.loads(line)["n_gen"] for line in lines], [0, 2])
        rows = list(csv.DictReader(io.StringIO(self.succeed(*flags, "-o", "csv").stdout.decode())))
        self.assertEqual([row["bandwidth_percent"] == "" for row in rows], [True, False])
        text = self.succeed(*flags, "-o", "csv").stdout.decode()
        self.assertIn(",4,0,0,", text, "numbers are not quoted")
        markdown = self.succeed(*flags, "-o", "md").stdout.decode().splitlines()
        self.assertTrue(markdown[0].startswith("| model | size |"))
        self.assertTrue(markdown[1].startswith("|---|---:|"))
        self.assertEqual([line.split(" | ")[5] for line in markdown[2:4]], ["pp4", "tg2"])
        one, = self.json("bench", "--profile", "-n", "2", "-r", "1", "-t", "1")
        line = json.loads(self.succeed("bench", "--profile", "-n", "2", "-r", "1", "-t", "1", "-o", "jsonl").stdout)
        self.assertEqual(list(one), list(line))

    def test_cpu_mask_and_more_threads_than_cpus(self):
        cpu = min(os.sched_getaffinity(0))
        row, = self.json("bench", "-p", "4", "-n", "0", "-r", "1", "--cpu-mask", f"{1 << cpu:x}")
        self.assertEqual((row["cpus_allowed"], row["n_threads"]), (str(cpu), 1))
        done = self.succeed("bench", "-p", "4", "-n", "0", "-r", "1", "-t", "2", "--cpu-mask", f"0x{1 << cpu:x}")
        self.assertIn(b"warning: 2 threads share the 1 CPU that this process may use", done.stderr)
        self.fail_with(1, "--cpu-mask names CPU 4095; this process may use", "bench", "--cpu-mask", "8" + "0" * 1023)
        for mask in ("0", "xyz", ""):
            self.fail_with(2, f"'{mask}' is not a mask of at least one CPU", "bench", "--cpu-mask", mask)

    def test_compare(self):
        flags = ("bench", "-p", "16", "-n", "8", "-r", "10", "-t", "1")
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "before.json")
            rows = self.json(*flags)
            for factor, verdict in ((20, "slower"), (1 / 20, "faster")):
                scaled = [{**row, "samples_ns": [max(1, ns / factor) for ns in row["samples_ns"]]} for row in rows]
                path.write_text("\n".join(map(json.dumps, scaled)), encoding="utf-8")
                found = self.json(*flags, "--compare", path)
                self.assertEqual([row["compare_verdict"] for row in found], [verdict] * 2)
                for row in found:  # measured again before it is called so
                    self.assertEqual(len(row["samples_ns"]), 40)
            path.write_text(json.dumps(rows[:1]), encoding="utf-8")
            other = self.json(*flags, "--compare", path)
            self.assertIsNone(other[1]["compare_verdict"])
            text = self.succeed(*flags, "--compare", path).stdout.decode()
            self.assertIn("verdict", text.splitlines()[0])
            self.assertIn("1 not in it", text)
            path.write_text("[3]", encoding="utf-8")
            self.fail_with(1, "row 0 is no row of bench", *flags, "--compare", path)
        self.fail_with(1, "/nowhere", *flags, "--compare", "/nowhere")

    def test_bad_flags_are_named(self):
        for words, message in ((("-pg", "5"), "-pg: '5' is not P,G"), (("-pg", "0,5"), "'0,5'"),
                               (("-pg", "1,x"), "'1,x'"), (("-pg", "1,2,3"), "'1,2,3'"),
                               (("-pg", "1,2", "--profile"), "excludes"), (("--delay", "-1"), "'-1'"),
                               (("--warmup", "-1"), "'-1'"), (("--kv-type", "f16,f15"), "'f15'"),
                               (("-o", "sql"), "table|md|csv|json|jsonl"), (("-p", "1q"), "'1q'")):
            self.fail_with(2, message, "bench", *words)
        self.fail_with(1, "/nowhere.gguf", "bench", "-m", "bundled,/nowhere.gguf", "-p", "4", "-n", "0")

    def test_csv_and_table(self):
        lines = self.succeed(*self.FLAGS, "-o", "csv").stdout.decode().splitlines()
        self.assertEqual(len(lines), 13)
        self.assertIn("avg_ts", lines[0])
        table = self.succeed("bench", "-p", "8", "-n", "4", "-r", "1").stdout.decode()
        self.assertIn("pp8", table)
        self.assertIn("tg4", table)

    def test_profile_accounts_for_the_whole_step(self):
        names = ["embedding", "query/key/value", "rotary + cache write", "attention", "attention output",
                 "norms + additions", "gate/up", "activation", "down", "head", "sampling", "barriers",
                 "everything else"]
        for _ in range(20):  # where others want the CPU, it may be gone between two phases
            decode, = self.json("bench", "--profile", "-n", "20", "-d", "40", "-r", "2", "-t", "1")
            if decode["phases"][-1]["percent"] < 20:
                break
        self.assertEqual((decode["n_prompt"], decode["steps"], decode["tokens"]), (0, 40, 40))
        prompt, = self.json("bench", "--profile", "-p", "30", "-n", "0", "-r", "2", "-t", "2")
        self.assertEqual((prompt["n_prompt"], prompt["steps"], prompt["tokens"]), (30, 2, 60))
        for profile in (decode, prompt):
            phases = profile["phases"]
            self.assertEqual([phase["name"] for phase in phases], names)
            seconds = sum(phase["seconds"] for phase in phases)
            self.assertAlmostEqual(seconds, profile["seconds_per_step"], delta=1e-6 * seconds)
            self.assertAlmostEqual(sum(phase["percent"] for phase in phases), 100, places=3)
            for phase in phases[:-2]:
                self.assertGreater(phase["seconds"], 0, phase)
        rest = decode["phases"][-1]
        self.assertGreaterEqual(rest["seconds"], 0)
        self.assertLess(rest["percent"], 20, "the phases leave out a part of the step")
        # Each product reads the bytes that the file holds of its tensors.
        tensors = self.json("info", "-m", "bundled")["model"]["tensors"]
        for phase, parts in (("query/key/value", ("attn_q", "attn_k", "attn_v")), ("down", ("ffn_down",)),
                             ("attention output", ("attn_output",)), ("gate/up", ("ffn_gate", "ffn_up"))):
            expected = sum(tensor["size_bytes"] for tensor in tensors
                           if tensor["name"].endswith(".weight") and tensor["name"].split(".")[-2] in parts)
            for profile in (decode, prompt):
                row = profile["phases"][names.index(phase)]
                self.assertEqual(row["bytes"], expected, phase)
                bound = max(row["bytes"] / profile["bandwidth_bytes_per_second"],
                            row["flops"] / profile["flops_per_second"])
                self.assertAlmostEqual(row["bound_seconds"], bound, delta=1e-9 * bound + 1e-18)

    def test_profile_as_csv_and_table(self):
        flags = ("bench", "--profile", "-n", "2", "-p", "3,5", "-r", "1")
        lines = self.succeed(*flags, "-o", "csv").stdout.decode().splitlines()
        self.assertEqual(len(lines), 1 + 3 * 13)
        self.assertEqual({line.count(",") for line in lines[1:]}, {lines[0].count(",")})
        table = self.succeed(*flags).stdout.decode()
        for word in ("pp3", "pp5", "tg2", "gate/up", "everything else", "GFLOP/s"):
            self.assertIn(word, table)


class BenchAttentionTest(CommandTest):
    FLAGS = ("bench", "attention", "-r", "3", "-t", "2")

    def test_every_combination_with_its_cost_and_error(self):
        rows = self.json(*self.FLAGS, "--heads", "6", "--kv-heads", "1,3", "--head-dim", "40",
                         "--kv-len", "100,600", "--kv-type", "f32,f16,int8,int4", "--softcap", "0,5")
        self.assertEqual(len(rows), 2 * 2 * 4 * 2)
        bound = {"f32": 1e-6, "f16": 1e-6, "int8": 1e-6, "int4": 1e-6}  # error relative to the numbers in the cache
        for row in rows:
            self.assertLess(row["max_abs_error"], bound[row["kv_type"]], row)
            self.assertEqual(len(row["samples_seconds"]), 3)
            self.assertEqual(row["median_seconds"], sorted(row["samples_seconds"])[1])
            self.assertEqual(row["min_seconds"], min(row["samples_seconds"]))
            self.assertEqual(row["flops"], 2 * 6 * row["kv_len"] * 80)
            self.assertGreater(row["of_roofline"], 0)
        bytes_of = {row["kv_type"]: row["bytes"] for row in rows
                    if (row["kv_heads"], row["kv_len"], row["softcap"]) == (3, 600, 0)}
        # Values take 48 elements a row; int8 a scale of 4 bytes; int4 64 nibbles and 2 groups.
        self.assertEqual(bytes_of, {"f32": 3 * 600 * 88 * 4, "f16": 3 * 600 * 88 * 2,
                                    "int8": 3 * 600 * (40 + 4 + 48 + 4),
                                    "int4": 3 * 600 * (20 + 8 + 32 + 8)})

    def test_what_a_window_hides_costs_nothing(self):
        whole, window = self.json(*self.FLAGS, "--kv-len", "2000", "--window", "0,100", "--q-len", "3",
                                  "--sinks", "1", "--alibi", "1")
        self.assertEqual(whole["flops"], 2 * 32 * 256 * (1998 + 1999 + 2000))
        self.assertEqual(window["flops"], 2 * 32 * 256 * 300)
        self.assertEqual(window["bytes"], 8 * 102 * 256 * 2)
        self.assertLess(window["max_abs_error"], 1e-6)

    def test_heads_that_are_off_cost_nothing_and_give_zeros(self):
        whole, half, none = self.json(*self.FLAGS, "--kv-len", "300", "--off", "0,4,8")
        self.assertEqual((half["flops"], half["bytes"]), (whole["flops"] // 2, whole["bytes"] // 2))
        self.assertEqual((none["flops"], none["bytes"]), (0, 0))
        self.assertLess(half["max_abs_error"], 1e-6)
        self.assertEqual(none["max_abs_error"], 0)
        self.fail_with(1, "--off 9 exceeds --kv-heads 8", *self.FLAGS, "--off", "9")

    def test_bad_shapes_name_both_values(self):
        # A bad combination is found before the first is timed.
        self.fail_with(1, "--heads 5 is not a multiple of --kv-heads 2", *self.FLAGS, "--heads", "4,5",
                       "--kv-heads", "2")
        self.fail_with(1, "--q-len 9 exceeds --kv-len 8", *self.FLAGS, "--q-len", "9", "--kv-len", "8")

    def test_soft_caps_may_have_fractions(self):
        rows = self.json(*self.FLAGS, "--kv-len", "70", "--softcap", "0.5,2.25")
        self.assertEqual([row["softcap"] for row in rows], [0.5, 2.25])
        for row in rows:
            self.assertLess(row["max_abs_error"], 1e-6)
        self.fail_with(2, "'x'", *self.FLAGS, "--softcap", "1,x")

    def test_the_table_has_a_line_for_each(self):
        lines = self.succeed(*self.FLAGS, "--kv-len", "64,65").stdout.decode().splitlines()
        self.assertEqual(len(lines), 3)
        for form in ("md", "csv", "jsonl"):
            lines = self.succeed(*self.FLAGS, "--kv-len", "64,1k", "-o", form).stdout.decode().splitlines()
            self.assertEqual(len(lines), {"md": 4, "csv": 3, "jsonl": 2}[form])


if __name__ == "__main__":
    cli_testing.main()
