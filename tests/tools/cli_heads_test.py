#!/usr/bin/env python3
"""Runs `manyhead heads profile` and `report` as their users do.

usage: cli_heads_test.py COMMAND SOURCE_DIR
"""
import base64
import csv
import functools
import html.parser
import io
import json
import math
import os
import pathlib
import tempfile

import cli_testing
from cli_testing import TEXT

# Bytes that would end a script or a comment, turn or break the line, or are not UTF-8; a token for each.
HOSTILE = (b"</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>&lt;&amp;'\"`${x}\\"
           b"\x00\x01\x1b[31m\r\n\t\x7f\xc3\xa9\xff\xfe\xe2\x80\xae\xe2\x80\xa8\xed\xa0\x80 %DATA% %SCRIPT%")


@functools.cache
def layers_of_bundled():
    return json.loads(cli_testing.run("info", "-m", "bundled", "-o", "json").stdout)["model"]["layers"]


class ProfileTest(cli_testing.CommandTest):
    def test_every_head_in_every_format(self):
        flags = ("heads", "profile", "-f", str(TEXT), "-c", "300", "--every", "5", "-t", "1")
        result = self.json(*flags)
        heads = result["heads"]
        layers = 1 + max(head["layer"] for head in heads)
        info = layers_of_bundled()
        self.assertEqual(layers, len(info))
        self.assertEqual([(head["layer"], head["head"]) for head in heads],
                         [(layer, head) for layer in range(layers)
                          for head in range(info[layer]["num_heads"])])
        self.assertEqual((result["tokens"], result["steps"], result["every"]), (300, 1, 5))
        for head in heads:
            group = info[head["layer"]]["num_heads"] // info[head["layer"]]["num_kv_heads"]
            self.assertEqual(head["kv_head"], head["head"] // group)
            self.assertEqual(head["rows"], 60)
            self.assertAlmostEqual(head["effective_tokens"], math.exp(head["entropy"]))
            for share in ("sink_mass", "recent_mass", "max_weight"):
                self.assertTrue(0 < head[share] <= 1.000001, head)
            self.assertLessEqual(head["median_distance"], 300)
            self.assertGreater(min(head["seconds"], head["kv_bytes"], head["output_norm"]), 0)
        rows = list(csv.DictReader(io.StringIO(self.succeed(*flags, "-o", "csv").stdout.decode())))
        self.assertEqual(len(rows), len(heads))
        self.assertEqual(list(rows[0]), list(heads[0]))
        self.assertAlmostEqual(float(rows[-1]["entropy"]), heads[-1]["entropy"])
        table = self.succeed(*flags).stdout.decode()
        self.assertRegex(table, r"(?m)^layer +head +KV head +us/token")
        self.assertIn("300 tokens in 1 steps; weights of every 5th", table)
        self.assertEqual(len(table.splitlines()), 1 + len(heads) + 3)

    def test_decoded_tokens_instead_of_the_text(self):
        text = ("heads", "profile", "-p", cli_testing.PROMPT, "-n", "16", "--every", "2")
        result = self.json(*text)
        self.assertEqual((result["tokens"], result["steps"]), (16, 16))
        self.assertEqual({head["rows"] for head in result["heads"]}, {8})
        again = self.json(*text, "-t", "3")
        for head, other in zip(result["heads"], again["heads"]):
            self.assertEqual({**head, "seconds": 0}, {**other, "seconds": 0})

    def test_what_it_refuses(self):
        self.fail_with(1, "the text has 2 tokens; expected at least --every = 8", "heads", "profile",
                       "-p", "a")
        self.fail_with(1, "the context has 20 tokens; expected at least 1 + -n = 21", "heads", "profile",
                       "-p", "a", "-n", "20", "-c", "20")
        self.fail_with(2, "'0' is not a whole number, at least 1", "heads", "profile", "-p", "a",
                       "--every", "0")
        self.fail_with(2, "'-1'", "heads", "profile", "-p", "a", "--sink-tokens", "-1")
        self.fail_with(2, "subcommand", "heads")
        self.fail_with(2, "no subcommand bogus", "heads", "bogus", "-p", "a")


class Page(html.parser.HTMLParser):
    """Elements with their attributes, and the text in each script."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.scripts, self.title = [], {}, ""
        self.inside = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.inside = (tag, dict(attrs).get("id", "code"))

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, text):
        if self.inside and self.inside[0] == "script":
            self.scripts[self.inside[1]] = self.scripts.get(self.inside[1], "") + text
        elif self.inside and self.inside[0] == "title":
            self.title += text


class ReportTest(cli_testing.CommandTest):
    def page(self, *flags, **options):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "report.html")
            out = self.succeed("heads", "report", *flags, "-o", str(file), **options).stdout.decode()
            self.assertIn("report.html: ", out)
            text = file.read_text(encoding="utf-8")
        page = Page(text)
        self.assertEqual(set(page.scripts), {"data", "weights", "code"})
        return page, json.loads(page.scripts["data"]), text

    def test_it_holds_every_head_and_loads_nothing(self):
        page, data, text = self.page("-f", str(TEXT), "-c", "128", "--every", "3")
        profile = self.json("heads", "profile", "-f", str(TEXT), "-c", "128", "--every", "3")
        for tag, attributes in page.elements:
            self.assertNotIn("src", attributes)
            self.assertTrue(attributes.get("href", "#").startswith("#"), (tag, attributes))
        self.assertNotIn("://", text)
        self.assertIn("default-src 'none'", text)
        keys = [metric["key"] for metric in data["metrics"]]
        self.assertEqual(len(data["heads"]), len(profile["heads"]))
        for values, head in zip(data["heads"], profile["heads"]):
            for key in ("entropy", "sink_mass", "mean_distance", "output_norm"):
                self.assertAlmostEqual(values[keys.index(key)], head[key])
            self.assertAlmostEqual(values[keys.index("kv_bytes")], head["kv_bytes"] / 128)
        self.assertEqual(len(data["tokens"]), 96)
        self.assertIsNone(data["classes"])
        self.assertEqual(sum(row["kv_heads"] for row in data["memory"]),
                         sum(layer["kv_heads"] for layer in data["layers"]))

    def test_weights_are_the_rows(self):
        _, data, _ = self.page("-p", "x7k2qz x7k2qz", "--every", "1", "--tokens", "9")
        page, _, _ = self.page("-p", "x7k2qz x7k2qz", "--every", "1", "--tokens", "9")
        letters, size = page.scripts["weights"], 9 * 10 // 2
        self.assertEqual(len(data["tokens"]), 9)
        self.assertEqual(len(letters), len(data["heads"]) * 60)
        for head in range(len(data["heads"])):
            triangle = base64.b64decode(letters[head * 60:(head + 1) * 60], validate=True)
            self.assertEqual(len(triangle), size)
            self.assertEqual(triangle[0], 255)
            for query in range(9):
                row = triangle[query * (query + 1) // 2:(query + 1) * (query + 2) // 2]
                self.assertAlmostEqual(sum((byte / 255) ** 2 for byte in row), 1, delta=0.02)

    def test_hostile_text_stays_text(self):
        page, data, text = self.page("-f", "-", "--every", "1", "--tokens", "512", text=HOSTILE)
        self.assertEqual([tag for tag, _ in page.elements].count("script"), 3)
        self.assertEqual([tag for tag, _ in page.elements].count("img"), 0)
        self.assertNotIn("<!--", text)
        shown = "".join(data["tokens"])
        self.assertIn("</script><script>alert(1)</script><!--<img src=x onerror=alert(1)>", shown)
        self.assertIn("\\x00\\x01\\x1b[31m\\x0d\\n\\t\\x7f", shown)
        self.assertIn("%DATA% %SCRIPT%", shown)
        self.assertTrue(all(c.isprintable() for c in shown), shown)
        self.assertIn("\\xff\\xfe", shown)

    def test_classes_and_effects_come_from_files(self):
        heads = self.json("heads", "profile", "-p", "a", "--every", "1")["heads"]
        classes = [{"layer": head["layer"], "head": head["head"], "kv_head": 0,
                    "class": "sink" if head["head"] else "<b>induction"} for head in heads[1:]]
        effects = [{"layer": 0, "head": 1, "loss_before": 1.5, "loss_after": 1.25}]
        with tempfile.TemporaryDirectory() as folder:
            class_file, effect_file = pathlib.Path(folder, "c.json"), pathlib.Path(folder, "e.json")
            class_file.write_text(json.dumps(classes), encoding="utf-8")
            effect_file.write_text(json.dumps(effects), encoding="utf-8")
            flags = ("-p", "abc", "--every", "1", "--classes", str(class_file), "--effects",
                     str(effect_file))
            _, data, _ = self.page(*flags)
            text = self.succeed("heads", "report", *flags, "--ascii", "--metric", "class").stdout.decode()
            names = [data["classes"]["names"][i] for i in data["classes"]["of"]]
            self.assertEqual(names, ["unknown"] + [one["class"] for one in classes])
            self.assertEqual(data["metrics"][-1]["key"], "loss_rise")
            self.assertEqual([values[-1] for values in data["heads"]][:3], [None, -0.25, None])
            self.assertIn("Classes, by layer and head: a sink, b <b>induction, c unknown", text)
            for bad, words in (('{"heads": 1}', "classes is no JSON list of heads"), ("[1]", "classes[0] names no"),
                               ('[{"layer": 99, "head": 0}]', "classes[0] names no head"),
                               ('[{"layer": 0, "head": 0}]', 'classes[0] has no text "class"'), ("[", "no JSON")):
                class_file.write_text(bad, encoding="utf-8")
                self.fail_with(1, words, "heads", "report", *flags, "--ascii")
            class_file.write_text("[]", encoding="utf-8")
            effect_file.write_text('[{"layer": 0, "head": 0, "loss_before": 1}]', encoding="utf-8")
            self.fail_with(1, 'effects[0] has no number "loss_after"', "heads", "report", *flags, "--ascii")

    def test_it_classifies_heads_itself(self):
        _, data, _ = self.page("-p", "x7k2qz x7k2qz x7k2qz", "--every", "1", "--classify")
        names = [data["classes"]["names"][i] for i in data["classes"]["of"]]
        self.assertEqual(names, [head["class"] for head in self.json("heads", "classify")["heads"]])
        self.assertIn("induction", names)

    def test_text_for_terminals(self):
        text = self.succeed("heads", "report", "-f", "-", "--every", "1", "--ascii", "--head", "1.2",
                            "--metric", "max_weight", text=HOSTILE).stdout
        self.assertTrue(text.isascii())
        self.assertNotIn(b"\x1b", text)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "page.txt")
            self.succeed("heads", "report", "-f", "-", "--every", "1", "--ascii", "--head", "1.2", "--metric",
                         "max_weight", "-o", path, text=HOSTILE)
            with open(path, "rb") as page:
                self.assertEqual(page.read(), text)
        lines = text.decode().splitlines()
        grid = next(i for i, line in enumerate(lines) if line.startswith("Largest weight, by layer and head"))
        self.assertRegex(lines[grid + 2], r"^    0  [ .:\-=+*#%@]+$")
        matrix = next(i for i, line in enumerate(lines) if line.startswith("Layer 1, head 2: "))
        self.assertRegex(lines[matrix + 2], r"^\S+ +\|@ +\| \S+ +1\.00$")
        self.assertEqual(len(lines[matrix:]) - 2, 96)

    def test_what_it_refuses(self):
        report = ("heads", "report", "-p", "abcdef", "--every", "1")
        layers = len(layers_of_bundled())
        self.fail_with(2, "-o FILE or --ascii is needed", *report)
        self.fail_with(2, "'3' is not LAYER.HEAD, as 3.5", *report, "--ascii", "--head", "3")
        self.fail_with(1, f"layer = {layers}; expected 0 to {layers - 1}", *report, "--ascii", "--head",
                       f"{layers}.0")
        self.fail_with(1, "head = 99; expected 0 to", *report, "--ascii", "--head", "0.99")
        self.fail_with(1, "metric = x; expected one of entropy, effective_tokens", *report, "--ascii",
                       "--metric", "x")
        self.fail_with(1, "metric = class; expected one of entropy", *report, "--ascii", "--metric", "class")
        self.fail_with(1, "the text has 2 tokens; expected at least every = 4", "heads", "report", "-p", "a",
                       "--ascii")
        self.fail_with(1, "no/such/folder/x: cannot create: No such file", *report, "-o",
                       "no/such/folder/x")
        with tempfile.NamedTemporaryFile("w", suffix=".json") as deep:
            nested = "[" * 10**6 + "]" * 10**6
            deep.write(f'[{{"layer": 0, "head": 0, "class": {nested}, "loss_after": {nested}}}]')
            deep.flush()
            for flag in ("classes", "effects"):
                self.fail_with(1, f"{flag} is no JSON list of heads", *report, "--ascii", f"--{flag}", deep.name)


class OutputsTest(cli_testing.CommandTest):
    def test_what_is_read_is_never_written_over(self):
        with tempfile.TemporaryDirectory() as folder:
            model, text = pathlib.Path(folder, "m.gguf"), pathlib.Path(folder, "t.txt")
            model.write_bytes((cli_testing.SOURCE / "tools/models/bundled.gguf").read_bytes())
            text.write_bytes(TEXT.read_bytes()[:600])
            before = model.read_bytes(), text.read_bytes()
            alias, hard = pathlib.Path(folder, "alias"), pathlib.Path(folder, "hard")
            alias.symlink_to(model)
            os.link(text, hard)
            common = ("-m", str(model), "-f", str(text))
            other = str(pathlib.Path(folder, "x", "..", "new"))
            new = str(pathlib.Path(folder, "new"))
            for words, flags in (
                    (f"--output {model}: is the file of -m too", ("heads", "report", "-o", str(model))),
                    (f"--output {hard}: is the file of -f too", ("heads", "report", "-o", str(hard))),
                    (f"--policy {alias}: is the file of -m too", ("heads", "classify", "--policy", str(alias))),
                    (f"--gguf {model}: is the file of -m too",
                     ("heads", "prune", "--max-rise", "1", "--gguf", str(model))),
                    (f"--gguf {other}: is the file of --save too",
                     ("heads", "prune", "--max-rise", "1", "-s", new, "--gguf", other)),
                    (f"--save {text}: is the file of -f too", ("calibrate", "--budget", "50%", "-s", str(text)))):
                self.fail_with(1, words, *flags, *common)
            self.assertEqual((model.read_bytes(), text.read_bytes()), before)
            self.assertEqual(sorted(path.name for path in pathlib.Path(folder).iterdir()),
                             ["alias", "hard", "m.gguf", "t.txt"])


if __name__ == "__main__":
    cli_testing.main()
