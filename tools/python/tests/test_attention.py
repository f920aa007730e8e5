"""Tests the arguments, results and errors of manyhead.attention."""
import os
import subprocess
import sys
import threading
import tracemalloc
import unittest

import numpy as np
import reference

import manyhead

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None


def tensors(*shapes, seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]


Q, K, V = tensors((2, 6, 4, 8), (2, 3, 9, 8), (2, 3, 9, 10))


class ShapesTest(unittest.TestCase):
    def test_rank_3_is_one_request(self):
        whole, lse, probs = manyhead.attention(Q, K, V, return_lse=True, return_weights="probs")
        self.assertEqual((whole.shape, lse.shape, probs.shape), ((2, 6, 4, 10), (2, 6, 4), (2, 6, 4, 9)))
        for b in range(2):
            one = manyhead.attention(Q[b], K[b], V[b], return_lse=True, return_weights="probs")
            for part, expected in zip(one, (whole, lse, probs), strict=True):
                np.testing.assert_array_equal(part, expected[b])

    def test_results_come_in_the_order_asked(self):
        self.assertIsInstance(manyhead.attention(Q, K, V), np.ndarray)
        self.assertEqual(manyhead.attention(Q, K, V, return_lse=True)[1].shape, (2, 6, 4))
        self.assertEqual(manyhead.attention(Q, K, V, return_weights="scores")[1].shape, (2, 6, 4, 9))

    def test_empty_sizes(self):
        for shape in ((0, 6, 4, 8), (2, 6, 0, 8)):
            q = np.empty(shape, np.float32)
            out, lse, probs = manyhead.attention(q, K[:shape[0]], V[:shape[0]], return_lse=True,
                                                 return_weights="probs")
            self.assertEqual(out.shape, (*shape[:3], 10))
            self.assertEqual(lse.shape, shape[:3])
            self.assertEqual(probs.shape, (*shape[:3], 9))
        for kv_type in (None, "f16"):
            out, lse = manyhead.attention(Q, K[:, :, :0], V[:, :, :0], return_lse=True, kv_type=kv_type)
            np.testing.assert_array_equal(out, 0)
            np.testing.assert_array_equal(lse, -np.inf)
        sinks = np.arange(6, dtype=np.float32)
        _, lse = manyhead.attention(Q, K[:, :, :0], V[:, :, :0], return_lse=True, sinks=sinks)
        np.testing.assert_allclose(lse, np.broadcast_to(sinks[:, None], (2, 6, 4)), rtol=1e-6)

    def test_more_queries_than_keys(self):
        for options in ({}, {"causal": True}, {"kv_type": "f32"}, {"kv_type": "f32", "causal": True}):
            result = manyhead.attention(Q, K[:, :, :2], V[:, :, :2], **options)
            causal = options.get("causal", False)
            expected = reference.attention(Q, K[:, :, :2], V[:, :, :2], causal=causal)["out"]
            np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)
            if causal:
                np.testing.assert_array_equal(result[:, :, :2], 0)

    def test_windows_are_spelt_both_ways(self):
        for window, sides, causal in ((3, (2, 0), False), ((2, 0), (2, 0), False),
                                      ((1, 2), (1, 2), False), ((None, 1), (None, 1), False),
                                      ((2, -1), (2, None), False), ((2, None), (2, 0), True),
                                      (0, (None, None), False), ((-1, -1), (None, None), False)):
            for start in (None, 0, 3, [5, -1]):
                expected = reference.attention(Q, K, V, window=sides, causal=causal, query_start=start)
                result = manyhead.attention(Q, K, V, window=window, causal=causal, query_start=start)
                np.testing.assert_allclose(result, expected["out"], rtol=1e-5, atol=1e-5,
                                           err_msg=f"{window} {start}")

    def test_query_start_0_is_the_upper_left_causal_mask(self):
        q, v = np.zeros((1, 2, 1), np.float32), np.arange(1, 6, dtype=np.float32).reshape(1, 5, 1)
        k = np.zeros((1, 5, 1), np.float32)
        lower_right = manyhead.attention(q, k, v, causal=True).ravel()
        np.testing.assert_allclose(lower_right, [2.5, 3.0])
        upper_left = manyhead.attention(q, k, v, causal=True, query_start=0).ravel()
        np.testing.assert_allclose(upper_left, [1.0, 1.5])


class ArraysTest(unittest.TestCase):
    def test_strided_views_are_read_where_they_are(self):
        """[B, T, H, D] tensors seen as [B, H, T, D], every second token, reversed heads."""
        rng = np.random.default_rng(1)
        k_SKD, v_SKD = (rng.standard_normal((1, 8192, 8, 64)).astype(np.float16) for _ in range(2))
        k, v = (x[:, ::2, ::-1].swapaxes(1, 2) for x in (k_SKD, v_SKD))
        q = rng.standard_normal((1, 1, 16, 64)).astype(np.float32).swapaxes(1, 2)
        expected = manyhead.attention(q.copy(), k.copy(), v.copy())
        tracemalloc.start()
        result = manyhead.attention(q, k, v)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        np.testing.assert_array_equal(result, expected)
        self.assertLess(peak, k.nbytes // 8)

    def test_read_only_broadcast_and_odd_layouts(self):
        expected = manyhead.attention(Q, K, V)
        frozen = K.copy()
        frozen.flags.writeable = False
        np.testing.assert_array_equal(manyhead.attention(Q, frozen, V), expected)
        last_strided = np.repeat(K, 2, axis=-1)[..., ::2]
        self.assertNotEqual(last_strided.strides[-1], 4)
        np.testing.assert_array_equal(manyhead.attention(Q, last_strided, V), expected)
        packed = np.zeros(K.shape, [("pad", "u1"), ("x", "f4")])
        packed["x"] = K
        np.testing.assert_array_equal(manyhead.attention(Q, packed["x"], V), expected)
        np.testing.assert_array_equal(manyhead.attention(Q.astype(">f4"), K, V), expected)
        shared = np.broadcast_to(K[:1], K.shape)
        np.testing.assert_array_equal(manyhead.attention(Q, shared, V)[0], expected[0])

    def test_types_may_differ_and_the_result_has_that_of_q(self):
        types = [np.float32, np.float16] + ([bfloat16] if bfloat16 else [])
        for q_type in types:
            for k_type in types:
                q, k, v = Q.astype(q_type), K.astype(k_type), V.astype(np.float16)
                result, weights = manyhead.attention(q, k, v, return_weights="probs")
                self.assertEqual((result.dtype, weights.dtype), (q_type, q_type))
                expected = reference.attention(q, k, v)
                for actual, name in ((result, "out"), (weights, "probs")):
                    np.testing.assert_allclose(actual.astype(np.float64), expected[name],
                                               rtol=2**-7 if q_type is bfloat16 else 2**-10, atol=2e-4)

    def test_inputs_are_not_changed(self):
        copies = [x.copy() for x in (Q, K, V)]
        manyhead.attention(Q, K, V, kv_type="int4", softcap=3.0)
        for array, copy in zip((Q, K, V), copies, strict=True):
            np.testing.assert_array_equal(array, copy)

    def test_broadcasting_of_bias_and_mask(self):
        rng = np.random.default_rng(2)
        for shape in ((), (1,), (9,), (4, 1), (4, 9), (6, 1, 1), (6, 4, 9), (2, 1, 1, 9), (2, 6, 4, 9)):
            bias, mask = rng.standard_normal(shape).astype(np.float32), rng.random(shape) < 0.7
            for options in ({"bias": bias}, {"mask": mask}, {"bias": bias.astype(np.float64)}):
                expected = reference.attention(Q, K, V, **options)["out"]
                for kv_type in (None, "f32"):
                    result = manyhead.attention(Q, K, V, kv_type=kv_type, **options)
                    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5,
                                               err_msg=f"{shape} {list(options)} {kv_type}")

    def test_nan_behind_a_mask_changes_nothing(self):
        mask = np.ones((9,), bool)
        mask[[3, 4]] = False
        k, v = K.copy(), V.copy()
        k[:, :, 3:5] = v[:, :, 3:5] = np.nan
        k[:, :, 7:] = v[:, :, 7:] = np.inf
        expected = reference.attention(Q, K, V, mask=mask, kv_lens=7)["out"]
        np.testing.assert_allclose(manyhead.attention(Q, k, v, mask=mask, kv_lens=7), expected,
                                   rtol=1e-5, atol=1e-5)


class ErrorsTest(unittest.TestCase):
    def check(self, words, q=Q, k=K, v=V, error=ValueError, **options):
        with self.assertRaises(error) as caught:
            manyhead.attention(q, k, v, **options)
        for word in words if isinstance(words, tuple) else (words,):
            self.assertIn(word, str(caught.exception))

    def test_shapes(self):
        self.check("num_heads = 5 is not a multiple of num_kv_heads = 3", q=Q[:, :5])
        self.check(("k has shape [2, 3, 9, 7]", "[B, K, S, D] = [2, 3, 9, 8]"), k=K[..., :7])
        self.check(("v has shape [2, 3, 5, 10]", "[B, K, S, Dv] = [2, 3, 9, 10]"), v=V[:, :, :5])
        self.check(("v has shape [2, 1, 9, 10]", "[2, 3, 9, 10]"), v=V[:, :1])
        self.check(("k has shape [1, 3, 9, 8]", "[2, 3, 9, 8]"), k=K[:1])
        self.check("q, k and v have 3, 4 and 4 dimensions", q=Q[0])
        self.check("q has 2 dimensions; expected 3 or 4", q=Q[0, 0])
        self.check(("bias has shape [3, 4, 9]", "[2, 6, 4, 9]"), bias=np.ones((3, 4, 9), np.float32))
        self.check(("mask has shape [4, 4]", "[2, 6, 4, 9]"), mask=np.ones((4, 4), bool))
        self.check(("bias has shape [1, 2, 6, 4, 9]", "[2, 6, 4, 9]"),
                   bias=np.ones((1, 2, 6, 4, 9), np.float32))
        self.check(("kv_lens has shape [3]", "[B] = [2]"), kv_lens=[1, 2, 3])
        self.check(("query_start has shape [1, 2]", "[B] = [2]"), query_start=[[1, 2]])
        self.check(("sinks has shape [2, 3]", "[H]"), sinks=np.ones((2, 3), np.float32))
        self.check(("sink_logits has 2 entries", "num_heads = 6"), sinks=[1, 2])
        self.check(("alibi_slopes has 5 entries", "num_heads = 6"), alibi_slopes=[1] * 5)

    def test_shapes_of_what_is_stored_first(self):
        for kv_type in ("f32", "int4"):
            for weights in (None, "probs"):
                stored = {"kv_type": kv_type, "return_weights": weights}
                self.check(("k has shape [2, 3, 9, 7]", "[B, K, S, D] = [2, 3, 9, 8]"), k=K[..., :7],
                           **stored)
                self.check(("v has shape [2, 3, 5, 10]", "[2, 3, 9, 10]"), v=V[:, :, :5], **stored)
                self.check(("v has shape [2, 3, 9, 10]", "[2, 3, 5, 10]"), k=K[:, :, :5], **stored)
                self.check(("v has shape [2, 1, 9, 10]", "[2, 3, 9, 10]"), v=V[:, :1], **stored)
                self.check(("k has shape [2, 3, 9, 8]", "[1, 3, 9, 8]"), q=Q[:1], **stored)
                self.check(("k has shape [1, 3, 9, 8]", "[2, 3, 9, 8]"), k=K[:1], **stored)
                self.check(("v has shape [1, 3, 9, 10]", "[2, 3, 9, 10]"), v=V[:1], **stored)
                self.check("q, k and v have 3, 4 and 4 dimensions", q=Q[0], **stored)
                self.check("kv_lens[1] = 10; expected 0..9", kv_lens=[9, 10], **stored)
                self.check("kv_lens[0] = -1; expected 0..9", kv_lens=-1, **stored)

    def test_types(self):
        self.check("q has dtype float64; expected float32, float16 or bfloat16", q=Q.astype(float))
        self.check("k has dtype int32", k=K.astype(np.int32))
        self.check("k has dtype uint16", k=K.astype(np.uint16))
        self.check("mask has dtype float32; expected bool", mask=np.ones((4, 9), np.float32))
        self.check("bias has dtype bool", bias=np.ones((4, 9), bool))
        self.check("kv_lens has dtype float64; expected integers", kv_lens=[1.0, 2.0])

    def test_values(self):
        self.check("softmax_scale = nan", scale=float("nan"))
        self.check("logit_softcap = -1", softcap=-1)
        self.check("window = -1", window=-1)
        self.check("window = (-2, 0)", window=(-2, 0))
        self.check("window has 3 entries", window=(1, 2, 3))
        self.check("float", window=1.5, error=TypeError)
        np.testing.assert_array_equal(manyhead.attention(Q, K, V, window=(2**63 - 1, 2**70)),
                                      manyhead.attention(Q, K, V))
        self.check("query_start has 18446744073709551611; expected at most 9223372036854775807",
                   query_start=2**64 - 5)
        self.check("kv_lens[1] = 20; expected 0..9", kv_lens=[1, 20])
        self.check(("kv_lens[0] = -1", "0..9"), kv_lens=-1)
        self.check("num_sink_tokens = -1", num_sink_tokens=-1)
        self.check("threads = -1", threads=-1)
        self.check("isa = 'sse'; expected 'scalar', 'avx2', 'avx512' or 'amx'", isa="sse")
        self.check("kv_type = 'int2'; expected 'f32', 'f16', 'bf16', 'int8' or 'int4'", kv_type="int2")
        self.check("return_weights = 'logits'; expected 'scores'", return_weights="logits")
        self.check("sink_logits[1] = nan", sinks=[0, float("nan")] + [0] * 4)

    def test_an_instruction_set_this_cpu_lacks_is_unsupported(self):
        for kind, has, lacks in (("scalar", "scalar", "avx2"), ("avx2", "avx2", "avx512"), ("avx512", "avx512", "amx"),
                                 ("avx512-vnni", "avx512", "amx")):
            if has not in manyhead.supported_isas():
                continue  # this CPU cannot stand for that kind
            program = ("import manyhead, numpy\n"
                       "x = numpy.ones((1, 1, 8), numpy.float32)\n"
                       "try:\n"
                       f"    manyhead.attention(x, x, x, isa='{lacks}')\n"
                       "except manyhead.UnsupportedError as error:\n"
                       "    print(error)\n")
            environment = {**os.environ, "MANYHEAD_TEST_CPU": kind, "MANYHEAD_ISA": ""}
            result = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True,
                                    check=True)
            self.assertIn(f"isa = {lacks}; this CPU runs at most {has}", result.stdout, kind)


class PartsTest(unittest.TestCase):
    def test_merged_halves_equal_the_whole(self):
        whole, lse = manyhead.attention(Q, K, V, return_lse=True)
        halves = [manyhead.attention(Q, K[:, :, part], V[:, :, part], return_lse=True)
                  for part in (slice(0, 4), slice(4, 9))]
        out, merged = manyhead.merge_attention_states(*halves[0], *halves[1])
        np.testing.assert_allclose(out, whole, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(merged, lse, rtol=1e-6)
        empty = np.zeros_like(out), np.full_like(lse, -np.inf)
        np.testing.assert_array_equal(manyhead.merge_attention_states(*empty, *empty)[0], 0)
        with self.assertRaisesRegex(ValueError, r"lse_b has shape \[2, 6\]; expected \[2, 6, 4\]"):
            manyhead.merge_attention_states(whole, lse, whole, lse[:, :, 0])

    def test_alibi_slopes_of_any_head_count(self):
        np.testing.assert_allclose(manyhead.alibi_slopes(8), [2.0**-i for i in range(1, 9)])
        np.testing.assert_allclose(manyhead.alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])
        with self.assertRaisesRegex(ValueError, "num_heads = 0; expected at least 1"):
            manyhead.alibi_slopes(0)

    def test_a_plan_explains_itself_and_refuses_what_it_is_too_small_for(self):
        plan = manyhead.AttentionPlan(num_heads=6, num_kv_heads=3, head_dim=8, head_dim_v=10, max_q_len=8,
                                      max_kv_len=64, isa="scalar", threads=1)
        np.testing.assert_array_equal(plan.run(Q, K, V), manyhead.attention(Q, K, V, isa="scalar"))
        explanation = plan.explain(1, 64, "f16")
        self.assertEqual((explanation.isa, explanation.threads), ("scalar", 1))
        self.assertEqual(explanation.scratch_bytes, plan.scratch_bytes)
        self.assertGreater(explanation.bytes, 0)
        self.assertIn("f16", str(explanation))
        with self.assertRaisesRegex(ValueError, "kv_len = 65.*64"):
            plan.explain(1, 65)
        q, k, v = tensors((6, 9, 8), (3, 9, 8), (3, 9, 10))
        with self.assertRaisesRegex(ValueError, "q_len = 9.*max_q_len = 8"):
            plan.run(q, k, v)

    def test_a_plan_may_be_shared_by_threads(self):
        q, k, v = tensors((1, 4, 16, 32), (1, 2, 512, 32), (1, 2, 512, 32))
        plan = manyhead.AttentionPlan(num_heads=4, num_kv_heads=2, head_dim=32, max_q_len=16,
                                      max_kv_len=512, threads=2)
        expected = plan.run(q, k, v)
        wrong = []

        def run():
            for _ in range(50):
                if not np.array_equal(plan.run(q, k, v), expected):
                    wrong.append(1)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertFalse(wrong)

    def test_other_threads_run_meanwhile(self):
        q, k, v = tensors((1, 8, 2048, 64), (1, 8, 2048, 64), (1, 8, 2048, 64))
        running, done = threading.Event(), threading.Event()

        def run():
            running.set()
            manyhead.attention(q, k, v, threads=1, isa="scalar")
            done.set()

        thread = threading.Thread(target=run)
        thread.start()
        running.wait()
        turns = 0
        while not done.wait(0.001):
            turns += 1
        thread.join()
        self.assertGreater(turns, 2)  # a second of work, of which a held lock would show none


if __name__ == "__main__":
    unittest.main()
