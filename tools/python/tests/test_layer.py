"""manyhead.rope and manyhead.MultiHeadAttention."""
import unittest

import numpy as np
import reference

import manyhead

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None


class RopeTest(unittest.TestCase):
    X = np.array([[[1, 2, 3, 4]]], np.float32)  # [H, T, D]

    def test_both_pairings(self):
        # Values of public reports (jzhang38/TinyLlama#24, ggml-org/llama.cpp#3018), in double precision.
        for interleaved, position, expected in (
                (False, 0, [1, 2, 3, 4]), (True, 0, [1, 2, 3, 4]),
                (False, 1, [-1.98411065, 1.95990067, 2.46237790, 4.01979967]),
                (False, 3, [-1.41335252, 1.87911807, -2.82885748, 4.05819114]),
                (True, 1, [-1.14263966, 1.92207560, 2.95985067, 4.02979950]),
                (True, 3, [-1.27223251, -1.83886499, 2.87866810, 4.08818664])):
            result = manyhead.rope(self.X, position, interleaved=interleaved)
            np.testing.assert_allclose(result.ravel(), expected, rtol=1e-6)
            config = manyhead.RopeConfig(interleaved=interleaved)
            np.testing.assert_array_equal(manyhead.rope(self.X, [position], config), result)
        np.testing.assert_array_equal(self.X.ravel(), [1, 2, 3, 4])

    def test_positions_and_tables_agree(self):
        x = np.random.default_rng(0).standard_normal((2, 3, 5, 16)).astype(np.float32)
        positions = np.array([[0, 7, 2, 1000000, 3], [9, 9, 1, 0, 5]])
        config = manyhead.RopeConfig(base=500.0, rotary_dim=8)
        expected = manyhead.rope(x, positions, config)
        angles = positions[..., None] * 500.0 ** (-np.arange(4) / 4)
        np.testing.assert_allclose(
            manyhead.rope(x, cos=np.cos(angles).astype(np.float32), sin=np.sin(angles).astype(np.float32)),
            expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(expected[..., 8:], x[..., 8:])
        np.testing.assert_array_equal(manyhead.rope(x[0], positions[0], config), expected[0])
        counted = manyhead.rope(x, 3, config)
        np.testing.assert_array_equal(manyhead.rope(x, np.arange(3, 8), config), counted)
        np.testing.assert_array_equal(manyhead.rope(x, None, config), manyhead.rope(x, 0, config))
        self.assertEqual(manyhead.rope(x.astype(np.float16), 1).dtype, np.float16)

    def test_scalings_stretch_angles(self):
        x = np.array([[[1, 0]]], np.float32)
        linear = manyhead.RopeConfig(scaling="linear", factor=4.0)
        np.testing.assert_allclose(manyhead.rope(x, 8, linear), manyhead.rope(x, 2), rtol=1e-6)
        yarn = manyhead.RopeConfig(scaling="yarn", factor=4.0, original_context=4096)
        np.testing.assert_allclose(np.linalg.norm(manyhead.rope(x, 5, yarn)), 1.13862944, rtol=1e-6)
        own = manyhead.RopeConfig(scaling="factors", factors=[2.0])
        np.testing.assert_allclose(manyhead.rope(x, 8, own), manyhead.rope(x, 4), rtol=1e-6)

    def test_bad_arguments(self):
        x, table = np.zeros((2, 3, 4, 8), np.float32), np.zeros((10, 4), np.float32)
        for words, call in (
                ("rotary_dim = 3", lambda: manyhead.rope(x, 0, manyhead.RopeConfig(rotary_dim=3))),
                ("base = 0", lambda: manyhead.rope(x, 0, manyhead.RopeConfig(base=0))),
                ("scaling = 'x'", lambda: manyhead.RopeConfig(scaling="x")),
                ("positions has shape [3]", lambda: manyhead.rope(x, [0, 1, 2])),
                ("-1", lambda: manyhead.rope(x, -1)),
                ("positions has dtype float64", lambda: manyhead.rope(x, 1.5)),
                ("positions has 10; expected 0 to 9", lambda: manyhead.rope(x, 7, cos=table, sin=table)),
                ("positions has -1", lambda: manyhead.rope(x, -1, cos=table, sin=table)),
                ("sin has shape [4, 3]", lambda: manyhead.rope(x, cos=table[:4], sin=table[:4, :3])),
                ("rotary_dim = 10", lambda: manyhead.rope(x, cos=np.zeros((4, 5), np.float32),
                                                         sin=np.zeros((4, 5), np.float32))),
                ("one is None", lambda: manyhead.rope(x, cos=table)),
                ("config and interleaved are both given",
                 lambda: manyhead.rope(x, 0, manyhead.RopeConfig(), interleaved=True)),
                ("x has 2 dimensions", lambda: manyhead.rope(x[0, 0]))):
            with self.subTest(words), self.assertRaises(ValueError) as caught:
                call()
            self.assertIn(words, str(caught.exception))


def weights(rng, d_model=24, heads=4, kv_heads=2, dim=6, memory=None, dtype=np.float32):
    shapes = ((heads * dim, d_model), (kv_heads * dim, memory or d_model),
              (kv_heads * dim, memory or d_model), (d_model, heads * dim))
    return [(rng.standard_normal(shape) / 5).astype(dtype) for shape in shapes]


def expected_layer(x, matrices, biases, memory=None, dim=6, rope=None, **options):
    """The layer in float64, one request."""
    query, key, value, output = (np.asarray(w, np.float64) for w in matrices)
    source = x if memory is None else memory
    heads = [(s @ w.T + b).reshape(len(s), -1, dim).swapaxes(0, 1)[None] for s, w, b in
             ((x, query, biases[0]), (source, key, biases[1]), (source, value, biases[2]))]
    if rope is not None:
        for i in range(2):
            heads[i] = manyhead.rope(heads[i].astype(np.float32), 0, rope)
    out = reference.attention(*heads, **options)["out"][0]
    terms = np.einsum("htd,ohd->hto", out, output.reshape(len(output), -1, dim))
    return terms.sum(axis=0) + biases[3], out, terms


class MultiHeadAttentionTest(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(3)
        self.weights = weights(self.rng)
        self.biases = [self.rng.standard_normal(n).astype(np.float32) for n in (24, 12, 12, 24)]
        self.names = dict(zip(("query_bias", "key_bias", "value_bias", "output_bias"), self.biases,
                              strict=True))
        self.x = self.rng.standard_normal((2, 20, 24)).astype(np.float32)

    def layer(self, **options):
        return manyhead.MultiHeadAttention(*self.weights, num_heads=4, num_kv_heads=2, max_q_len=32,
                                           **self.names, **options)

    def close(self, actual, expected):
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=2e-5)

    def test_equals_its_formula_and_shows_each_head(self):
        rope = manyhead.RopeConfig(base=100.0)
        for options in ({}, {"causal": True}, {"causal": True, "rope": rope}, {"softcap": 2.0}):
            for sequential in (False, True):
                layer = self.layer(sequential=sequential, **options)
                out, heads, terms = layer(self.x, head_outputs=True)
                self.assertEqual((heads.shape, terms.shape), ((2, 4, 20, 6), (2, 4, 20, 24)))
                for b in range(2):
                    expected = expected_layer(self.x[b], self.weights, self.biases, **options)
                    for part, value in zip((out[b], heads[b], terms[b]), expected, strict=True):
                        self.close(part, value)
                self.close(terms.sum(axis=1) + self.biases[3], out)
                np.testing.assert_array_equal(layer(self.x[0]), out[0])

    def test_cross_attention_with_a_mask(self):
        self.weights = weights(self.rng, memory=10)
        memory = self.rng.standard_normal((2, 7, 10)).astype(np.float32)
        mask = self.rng.random((2, 1, 20, 7)) < 0.7
        bias = self.rng.standard_normal((4, 1, 7)).astype(np.float32)
        out = self.layer(memory_dim=10)(self.x, memory, mask=mask, bias=bias)
        for b in range(2):
            self.close(out[b], expected_layer(self.x[b], self.weights, self.biases, memory[b],
                                              mask=mask[b:b + 1], bias=bias)[0])

    def test_incremental_equals_whole(self):
        options = {"causal": True, "rope": manyhead.RopeConfig()}
        whole = self.layer(**options)(self.x[0])
        layer = self.layer(incremental=True, max_kv_len=64, **options)
        pieces = [layer.append(self.x[0, part]) for part in (slice(0, 9), slice(9, 10), slice(10, 20))]
        self.close(np.concatenate(pieces), whole)
        self.assertEqual(layer.length, 20)
        layer.truncate(10)
        self.close(layer.append(self.x[0, 10:]), whole[10:])

        cache = manyhead.KvCache([layer.cache_shape], max_tokens=64, k_type="f32", v_type="f32")
        sequence = cache.create_sequence()
        for part in (slice(0, 15), slice(15, 20)):
            cache.reserve(sequence, part.stop - part.start)
            self.close(self.layer(max_kv_len=64, **options).attend(cache, 0, sequence, self.x[0, part]),
                       whole[part])

    def test_weight_types(self):
        for dtype, bound in ((np.float16, 2e-3), (bfloat16, 2e-2)):
            if dtype is None:
                continue
            rounded = [w.astype(dtype) for w in self.weights]
            layer = manyhead.MultiHeadAttention(*rounded, num_heads=4, num_kv_heads=2, **self.names)
            out = layer(self.x[0])
            self.close(out, expected_layer(self.x[0], rounded, self.biases)[0])
            np.testing.assert_allclose(out, self.layer()(self.x[0]), rtol=bound, atol=bound * 10)
            self.assertEqual(layer(self.x[0].astype(dtype)).dtype, dtype)

    def test_low_bit_weights_come_as_blocks(self):
        """Q8_0: a block is an f16 scale and 32 int8, here of a weight whose numbers are exact in it."""
        scale, numbers = np.float16(0.125), self.rng.integers(-20, 20, (4, 32, 32), dtype=np.int8)
        blocks = [np.concatenate((np.full((32, 1), scale).view(np.uint8), n.view(np.uint8)), axis=1)
                  for n in numbers]
        matrices = [n.astype(np.float32) * 0.125 for n in numbers]
        x = self.rng.standard_normal((5, 32)).astype(np.float32)
        packed = manyhead.MultiHeadAttention(*(("Q8_0", b) for b in blocks), num_heads=4, d_model=32)
        np.testing.assert_allclose(packed(x), manyhead.MultiHeadAttention(*matrices, num_heads=4)(x),
                                   rtol=1e-4, atol=1e-4)

    def test_weights_stay_alive_with_the_layer(self):
        expected = self.layer()(self.x)
        layer = manyhead.MultiHeadAttention(*(w.copy() for w in self.weights), num_heads=4,
                                            num_kv_heads=2, **{n: b.copy() for n, b in self.names.items()})
        poison = [np.full(n, np.nan, np.float32) for n in (24 * 24, 12 * 24, 12 * 24, 24 * 24, 24, 12)]
        np.testing.assert_array_equal(layer(self.x), expected)
        del poison

    def test_bad_arguments(self):
        wq, wk, wv, wo = self.weights
        make = manyhead.MultiHeadAttention
        layer = self.layer()
        for words, call in (
                ("d_model = 24 is not a multiple of num_heads = 5", lambda: make(wq, wk, wv, wo, num_heads=5)),
                ("num_heads = 4 is not a multiple of num_kv_heads = 3",
                 lambda: make(wq, wk, wv, wo, num_heads=4, num_kv_heads=3)),
                ("key has", lambda: make(wq, wk[:5], wv, wo, num_heads=4, num_kv_heads=2)),
                ("output has shape [32, 24]; expected [d_model, H Dv] = [24, 32]",
                 lambda: make(wq[:8].repeat(4, 0), wk[:8].repeat(2, 0), wv[:8].repeat(2, 0),
                              np.zeros((32, 24), np.float32), num_heads=4, num_kv_heads=2, head_dim=8)),
                ("key has shape [24, 12]; expected [K D, M] = [12, 24]",
                 lambda: make(wq, np.ascontiguousarray(wk.T), wv, wo, num_heads=4, num_kv_heads=2)),
                ("value has 5 biases", lambda: make(wq, wk, wv, wo, num_heads=4, num_kv_heads=2,
                                                   value_bias=np.zeros(5, np.float32))),
                ("query has dtype float64", lambda: make(wq.astype(float), wk, wv, wo, num_heads=4)),
                ("weight type = 'Q9'", lambda: make(("Q9", wq.view(np.uint8)), wk, wv, wo, num_heads=4,
                                                   d_model=24)),
                ("d_model is None", lambda: make(("Q8_0", wq.view(np.uint8)), wk, wv, wo, num_heads=4)),
                ("x has shape [20, 23]", lambda: layer(self.x[0, :, :23])),
                ("q_len = 40", lambda: layer(np.zeros((40, 24), np.float32))),
                ("memory_dim = 0", lambda: layer(self.x[0], np.zeros((3, 0), np.float32))),
                ("own_cache", lambda: layer.append(self.x[0])),
                ("mask has shape [3, 20]", lambda: layer(self.x, mask=np.ones((3, 20), bool)))):
            with self.subTest(words), self.assertRaises(ValueError) as caught:
                call()
            self.assertIn(words, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
