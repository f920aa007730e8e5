#!/usr/bin/env python3
"""The benchmark programs and scripts run, name what they should, and count right. No time is compared with anything.

usage: bench_test.py COMMAND BENCH_PROGRAM_DIR SOURCE_DIR
"""
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

COMMAND, PROGRAMS, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
sys.path.insert(0, str(SOURCE / "bench"))
sys.dont_write_bytecode = True
import claims  # noqa: E402
import compare  # noqa: E402


def run(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True)


def names_of(program):
    return run(PROGRAMS / program, "--benchmark_list_tests").stdout


def rows_of(program, pattern):
    done = run(PROGRAMS / program, f"--benchmark_filter={pattern}", "--benchmark_min_time=0.001",
               "--benchmark_format=json")
    rows = json.loads(done.stdout)["benchmarks"]
    for row in rows:
        assert "error_message" not in row, row
    return rows


class ProgramsTest(unittest.TestCase):
    def test_attention(self):
        names = names_of("attention_bench")
        for part in ("decode_4k/llama3_8b/int8", "decode_32k/llama2_7b/f16", "append512_4k/qwen2.5_1.5b/f16",
                     "prefill_2k/gemma3_270m/f32", "heads:32/kv_heads:1/head_dim:256", "heads:14/kv_heads:2"):
            self.assertIn(part, names)
        rows = rows_of("attention_bench", "decode_4k/qwen2.5_0.5b/f16/.*threads:1/")
        self.assertEqual(len(rows), 1)
        row, = rows
        # K and V of 2 heads of 64 in f16; 14 query heads.
        self.assertAlmostEqual(row["flops/s"] / row["bytes/s"], 4 * 14 * 64 * 4096 / (2 * 2 * 64 * 2 * 4096), places=6)
        self.assertGreater(row["of_roofline"], 0)

    def test_linear(self):
        names = names_of("linear_bench")
        for part in ("qwen1.5b_up_q4_k/packed/fast", "gemma270m_head_q8_0/mapped/exact", "M:1/", "M:512/"):
            self.assertIn(part, names)
        self.assertNotIn("f16/packed", names)
        rows = rows_of("linear_bench", "qwen1.5b_kv_q4_k/(packed|mapped)/fast/.*threads:1/M:4/")
        self.assertEqual([row["label"].startswith("packed") for row in rows], [True, False])
        for row in rows:  # 144 bytes for 256 weights
            self.assertAlmostEqual(row["flops/s"] / row["bytes/s"], 4 * 2 * 256 / 144, places=6)
            self.assertGreater(row["of_roofline"], 0)

    def test_cache(self):
        rows = rows_of("cache_bench", "gemma3_270m/f16")
        self.assertEqual([row["name"].split("/")[0] for row in rows],
                         ["append1", "append512", "truncate512", "create_free", "fork", "fork_append1"])
        for row in rows:
            self.assertGreater(row.get("of_roofline", row.get("pages/s")), 0)
        # f32 rows read and f16 written.
        one = rows[0]
        self.assertAlmostEqual(one["bytes/s"] / one["items_per_second"] / (18 * 256 * 2 * (4 + 2)), 1, places=6)


class CompareTest(unittest.TestCase):
    def test_without_peers_ours_is_measured_and_drawn(self):
        with tempfile.TemporaryDirectory() as folder:
            file, drawing = pathlib.Path(folder, "x.json"), pathlib.Path(folder, "x.svg")
            kept = {"case": "kept", "seconds": {"manyhead": 1, "ggml": 3}, "rounds": {}, "ratios": {"ggml": 3}}
            file.write_text(json.dumps({"rows": [kept]}), encoding="utf-8")
            done = run(sys.executable, SOURCE / "bench/compare.py", "--command", COMMAND, "--peers", sys.executable,
                       "--rounds", "1", "--only", "14/2", "--json", file, "--svg", drawing)
            self.assertIn("14/2", done.stdout)
            result = json.loads(file.read_text(encoding="utf-8"))
            self.assertEqual([row["case"] for row in result["rows"]],
                             ["kept", "attention 14/2 D 64 q 1 kv 4096 f16"])
            self.assertGreater(result["rows"][1]["seconds"]["manyhead"], 0)
            xml.etree.ElementTree.parse(drawing)

    def test_ratios_are_of_medians_and_a_peer_that_fails_is_left_out(self):
        programs = {"manyhead": lambda case, n: [2.0, 1.0, 4.0], "ggml": lambda case, n: [6.0] * n,
                    "PyTorch": lambda case, n: None}
        row = compare.measure(programs, (), "name", 2, 3)
        self.assertEqual(row["ratios"], {"ggml": 3.0})
        self.assertEqual(row["rounds"]["PyTorch"], [])
        self.assertEqual(row["spread"], 1)
        text = compare.svg([row | {"case": "a < b"}])
        self.assertIn("a &lt; b, ggml", text)
        xml.etree.ElementTree.fromstring(text)
        seconds = iter([1, 1.5, 2])
        row = compare.measure({"manyhead": lambda case, n: [next(seconds)]}, (), "name", 3, 1)
        self.assertEqual((row["spread"], row["seconds"]), (2, {"manyhead": 1.5}))

    def test_a_peer_may_die_decline_or_print_nothing(self):
        peers = compare.Peers([], [])
        for code in ("import os; os.kill(os.getpid(), 4)", "raise SystemExit('no such type')", "print('?')",
                     "import time; time.sleep(9)"):
            self.assertIsNone(peers.call("peer", [sys.executable, "-c", code], timeout=1), code)
        self.assertEqual(peers.call("peer", [sys.executable, "-c", "print('{\"samples_seconds\": [1]}')"]), [1])


class ClaimsTest(unittest.TestCase):
    def test_every_claim_has_a_value(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "x.json")
            done = run(sys.executable, SOURCE / "bench/claims.py", "--command", COMMAND, "--tokens", "64", "--rounds", "1",
                       "-r", "1", "-t", "1", "--models", "bundled", "--json", file, "--only",
                       "threads: .*(2k|bundled)|growth: a window|features: .*(soft|100|window)|roofline: .*(2k|bundled)")
            rows = json.loads(file.read_text(encoding="utf-8"))
        self.assertEqual(len(rows), 4 + 1 + 6 + 3)
        self.assertEqual(len(done.stdout.splitlines()), len(rows))
        for row in rows:
            self.assertTrue(math.isfinite(row["value"]) and row["value"] > 0, row)
            bound = row.get("at_least", row.get("at_most"))
            self.assertEqual(row["holds"], row["value"] >= bound if "at_least" in row else row["value"] <= bound)

    def test_growth_is_measured_from_step_to_step(self):
        class Times:
            def seconds(self, setting):
                return {1: 1.0, 2: 2.0, 4: 5.0}[setting["kv-len"]]
        settings = [{"kv-len": n} for n in (1, 2, 4)]
        claim = claims.doubling("", settings)
        self.assertEqual(claim.value(Times()), 1.25)
        self.assertFalse(claim.holds(1.25))
        self.assertEqual(claims.spread("", settings, [1, 2, 4]).value(Times()), 1.25)
        self.assertEqual(claims.ratio("", 0.8, settings[0], settings[2]).value(Times()), 0.2)


class CompareNoiseTest(unittest.TestCase):
    def test_counts_the_verdicts(self):
        done = run(sys.executable, SOURCE / "bench/compare_noise.py", "--command", COMMAND, "-p", "4", "-n", "0", "-r",
                   "10", "--rounds", "1", "--slow-down", "4000")
        self.assertIn("slower: 1 of 1 right", done.stdout)
        self.assertEqual(len(done.stdout.splitlines()), 4)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
