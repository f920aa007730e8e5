"""Tests captured attention weights, from Python."""
import pathlib
import unittest

import numpy as np

import manyhead

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUNDLED = ROOT / "tools" / "models" / "bundled.gguf"
TEXT = "x7k2qz x7k2qz x7k2qz x7k2qz"


class HeadsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = manyhead.Model.load(BUNDLED)
        cls.ids = cls.model.tokenize(TEXT)

    def test_rows_are_distributions_over_the_past(self):
        for layer in range(len(self.model.layers)):
            weights = self.model.attention(layer, 1, self.ids)
            self.assertEqual((weights.shape, weights.dtype), ((len(self.ids),) * 2, np.float32))
            np.testing.assert_allclose(weights.sum(1), 1, atol=1e-5)
            np.testing.assert_array_equal(np.triu(weights, 1), 0)
            self.assertGreaterEqual(weights.min(), 0)

    def test_text_threads_and_steps_give_the_same_weights(self):
        weights = self.model.attention(1, 0, TEXT, threads=1, math="exact")
        again = self.model.attention(1, 0, np.array(self.ids), threads=3, math="exact")
        np.testing.assert_array_equal(weights, again)
        windowed = self.model.attention(1, 0, self.ids, kv_policy="window(5)", math="exact")
        np.testing.assert_array_equal(np.tril(windowed, -5), 0)
        self.assertGreater(np.tril(weights, -5).max(), 0)

    def test_profile_agrees_with_the_weights(self):
        profile = self.model.profile(self.ids, every=1, sink_tokens=2, recent=3)
        self.assertEqual((profile.tokens, profile.steps), (len(self.ids), 1))
        position = np.arange(len(self.ids))
        for layer, heads in enumerate(profile.heads):
            self.assertEqual(len(heads), self.model.layers[layer].num_heads)
            for head, stats in enumerate(heads):
                weights = self.model.attention(layer, head, self.ids).astype(np.float64)
                logs = np.log(weights, where=weights > 0, out=np.zeros_like(weights))
                distance = position[:, None] - position
                self.assertEqual(stats.rows, len(self.ids))
                self.assertAlmostEqual(stats.entropy, -(weights * logs).sum(1).mean(), 4)
                self.assertAlmostEqual(stats.effective_tokens, np.exp(stats.entropy), 9)
                self.assertAlmostEqual(stats.sink_mass, weights[:, :2].sum(1).mean(), 5)
                self.assertAlmostEqual(stats.recent_mass, (weights * (distance < 3)).sum(1).mean(), 5)
                self.assertAlmostEqual(stats.mean_distance, (weights * distance).sum(1).mean(), 3)
                self.assertAlmostEqual(stats.max_weight, weights.max(1).mean(), 5)
                self.assertGreater(min(stats.output_norm, stats.kv_bytes, stats.seconds), 0)

    def test_wrong_heads_and_options(self):
        last = len(self.model.layers)
        with self.assertRaisesRegex(ValueError, rf"heads\[0\].layer = {last}; expected 0 to {last - 1}"):
            self.model.attention(last, 0, self.ids)
        with self.assertRaisesRegex(ValueError, r"heads\[0\].head = -1; expected 0 to"):
            self.model.attention(0, -1, self.ids)
        with self.assertRaisesRegex(ValueError, "every = 0; expected 1 or more"):
            self.model.profile(self.ids, every=0)
        with self.assertRaisesRegex(ValueError, "ids has 0 tokens"):
            self.model.attention(0, 0, [])


if __name__ == "__main__":
    unittest.main()
