#!/usr/bin/env python3
"""Runs the manyhead command on Hugging Face folders, whole and damaged.

usage: cli_folder_test.py COMMAND SOURCE_DIR [unittest options]
"""
import pathlib
import random
import shutil
import tempfile

from cli_testing import SOURCE, CommandTest, main, run

FILES = ("config.json", "tokenizer.json", "generation_config.json", "model.safetensors.index.json",
         "model-00001-of-00002.safetensors")
HEADER_BYTES = 4096


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Returns `data` with a few bytes changed, removed or repeated where the file describes itself."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(min(len(changed), HEADER_BYTES))
        kind = chance.randrange(3)
        if kind == 0:
            changed[at] = chance.randrange(256)
        elif kind == 1:
            del changed[at:at + chance.randint(1, 16)]
        else:
            changed[at:at] = changed[at:at + chance.randint(1, 16)]
    return bytes(changed)


class FolderTest(CommandTest):
    def folder(self, name: str) -> pathlib.Path:
        return SOURCE / "tests/model/data/hf" / name

    def test_every_command_takes_a_folder(self):
        folder = str(self.folder("llama-yarn"))
        self.assertIn(b"llama 18.6K BF16", self.succeed("info", "-m", folder).stdout)
        self.assertIn(b" the\n", self.succeed("tokenize", "-m", folder, "-p", "the end").stdout)
        for flags in ((), ("--weight-type", "q8_0"), ("--weight-type", "q4_0", "--weights", "mapped")):
            made = self.succeed("generate", "-m", folder, "-p", "the end", "-n", "4", *flags)
            self.assertEqual(made.stdout[:7], b"the end")

    def test_damaged_files_are_errors_of_one_line(self):
        chance = random.Random(29)
        refused = 0
        with tempfile.TemporaryDirectory() as name:
            copy = pathlib.Path(name) / "model"
            shutil.copytree(self.folder("llama-sharded"), copy)
            for index in range(200):
                file = copy / FILES[index % len(FILES)]
                whole = file.read_bytes()
                file.write_bytes(damaged(whole, chance))
                made = run("info", "-m", str(copy))
                file.write_bytes(whole)
                if made.returncode == 0:
                    continue
                refused += 1
                self.assertEqual((made.returncode, made.stderr.count(b"\n")), (1, 1), made.stderr)
                self.assertTrue(made.stderr.startswith(b"manyhead: "), made.stderr)
        self.assertGreater(refused, 100)


if __name__ == "__main__":
    main()
