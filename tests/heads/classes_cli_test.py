#!/usr/bin/env python3
"""heads classify and heads circuits as their users run them, on the bundled model.

usage: classes_cli_test.py COMMAND SOURCE_DIR
"""
import csv
import io
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

COMMAND, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
SCORES = ["previous_token", "fixed_offset", "offset", "duplicate_token", "induction", "retrieval", "sink", "local",
          "uniformity", "constancy", "twin", "twin_head", "syntactic", "dependencies"]


def run(*arguments, code=0):
    done = subprocess.run([COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=120)
    assert done.returncode == code, f"{arguments}: {done.returncode}: {done.stderr}"
    return done.stdout if code == 0 else done.stderr


class Classify(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, content):
        (self.folder / name).write_bytes(content)
        return self.folder / name

    def test_json_has_a_record_for_every_head(self):
        result = json.loads(run("heads", "classify", "-o", "json", "--seed", 5))
        self.assertEqual(list(result),
                         ["model", "model_path", "text", "seed", "math", "conllu", "heads"])
        self.assertEqual((result["text"], result["seed"], result["math"]), ("built in", 5, "fast"))
        heads = result["heads"]
        self.assertEqual([(h["layer"], h["head"], h["kv_head"]) for h in heads],
                         [(i // 4, i % 4, i % 4 // 2) for i in range(16)])
        for head in heads:
            self.assertEqual(list(head), ["layer", "head", "kv_head", "class", "scores"])
            self.assertEqual(list(head["scores"]), SCORES)
        self.assertEqual(heads[0]["class"], "previous-token")
        self.assertEqual(heads[4]["class"], "induction")

    def test_csv_has_a_line_for_every_head(self):
        text = ROOT / "README.md"
        rows = list(csv.DictReader(io.StringIO(run("heads", "classify", "-f", text, "-o", "csv"))))
        result = json.loads(run("heads", "classify", "-f", text, "-o", "json"))
        self.assertEqual(result["text"], {"file": str(text)})
        self.assertEqual(len(rows), 16)
        for row, head in zip(rows, result["heads"], strict=True):
            self.assertEqual((int(row["layer"]), int(row["head"]), row["class"]),
                             (head["layer"], head["head"], head["class"]))
            self.assertAlmostEqual(float(row["induction"]), head["scores"]["induction"])

    def test_a_seed_decides_everything_that_is_random(self):
        first = run("heads", "classify", "--seed", 3, "-o", "json", "--threads", 1)
        self.assertEqual(first, run("heads", "classify", "--seed", 3, "-o", "json", "--threads", 2))
        self.assertNotEqual(first, run("heads", "classify", "--seed", 4, "-o", "json"))

    def test_the_table_names_the_classes(self):
        table = run("heads", "classify", "-f", ROOT / "README.md")
        self.assertIn("16 heads: 1 induction", table)
        self.assertRegex(table, r"\n0 +0 +0 +previous-token ")

    def test_the_sample_of_sentences_is_scored(self):
        heads = json.loads(run("heads", "classify", "--conllu", ROOT / "tools/data/sample.conllu", "-o",
                               "json"))["heads"]
        for head in heads:
            scores = {(d["relation"], d["direction"]): d for d in head["scores"]["dependencies"]}
            self.assertEqual(scores["det", "to_dependent"]["count"], 49)
            self.assertGreater(scores["nsubj", "to_dependent"]["count"], 25)
            for score in scores.values():
                self.assertTrue(0 <= score["accuracy"] <= 1 and 0 <= score["baseline"] <= 1)

    def test_the_policy_is_one_that_generate_takes(self):
        policy = self.folder / "policy.json"
        run("heads", "classify", "--policy", policy)
        self.assertEqual(len(json.loads(policy.read_text())["heads"]), 8)
        out = run("generate", "-p", "x7k2qz x7k2qz x7k", "-n", 8, "--kv-policy", policy)
        self.assertTrue(out.startswith("x7k2qz x7k2qz x7k2qz x7k2"), out)

    def test_probes_are_written(self):
        probes = self.folder / "probes.json"
        run("heads", "classify", "--probes", probes)
        kinds = [probe["kind"] for probe in json.loads(probes.read_text())]
        self.assertEqual(kinds, ["text"] + 4 * ["repeat"] + 3 * ["needle"])

    def test_errors_say_what_was_expected(self):
        short = self.write("short.txt", b"too short")
        empty = self.write("empty", b"")
        hostile = self.write("hostile.conllu", b"# ok\n1\ta\t_\tX\t_\t_\t9\tdep\t_\t_\n")
        binary = self.write("binary.conllu", bytes(range(256)))
        for arguments, expected in [
                (["-f", short], "tokens of the text = 10; expected at least 256"),
                (["-p", "x"], "tokens of the text = 2; expected at least 256"),
                (["--conllu", hostile], "CoNLL-U: line 2: word 1 has head = 9; expected 0..1"),
                (["--conllu", binary], "CoNLL-U: line 1: "),
                (["--conllu", empty], "no sentence"),
                (["--conllu", self.folder / "missing"], "missing"),
                (["--policy", self.folder / "no" / "where.json"], "cannot create"),
                (["-m", self.folder / "missing.gguf"], "missing.gguf")]:
            message = run("heads", "classify", *arguments, code=1)
            self.assertIn(expected, message)
            self.assertEqual(message.count("\n"), 1)
        for arguments in (["--seed", -1], ["-o", "xml"], ["-p", "a", "-f", short]):
            run("heads", "classify", *arguments, code=2)


class Circuits(unittest.TestCase):
    def test_json_describes_heads_layers_and_links(self):
        found = json.loads(run("heads", "circuits", "-o", "json"))
        self.assertEqual(len(found["heads"]), 16)
        for head in found["heads"]:
            for matrix in ("qk", "ov"):
                self.assertTrue(1 <= head[matrix]["participation"] <= head[matrix]["effective_rank"] <= 32)
        self.assertEqual([layer["heads"] for layer in found["layers"]], 4 * [4])
        for layer in found["layers"]:
            shares = [h["output_share"] for h in found["heads"] if h["layer"] == layer["layer"]]
            self.assertAlmostEqual(sum(shares), 1, places=4)
        link, = found["links"]
        self.assertEqual((link["from"], link["to"]), ({"layer": 0, "head": 0}, {"layer": 1, "head": 0}))
        self.assertEqual((link["from_class"], link["to_class"]), ("previous-token", "induction"))
        self.assertEqual((link["rank"], link["num_from"]), (1, 4))
        self.assertGreater(link["k"], found["baseline"])

    def test_one_head_has_its_singular_values_and_every_head_before_it(self):
        found = json.loads(run("heads", "circuits", "--layer", 2, "--head", 3, "-o", "json"))
        head, = found["heads"]
        self.assertEqual((head["layer"], head["head"], head["kv_head"]), (2, 3, 1))
        values = head["ov"]["singular_values"]
        self.assertEqual(len(values), 32)
        self.assertEqual(values, sorted(values, reverse=True))
        self.assertEqual(sorted((l["from"]["layer"], l["from"]["head"]) for l in found["links"]),
                         [(i // 4, i % 4) for i in range(8)])
        self.assertEqual([l["rank"] for l in found["links"]], list(range(1, 9)))
        self.assertIn("2.3", run("heads", "circuits", "--layer", 2, "--head", 3))

    def test_wrong_heads_are_errors_with_the_valid_range(self):
        for arguments, expected in [(["--layer", 4], "layer = 4; expected 0..3"),
                                    (["--layer", 1, "--head", 4], "head = 4 of layer 1; expected 0..3"),
                                    (["-p", "short"], "expected at least 256")]:
            self.assertIn(expected, run("heads", "circuits", *arguments, code=1))
        for arguments in (["--head", 1], ["--layer", -1], ["--layer", "x"]):
            run("heads", "circuits", *arguments, code=2)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
