#!/usr/bin/env python3
"""Runs the manyhead command as its users do, and checks what it prints and how it ends.

usage: cli_test.py COMMAND SOURCE_DIR [--real | unittest options]

--real runs the tests on a real model instead; exit code 77 (skipped) where it has not been fetched.
"""
import json
import math
import os
import pathlib
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

from cli_testing import BUNDLED, COMMAND, PROMPT, CommandTest, run


def real_model():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.environ.get("MANYHEAD_MODEL_DIR") or pathlib.Path(cache) / "manyhead" / "models"
    path = pathlib.Path(folder) / "gemma3-270m.gguf"
    return path if path.exists() else None


class UsageTest(CommandTest):
    def test_every_subcommand_helps_with_examples(self):
        for command in ([], ["generate"], ["tokenize"], ["perplexity"], ["calibrate"], ["bench"],
                        ["bench", "attention"], ["info"], ["heads"], ["heads", "profile"],
                        ["heads", "report"]):
            result = self.succeed(*command, "--help")
            self.assertIn(b"Examples:", result.stdout)
            self.assertEqual(result.stderr, b"")

    def test_a_policy_longer_than_any_file_name(self):
        self.fail_with(2, "is not a policy", "generate", "-p", "a", "--kv-policy", "[" * 5000)

    def test_usage_errors_are_one_line_and_code_2(self):
        generate = ["generate", "-p", "a"]
        for words, args in (
                ("subcommand", []), ("nonsense", ["nonsense"]), ("--bogus", ["info", "--bogus"]),
                ("prompt", ["generate"]), ("'x'", [*generate, "-n", "x"]),
                ("'-1'", [*generate, "-n", "-1"]), ("'1e3'", [*generate, "-n", "1e3"]),
                ("'-0.5'", [*generate, "--temperature", "-0.5"]),
                ("'nan'", [*generate, "--temperature", "nan"]),
                ("'1.5'", [*generate, "--top-p", "1.5"]), ("'2'", [*generate, "--min-p", "2"]),
                ("'0'", [*generate, "--repeat-penalty", "0"]),
                ("'-1'", [*generate, "--top-k", "-1"]), ("'-7'", [*generate, "--seed", "-7"]),
                ("int4", [*generate, "--kv-type", "q8"]), ("'f16/'", [*generate, "--kv-type", "f16/"]),
                ("exact", [*generate, "--math", "quick"]),
                ("window(x)", [*generate, "--kv-policy", "window(x)"]),
                ("'-1'", [*generate, "--kv-budget", "-1"]),
                ("json", [*generate, "-o", "xml"]), ("--stop", [*generate, "--stop", ""]),
                ("'x'", ["generate", "--prompt-ids", "1,x"]),
                ("--prompt", [*generate, "-f", "README.md"]),
                ("'0'", ["bench", "-r", "0"]), ("--n-depth", ["bench", "-d", "1,,2"]),
                ("nothing", ["bench", "-p", "0", "-n", "0"]),
                ("--heads", ["bench", "attention", "--heads", "0"]),
                ("--kv-type", ["bench", "attention", "--kv-type", "f16,f8"]),
                ("--kv-len", ["bench", "attention", "--kv-len", "1,"])):
            self.fail_with(2, words, *args)

    def test_instruction_set_is_lowered_never_raised_or_unknown(self):
        self.fail_with(2, "sse9", "info", env={"MANYHEAD_ISA": "sse9"})
        self.fail_with(2, "MANYHEAD_TEAM = tbb", "info", env={"MANYHEAD_TEAM": "tbb"})
        self.assertEqual(self.json("info", env={"MANYHEAD_TEAM": "openmp"})["team"], "openmp")
        for name in self.json("info")["supported_isas"]:
            result = self.json("generate", "-p", PROMPT, "-n", "4", env={"MANYHEAD_ISA": name})
            self.assertEqual(result["isa"], name)


class FailureTest(CommandTest):
    def test_files_that_cannot_be_read(self):
        self.fail_with(1, "/nonexistent", "generate", "-m", "/nonexistent", "-p", "a")
        self.fail_with(1, "/nonexistent", "tokenize", "-f", "/nonexistent")
        self.fail_with(1, "/", "perplexity", "-f", "/")
        with tempfile.TemporaryDirectory() as folder:
            self.fail_with(1, "tools/fetch_model.py qwen2.5-coder-1.5b", "info", "-m",
                           "qwen2.5-coder-1.5b", env={"MANYHEAD_MODEL_DIR": folder}, cwd=folder)
            self.fail_with(1, "missing.gguf", "info", "-m", "bundled", cwd=folder,
                           env={"MANYHEAD_BUNDLED_MODEL": folder + "/missing.gguf"})

    def test_id_outside_the_vocabulary(self):
        self.fail_with(1, "99999999", "generate", "--prompt-ids", "1,99999999")

    def test_text_too_short_to_predict(self):
        self.fail_with(1, "at least 2", "perplexity", "--ids-file", "-", text=b"[1]")

    def damage(self, name, data):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / name
            path.write_bytes(data)
            for command in (["generate", "-p", "ab", "-n", "2"], ["info"]):
                result = run(command[0], "-m", str(path), *command[1:])
                self.assertIn(result.returncode, (0, 1), (name, command, result.stderr))
                if result.returncode == 1:
                    self.assertEqual(result.stderr.count(b"\n"), 1, result.stderr)
            return result.returncode

    def test_truncated_models(self):
        data = BUNDLED.read_bytes()
        for part in range(16):
            self.assertEqual(self.damage(f"part{part}.gguf", data[:len(data) * part // 16]), 1)
        self.assertEqual(self.damage("short.gguf", data[:-1]), 1)

    def test_bits_flipped_in_the_header(self):
        data = BUNDLED.read_bytes()
        for position in range(0, 2048, 61):
            flipped = bytearray(data)
            flipped[position] ^= 1 << position % 8
            self.damage(f"flip{position}.gguf", bytes(flipped))

    def test_absurd_counts(self):
        header = struct.pack("<4sI", b"GGUF", 3)
        for tensors, keys in ((2**63, 1), (1, 2**63), (2**40, 2**40), (0, 0)):
            self.assertEqual(self.damage("absurd.gguf", header + struct.pack("<QQ", tensors, keys)), 1)


class GenerateTest(CommandTest):
    def test_json_fields(self):
        result = self.json("generate", "-p", PROMPT, "-n", "12", "--top-logits", "3")
        self.assertEqual(len(result["ids"]), 12)
        self.assertEqual(result["stop_reason"], "length")
        self.assertEqual([pair[0] for pair in result["top_logits"]][0], result["ids"][0])
        logits = [pair[1] for pair in result["top_logits"]]
        self.assertEqual(logits, sorted(logits, reverse=True))
        timings = result["timings"]
        for name in ("prefill_tokens_per_second", "decode_tokens_per_second",
                     "time_to_first_token_seconds"):
            self.assertGreater(timings[name], 0, name)
        self.assertEqual(timings["prefill_tokens"], len(result["prompt_ids"]))
        kv = result["kv"]
        self.assertEqual(sum(sum(heads) for heads in kv["head_bytes"]), kv["used_bytes"])
        heads = [len(layer) for layer in kv["head_bytes"]]
        self.assertEqual(sum(n * b for n, b in zip(heads, kv["head_bytes_per_token"])),
                         kv["bytes_per_token"])

    def test_keys_and_values_of_every_type(self):
        f16 = self.json("generate", "-p", PROMPT, "-n", "4")["kv"]
        self.assertEqual((f16["type_k"], f16["type_v"]), ("f16", "f16"))
        for types, k, v in (("f32", "f32", "f32"), ("int8", "int8", "int8"), ("int4", "int4", "int4"),
                            ("f16/int4", "f16", "int4"), ("int8/bf16", "int8", "bf16")):
            with self.subTest(types=types):
                result = self.json("generate", "-p", PROMPT, "-n", "4", "--kv-type", types)
                kv = result["kv"]
                self.assertEqual((kv["type_k"], kv["type_v"]), (k, v))
                self.assertEqual(sum(sum(heads) for heads in kv["head_bytes"]), kv["used_bytes"])
                self.assertEqual(kv["bytes_per_token"] > f16["bytes_per_token"], types == "f32")
                statistics = self.succeed("generate", "-p", PROMPT, "-n", "4", "--kv-type",
                                          types).stderr.decode()
                self.assertIn(f" {types}; pages hold", statistics)

    def test_heads_keep_what_the_policy_says(self):
        plain = self.json("generate", "-p", PROMPT * 8, "-n", "80")
        for policy in ("full", '{"heads": []}'):
            self.assertEqual(self.json("generate", "-p", PROMPT * 8, "-n", "80", "--kv-policy",
                                       policy)["ids"], plain["ids"])
        half = '{"heads": [{"kv_heads": [0], "policy": "sink(4)+recent(60)", "k_type": "int8"}]}'
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "policy.json")
            file.write_text(half + "\n", encoding="utf-8")
            results = [self.json("generate", "-p", PROMPT * 8, "-n", "80", "--kv-policy", policy)
                       for policy in (half, str(file))]
        self.assertEqual(results[0]["ids"], results[1]["ids"])
        kv = results[0]["kv"]
        self.assertLess(kv["used_bytes"], plain["kv"]["used_bytes"])
        self.assertEqual(sum(sum(heads) for heads in kv["head_bytes"]), kv["used_bytes"])
        for heads in kv["head_bytes"]:
            self.assertLess(heads[0], min(heads[1:]))
        self.fail_with(1, "heads[0].layers", "generate", "-p", "a", "--kv-policy",
                       '{"heads": [{"layers": [99]}]}')
        self.fail_with(1, "kv_budget_bytes = 7", "generate", "-p", "a", "--kv-budget", "7")

    def test_a_saved_session_goes_on(self):
        for flags in ((), ("--temperature", "1.2"), ("--kv-policy", "window(20)", "--kv-type", "int8")):
            with self.subTest(flags=flags), tempfile.TemporaryDirectory() as folder:
                file = str(pathlib.Path(folder, "session"))
                whole = self.json("generate", "-p", PROMPT, "-n", "30", "--seed", "5", *flags)
                first = self.json("generate", "-p", PROMPT, "-n", "11", "--seed", "5", *flags,
                                  "--save-session", file)
                second = self.json("generate", "-n", "19", *flags, "--load-session", file)
                self.assertEqual(first["ids"] + second["ids"], whole["ids"])
                self.assertEqual(second["prompt_ids"], first["prompt_ids"] + first["ids"])
                self.assertEqual(second["timings"]["prefill_tokens"], 0)
                longer = self.json("generate", "-p", PROMPT, "-n", "3", *flags, "--load-session", file)
                self.assertGreater(len(longer["prompt_ids"]), len(second["prompt_ids"]))
                self.assertEqual(list(pathlib.Path(folder).iterdir()), [pathlib.Path(file)])

    def test_sessions_that_do_not_fit_are_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "session")
            self.succeed("generate", "-p", PROMPT, "-n", "4", "--save-session", str(file))
            load = ("generate", "-n", "4", "--load-session", str(file))
            self.fail_with(1, "the cache's are int8, int8", *load, "--kv-type", "int8")
            self.succeed(*load, "--kv-type", "int8", "--convert-session")
            self.fail_with(1, "policy = full; the cache's is window(9)", *load, "--kv-policy", "window(9)")
            self.fail_with(1, "max_tokens = 5", *load, "-c", "5")
            self.fail_with(1, "cannot create", "generate", "-p", "a", "--save-session", f"{folder}/none/s")
            self.fail_with(2, "--load-session", "generate", "-p", "a", "--convert-session")
            data = file.read_bytes()
            file.write_bytes(data[:len(data) // 2])
            self.fail_with(1, f"has {len(data) // 2} bytes; its header says {len(data)}", *load)
            file.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
            self.fail_with(1, "is damaged: its checksum is", *load)
            self.fail_with(1, "cannot open", "generate", "--load-session", f"{folder}/none")

    def test_text_output_is_prompt_and_continuation(self):
        expected = self.json("generate", "-p", PROMPT, "-n", "16")
        result = self.succeed("generate", "-p", PROMPT, "-n", "16")
        self.assertEqual(result.stdout.decode(), PROMPT + expected["text"] + "\n")
        statistics = result.stderr.decode()
        for words in ("prefill", "decode", "tokens/s", "per token and head", expected["isa"]):
            self.assertIn(words, statistics)

    def test_prompt_from_file_stdin_and_ids_agree(self):
        expected = self.json("generate", "-p", PROMPT, "-n", "8")
        ids = ",".join(map(str, expected["prompt_ids"]))
        self.assertEqual(self.json("generate", "--prompt-ids", ids, "-n", "8")["ids"], expected["ids"])
        piped = self.json("generate", "-f", "-", "-n", "8", text=PROMPT.encode())
        self.assertEqual(piped["ids"], expected["ids"])

    def test_prompts_that_look_like_options_or_lists(self):
        for prompt in ("-n", "--help", "[a,b]", "%%", '"quoted"', "a=b", "-1"):
            shown = self.succeed("generate", "-p", prompt, "-n", "0").stdout.decode()
            self.assertEqual(shown, prompt + "\n")

    # ggml-org/llama.cpp#8593
    def test_the_printed_seed_repeats_the_run(self):
        flags = ("generate", "-p", PROMPT, "-n", "24", "--temperature", "1.5")
        first = self.json(*flags)
        again = self.json(*flags, "--seed", str(first["seed"]))
        self.assertEqual(again["ids"], first["ids"])
        self.assertEqual(again["seed"], first["seed"])
        others = [self.json(*flags, "--seed", str(seed))["ids"] for seed in range(3)]
        self.assertNotEqual(others[0], others[1])
        self.assertEqual(self.json(*flags, "--seed", "0")["ids"], others[0])
        shown = self.succeed(*flags).stderr.decode()
        self.assertRegex(shown, r"seed \d+")

    def test_threads_change_nothing(self):
        for math_mode in ("fast", "exact"):
            ids = [self.json("generate", "-p", PROMPT, "-n", "32", "-t", threads, "--math", math_mode,
                             "--top-logits", "4") for threads in ("1", "2", "3")]
            for other in ids[1:]:
                self.assertEqual(other["ids"], ids[0]["ids"])
                self.assertEqual(other["top_logits"], ids[0]["top_logits"])

    def test_stop_text_ends_before_it(self):
        text = self.json("generate", "-p", PROMPT, "-n", "24")["text"]
        stop = text[5:8]
        result = self.json("generate", "-p", PROMPT, "-n", "24", "--stop", "[no]", "--stop", stop)
        self.assertEqual(result["stop_reason"], "stop")
        self.assertEqual(result["text"], text[:text.index(stop)])

    def test_context_that_is_full(self):
        prompt = self.json("tokenize", "-p", PROMPT)["ids"]
        context = len(prompt) + 5
        result = self.json("generate", "-p", PROMPT, "-n", "100", "-c", str(context))
        self.assertEqual(result["stop_reason"], "context")
        self.fail_with(1, str(len(prompt)), "generate", "-p", PROMPT, "-c", "4", "-o", "json")

    def test_any_bytes_give_valid_json(self):
        data = bytes(range(256)) + b"\xff\xfe\xc3" + "é€🦙".encode()
        result = self.json("generate", "-f", "-", "-n", "4", text=data)
        self.assertEqual(len(result["ids"]), 4)
        self.assertEqual(len(self.json("tokenize", text=data)["ids"]),
                         len(self.json("tokenize", text=data)["pieces"]))

    def test_interrupt_prints_the_statistics(self):
        process = subprocess.Popen([COMMAND, "generate", "-p", PROMPT, "-n", "100000000", "-c", "0"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(len(PROMPT) + 8)  # it is decoding
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, errors)
        self.assertIn(b"decode", errors)

    def test_reader_that_goes_away(self):
        process = subprocess.Popen([COMMAND, "generate", "-p", PROMPT, "-n", "100000000"],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        process.stdout.read(4)
        process.stdout.close()
        self.assertEqual(process.wait(timeout=60), 0)
        process.stderr.close()

    @unittest.skipUnless(os.path.exists("/dev/full"), "no /dev/full")
    def test_output_that_cannot_be_written(self):
        for arguments in (["tokenize", "-p", "a"], ["--help"], ["heads", "--help"], ["--version"]):
            with open("/dev/full", "wb") as full:
                result = subprocess.run([COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE,
                                        check=False)
            self.assertEqual(result.returncode, 1, arguments)
            self.assertIn(b"No space left", result.stderr)


class WarningTest(CommandTest):
    def warnings(self, *args, **options):
        """Returns the warnings of a command that succeeds."""
        lines = self.succeed(*args, **options).stderr.decode().splitlines()
        return [line for line in lines if line.startswith("manyhead: warning: ")]

    def test_a_text_that_begins_twice(self):
        twice = ['manyhead: warning: the text begins with two begin tokens, 1: leave "<s>" out of it, or --special']
        for command in (("tokenize",), ("generate", "-n", "1")):
            self.assertEqual(self.warnings(*command, "-p", "<s>Hi", "--special"), twice, command)
            self.assertEqual(self.warnings(*command, "-p", "Hi <s>", "--special"), [], command)
            self.assertEqual(self.warnings(*command, "-p", "<s>Hi"), [], command)
        self.assertEqual(self.warnings("perplexity", "-f", "-", "--special", text=b"<s>the small bird"), twice)

    def test_a_context_beyond_the_trained_one(self):
        trained = self.json("info", "-m", "bundled")["model"]["context_length"]
        words = f"exceeds the {trained} tokens that the model was trained with"
        for command in (("generate", "-p", "a", "-n", "1"), ("perplexity", "-f", "-"), ("heads", "profile", "-f", "-")):
            line, = self.warnings(*command, "-c", str(trained + 1), text=b"the small bird sang")
            self.assertIn(f"warning: --context {trained + 1} {words}", line)
            self.assertEqual(self.warnings(*command, "-c", str(trained), text=b"the small bird sang"), [])


class TokenizeTest(CommandTest):
    def test_pieces_put_together_are_the_text(self):
        result = self.json("tokenize", "-p", "many heads", "--no-bos")
        self.assertEqual(len(result["ids"]), len(result["pieces"]))
        self.assertEqual("".join(result["pieces"]), "many heads")
        self.assertEqual(self.json("tokenize", "--no-bos", text=b"many heads"), result)

    def test_text_output_is_a_line_per_token(self):
        ids = self.json("tokenize", "-p", "a\nb")["ids"]
        lines = self.succeed("tokenize", "-p", "a\nb").stdout.decode().splitlines()
        self.assertEqual([int(line.split("\t")[0]) for line in lines], ids)
        self.assertIn("\\n", "".join(lines))


class PerplexityTest(CommandTest):
    def test_fields_and_their_relation(self):
        text = (PROMPT + " ") * 3
        result = self.json("perplexity", "-p", text)
        ids = self.json("tokenize", "-p", text)["ids"]
        self.assertEqual(result["tokens"], len(ids))
        self.assertEqual(result["predicted_tokens"], len(ids) - 1)
        self.assertAlmostEqual(result["perplexity"], math.exp(result["mean_nll"]), places=9)
        piped = self.json("perplexity", "--ids-file", "-", text=json.dumps(ids).encode())
        self.assertEqual(piped["mean_nll"], result["mean_nll"])

    def test_it_agrees_with_the_logits(self):
        ids = self.json("tokenize", "-p", PROMPT)["ids"]
        total = 0.0
        vocab = self.json("info", "-m", "bundled")["model"]["vocab_size"]
        for end in range(1, 12):
            logits = self.json("generate", "--prompt-ids", ",".join(map(str, ids[:end])), "-n", "0",
                               "--math", "exact", "--kv-type", "f32",
                               "--top-logits", str(vocab))["top_logits"]
            largest = logits[0][1]
            log_sum = largest + math.log(math.fsum(math.exp(value - largest) for _, value in logits))
            total += log_sum - dict(map(tuple, logits))[ids[end]]
        result = self.json("perplexity", "--ids-file", "-", "--math", "exact", "--kv-type", "f32",
                           text=json.dumps(ids[:12]).encode())
        self.assertAlmostEqual(result["mean_nll"], total / 11, places=4)

    def test_windows_score_every_token_once(self):
        text = ((PROMPT + " ") * 8).encode()
        whole = self.json("perplexity", "-f", "-", text=text)
        parts = self.json("perplexity", "-f", "-", "-c", "128", text=text)
        self.assertEqual(parts["predicted_tokens"], whole["predicted_tokens"])
        self.assertEqual(parts["context"], 128)
        self.assertAlmostEqual(parts["mean_nll"], whole["mean_nll"], delta=1.0)


class InfoTest(CommandTest):
    def test_machine(self):
        result = self.json("info")
        self.assertIn(result["isa"], result["supported_isas"])
        self.assertGreater(result["bandwidth"]["bytes_per_second"], 1e8)
        self.assertLessEqual(result["default_threads"], result["allowed_cpus"])
        self.assertIn(b"GB/s", self.succeed("info").stdout)

    def test_affinity_is_respected(self):
        cpu = min(os.sched_getaffinity(0))
        result = self.json("info", preexec_fn=lambda: os.sched_setaffinity(0, {cpu}))
        self.assertEqual((result["allowed_cpus"], result["default_threads"]), (1, 1))

    def test_model(self):
        model = self.json("info", "-m", "bundled")["model"]
        self.assertEqual(sum(tensor["size_bytes"] for tensor in model["tensors"]), model["model_size"])
        self.assertGreater(model["layers"][0]["num_heads"], 1)
        text = self.succeed("info", "-m", "bundled").stdout.decode()
        for tensor in model["tensors"]:
            self.assertIn(tensor["name"], text)


class RealModelTest(CommandTest):
    def test_gemma_continues_on_any_number_of_threads(self):
        flags = ("generate", "-m", str(real_model()), "-p", "The capital of France is", "-n", "8")
        first, second = (self.json(*flags, "-t", threads) for threads in ("1", "2"))
        self.assertTrue(first["text"].startswith(" the "), first["text"])
        self.assertEqual(first["ids"], second["ids"])

    def test_a_tag_of_html_ends_nothing(self):
        # Public report ggml-org/llama.cpp PR#21492: "</s>" is text to Gemma, of the type user-defined.
        ids = "2,203,811,212,203,13498,212,203,19891,212,203,19025"
        result = self.json("generate", "-m", str(real_model()), "--prompt-ids", ids, "-n", "8", "--temperature", "0")
        self.assertTrue(result["text"].startswith("</s>"), result)
        self.assertEqual((result["stop_reason"], result["ids"][0]), ("length", 212))

    def test_gemma_bench_and_info(self):
        row, = self.json("bench", "-m", str(real_model()), "-p", "0", "-n", "4", "-d", "64", "-r", "1")
        self.assertEqual(row["n_depth"], 64)
        model = self.json("info", "-m", str(real_model()))["model"]
        self.assertEqual((model["architecture"], len(model["layers"])), ("gemma3", 18))


if __name__ == "__main__":
    options = sys.argv[3:]
    if options == ["--real"]:
        if real_model() is None:
            print("skipped: tools/fetch_model.py gemma3-270m has not been run")
            sys.exit(77)
        options = ["RealModelTest"]
    elif not options:
        options = [name for name in globals() if name.endswith("Test") and
                   name not in ("CommandTest", "RealModelTest")]
    unittest.main(argv=[sys.argv[0], *options])
