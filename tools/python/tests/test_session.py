"""manyhead.Session: one sequence, its history, and what goes wrong with it."""
import gc
import os
import pathlib
import signal
import tempfile
import threading
import unittest

import numpy as np

import manyhead

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUNDLED = ROOT / "tools" / "models" / "bundled.gguf"
PROMPT = "x7k2qz x7k2qz x7k"


class SessionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = manyhead.Model.load(BUNDLED)
        cls.ids = cls.model.tokenize(PROMPT)

    def session(self, **options):
        session = self.model.session(**{"context": 256, "math": "exact", **options})
        self.addCleanup(session.close)
        return session

    def test_history_is_held(self):
        session = self.session()
        self.assertEqual((len(session), session.tokens, session.logits), (0, [], None))
        session.append(PROMPT[:5])
        session.append(PROMPT[5:])  # no begin token in the middle
        self.assertEqual(session.tokens, self.ids)
        self.assertEqual(session.text, PROMPT)
        np.testing.assert_array_equal(session.logits, self.model.logits(self.ids, math="exact"))
        session.truncate(4)
        self.assertEqual(session.tokens, self.ids[:4])
        session.append(self.ids[4:])
        np.testing.assert_array_equal(session.logits, self.model.logits(self.ids, math="exact"))
        self.assertGreater(session.usage().used_bytes, 0)
        self.assertIn(f"{len(self.ids)} of 256 tokens", repr(session))

    def test_logits_of_all_positions_and_losses(self):
        rows = self.session().append_logits(PROMPT)
        self.assertEqual((rows.shape, rows.dtype), ((len(self.ids), self.model.vocab_size), np.float32))
        np.testing.assert_array_equal(rows, self.model.logits(self.ids, positions="all", math="exact"))
        for n in (1, 7, len(self.ids)):
            np.testing.assert_array_equal(rows[n - 1], self.model.logits(self.ids[:n], math="exact"))
        top = rows.max(1, keepdims=True).astype(np.float64)
        lse = np.log(np.exp(rows - top).sum(1)) + top[:, 0]
        expected = lse[:-1] - rows[np.arange(len(rows) - 1), self.ids[1:]]
        session = self.session()
        losses = session.score(PROMPT)
        np.testing.assert_allclose(losses, expected, atol=1e-5)
        self.assertEqual((losses.dtype, session.tokens), (np.float64, self.ids))
        np.testing.assert_array_equal(losses, self.model.loss(PROMPT, math="exact"))

    def test_generations_continue_the_history(self):
        session = self.session()
        session.append(PROMPT)
        generation = session.generate(max_tokens=6)
        self.assertEqual("".join(generation), generation.text)
        self.assertEqual((generation.text, generation.stop_reason), ("2qz x7", "length"))
        self.assertEqual(session.tokens, self.ids + generation.ids)
        self.assertEqual("".join(session.generate(max_tokens=3)), "k2q")
        session.append("z")
        self.assertEqual(session.text, PROMPT + "2qz x7k2qz")
        whole = self.model.generate(PROMPT, max_tokens=9, math="exact")
        self.assertEqual("".join(whole), "2qz x7k2q")
        again = session.generate(PROMPT, max_tokens=2)  # the whole sequence: what is behind it goes
        list(again)
        self.assertEqual((again.text, session.text), ("2q", PROMPT + "2q"))
        self.assertEqual(again.timings.prefill_tokens, 1)

    def test_pieces_go_to_a_function(self):
        pieces = []
        generation = self.session().generate(PROMPT, max_tokens=6, on_text=pieces.append)
        self.assertEqual(("".join(pieces), generation.stop_reason), ("2qz x7", "length"))
        generation = self.session().generate(PROMPT, max_tokens=6, on_text=lambda piece: piece != "q")
        self.assertEqual((generation.text, generation.stop_reason), ("2q", "cancelled"))
        session = self.session()

        def fail(piece):
            raise KeyError(piece)

        with self.assertRaises(KeyError):
            session.generate(PROMPT, on_text=fail)
        self.assertEqual(session.text, PROMPT + "2")
        session.append("q")  # and goes on

    def test_a_closed_generation_is_cancelled(self):
        generation = self.model.generate(PROMPT, max_tokens=100)
        next(generation)
        self.assertIsNone(generation.stop_reason)
        generation.close()
        self.assertEqual((generation.stop_reason, generation.text), ("cancelled", "2"))
        self.assertEqual(list(generation), [])
        ended = self.model.generate(PROMPT, max_tokens=1)
        list(ended)
        ended.close()
        self.assertEqual(ended.stop_reason, "length")
        self.assertIn("1 tokens, length", repr(ended))

    def test_saved_and_restored(self):
        session = self.session()
        session.append(PROMPT)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "session")
            session.save(path)
            other = self.session()
            other.append("abc")
            other.restore(path)
            self.assertEqual(other.tokens, self.ids)
            np.testing.assert_array_equal(other.logits, session.logits)
            self.assertEqual("".join(other.generate(max_tokens=6)), "2qz x7")
            small = self.session(context=4)
            with self.assertRaises(MemoryError):
                small.restore(path)
            self.assertEqual(small.tokens, [])
            typed = self.session(k_type="int8")
            with self.assertRaisesRegex(ValueError, "int8"):
                typed.restore(path)
            typed.restore(path, convert_types=True)
            self.assertEqual(typed.tokens, self.ids)
            with self.assertRaisesRegex(OSError, "missing"):
                other.restore(path.with_name("missing"))
            self.assertEqual(other.text, PROMPT + "2qz x7")

    def test_forks_go_their_own_ways(self):
        session = self.session()
        session.ablate("0.1=0.5")
        session.append(PROMPT)
        fork = session.fork()
        self.addCleanup(fork.close)
        self.assertEqual((fork.tokens, fork.ablation), (self.ids, session.ablation))
        np.testing.assert_array_equal(fork.logits, session.logits)
        fork.append("2q")
        session.append("zz")
        self.assertEqual((session.text, fork.text), (PROMPT + "zz", PROMPT + "2q"))
        empty = self.session().fork()
        self.assertEqual(len(empty), 0)
        empty.close()

    def test_cached_prefixes_are_reused(self):
        session = self.session(context=400, prefix_bytes=1 << 22)
        first, second = "abcabc" * 30, "xyzxyz" * 30
        for prompt in (first, second):
            list(session.generate(prompt, max_tokens=1))
        generation = session.generate(first, max_tokens=1)
        list(generation)
        self.assertLess(generation.timings.prefill_tokens, 100)

    def test_ablations_come_and_go(self):
        session = self.session()
        session.append(PROMPT)
        plain = session.logits
        session.ablate("1.0")
        np.testing.assert_array_equal(session.logits, self.model.ablate("1.0").logits(self.ids, math="exact"))
        self.assertGreater(np.abs(session.logits - plain).max(), 0.1)
        with self.assertRaisesRegex(ValueError, "layer = 9"):
            session.ablate("9.0")
        self.assertEqual(session.ablation, [{"layers": [1], "heads": [0], "edit": "zero"}])
        session.ablate(None)
        np.testing.assert_array_equal(session.logits, plain)
        session.ablate("1.0", held="drop")
        self.assertEqual(len(session), 0)
        with self.assertRaisesRegex(ValueError, "held = 'all'; expected 'reevaluate', 'keep' or 'drop'"):
            session.ablate("1.0", held="all")

    def test_policies_and_options(self):
        session = self.session(kv_policy="window(16)", k_type="int8", threads=1, chunk=8)
        session.append("abcdefghij" * 10)
        self.assertEqual(session.threads, 1)
        self.assertLess(session.usage().used_bytes, self.full_bytes())
        with self.assertRaisesRegex(TypeError, "contxt"):
            self.model.session(contxt=5)
        with self.assertRaisesRegex(ValueError, "context = -1"):
            self.model.session(context=-1)

    def full_bytes(self):
        session = self.session()
        session.append("abcdefghij" * 10)
        return session.usage().used_bytes

    def test_misuse_raises_and_nothing_breaks(self):
        session = self.session(context=20)
        session.append(PROMPT)
        for ids, words in (([], "0 tokens"), ([-1], "ids has -1"), ([self.model.vocab_size], "ids"),
                           ([1.5], "integers"), ([[1]], "ids has shape")):
            with self.assertRaisesRegex(ValueError, words):
                session.append(ids)
        with self.assertRaisesRegex(MemoryError, "exceed context = 20"):
            session.append([5] * 10)
        with self.assertRaisesRegex(ValueError, "role = 'x'; expected 'prefill' or 'decode'"):
            session.append([5], role="x")
        with self.assertRaisesRegex(ValueError, "length = 99"):
            session.truncate(99)
        with self.assertRaisesRegex(ValueError, "dtype object"):
            session.append(None)
        self.assertEqual(session.tokens, self.ids)

    def test_a_generation_has_the_session_for_itself(self):
        session = self.session()
        generation = session.generate(PROMPT, max_tokens=50)
        next(generation)
        for call in (lambda: session.append("a"), lambda: session.truncate(0), session.generate,
                     lambda: session.save("/nowhere"), lambda: session.ablate("0.0"), session.fork,
                     lambda: session.capture("a"), lambda: session.logits):
            with self.assertRaisesRegex(ValueError, "a generation is under way"):
                call()
        self.assertEqual(session.tokens[:3], self.ids[:3])  # reading goes on
        generation.close()
        session.append("a")
        generation = session.generate(max_tokens=50)
        next(generation)
        del generation  # gone without a word
        gc.collect()
        session.append("a")

    def test_closed_sessions_refuse_every_call(self):
        session = self.session()
        generation = session.generate(PROMPT, max_tokens=50)
        next(generation)
        session.close()
        session.close()
        self.assertEqual((session.closed, generation.stop_reason), (True, "cancelled"))
        self.assertEqual(list(generation), [])
        for call in (lambda: session.append("a"), lambda: session.tokens, session.generate,
                     lambda: session.logits, session.usage, session.fork, lambda: len(session),
                     lambda: session.context):
            with self.assertRaisesRegex(ValueError, "Session: it is closed"):
                call()
        self.assertEqual(repr(session), "<manyhead.Session closed>")
        with self.model.session(context=8) as other:
            other.append("a")
        self.assertTrue(other.closed)

    def test_garbage_in_any_order(self):
        for order in range(3):
            model = manyhead.Model.load(BUNDLED)
            session = model.session(context=64)
            generation = session.generate(PROMPT, max_tokens=20)
            next(generation)
            objects = [model, session, generation]
            del model, session, generation
            for index in ((0, 0, 0), (2, 1, 0), (1, 1, 0))[order]:
                del objects[index]
                gc.collect()
        generation = self.model.session(context=64).generate(PROMPT, max_tokens=4)
        self.assertEqual("".join(generation), "2qz ")  # the session lives as long

    def test_threads_wait_for_each_other(self):
        session, errors = self.session(context=2000), []

        def work(text):
            try:
                for _ in range(20):
                    session.append(text)
                    len(session)
            except Exception as error:  # pylint: disable=broad-except
                errors.append(error)

        threads = [threading.Thread(target=work, args=(text,)) for text in ("abc", "xyz", "123")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((errors, len(session)), ([], 3 * 20 * 3 + 1))

    def test_a_signal_s_handler_may_not_call_the_session(self):
        session, seen = self.session(context=3000), []

        def handle(number, frame):
            try:
                len(session)
            except ValueError as error:
                seen.append(str(error))
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, handle)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            with self.assertRaises(KeyboardInterrupt):
                while True:
                    session.truncate(0)
                    session.append([5] * 2900)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        self.assertIn(len(session), (0, 2900))
        for message in seen:
            self.assertIn("called from within one of its own calls", message)
        session.truncate(0)
        session.append(PROMPT)

    def test_end_tokens(self):
        self.assertEqual(self.model.bos, self.ids[0])
        self.assertTrue(self.model.eos is None or self.model.eos in self.model.end_tokens)

    def test_reprs(self):
        self.assertIn("num_heads=4", repr(self.model.layers[0]))
        generation = self.model.generate(PROMPT, max_tokens=1)
        list(generation)
        self.assertIn("prefill_tokens=", repr(generation.timings))
        plan = manyhead.AttentionPlan(num_heads=4, num_kv_heads=2, head_dim=8, max_q_len=5, max_kv_len=9)
        self.assertEqual(repr(plan), "<manyhead.AttentionPlan 4/2 heads of 8/8, up to 5 queries and 9 keys>")
        square = np.zeros((8, 8), np.float32)
        layer = manyhead.MultiHeadAttention(square, square, square, square, num_heads=2)
        self.assertEqual(repr(layer), "<manyhead.MultiHeadAttention d_model 8, 2/2 heads of 4/4>")
        self.assertIn("entropy=", repr(self.model.profile(self.ids, every=1).heads[0][0]))


if __name__ == "__main__":
    unittest.main()
