"""manyhead.KvCache: what it stores, what it gives back, what it refuses."""
import threading
import unittest

import numpy as np
import reference

import manyhead


def make(**options):
    options = {"max_tokens": 64, "k_type": "f32", "v_type": "f32", **options}
    return manyhead.KvCache([(3, 8, 10)], **options)


def rows(n, seed=0):
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((3, n, 8)).astype(np.float32),
            rng.standard_normal((3, n, 10)).astype(np.float32))


def append(cache, sequence, k, v, layer=0):
    cache.reserve(sequence, k.shape[1])
    cache.write(sequence, layer, k, v)


class CacheTest(unittest.TestCase):
    def test_rows_come_back(self):
        cache, (k, v) = make(), rows(20)
        sequence = cache.create_sequence()
        append(cache, sequence, k[:, :15], v[:, :15])
        append(cache, sequence, k[:, 15:].astype(np.float16), v[:, 15:])
        self.assertEqual(cache.length(sequence), 20)
        stored_k, stored_v = cache.read(sequence, 0)
        np.testing.assert_array_equal(stored_k[:, :15], k[:, :15])
        np.testing.assert_array_equal(stored_k[:, 15:], k[:, 15:].astype(np.float16))
        np.testing.assert_array_equal(stored_v, v)
        np.testing.assert_array_equal(cache.read(sequence, 0, 3, 5)[1], v[:, 3:5])
        cache.write(sequence, 0, k[:, :2] + 1, v[:, :2], position=4)
        np.testing.assert_array_equal(cache.read(sequence, 0, 4, 6)[0], k[:, :2] + 1)

    def test_any_layout_of_rows_is_written_right(self):
        k, v = rows(9)
        tokens_first = np.ascontiguousarray(k.swapaxes(0, 1)).swapaxes(0, 1)
        frozen = np.broadcast_to(k[:, :1].copy(), k.shape)
        for given, expected in ((k, k), (tokens_first, k), (k[::-1], k[::-1]), (k[:, ::-1], k[:, ::-1]),
                                (np.asfortranarray(k), k), (frozen, frozen),
                                (tokens_first[:, ::-1], k[:, ::-1])):
            cache = make()
            sequence = cache.create_sequence()
            append(cache, sequence, given, v)
            np.testing.assert_array_equal(cache.read(sequence, 0)[0], expected)

    def test_decoding_step_by_step_equals_one_prefill(self):
        k, v = rows(40)
        q = np.random.default_rng(1).standard_normal((6, 40, 8)).astype(np.float32)
        expected = reference.attention(q[None], k[None], v[None], causal=True)
        cache = make()
        sequence = cache.create_sequence()
        plan = manyhead.AttentionPlan(num_heads=6, num_kv_heads=3, head_dim=8, head_dim_v=10,
                                      max_q_len=64, max_kv_len=64, causal=True)
        parts = []
        for part in (slice(0, 17), slice(17, 18), slice(18, 40)):
            append(cache, sequence, k[:, part], v[:, part])
            parts.append(plan.attend(cache, 0, sequence, q[:, part], return_lse=True))
        out, lse = (np.concatenate(x, axis=1) for x in zip(*parts, strict=True))
        np.testing.assert_allclose(out, expected["out"][0], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(lse, expected["lse"][0], rtol=1e-5, atol=1e-5)
        whole = cache.attend(sequence, 0, q, causal=True)
        np.testing.assert_array_equal(whole, out)

    def test_batches_of_equal_and_of_ragged_queries(self):
        lengths, counts = (5, 33, 17), (2, 1, 4)
        cache = make(capacity_bytes=1 << 20)
        sequences, expected, queries = [], [], []
        rng = np.random.default_rng(2)
        bias = rng.standard_normal((3, 6, 4, 33)).astype(np.float32)
        for b, (length, count) in enumerate(zip(lengths, counts, strict=True)):
            k, v = rows(length, seed=length)
            sequences.append(cache.create_sequence())
            append(cache, sequences[-1], k, v)
            queries.append(rng.standard_normal((6, count, 8)).astype(np.float32))
            expected.append(reference.attention(queries[-1][None], k[None], v[None], causal=True,
                                                bias=bias[b:b + 1, :, :count, :length])["out"][0])
        ragged = cache.attend(sequences, 0, np.concatenate(queries, axis=1), qo_indptr=[0, 2, 3, 7],
                              causal=True, bias=bias)
        np.testing.assert_allclose(ragged, np.concatenate(expected, axis=1), rtol=1e-5, atol=1e-5)
        single = np.stack([q[:, -1:] for q in queries])
        batch = cache.attend(sequences, 0, single, causal=True)
        for b, sequence in enumerate(sequences):
            np.testing.assert_array_equal(batch[b], cache.attend(sequence, 0, single[b], causal=True))

    def test_types_and_the_bytes_they_take(self):
        bytes_per_token = {}
        for kv_type in ("f32", "f16", "bf16", "int8", "int4"):
            cache = manyhead.KvCache([(2, 64)] * 3, max_tokens=100, k_type=kv_type, v_type=kv_type)
            self.assertEqual((cache.num_layers, cache.k_type, cache.max_tokens), (3, kv_type, 100))
            bytes_per_token[kv_type] = cache.bytes_per_token
        self.assertEqual(bytes_per_token["f32"], 3 * 2 * 2 * 64 * 4)
        self.assertEqual(bytes_per_token["f16"], bytes_per_token["f32"] // 2)
        self.assertLess(bytes_per_token["int4"], bytes_per_token["int8"])

    def test_pages_are_counted_and_given_back(self):
        cache, (k, v) = make(page_size=16, capacity_bytes=1 << 16), rows(20)
        sequence = cache.create_sequence()
        append(cache, sequence, k, v)
        usage = cache.usage(sequence)
        self.assertEqual(usage.used_bytes, sum(map(sum, usage.head_bytes)))
        self.assertEqual(len(usage.head_bytes[0]), 3)
        cache.truncate(sequence, 16)
        self.assertEqual(cache.usage().used_bytes, usage.used_bytes // 2)
        cache.free_sequence(sequence)
        self.assertEqual(cache.usage().used_bytes, 0)
        with self.assertRaisesRegex(ValueError, "sequence"):
            cache.length(sequence)

    def test_a_full_cache_refuses_and_changes_nothing(self):
        cache, (k, v) = make(), rows(60)
        sequence = cache.create_sequence()
        append(cache, sequence, k, v)
        with self.assertRaisesRegex(manyhead.OutOfPagesError, "60 . 5 tokens; max_tokens = 64"):
            cache.reserve(sequence, 5)
        self.assertIsInstance(manyhead.OutOfPagesError(), MemoryError)
        self.assertEqual(cache.length(sequence), 60)
        np.testing.assert_array_equal(cache.read(sequence, 0)[0], k)

    def test_bad_arguments(self):
        cache, (k, v) = make(), rows(4)
        sequence = cache.create_sequence()
        append(cache, sequence, k, v)
        q = np.zeros((6, 1, 8), np.float32)
        for words, call in (
                ("layer = 1", lambda: cache.write(sequence, 1, k, v)),
                ("k has shape", lambda: cache.write(sequence, 0, k[:2], v)),
                ("v has shape", lambda: cache.write(sequence, 0, k, v[:, :3])),
                ("position", lambda: cache.write(sequence, 0, k, v, position=1)),
                ("position", lambda: cache.read(sequence, 0, 2, 6)),
                ("position", lambda: cache.read(sequence, 0, -1, 2)),
                ("sequence", lambda: cache.reserve(sequence + 1, 1)),
                ("length = 5", lambda: cache.truncate(sequence, 5)),
                ("num_heads = 7", lambda: cache.attend(sequence, 0, np.zeros((7, 1, 8), np.float32))),
                ("q has shape", lambda: cache.attend(sequence, 0, q[..., :7])),
                ("q has a batch of 1", lambda: cache.attend([sequence] * 2, 0, q)),
                ("qo_indptr", lambda: cache.attend([sequence], 0, q, qo_indptr=[0, 2])),
                ("qo_indptr", lambda: cache.attend([sequence], 0, q, qo_indptr=[0, 1, 1])),
                ("layers[0] has 1 entries", lambda: manyhead.KvCache([(1,)], max_tokens=1)),
                ("head_dim = 0", lambda: manyhead.KvCache([(1, 0)], max_tokens=1)),
                ("max_tokens = 0", lambda: manyhead.KvCache([(1, 8)], max_tokens=0, capacity_bytes=4096)),
                ("kv_type = 'f8'", lambda: make(k_type="f8")),
                ("page_size = 10", lambda: make(page_size=10))):
            with self.subTest(words), self.assertRaises(ValueError) as caught:
                call()
            self.assertIn(words, str(caught.exception))
        np.testing.assert_array_equal(cache.read(sequence, 0)[0], k)

    def test_threads_may_share_a_cache(self):
        cache, (k, v) = make(capacity_bytes=1 << 20), rows(8)
        failures = []

        def run():
            for _ in range(100):
                sequence = cache.create_sequence()
                append(cache, sequence, k, v)
                if not np.array_equal(cache.read(sequence, 0)[1], v):
                    failures.append(sequence)
                cache.free_sequence(sequence)

        threads = [threading.Thread(target=run) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((failures, cache.usage().used_bytes), ([], 0))


if __name__ == "__main__":
    unittest.main()
