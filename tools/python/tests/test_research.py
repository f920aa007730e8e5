"""Patterns, outputs, patches and losses against a decoder in NumPy, and head classes, circuits and plans."""
import pathlib
import sys
import tempfile
import unittest

import numpy as np

import manyhead

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUNDLED = ROOT / "tools" / "models" / "bundled.gguf"
TEXT, OTHER = "x7k2qz x7k2qz x7k2qz", "abc9de abc9de fgh1ij"
EXACT = {"math": "exact", "k_type": "f32", "v_type": "f32"}
TOLERANCE = 2e-3

sys.path.insert(0, str(ROOT / "tests" / "heads"))
import classes_reference

try:
    import gguf
    classes_reference.np, classes_reference.gguf = np, gguf
except ImportError:
    gguf = None


class Reference(classes_reference.Model):
    """The decoder in NumPy, with what its heads did and patches of it: {(layer, head): {position: row}}."""

    def evaluate(self, ids, patches=None):
        self.patterns, self.outputs, self.patches = [], [], patches or {}
        hidden = self.run([np.array(ids)], lambda layer, weights: None)[0]
        head = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        return hidden @ self.weight(head).T

    def attention(self, q, k, v, local):
        out, weights = super().attention(q, k, v, local)
        layer = len(self.patterns)
        for (of_layer, head), rows in self.patches.items():
            for position, row in rows.items() if of_layer == layer else ():
                out[position, head] = row
        self.patterns.append(weights)
        self.outputs.append(out)
        return out, weights


@unittest.skipIf(gguf is None, "gguf is not installed; tools/test.sh installs it")
class AgainstNumpyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model, cls.reference = manyhead.Model.load(BUNDLED), Reference(BUNDLED)
        cls.ids, cls.other = cls.model.tokenize(TEXT), cls.model.tokenize(OTHER)

    def test_all_heads_in_one_pass(self):
        capture = self.model.capture(self.ids, logits=True, **EXACT)
        logits = self.reference.evaluate(self.ids)
        np.testing.assert_allclose(capture.logits, logits, atol=TOLERANCE)
        for layer in range(4):
            np.testing.assert_allclose(capture.patterns[layer], self.reference.patterns[layer],
                                       atol=TOLERANCE)
            np.testing.assert_allclose(capture.outputs[layer], self.reference.outputs[layer],
                                       atol=TOLERANCE)
            np.testing.assert_array_equal(capture.pattern(layer, 2), capture.patterns[layer][2])
            np.testing.assert_array_equal(capture.output(layer, 3), capture.outputs[layer][:, 3])
        lse = np.log(np.exp(logits.astype(np.float64)).sum(1))
        losses = lse[:-1] - logits[np.arange(len(logits) - 1), self.ids[1:]]
        np.testing.assert_allclose(self.model.loss(TEXT, **EXACT), losses, atol=TOLERANCE)

    def test_patched_runs(self):
        source = self.model.capture(self.other, patterns=False, **EXACT)
        patches = [source.patch(1, 0, slice(4, 9)), source.patch(1, 3, 7, to=12), source.patch(2, 2)]
        expected = {(1, 0): {t: source.outputs[1][t, 0] for t in range(4, 9)},
                    (1, 3): {12: source.outputs[1][7, 3]},
                    (2, 2): dict(enumerate(source.outputs[2][:, 2]))}
        logits = self.reference.evaluate(self.ids, expected)
        patched = self.model.patch(patches)
        capture = patched.capture(self.ids, logits=True, **EXACT)
        np.testing.assert_allclose(capture.logits, logits, atol=TOLERANCE)
        plain = self.model.logits(self.ids, positions="all", **EXACT)
        self.assertGreater(np.abs(plain - logits).max(), 50 * TOLERANCE)
        np.testing.assert_array_equal(capture.outputs[1][4:9, 0], source.outputs[1][4:9, 0])
        self.assertEqual(patched.patches, [(1, 0, 4), (1, 3, 12), (2, 2, 0)])
        # In a session, in one call, and together with edits.
        with self.model.session(context=64, **EXACT) as session:
            session.append(self.ids)
            session.patch(patches)
            np.testing.assert_array_equal(session.logits, capture.logits[-1])
            session.patch([])
            np.testing.assert_allclose(session.logits, plain[-1], atol=TOLERANCE)
        np.testing.assert_array_equal(self.model.logits(self.ids, patch=patches, **EXACT),
                                      capture.logits[-1])
        both = patched.ablate("3.1").logits(self.ids, **EXACT)
        expected[3, 1] = {t: np.zeros(source.outputs[3].shape[2]) for t in range(len(self.ids))}
        np.testing.assert_allclose(both, self.reference.evaluate(self.ids, expected)[-1], atol=TOLERANCE)

    def test_a_session_captures_what_follows(self):
        whole = self.model.capture(self.ids, **EXACT)
        with self.model.session(context=64, **EXACT) as session:
            session.append(self.ids[:8])
            rest = session.capture(self.ids[8:], heads=[(3, 1), (1, 2)])
            self.assertEqual(session.tokens, self.ids)
        self.assertEqual((rest.first, rest.heads), (8, {1: [2], 3: [1]}))
        np.testing.assert_allclose(rest.pattern(1, 2), whole.pattern(1, 2)[8:], atol=1e-6)
        np.testing.assert_allclose(rest.output(3, 1), whole.output(3, 1)[8:], atol=1e-5)
        self.assertEqual(rest.patch(1, 2).position, 8)
        with self.assertRaisesRegex(ValueError, r"positions = 7..9; expected some of 8..20"):
            rest.patch(1, 2, slice(7, 10))
        with self.assertRaisesRegex(ValueError, "head 0 of layer 1 were not captured"):
            rest.output(1, 0)


class ResearchTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = manyhead.Model.load(BUNDLED)
        cls.ids = cls.model.tokenize(TEXT)

    def test_export_under_the_names_of_transformer_lens(self):
        capture = self.model.capture(TEXT)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "heads")  # the name stays as it is
            capture.save_npz(path)
            with np.load(path) as file:
                arrays = dict(file)
            with self.assertRaises(OSError):
                capture.save_npz(pathlib.Path(folder, "none", "heads"))
        n = len(self.ids)
        self.assertEqual(arrays.pop("tokens").tolist(), [self.ids])
        self.assertEqual(set(arrays), {f"blocks.{layer}.attn.hook_{kind}" for layer in range(4)
                                       for kind in ("pattern", "z")})
        self.assertEqual(arrays["blocks.1.attn.hook_pattern"].shape, (1, 4, n, n))
        self.assertEqual(arrays["blocks.1.attn.hook_z"].shape[:3], (1, n, 4))
        np.testing.assert_array_equal(arrays["blocks.3.attn.hook_pattern"][0], capture.patterns[3])
        self.assertIn("16 heads: patterns, outputs", repr(capture))

    def test_bad_captures_and_patches(self):
        with self.assertRaisesRegex(ValueError, "layer = 4; expected 0 to 3"):
            self.model.capture(TEXT, heads=[(4, 0)])
        with self.assertRaisesRegex(ValueError, "ids has 0 tokens"):
            self.model.capture([])
        row = np.zeros((1, self.model.layers[0].head_dim_v), np.float32)
        for patch, words in ((manyhead.HeadPatch(4, 0, 0, row), "layer = 4; expected 0..3"),
                             (manyhead.HeadPatch(0, 9, 0, row), "head = 9 of layer 0"),
                             (manyhead.HeadPatch(0, 0, -1, row), "position -1"),
                             (manyhead.HeadPatch(0, 0, 0, row[:, :-1]), r"values has shape"),
                             (manyhead.HeadPatch(0, 0, 0, row[:0]), "0 values"),
                             (manyhead.HeadPatch(0, 0, 0, row * np.nan), "nan; expected a finite")):
            with self.assertRaisesRegex(ValueError, words):
                self.model.patch([patch])
        with self.assertRaisesRegex(ValueError, "patched twice at position 0"):
            self.model.patch([manyhead.HeadPatch(0, 0, 0, row)] * 2)
        with self.model.session(context=64) as session:
            session.append(self.ids)
            before = session.logits
            with self.assertRaises(ValueError):
                session.patch([manyhead.HeadPatch(4, 0, 0, row)])
            np.testing.assert_array_equal(session.logits, before)

    def test_classes(self):
        heads = self.model.classify(seed=3).heads
        self.assertEqual([(h.layer, h.head) for h in heads], [(i // 4, i % 4) for i in range(16)])
        self.assertEqual((heads[0].head_class, heads[4].head_class), ("previous-token", "induction"))
        self.assertGreater(heads[4].scores.induction, 0.4)
        self.assertIn("induction=", repr(heads[4].scores))
        classification = self.model.classify(seed=3)
        policy = self.model.class_policy(classification)
        list(self.model.generate(TEXT, max_tokens=2, kv_policy=policy))
        with self.assertRaisesRegex(ValueError, "at least 256"):
            self.model.classify("short")

    def test_circuits(self):
        circuits = self.model.circuits(heads=[(1, 0)], from_heads=[(0, 0), (0, 1)], to_heads=[(1, 0)])
        self.assertEqual([(h.layer, h.head) for h in circuits.heads], [(1, 0)])
        values = np.array(circuits.heads[0].ov.singular_values)
        self.assertTrue((np.diff(values) <= 0).all())
        self.assertAlmostEqual(circuits.heads[0].ov.norm, np.sqrt((values**2).sum()), 3)
        self.assertEqual({(l.from_layer, l.from_head) for l in circuits.links}, {(0, 0), (0, 1)})
        with self.assertRaisesRegex(ValueError, "head = 7"):
            self.model.circuits(heads=[(0, 7)])

    def test_memory_plans(self):
        plan = self.model.memory_plan(context=256, threads=1)
        with self.model.session(context=256, threads=1) as session:
            self.assertEqual(plan.scratch_bytes, session.scratch_bytes)
            session.append([5] * 256)
            self.assertEqual(plan.kv_bytes, session.usage().used_bytes)
        self.assertEqual((plan.weight_bytes, len(plan.layers)), (self.model.weight_bytes, 4))
        self.assertEqual(manyhead.memory_plan(BUNDLED, context=256, threads=1).kv_bytes, plan.kv_bytes)
        half = self.model.memory_plan(context=256, threads=1, k_type="int8", v_type="int8")
        self.assertLess(half.kv_bytes, plan.kv_bytes)


class Bfloat16Test(unittest.TestCase):
    def setUp(self):
        try:
            import ml_dtypes
        except ImportError:
            self.skipTest("ml_dtypes is not installed")
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        self.torch, self.bfloat16 = torch, ml_dtypes.bfloat16

    def test_tensors_come_and_go_by_dlpack(self):
        torch = self.torch
        torch.manual_seed(3)
        q, k, v = (torch.randn(1, heads, n, 16).to(torch.bfloat16)
                   for heads, n in ((4, 5), (2, 9), (2, 9)))
        out = manyhead.attention(q, k, v, causal=True)
        arrays = [x.to(torch.float32).numpy().astype(self.bfloat16) for x in (q, k, v)]
        expected = manyhead.attention(*arrays, causal=True)
        self.assertEqual(out.dtype, self.bfloat16)
        np.testing.assert_array_equal(out.view(np.uint16), expected.view(np.uint16))
        back = torch.from_dlpack(out)
        self.assertEqual((back.dtype, tuple(back.shape)), (torch.bfloat16, (1, 4, 5, 16)))
        np.testing.assert_array_equal(back.view(torch.int16).numpy(), out.view(np.int16))
        strided = manyhead.attention(q.transpose(1, 2).contiguous().transpose(1, 2), k, v, causal=True)
        np.testing.assert_array_equal(strided.view(np.uint16), out.view(np.uint16))
        for dtype in (torch.float32, torch.float16):
            out = manyhead.attention(*(x.to(dtype) for x in (q, k, v)), causal=True)
            self.assertEqual(torch.from_dlpack(out).dtype, dtype)
        cache = manyhead.KvCache([(2, 16)], max_tokens=16, k_type="bf16", v_type="bf16")
        sequence = cache.create_sequence()
        cache.reserve(sequence, 9)
        cache.write(sequence, 0, k[0], v[0])
        self.assertEqual(torch.from_dlpack(cache.attend(sequence, 0, q[0], causal=True)).dtype,
                         torch.bfloat16)
        with self.assertRaisesRegex(ValueError, "q has dtype int64|another type"):
            manyhead.attention(torch.zeros(1, 4, 5, 16, dtype=torch.int64), k, v)


class CacheFilesTest(unittest.TestCase):
    def setUp(self):
        rng = np.random.default_rng(5)
        self.k, self.v = rng.standard_normal((2, 2, 20, 8)).astype(np.float32)

    def make(self, **options):
        return manyhead.KvCache([(2, 8)], max_tokens=64, **options)

    def test_saved_restored_and_closed(self):
        with self.make() as cache, tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "cache")
            sequence = cache.create_sequence()
            cache.reserve(sequence, 20)
            cache.write(sequence, 0, self.k, self.v)
            self.assertEqual(cache.sequences, [sequence])
            cache.save(path, fingerprint="a model")
            other = self.make()
            with self.assertRaisesRegex(ValueError, "a model"):
                other.restore(path)
            self.assertEqual(other.sequences, [])
            ids = other.restore(path, fingerprint="a model")
            for mine, theirs in zip(other.read(ids[0], 0), cache.read(sequence, 0), strict=True):
                np.testing.assert_array_equal(mine, theirs)
            with self.assertRaisesRegex(ValueError, "int8"):
                self.make(k_type="int8").restore(path, fingerprint="a model")
            self.make(k_type="int8").restore(path, fingerprint="a model", convert_types=True)
            with self.assertRaises(ValueError):
                cache.save(path, [99])
            self.assertIn("1 layers, f16/f16, 1 sequences", repr(cache))
        self.assertTrue(cache.closed)
        cache.close()
        self.assertEqual(repr(cache), "<manyhead.KvCache closed>")
        for call in (cache.create_sequence, cache.usage, lambda: cache.sequences,
                     lambda: cache.read(sequence, 0), lambda: cache.attend(sequence, 0, self.k),
                     lambda: cache.bytes_per_token, lambda: cache.save("x")):
            with self.assertRaisesRegex(ValueError, "KvCache: it is closed"):
                call()


if __name__ == "__main__":
    unittest.main()
