"""Random features, sizes and types against float64."""
import unittest

import numpy as np
import reference

import manyhead

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

CASES = 400
#: One unit in the last place, relative, of the type that results are rounded to.
ULP = {"float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8}


def random_case(rng):
    """Arrays and options, the same for both sides but for how a window is spelt."""
    groups = int(rng.choice([1, 2, 3, 7]))
    kv_heads = int(rng.choice([1, 2, 3]))
    heads = groups * kv_heads
    batch = int(rng.choice([1, 1, 2, 3]))
    q_len = int(rng.choice([1, 1, 2, 5, 17, 33]))
    kv_len = int(rng.choice([0, 1, 7, 16, 31, 64, 65, 130, 300]))
    dim = int(rng.choice([1, 3, 8, 16, 40, 64, 80, 128]))
    dim_v = int(rng.choice([dim, dim, 5, 32]))
    dtypes = [np.float32, np.float16] + ([bfloat16] if bfloat16 else [])
    dtype = dtypes[rng.choice(len(dtypes), p=[0.6, 0.4] if len(dtypes) == 2 else [0.6, 0.2, 0.2])]

    def tensor(*shape):
        return rng.standard_normal(shape).astype(np.float32).astype(dtype)

    arrays = (tensor(batch, heads, q_len, dim), tensor(batch, kv_heads, kv_len, dim),
              tensor(batch, kv_heads, kv_len, dim_v))
    options = {}

    def maybe(probability, name, make):
        if rng.random() < probability:
            options[name] = make()

    def logit_shape():
        sizes = (batch, heads, q_len, kv_len)
        return tuple(n if rng.random() < 0.6 else 1 for n in sizes)[int(rng.integers(0, 3)):]

    maybe(0.5, "causal", lambda: True)
    maybe(0.3, "scale", lambda: float(rng.choice([0.05, 0.3, 1.0])))
    maybe(0.3, "softcap", lambda: float(rng.choice([0.5, 5.0, 30.0])))
    maybe(0.3, "alibi_slopes", lambda: manyhead.alibi_slopes(heads))
    maybe(0.3, "sinks", lambda: rng.standard_normal(heads).astype(np.float32))
    maybe(0.3, "kv_lens", lambda: rng.integers(0, kv_len + 1, batch))
    maybe(0.3, "query_start", lambda: rng.integers(-3, kv_len + 3, batch))
    maybe(0.3, "mask", lambda: rng.random(logit_shape()) < 0.6)
    maybe(0.3, "bias", lambda: np.where(rng.random(shape := logit_shape()) < 0.1, -np.inf,
                                        rng.standard_normal(shape)).astype(np.float32))
    window = (None, None)
    if rng.random() < 0.4:
        window = tuple(None if rng.random() < 0.3 else int(rng.choice([0, 1, 5, 40])) for _ in range(2))
        maybe(0.5, "num_sink_tokens", lambda: int(rng.choice([1, 4, 20])))
    return arrays, options, window, dtype


class RandomTest(unittest.TestCase):
    def check(self, name, actual, expected, ulp, bound=2e-5):
        """bound: on the sum of float32 rounding over logits of order 10 and up to 300 keys."""
        np.testing.assert_array_equal(np.isneginf(actual), np.isneginf(expected), err_msg=name)
        finite = ~np.isneginf(expected)
        np.testing.assert_allclose(actual.astype(np.float64)[finite], expected[finite], rtol=ulp + bound,
                                   atol=bound + ulp * 2**-14, err_msg=name)

    def test_every_feature_alone_and_together(self):
        rng = np.random.default_rng(4)
        stages = ("scores", "capped", "biased", "probs")
        isas = manyhead.supported_isas()
        for number in range(CASES):
            arrays, options, window, dtype = random_case(rng)
            stage, isa = str(rng.choice(stages)), str(rng.choice(isas))
            expected = reference.attention(*arrays, window=window, **options)
            spelt = 0 if window == (None, None) else window
            with self.subTest(number=number, isa=isa, stage=stage, dtype=np.dtype(dtype).name,
                              shapes=[x.shape for x in arrays], options=options, window=window):
                out, lse, weights = manyhead.attention(
                    *arrays, window=spelt, return_lse=True, return_weights=stage, isa=isa,
                    threads=int(rng.integers(1, 4)), **options)
                ulp = ULP[np.dtype(dtype).name]
                self.assertEqual(out.dtype, dtype)
                self.check("out", out, expected["out"], ulp)
                self.check("lse", lse, expected["lse"], 0.0)
                self.check(stage, weights, expected[stage], ulp, bound=5e-5)

    def test_stored_types_round_keys_and_values_only(self):
        """Attention over a cache equals attention over what the cache gives back."""
        rng = np.random.default_rng(5)
        for number in range(60):
            arrays, options, window, _ = random_case(rng)
            q, k, v = (x.astype(np.float32) for x in arrays)
            kv_type = str(rng.choice(["f32", "f16", "bf16", "int8", "int4"]))
            spelt = 0 if window == (None, None) else window
            lens = np.broadcast_to(options.get("kv_lens", k.shape[2]), (q.shape[0],))
            cache = manyhead.KvCache([(k.shape[1], k.shape[3], v.shape[3])], max_tokens=1 + k.shape[2],
                                     k_type=kv_type, v_type=kv_type, capacity_bytes=1 << 26)
            stored_k, stored_v = np.zeros_like(k), np.zeros_like(v)
            for b, length in enumerate(lens):
                sequence = cache.create_sequence()
                cache.reserve(sequence, int(length))
                cache.write(sequence, 0, k[b, :, :length], v[b, :, :length])
                stored_k[b, :, :length], stored_v[b, :, :length] = cache.read(sequence, 0)
            expected = reference.attention(q, stored_k, stored_v, window=window, **options)
            with self.subTest(number=number, kv_type=kv_type, shapes=[x.shape for x in arrays],
                              options=options, window=window):
                out, lse = manyhead.attention(q, k, v, window=spelt, kv_type=kv_type, return_lse=True,
                                              **options)
                self.check("out", out, expected["out"], 0.0)
                self.check("lse", lse, expected["lse"], 0.0)

    def test_same_bits_for_every_number_of_threads_and_alone_or_in_a_batch(self):
        rng = np.random.default_rng(6)
        for number in range(30):
            arrays, options, window, _ = random_case(rng)
            options.pop("mask", None)
            options.pop("bias", None)
            options["window"] = 0 if window == (None, None) else window
            whole = manyhead.attention(*arrays, threads=1, **options)
            with self.subTest(number=number):
                for threads in (2, 3, 5, 8):
                    np.testing.assert_array_equal(manyhead.attention(*arrays, threads=threads, **options),
                                                  whole)
                for b in range(whole.shape[0]):
                    alone = {name: value[b:b + 1] if name in ("kv_lens", "query_start") else value
                             for name, value in options.items()}
                    np.testing.assert_array_equal(
                        manyhead.attention(*(x[b] for x in arrays), **alone), whole[b])


if __name__ == "__main__":
    unittest.main()
