#!/usr/bin/env python3
"""Runs the manyhead command on descriptors, files and limits that others have set up badly.

usage: cli_files_test.py COMMAND SOURCE_DIR [unittest options]
"""
import fcntl
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest

COMMAND = SOURCE = None
NOBODY = 65534
F_SETPIPE_SZ = 1031


def run(*args, **options):
    return subprocess.run([COMMAND, *args], capture_output=True, timeout=300, check=False, **options)


def generate(*args, **options):
    count = () if "-n" in args else ("-n", "2")
    return run("generate", "-p", "Once upon a time", *count, *args, **options)


def set_nonblocking(descriptor):
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_NONBLOCK)


class DescriptorTest(unittest.TestCase):
    """Descriptors that another program has set to O_NONBLOCK."""

    def read_slowly(self, stream, *args, **options):
        """Returns the output of the command to a pipe of 4 KiB that is read after it is full."""
        ours, theirs = os.pipe()
        fcntl.fcntl(theirs, F_SETPIPE_SZ, 4096)
        set_nonblocking(theirs)
        with subprocess.Popen([COMMAND, *args], **{stream: theirs}, **options) as process:
            os.close(theirs)
            time.sleep(1)  # longer than it takes to fill the pipe
            with open(ours, "rb") as reader:
                text = reader.read()
        return process.returncode, text

    def test_standard_output(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "text"
            path.write_text("the small bird sang in the old tree. " * 11000)
            whole = run("tokenize", "-f", str(path)).stdout
            self.assertGreater(len(whole), 200_000)
            code, text = self.read_slowly("stdout", "tokenize", "-f", str(path))
        self.assertEqual((code, len(text), text == whole), (0, len(whole), True))

    def test_standard_error(self):
        code, text = self.read_slowly("stderr", "generate", "-m", "x" * 60000, "-p", "a")
        self.assertEqual(code, 1)
        self.assertTrue(text.endswith(b"\n") and text.count(b"x") == 60000, text[-200:])

    def test_standard_input_that_is_still_empty(self):
        ours, theirs = os.pipe()
        set_nonblocking(ours)
        with subprocess.Popen([COMMAND, "tokenize"], stdin=ours, stdout=subprocess.PIPE) as process:
            os.close(ours)
            time.sleep(0.5)
            os.write(theirs, b"a bird")
            time.sleep(0.2)
            os.write(theirs, b" sang")
            os.close(theirs)
            text = process.stdout.read()
        self.assertEqual(process.returncode, 0)
        self.assertEqual(text, run("tokenize", "-p", "a bird sang").stdout)


class OutputFileTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.addCleanup(self.temporary.cleanup)
        self.folder = pathlib.Path(self.temporary.name)
        self.folder.chmod(0o777)

    # Each writes one file quickly; its name is the last argument.
    COMMANDS = (
        ("generate", "-p", "a", "-n", "1", "--save-session"),
        ("memory", "--d-model", "64", "--heads", "2", "--figure"),
        ("heads", "report", "-p", "the small bird sang in the tree", "-o"))

    def test_a_symbolic_link_stays_and_its_target_is_written(self):
        for number, command in enumerate(self.COMMANDS):
            for target_exists in (True, False):
                with self.subTest(command=command, target_exists=target_exists):
                    target = self.folder / f"target{number}{target_exists}.html"
                    link = self.folder / f"link{number}{target_exists}.html"
                    if target_exists:
                        target.write_bytes(b"old")
                    link.symlink_to(target.name)
                    result = run(*command, str(link))
                    self.assertEqual(result.returncode, 0, result.stderr)
                    self.assertTrue(link.is_symlink())
                    self.assertGreater(target.stat().st_size, 100)

    def test_what_is_no_regular_file_is_refused_and_stays(self):
        fifo, link = self.folder / "fifo.svg", self.folder / "link.svg"
        os.mkfifo(fifo)
        link.symlink_to(fifo)
        loop = self.folder / "loop.svg"
        loop.symlink_to(loop)
        folder, stdout = self.folder / "folder.svg", self.folder / "stdout.svg"
        folder.mkdir()
        stdout.symlink_to("/dev/stdout")
        for command in self.COMMANDS:
            for path in (fifo, link, loop, folder, self.folder / "none" / "out.svg",
                         self.folder / ("n" * 300 + ".svg"), stdout):
                with self.subTest(command=command, path=path):
                    result = run(*command, str(path))
                    self.assertEqual(result.returncode, 1, result.stderr)
                    self.assertIn(str(path)[:200].encode(), result.stderr)
                    self.assertEqual(result.stderr.count(b"\n"), 1, result.stderr)
        self.assertTrue(fifo.is_fifo() and link.is_symlink() and loop.is_symlink())
        self.assertTrue(os.path.islink("/dev/stdout"))

    def test_the_old_file_stays_where_the_new_one_does_not_fit(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

        for command in self.COMMANDS:
            with self.subTest(command=command):
                path = self.folder / "out.html"
                path.write_bytes(b"old")
                result = run(*command, str(path), preexec_fn=limit)
                self.assertEqual(result.returncode, 1, result.stderr)
                self.assertIn(b"File too large", result.stderr)
                self.assertEqual(path.read_bytes(), b"old")
                self.assertEqual([file.name for file in self.folder.iterdir()], ["out.html"])

    def test_standard_output_that_is_at_the_limit_of_file_sizes(self):
        with open(self.folder / "out", "wb") as file:
            result = subprocess.run(
                [COMMAND, "generate", "--help"], stdout=file, stderr=subprocess.PIPE, check=False,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)))
        self.assertEqual(result.returncode, 1)
        self.assertIn(b"File too large", result.stderr)

    def test_long_names(self):
        for length in (246, 247, 250, 255):
            path = self.folder / ("n" * length)
            result = generate("--save-session", str(path))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertTrue(path.exists())

    @unittest.skipIf(os.getuid() != 0, "needs another user")
    def test_a_folder_that_may_be_written_but_not_read(self):
        secret = self.folder / "secret"
        secret.mkdir()
        secret.chmod(0o333)
        result = generate("--save-session", str(secret / "out"), user=NOBODY, cwd="/")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertGreater((secret / "out").stat().st_size, 1000)


class LimitTest(unittest.TestCase):
    @unittest.skipIf(os.getuid() != 0, "needs another user, who has no other processes")
    def test_one_thread_is_enough(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))
            os.setuid(NOBODY)

        for args in (("generate", "-p", "a", "-n", "1", "-t", "1"), ("info", "-t", "1"),
                     ("info", "-t", "4"), ("perplexity", "-p", "a bird sang", "-t", "1"),
                     ("bench", "-p", "8", "-n", "2", "-r", "1", "-t", "1")):
            with self.subTest(args=args):
                result = run(*args, preexec_fn=limit, cwd="/")
                self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_prompt_far_beyond_the_context_is_refused_early(self):
        with tempfile.NamedTemporaryFile() as file:
            file.write(b"the small bird sang in the old tree. " * 1_400_000)
            file.flush()
            size = os.path.getsize(file.name)
            process = subprocess.Popen([COMMAND, "generate", "-f", file.name, "-c", "1024"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            message = process.stderr.read()
            _, status, used = os.wait4(process.pid, 0)
        process.stderr.close()
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 1)
        self.assertIn(b"%d bytes" % size, message)
        self.assertIn(b"1024", message)
        self.assertLess(used.ru_maxrss, 600_000)  # KiB; its tokens would take 2 GB
        self.assertLess(used.ru_utime, 3)

    def test_no_child_outlives_a_terminated_measurement(self):
        with subprocess.Popen([COMMAND, "memory", "--measure", "--d-model", "1024", "--heads", "16",
                               "--layers", "8", "--context", "65536"], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
            deadline = time.monotonic() + 60
            while not (child := children.read_text().split()) and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertTrue(child, "no child was started")
            process.send_signal(signal.SIGTERM)
        for _ in range(100):
            if not os.path.exists(f"/proc/{child[0]}"):
                return
            time.sleep(0.05)
        os.kill(int(child[0]), signal.SIGKILL)
        self.fail("the child runs on")


class AbsentValuesTest(unittest.TestCase):
    """A value that was not measured is null, or n/a, not 0."""

    def timings(self, *args):
        result = generate("-o", "json", *args)
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)["timings"]

    def test_generations_without_some_step(self):
        none = self.timings("-n", "0")
        self.assertIsNone(none["time_to_first_token_seconds"])
        self.assertIsNone(none["decode_tokens_per_second"])
        one = self.timings("-n", "1")
        self.assertGreater(one["time_to_first_token_seconds"], 0)
        self.assertEqual((one["decode_tokens"], one["decode_seconds"]), (0, 0))
        self.assertIsNone(one["decode_tokens_per_second"])
        two = self.timings("-n", "2")
        self.assertEqual(two["decode_tokens"], 1)
        self.assertGreater(two["decode_tokens_per_second"], 0)
        self.assertIn(b"decode    n/a (0 tokens)", generate("-n", "1").stderr)
        self.assertIn(b"first token after n/a", generate("-n", "0").stderr)

    def test_a_loaded_session_without_a_prompt(self):
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/session"
            self.assertEqual(generate("--save-session", path).returncode, 0)
            result = run("generate", "--load-session", path, "-n", "2", "-o", "json")
        timings = json.loads(result.stdout)["timings"]
        self.assertEqual(timings["prefill_tokens"], 0)
        self.assertIsNone(timings["prefill_tokens_per_second"])

    def test_one_repetition_has_no_deviation(self):
        row = json.loads(run("bench", "-p", "4", "-n", "0", "-r", "1", "-o", "json").stdout)[0]
        self.assertIsNone(row["stddev_ts"])
        self.assertIsNone(row["stddev_ns"])
        self.assertGreater(row["avg_ts"], 0)


if __name__ == "__main__":
    COMMAND, SOURCE = sys.argv[1], pathlib.Path(sys.argv[2])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
