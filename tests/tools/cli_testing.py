"""Code that the tests of the command share. Their arguments: COMMAND SOURCE_DIR [unittest options]."""
import json
import os
import pathlib
import subprocess
import sys
import unittest

COMMAND, SOURCE = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
BUNDLED = SOURCE / "tools" / "models" / "bundled.gguf"
TEXT = SOURCE / "tests/model/data/long.txt"
PROMPT = "the small bird sang in the old tree. the small bird sang in"


def run(*args, text=None, env=None, **options):
    """The command's result; stdout and stderr as bytes."""
    return subprocess.run([COMMAND, *args], input=text, capture_output=True, timeout=300, check=False,
                          env={**os.environ, **(env or {})}, **options)


class CommandTest(unittest.TestCase):
    def succeed(self, *args, **options):
        result = run(*args, **options)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def json(self, *args, **options):
        return json.loads(self.succeed(*args, "-o", "json", **options).stdout)

    def fail_with(self, code, words, *args, **options):
        """Ends with `code`, one line on stderr that has `words`, nothing on stdout."""
        result = run(*args, **options)
        message = result.stderr.decode(errors="replace")
        self.assertEqual(result.returncode, code, (args, message))
        self.assertEqual(message.count("\n"), 1, (args, message))
        self.assertTrue(message.startswith("manyhead: "), message)
        self.assertIn(words, message)
        self.assertEqual(result.stdout, b"")


def main():
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
