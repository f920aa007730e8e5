"""The package and programs that use it as mypy sees them."""
import pathlib
import subprocess
import sys
import tempfile
import unittest

GOOD = """
import manyhead
model = manyhead.Model.load("x")
with model.session(context=8, k_type="int8") as session:
    session.append([1, 2])
    text: str = "".join(session.generate(max_tokens=3))
capture = model.capture("x", heads=[(0, 1)], math="exact")
losses = model.patch([capture.patch(0, 1)]).loss("x", ablate="0.1")
score: float = model.classify().heads[0].scores.induction
"""
BAD = {
    'model.session(contxt=8)': 'Unexpected keyword argument "contxt"',
    'model.logits([1], k_type="int7")': "incompatible type",
    'model.generate("x", max_token=1)': 'Unexpected keyword argument "max_token"',
    'manyhead.KvCache([(1, 8)], max_tokens=8).attend(0, 0, [[[1.0]]], causl=True)': 'Unexpected keyword',
}


class TypesTest(unittest.TestCase):
    def check(self, *arguments):
        return subprocess.run([sys.executable, "-m", "mypy", "--strict", "--allow-any-generics",
                               "--cache-dir", self.folder.name, *arguments], cwd=self.folder.name,
                              capture_output=True, text=True, check=False)

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def test_package_and_stubs(self):
        result = self.check("-p", "manyhead")
        self.assertEqual(result.returncode, 0, result.stdout)

    def test_arguments_are_checked(self):
        program = pathlib.Path(self.folder.name, "program.py")
        program.write_text(GOOD, encoding="utf-8")
        result = self.check(str(program))
        self.assertEqual(result.returncode, 0, result.stdout)
        program.write_text(GOOD + "\n".join(BAD), encoding="utf-8")
        lines = self.check(str(program)).stdout.splitlines()
        first = GOOD.count("\n") + 1
        for number, expected in enumerate(BAD.values(), first):
            self.assertTrue(any(f":{number}: error" in line and expected in line for line in lines),
                            (number, expected, lines))


if __name__ == "__main__":
    unittest.main()
