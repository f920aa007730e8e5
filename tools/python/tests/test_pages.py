"""The Python blocks of README.md and of the pages in tools/docs run, and print what their comments say."""
import contextlib
import io
import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


class PagesTest(unittest.TestCase):
    def run_blocks(self, page):
        """Runs the blocks of a page as one program; returns what it printed and what it should print."""
        code = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
        expected = re.findall(r"^\s*print\(.*\)  # (.*)$", code, flags=re.MULTILINE)
        printed, before = io.StringIO(), pathlib.Path.cwd()
        os.chdir(ROOT)
        try:
            with contextlib.redirect_stdout(printed):
                exec(compile(code, page.name, "exec"), {})
        finally:
            os.chdir(before)
        return printed.getvalue().splitlines(), expected

    def test_every_block_runs_and_prints_what_it_says(self):
        checked = 0
        for page in (ROOT / "README.md", *sorted((ROOT / "tools/docs").glob("*.md"))):
            with self.subTest(page=page.name):
                printed, expected = self.run_blocks(page)
                self.assertEqual(printed, expected)
                checked += len(expected)
        self.assertGreaterEqual(checked, 5)


if __name__ == "__main__":
    unittest.main()
