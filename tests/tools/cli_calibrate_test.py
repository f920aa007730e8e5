#!/usr/bin/env python3
"""Runs `manyhead calibrate` as its users do.

usage: cli_calibrate_test.py COMMAND SOURCE_DIR
"""
import json
import os
import pathlib
import signal
import subprocess
import tempfile

import cli_testing
from cli_testing import TEXT

FLAGS = ("calibrate", "-f", str(TEXT), "-c", "320", "--probe-tokens", "64")


class CalibrateTest(cli_testing.CommandTest):
    def test_what_it_saves_is_what_it_promises(self):
        with tempfile.TemporaryDirectory() as folder:
            file = str(pathlib.Path(folder, "policy.json"))
            result = self.json(*FLAGS, "--budget", "40%", "--save", file)
            policy = json.loads(pathlib.Path(file).read_text(encoding="utf-8"))
            text = TEXT.read_bytes()[:319]  # a token each, after the begin token
            scored = self.json("perplexity", "-f", "-", "-c", "320", "--kv-policy", file, text=text)
        self.assertEqual(policy, result["policy"])
        before, after = result["before"], result["after"]
        self.assertLessEqual(after["kv_bytes"], result["budget_bytes"])
        self.assertEqual(result["budget_bytes"], before["kv_bytes"] * 4 // 10)
        self.assertEqual(result["fit_tokens"] + result["held_out_tokens"], 319)
        self.assertAlmostEqual(result["rise"], after["mean_nll"] - before["mean_nll"])
        self.assertIn(after, result["candidates"])
        self.assertEqual((result["verified"], result["interrupted"]), (True, False))
        self.assertEqual(scored["tokens"], 320)
        self.assertAlmostEqual(scored["mean_nll"], after["mean_nll"], places=3)

    def test_the_best_mix_wins_though_it_was_not_the_last(self):
        result = self.json("calibrate", "-f", str(TEXT), "-c", "2048", "--budget", "20%")
        losses = [candidate["fit_nll"] for candidate in result["candidates"]]
        self.assertGreater(losses[-1], min(losses))
        self.assertEqual(result["after"]["fit_nll"], min(losses))
        self.assertIn(result["after"], result["candidates"])

    def test_ways_to_print(self):
        table = self.succeed(*FLAGS, "--budget", "1M", "--no-evict", "--types", "int8").stdout.decode()
        self.assertRegex(table, r"(?m)^f16, every token +\S+ KiB +100\.0 % +\d\.\d{4} ")
        self.assertRegex(table, r"(?m)^calibrated +\S+ KiB +\d+\.\d % +\d\.\d{4} ")
        self.assertRegex(table, r"(?m)^rise +-?\d\.\d{4} +-?\d\.\d{4} +-?\d\.\d{4}$")
        self.assertRegex(table, r"(?m)^\d+ KV heads  int8  full$")
        self.assertIn("context 320, 255 tokens to choose by, 64 held out; 1 mixes scored", table)
        policy = self.succeed(*FLAGS, "--budget", "1M", "--no-evict", "--types", "int8", "-o",
                              "policy").stdout
        self.assertEqual({entry["k_type"] for entry in json.loads(policy)["heads"]}, {"int8"})

    def test_what_it_refuses(self):
        for budget in ("0", "-1", "0%", "-5%", "nan%", "%", "12X", "M", "1.5M", "40 %",
                       "9000000000G", "99999999999999999999"):
            self.fail_with(2, f"'{budget}' is not a share such as 40%", "calibrate", "-p", "a",
                           f"--budget={budget}")
        self.fail_with(2, "--budget is required", "calibrate", "-p", "a")
        self.fail_with(2, "'q8' is not one of f32|f16", *FLAGS, "--budget", "1M", "--types", "int8,q8")
        self.fail_with(2, "'63' is not a whole number, at least 64", "calibrate", "-p", "a",
                       "--budget", "1M", "--probe-tokens", "63")
        self.fail_with(1, "the text has 2 tokens; expected at least 256", "calibrate", "-p", "a",
                       "--budget", "40%")
        self.fail_with(1, "the text has 1 tokens; expected at least 256", "calibrate", "-f", "-",
                       "--budget", "40%", text=b"")
        self.fail_with(1, "the text has 2 tokens; expected at least 500, the context", "calibrate",
                       "-p", "a", "--budget", "40%", "-c", "500")
        self.fail_with(1, "a budget of 5 bytes; 320 tokens take at least ", *FLAGS, "--budget", "5")
        self.fail_with(1, "no/such/folder/x: cannot create: No such file", *FLAGS, "--budget",
                       "40%", "--save", "no/such/folder/x")

    def test_interrupted_it_keeps_the_best_so_far(self):
        process = subprocess.Popen([cli_testing.COMMAND, "calibrate", "-f", str(TEXT), "-c", "4000",
                                    "--budget", "50%", "-t", "1", "--math", "exact", "-o", "json"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, "MANYHEAD_ISA": "scalar"})
        self.assertIn(b"warning: --context 4000 exceeds", process.stderr.readline())
        line = process.stderr.readline().decode()  # after two seconds
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)
        self.assertRegex(line, r"calibrating: \d+ of \d+ tokens")
        errors = errors.decode()
        if process.returncode == 1:  # too early on this machine
            self.assertIn("interrupted before the loss with f16 was known", errors)
            return
        self.assertEqual(process.returncode, 0, errors)
        result = json.loads(out)
        self.assertTrue(result["interrupted"])
        self.assertRegex(errors, "interrupted: (the best combination scored so far|a combination from estimates)")
        self.assertLessEqual(result["after"]["kv_bytes"], result["budget_bytes"])
        self.assertEqual(result["after"]["mean_nll"] is None, not result["verified"])


if __name__ == "__main__":
    cli_testing.main()
