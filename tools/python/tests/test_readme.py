"""What README shows of Python runs, and prints what it says."""
import contextlib
import io
import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]


class ReadmeTest(unittest.TestCase):
    def test_every_block_runs_and_prints_what_it_says(self):
        readme = (ROOT / "README.md").read_text(encoding="utf-8")
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL))
        expected = re.findall(r"^\s*print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
        self.assertGreaterEqual(len(expected), 3)
        printed, before = io.StringIO(), pathlib.Path.cwd()
        os.chdir(ROOT)
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, "README.md", "exec"), {})
        finally:
            os.chdir(before)
        self.assertEqual(printed.getvalue().splitlines(), expected)


if __name__ == "__main__":
    unittest.main()
