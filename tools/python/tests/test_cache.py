"""manyhead.KvCache: what it stores, what it gives back, what it refuses."""
import json
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

    def test_heads_have_types_and_policies_of_their_own(self):
        policies = {"heads": [{"kv_heads": [1], "policy": "sink(2)+recent(16)", "v_type": "int8"},
                              {"kv_heads": [2], "policy": "off"}]}
        caches = [make(heads=heads, page_size=16) for heads in (policies, json.dumps(policies))]
        for cache in caches:
            self.assertEqual([(head.k_type, head.v_type, head.policy) for head in cache.heads[0]],
                             [("f32", "f32", "full"), ("f32", "int8", "sink(2)+recent(16)"),
                              ("f32", "f32", "off")])
        self.assertEqual(caches[0].heads[0][1].__repr__(),
                         "KvHeadParams(k_type='f32', v_type='int8', policy='sink(2)+recent(16)')")
        cache, (k, v) = caches[0], rows(64)
        sequence = cache.create_sequence()
        append(cache, sequence, k[:, :63], v[:, :63])
        self.assertEqual(cache.head_usage(sequence)[0][1].tokens, 63)
        cache.evict(sequence)
        self.assertEqual(cache.head_usage(sequence)[0][1].tokens, 31)
        append(cache, sequence, k[:, 63:], v[:, 63:])
        usage = cache.head_usage(sequence)[0]
        self.assertEqual([head.tokens for head in usage], [64, 32, 0])
        self.assertEqual([head.pages for head in usage], [4, 2, 0])
        self.assertEqual([head.pages * head.page_bytes for head in usage],
                         cache.usage(sequence).head_bytes[0])
        self.assertGreater(cache.usage().table_bytes, 0)
        self.assertIn("KvHeadUsage(tokens=64, pages=4,", repr(usage[0]))
        self.assertEqual([cache.holds(sequence, 0, 1, s) for s in (0, 15, 16, 47, 48, 63)],
                         [True, True, False, False, True, True])
        q = np.random.default_rng(3).standard_normal((6, 1, 8)).astype(np.float32)
        out = cache.attend(sequence, 0, q, causal=True)
        full = reference.attention(q[None], k[None], v[None], causal=True)["out"][0]
        np.testing.assert_allclose(out[:2], full[:2], rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(out[4:], np.zeros((2, 1, 10)))
        seen = [0, 1, *range(48, 64)]
        some = reference.attention(q[None], k[None][:, :, seen], v[None][:, :, seen])["out"][0]
        np.testing.assert_allclose(out[2:4], some[2:4], rtol=0, atol=0.05)
        self.assertGreater(np.abs(some[2:4] - full[2:4]).max(), 0.1)

    def test_full_for_every_head_is_the_plain_cache(self):
        k, v = rows(50)
        q = np.random.default_rng(4).standard_normal((6, 3, 8)).astype(np.float32)
        results = []
        for heads in (None, "full", {"heads": [{"policy": "full"}]}, {"heads": []}):
            cache = make(heads=heads, k_type="int8", v_type="f16")
            sequence = cache.create_sequence()
            append(cache, sequence, k, v)
            results.append((cache.attend(sequence, 0, q, causal=True).tobytes(),
                            cache.usage().used_bytes, cache.usage().table_bytes))
        self.assertEqual(results[1:], results[:1] * 3)

    def test_forks_share_pages_until_one_writes(self):
        cache, (k, v) = make(page_size=16, capacity_bytes=1 << 16), rows(40)
        first = cache.create_sequence()
        append(cache, first, k[:, :32], v[:, :32])
        used = cache.usage().used_bytes
        second = cache.fork(first)
        self.assertEqual((cache.length(second), cache.usage().used_bytes), (32, used))
        self.assertEqual(cache.usage(second).used_bytes, used)
        append(cache, second, k[:, 32:], v[:, 32:])
        cache.write(second, 0, -k[:, :1], v[:, :1], position=0)
        np.testing.assert_array_equal(cache.read(first, 0)[0], k[:, :32])
        np.testing.assert_array_equal(cache.read(second, 0)[0][:, :1], -k[:, :1])
        self.assertEqual(cache.usage().used_bytes, 2 * used)  # a page of its own, and a new one
        cache.free_sequence(first)
        np.testing.assert_array_equal(cache.read(second, 0)[0][:, 1:], k[:, 1:])

    def test_ranges_are_copied_and_dropped_at_their_positions(self):
        cache, (k, v) = make(page_size=16, capacity_bytes=1 << 16), rows(48)
        first, second = cache.create_sequence(), cache.create_sequence()
        append(cache, first, k, v)
        used = cache.usage().used_bytes
        cache.copy(first, 16, 40, second)
        self.assertEqual((cache.length(second), cache.usage().used_bytes), (40, used))
        self.assertEqual([cache.holds(second, 0, 0, s) for s in (15, 16, 39)], [False, True, True])
        np.testing.assert_array_equal(cache.read(second, 0, 16, 40)[1], v[:, 16:40])
        with self.assertRaisesRegex(ValueError, "position"):
            cache.read(second, 0, 15, 16)
        with self.assertRaisesRegex(ValueError, "begin"):
            cache.copy(first, 39, 41, second)
        cache.free_sequence(second)
        cache.drop(first, 0, 20)
        self.assertEqual(cache.length(first), 48)
        self.assertEqual(cache.head_usage(first)[0][0].tokens, 28)
        self.assertEqual(cache.usage().used_bytes, used * 2 // 3)
        q = np.random.default_rng(5).standard_normal((6, 1, 8)).astype(np.float32)
        expected = reference.attention(q[None], k[None][:, :, 20:], v[None][:, :, 20:])["out"][0]
        np.testing.assert_allclose(cache.attend(first, 0, q, causal=True), expected, rtol=1e-5,
                                   atol=1e-5)

    def test_truncate_tells_whether_it_was_exact(self):
        for heads, exact in (("full", True), ("off", True), ("window(16)", False),
                             ("budget(48)+recent(16)", False)):
            cache, (k, v) = make(page_size=16, heads=heads, max_tokens=128), rows(64)
            sequence = cache.create_sequence()
            append(cache, sequence, k, v)
            cache.attend(sequence, 0, np.ones((3, 1, 8), np.float32))
            append(cache, sequence, k[:, :1], v[:, :1])
            self.assertEqual(cache.exact_length(sequence, 40) == 40, exact, heads)
            self.assertIs(cache.truncate(sequence, 40), exact, heads)
            self.assertEqual(cache.length(sequence), 40)

    def test_a_window_goes_back_by_its_margin(self):
        q = np.ones((3, 1, 8), np.float32)
        k, v = rows(70)
        for margin, exact in ((5, True), (0, False)):
            made = [make(page_size=16, heads=f"window(16)+margin({margin})", max_tokens=128) for _ in range(2)]
            outs = []
            for cache, speculates in zip(made, (True, False)):
                sequence = cache.create_sequence()
                append(cache, sequence, k[:, :60], v[:, :60])
                for i in range(60, 65 if speculates else 60):
                    append(cache, sequence, -k[:, i:i + 1], -v[:, i:i + 1])
                cache.evict(sequence)
                if speculates and not exact:
                    with self.assertRaisesRegex(ValueError, "count = 5 leads back to length 60"):
                        cache.rollback(sequence, 5)
                    self.assertEqual(cache.length(sequence), 65)
                    continue
                if speculates:
                    cache.rollback(sequence, 5)
                append(cache, sequence, k[:, 60:61], v[:, 60:61])
                outs.append(np.asarray(cache.attend(sequence, 0, q)))
            if exact:
                np.testing.assert_array_equal(outs[0], outs[1])

    def test_the_capacity_of_a_policy_holds_it(self):
        shape = [(2, 64)] * 2
        full = manyhead.kv_capacity_bytes(shape, sequences=1, tokens=4096, step=64)
        some = manyhead.kv_capacity_bytes(shape, sequences=1, tokens=4096, step=64,
                                          heads="sink(4)+recent(256)")
        self.assertLess(some, full / 8)
        cache = manyhead.KvCache(shape, max_tokens=4096, capacity_bytes=some,
                                 heads="sink(4)+recent(256)")
        sequence = cache.create_sequence()
        for _ in range(64):
            cache.reserve(sequence, 64)
        usage = cache.usage()
        self.assertLessEqual(usage.used_bytes + usage.table_bytes, some)
        self.assertGreater(
            manyhead.kv_capacity_bytes(shape, sequences=1, tokens=4096,
                                       heads="sink(4)+recent(256)"), some)

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
                ("'half': part 'half'", lambda: make(heads="half")),
                ("heads[0].kv_heads has 3", lambda: make(heads={"heads": [{"kv_heads": [3]}]})),
                ("no valid JSON", lambda: make(heads='{"heads": [')),
                ("heads is an empty text", lambda: make(heads=" ")),
                ("sequence", lambda: cache.fork(sequence + 1)),
                ("sequence", lambda: cache.evict(sequence + 1)),
                ("sequence", lambda: cache.head_usage(sequence + 1)),
                ("length = 5", lambda: cache.exact_length(sequence, 5)),
                ("end = 5", lambda: cache.drop(sequence, 0, 5)),
                ("page_size = 10", lambda: make(page_size=10))):
            with self.subTest(words), self.assertRaises(ValueError) as caught:
                call()
            self.assertIn(words, str(caught.exception))
        with self.assertRaisesRegex(TypeError, "heads is a list"):
            make(heads=[])
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
