"""Random cases against PyTorch, where it can be imported."""
import unittest

import numpy as np

import manyhead

try:
    import torch
    from torch.nn import functional
except ImportError:
    torch = None

BOUND = 1e-5


@unittest.skipIf(torch is None, "torch is not installed")
class TorchTest(unittest.TestCase):
    def setUp(self):
        self.rng = np.random.default_rng(7)

    def tensor(self, *shape):
        return self.rng.standard_normal(shape).astype(np.float32)

    def test_scaled_dot_product_attention(self):
        for number in range(100):
            groups, kv_heads, batch = (int(self.rng.choice(n)) for n in ([1, 2, 4], [1, 3], [1, 2]))
            q_len, kv_len = (int(n) for n in self.rng.integers(1, 70, 2))
            dim, dim_v = (int(n) for n in self.rng.choice([4, 16, 40, 64], 2))
            q = self.tensor(batch, kv_heads * groups, q_len, dim)
            k = self.tensor(batch, kv_heads, kv_len, dim)
            v = self.tensor(batch, kv_heads, kv_len, dim_v)
            scale = [None, 0.2][number % 2]
            kind = ["plain", "causal", "bool", "float"][number % 4]
            ours, theirs = {"scale": scale}, {"scale": scale}
            if kind == "causal":  # the mask of PyTorch begins in the upper left
                ours.update(causal=True, query_start=0)
                theirs.update(is_causal=True)
            elif kind == "bool":
                mask = self.rng.random((batch, 1, q_len, kv_len)) < 0.7
                mask[..., 0] = True  # PyTorch's rows without a key depend on its kernel
                ours.update(mask=mask)
                theirs.update(attn_mask=torch.from_numpy(mask))
            elif kind == "float":
                bias = self.tensor(kv_heads * groups, q_len, kv_len)
                ours.update(bias=bias)
                theirs.update(attn_mask=torch.from_numpy(bias))
            with self.subTest(number=number, kind=kind, shapes=(q.shape, k.shape, v.shape)):
                expected = functional.scaled_dot_product_attention(
                    *(torch.from_numpy(x) for x in (q, k, v)), enable_gqa=True, **theirs)
                np.testing.assert_allclose(manyhead.attention(q, k, v, **ours), expected.numpy(),
                                           rtol=BOUND, atol=BOUND)

    def test_multi_head_attention(self):
        for number in range(20):
            heads = int(self.rng.choice([1, 2, 4, 8]))
            d_model, memory_dim = heads * int(self.rng.choice([4, 16])), 24
            q_len, kv_len = (int(n) for n in self.rng.integers(1, 40, 2))
            cross, bias, causal = number % 2 == 1, number % 3 > 0, number % 4 == 0
            layer = torch.nn.MultiheadAttention(
                d_model, heads, bias=bias, batch_first=True, kdim=memory_dim if cross else None,
                vdim=memory_dim if cross else None)
            if bias:
                torch.nn.init.normal_(layer.in_proj_bias)
                torch.nn.init.normal_(layer.out_proj.bias)
            state = {name: value.detach().numpy() for name, value in layer.named_parameters()}
            if cross:
                weights = [state[f"{name}_proj_weight"] for name in "qkv"]
            else:
                weights = np.split(state["in_proj_weight"], 3)
            biases = np.split(state["in_proj_bias"], 3) if bias else [None] * 3
            ours = manyhead.MultiHeadAttention(
                *weights, state["out_proj.weight"], num_heads=heads, query_bias=biases[0],
                key_bias=biases[1], value_bias=biases[2], output_bias=state.get("out_proj.bias"),
                max_q_len=40, max_kv_len=40, memory_dim=memory_dim if cross else None, causal=causal)
            x = self.tensor(3, q_len, d_model)
            memory = self.tensor(3, kv_len, memory_dim) if cross else x
            hidden = torch.ones(q_len, q_len, dtype=torch.bool).triu(1) if causal else None
            with self.subTest(number=number, heads=heads, cross=cross, bias=bias, causal=causal):
                with torch.no_grad():
                    expected, _ = layer(torch.from_numpy(x), *[torch.from_numpy(memory)] * 2,
                                        attn_mask=hidden, need_weights=False)
                np.testing.assert_allclose(ours(x, memory if cross else None), expected.numpy(),
                                           rtol=BOUND, atol=BOUND)


if __name__ == "__main__":
    unittest.main()
