"""manyhead.Model on the bundled model, and on a real one where it has been fetched."""
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


def real_model():
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = os.environ.get("MANYHEAD_MODEL_DIR") or pathlib.Path(cache) / "manyhead" / "models"
    return pathlib.Path(folder) / "gemma3-270m.gguf"


class ModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = manyhead.Model.load(BUNDLED)

    def test_packed_weights_are_the_file_s_low_bit_ones(self):
        mapped = manyhead.Model.load(BUNDLED, weights="mapped")
        self.assertEqual(mapped.packed_bytes, 0)
        self.assertEqual(mapped.weight_bytes, self.model.weight_bytes)
        ids = mapped.tokenize("abcabc")
        np.testing.assert_allclose(mapped.logits(ids), self.model.logits(ids), rtol=0, atol=0.5)
        with self.assertRaisesRegex(ValueError, "weights = 'both'; expected 'packed' or 'mapped'"):
            manyhead.Model.load(BUNDLED, weights="both")

    def test_what_it_tells_of_itself(self):
        model = self.model
        self.assertEqual((model.architecture, model.path), ("llama", str(BUNDLED)))
        self.assertEqual(model.layers[0].num_heads * model.layers[0].head_dim, model.d_model)
        self.assertGreater(model.num_parameters, 800_000)
        self.assertIn("llama 1M Q8_0", repr(model))

    def test_tokens(self):
        ids = self.model.tokenize("Ünïcode \N{GRINNING FACE}")
        self.assertEqual(self.model.detokenize(ids), "Ünïcode \N{GRINNING FACE}")
        self.assertEqual(self.model.detokenize(np.array(ids, np.int64)), "Ünïcode \N{GRINNING FACE}")
        self.assertEqual(self.model.tokenize(b"abc"), self.model.tokenize("abc"))
        self.assertEqual(self.model.tokenize("abc")[1:], self.model.tokenize("abc", add_special=False))
        self.assertEqual(self.model.detokenize(self.model.tokenize(b"a\xff")), "a\N{REPLACEMENT CHARACTER}")
        self.assertEqual(self.model.detokenize([]), "")

    def test_logits_choose_the_token_that_generation_draws(self):
        ids = self.model.tokenize(PROMPT)
        logits = self.model.logits(ids)
        self.assertEqual((logits.shape, logits.dtype), ((self.model.vocab_size,), np.float32))
        generation = self.model.generate(ids, max_tokens=1)
        list(generation)
        self.assertEqual(generation.ids, [int(np.argmax(logits))])
        np.testing.assert_array_equal(self.model.logits(ids, threads=1), logits)

    def test_heads_of_a_session_have_policies(self):
        ids = self.model.tokenize("the small bird sang in the old tree. " * 12)
        plain = self.model.logits(ids)
        for full in ("full", {"heads": [{"policy": "full"}]}):
            np.testing.assert_array_equal(self.model.logits(ids, kv_policy=full), plain)
        some = {"heads": [{"kv_heads": [0], "policy": "sink(4)+recent(64)", "k_type": "int8"}]}
        logits = self.model.logits(ids, kv_policy=some)
        self.assertGreater(np.abs(logits - plain).max(), 0)
        generation = self.model.generate(ids, max_tokens=2, kv_policy=some)
        list(generation)
        self.assertEqual(generation.ids[0], int(np.argmax(logits)))
        for words, options in (("heads[0].layers has 99", {"kv_policy": {"heads": [{"layers": [99]}]}}),
                               ("kv_budget_bytes = 7", {"kv_budget_bytes": 7})):
            with self.subTest(words), self.assertRaises(ValueError) as caught:
                self.model.generate(ids, **options)
            self.assertIn(words, str(caught.exception))
        whole = self.model.generate(ids, kv_budget_bytes=1 << 30, max_tokens=1)
        self.assertEqual(list(whole), list(self.model.generate(ids, max_tokens=1)))

    def test_heads_can_be_switched_off(self):
        ids = self.model.tokenize(PROMPT)
        exact = {"math": "exact", "k_type": "f32", "v_type": "f32"}
        plain = self.model.logits(ids, **exact)
        ablated = self.model.ablate("1.k0,2.1=0.5")
        logits = ablated.logits(ids, **exact)
        self.assertGreater(np.abs(logits - plain).max(), 1e-3)
        edits = [{"layers": [1], "kv_heads": [0]}, {"layers": [2], "heads": [1], "edit": 0.5}]
        np.testing.assert_array_equal(self.model.ablate(edits).logits(ids, **exact), logits)
        np.testing.assert_array_equal(self.model.logits(ids, ablate=edits, **exact), logits)
        np.testing.assert_array_equal(ablated.logits(ids, ablate=[], **exact), plain)
        self.assertEqual((self.model.ablation, len(ablated.ablation)), ([], 3))
        self.assertEqual(ablated.ablation[2], {"layers": [2], "heads": [1], "edit": 0.5})
        generation = self.model.generate(ids, max_tokens=1, ablate=edits, **exact)
        list(generation)
        self.assertEqual(generation.ids, [int(np.argmax(logits))])
        # Heads of an ablated model attend to nothing where they are off, else to the tokens that are left.
        np.testing.assert_array_equal(ablated.attention(0, 1, ids), self.model.attention(0, 1, ids))
        self.assertEqual(np.abs(ablated.attention(1, 0, ids)).max(), 0)
        self.assertGreater(
            np.abs(ablated.attention(3, 0, ids) - self.model.attention(3, 0, ids)).max(), 1e-4)
        self.assertEqual(ablated.profile(ids, every=1).heads[1][0].rows, 0)
        mean = self.model.ablate("0.1=mean", means_text="abc abc abc").logits(ids, **exact)
        self.assertGreater(np.abs(mean - plain).max(), 1e-4)
        for words, call in (("layer = 4; expected 0..3", lambda: self.model.ablate("4.0")),
                            ("need a text", lambda: self.model.ablate("0.0=mean")),
                            ("layer 0 would have 4 of its 4 heads off",
                             lambda: self.model.logits(ids, ablate="0.*"))):
            with self.subTest(words), self.assertRaises(ValueError) as caught:
                call()
            self.assertIn(words, str(caught.exception))

    def test_effects_and_pruning(self):
        ids = self.model.tokenize((ROOT / "LICENSE").read_text(encoding="utf-8"))[:300]
        effects = self.model.head_effects(ids, heads=[(1, 0), (0, 3)], tokens=40)
        self.assertEqual([(effect["layer"], effect["head"]) for effect in effects], [(0, 3), (1, 0)])
        for effect in effects:
            self.assertNotEqual(effect["loss_before"], effect["loss_after"])
        pruned = self.model.prune_heads(ids, max_rise=5.0, max_kv_heads=2)
        self.assertEqual((len(pruned["removed"]), pruned["tokens"]), (2, 300))
        exact = {"math": "exact", "k_type": "f32", "v_type": "f32"}
        by_policy = self.model.logits(ids[:30], kv_policy=pruned["kv_policy"], **exact)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "pruned.gguf"
            self.model.write_pruned(pruned["removed"], path)
            by_file = manyhead.Model.load(path).logits(ids[:30], **exact)
        np.testing.assert_allclose(by_file, by_policy, rtol=0, atol=1e-4)

    def test_calibration_keeps_to_its_budget(self):
        text = (ROOT / "LICENSE").read_text(encoding="utf-8")
        ids = self.model.tokenize(text)[:300]
        result = self.model.calibrate(ids, budget_fraction=0.4, probe_tokens=64)
        self.assertEqual((result.context, result.fit_tokens + result.held_out_tokens), (300, 299))
        self.assertLessEqual(result.after.bytes, result.budget_bytes)
        self.assertEqual(result.budget_bytes, int(0.4 * result.before.bytes))
        shape = [(layer.num_kv_heads, layer.head_dim) for layer in self.model.layers]
        self.assertEqual(result.after.bytes, manyhead.kv_capacity_bytes(
            shape, sequences=1, tokens=300, step=300, heads=result.kv_policy))
        self.assertEqual(min(loss.fit_nll for loss in result.candidates), result.after.fit_nll)
        cache = manyhead.KvCache(shape, max_tokens=300, heads=result.kv_policy)
        for layer, chosen in zip(cache.heads, result.heads, strict=True):
            self.assertEqual([repr(head) for head in layer], [repr(head) for head in chosen])
        self.assertEqual(self.model.logits(ids, kv_policy=result.kv_policy).shape,
                         (self.model.vocab_size,))
        types = self.model.calibrate(ids, budget_bytes=result.before.bytes, types=["int8"],
                                     evict=False, probe_tokens=64)
        self.assertEqual({(head.k_type, head.v_type, head.policy) for layer in types.heads
                          for head in layer}, {("int8", "int8", "full")})
        for words, options in (("budget_fraction = 0", {}), ("context = 200", {"budget_fraction": 1, "context": 200}),
                               ("the text has 300 tokens; expected at least 301",
                                {"budget_fraction": 1, "context": 301}),
                               ("a budget of 5 bytes", {"budget_bytes": 5}),
                               ("kv_type = 'f8'", {"budget_bytes": 5, "types": ["f8"]})):
            with self.subTest(words), self.assertRaises(ValueError) as caught:
                self.model.calibrate(ids, **options)
            self.assertIn(words, str(caught.exception))

    def test_pieces_come_one_at_a_time(self):
        with self.model.generate(PROMPT, max_tokens=24) as generation:
            self.assertIsNone(generation.stop_reason)
            self.assertEqual(generation.ids, [])
            first = next(generation)
            self.assertEqual((first, generation.text, len(generation.ids)), ("2", "2", 1))
            rest = list(generation)
        self.assertEqual(first + "".join(rest), "2qz x7k2qz x7k2qz x7k2qz")
        self.assertEqual(generation.text, "2qz x7k2qz x7k2qz x7k2qz")
        self.assertEqual((generation.stop_reason, len(generation.ids)), ("length", 24))
        self.assertEqual(generation.timings.decode_tokens, 23)
        self.assertEqual(generation.timings.prefill_tokens, len(self.model.tokenize(PROMPT)))
        self.assertRaises(StopIteration, next, generation)

    def test_it_can_be_closed_early(self):
        generation = self.model.generate(PROMPT, max_tokens=1000)
        pieces = [next(generation) for _ in range(3)]
        generation.close()
        generation.close()
        self.assertEqual(list(generation), [])
        self.assertEqual(generation.text, "".join(pieces))
        self.assertIsNotNone(generation.stop_reason)
        for _ in self.model.generate(PROMPT, max_tokens=1000):
            break
        gc.collect()

    def test_sampling_repeats_with_its_seed(self):
        first = self.model.generate(PROMPT, max_tokens=20, temperature=2.0)
        text = "".join(first)
        again = self.model.generate(PROMPT, max_tokens=20, temperature=2.0, seed=first.seed)
        self.assertEqual("".join(again), text)

    def test_stop_texts_and_the_context_end_it(self):
        for stop in (" ", b" ", ["#", " "]):
            generation = self.model.generate(PROMPT, stop=stop)
            self.assertEqual("".join(generation), "2qz")
            self.assertEqual(generation.stop_reason, "stop")
        generation = self.model.generate(PROMPT, context=20, k_type="f32", max_tokens=100)
        list(generation)
        self.assertEqual(generation.stop_reason, "context")

    def test_a_model_serves_several_texts_at_once(self):
        expected = "".join(self.model.generate(PROMPT, max_tokens=30))
        texts = [self.model.generate(PROMPT, max_tokens=30) for _ in range(3)]
        woven = ["", "", ""]
        for pieces in zip(*texts, strict=True):
            woven = [text + piece for text, piece in zip(woven, pieces, strict=True)]
        self.assertEqual(woven, [expected] * 3)
        results = []
        threads = [threading.Thread(target=lambda: results.append(
            "".join(self.model.generate(PROMPT, max_tokens=30)))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [expected] * 3)

    def test_ctrl_c_ends_a_long_prompt(self):
        def interrupt(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            generation = self.model.generate([1] * 4000, context=4096, chunk=16)
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
            with self.assertRaises(KeyboardInterrupt):
                for _ in generation:
                    pass
                signal.sigtimedwait([], 5)  # a machine so fast that it was done before the signal
            self.assertEqual(list(generation), [])
        finally:
            signal.signal(signal.SIGINT, before)

    def test_bad_arguments(self):
        model = self.model
        for words, call in (
                ("temperature = -1", lambda: model.generate(PROMPT, temperature=-1)),
                ("max_tokens = -1", lambda: model.generate(PROMPT, max_tokens=-1)),
                ("stop has an empty string", lambda: model.generate(PROMPT, stop="")),
                ("ids has 0 tokens", lambda: model.generate([])),
                ("ids has 0 tokens", lambda: model.logits([])),
                ("ids[1] = 300", lambda: model.logits([1, 300])),
                ("ids has -1", lambda: model.logits([1, -1])),
                ("ids has 4294967297", lambda: model.logits([2**32 + 1])),
                ("ids has shape [1, 2]", lambda: model.detokenize([[1, 2]])),
                ("ids has shape [1] and dtype float64", lambda: model.logits([1.0])),
                ("math = 'x'", lambda: model.generate(PROMPT, math="x")),
                ("threads = -1", lambda: model.generate(PROMPT, threads=-1)),
                ("context = -5", lambda: model.logits([1], context=-5))):
            with self.subTest(words), self.assertRaises(ValueError) as caught:
                call()
            self.assertIn(words, str(caught.exception))
        with self.assertRaisesRegex(manyhead.OutOfPagesError, "context = 4"):
            model.logits([1] * 5, context=4)
        with self.assertRaises(TypeError):
            model.generate(PROMPT, no_such_option=1)

    def test_bad_files(self):
        with tempfile.TemporaryDirectory() as folder:
            cut = pathlib.Path(folder) / "cut.gguf"
            cut.write_bytes(BUNDLED.read_bytes()[:100_000])
            text = pathlib.Path(folder) / os.fsdecode(b"t\xff.gguf")
            text.write_bytes(b"no model")
            for path, words in ((cut, "cut.gguf"), (text, "not a GGUF file"),
                                (pathlib.Path(folder) / "none", "none")):
                for kind in (manyhead.FileError, OSError, ValueError):
                    with self.subTest(path=os.fsencode(path), kind=kind), \
                            self.assertRaises(kind) as caught:
                        manyhead.Model.load(path)
                    self.assertIn(words, str(caught.exception))


@unittest.skipUnless(real_model().exists(), "gemma3-270m has not been fetched")
class RealModelTest(unittest.TestCase):
    def test_it_continues_a_prompt(self):
        model = manyhead.Model.load(real_model())
        text = "".join(model.generate("The capital of France is", max_tokens=8))
        self.assertIn("France", text)


if __name__ == "__main__":
    unittest.main()
