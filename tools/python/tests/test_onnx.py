"""ONNX's own backend tests, each through the public call.

The adapters only rename: they split heads of 3-D tensors, join past and present, pad masks, and state
positions, because ONNX counts queries from the past's end, or from the upper left where there is none.
"""
import functools
import unittest
import warnings

import numpy as np

import manyhead

try:
    import ml_dtypes  # noqa: F401  bfloat16
    import onnx
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.case.node import collect_testcases
except ImportError:
    onnx = None

STAGES = ("scores", "capped", "biased", "probs")


@functools.cache
def all_cases():
    """onnx makes its cases while it is imported: those of every operator, or of the first one asked."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return collect_testcases()


def direct_cases(operator):
    """The backend tests of an operator, without the twins that spell it out in other operators."""
    return [case for case in all_cases() if not case.name.endswith("_expanded")
            and [node.op_type for node in case.model.graph.node] == [operator]]


def node_inputs(case):
    """A case's node, attributes, inputs and outputs by name."""
    (node,) = case.model.graph.node
    ((inputs, outputs),) = case.data_sets
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    roles = [name for name in node.input if name]
    return node, attributes, dict(zip(roles, inputs, strict=True)), outputs


def split_heads(tensor, heads):
    """[B, T, H D] as [B, H, T, D], a view."""
    return tensor.reshape(*tensor.shape[:2], heads, -1).swapaxes(1, 2)


def pad_mask(mask, kv_len):
    """Keys that a mask does not reach are hidden."""
    missing = kv_len - mask.shape[-1]
    widths = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
    hidden = False if mask.dtype == np.bool_ else -np.inf
    return np.pad(mask, widths, constant_values=hidden) if missing > 0 else mask


def attention(inputs, attributes, outputs):
    """ONNX Attention as one call of manyhead.attention: the outputs by name."""
    q, k, v = inputs["Q"], inputs["K"], inputs["V"]
    is_3d = q.ndim == 3
    if is_3d:
        q = split_heads(q, attributes["q_num_heads"])
        k, v = (split_heads(x, attributes["kv_num_heads"]) for x in (k, v))
    past = 0
    if "past_key" in inputs:
        past = inputs["past_key"].shape[2]
        k = np.concatenate((inputs["past_key"], k), axis=2)
        v = np.concatenate((inputs["past_value"], v), axis=2)
    valid = inputs.get("nonpad_kv_seqlen")
    options = {}
    if "attn_mask" in inputs:
        mask = pad_mask(inputs["attn_mask"], k.shape[2])
        options["mask" if mask.dtype == np.bool_ else "bias"] = mask
    if "qk_matmul_output" in outputs:
        options["return_weights"] = STAGES[attributes.get("qk_matmul_output_mode", 0)]
    result = manyhead.attention(
        q, k, v, causal=bool(attributes.get("is_causal", 0)), scale=attributes.get("scale"),
        softcap=attributes.get("softcap", 0.0),
        window=(attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)),
        kv_lens=valid, query_start=past if valid is None else valid - q.shape[2],
        **options)
    y, weights = result if isinstance(result, tuple) else (result, None)
    if is_3d:
        y = y.swapaxes(1, 2).reshape(*inputs["Q"].shape[:2], -1)
    return {"Y": y, "present_key": k, "present_value": v, "qk_matmul_output": weights}


def rotary_embedding(inputs, attributes):
    """ONNX RotaryEmbedding as one call of manyhead.rope."""
    x = inputs["input"]
    is_3d = x.ndim == 3
    if is_3d:
        x = split_heads(x, attributes["num_heads"])
    y = manyhead.rope(x, positions=inputs.get("position_ids"), cos=inputs["cos_cache"],
                      sin=inputs["sin_cache"], interleaved=bool(attributes.get("interleaved", 0)))
    return y.swapaxes(1, 2).reshape(inputs["input"].shape) if is_3d else y


def assert_similar(name, actual, expected, case):
    """As onnx.backend.test.runner compares: bfloat16 within two of its units, the rest as the case says."""
    np.testing.assert_equal(actual.shape, expected.shape, err_msg=name)
    np.testing.assert_equal(actual.dtype, expected.dtype, err_msg=name)
    rtol = max(case.rtol, 2**-6) if expected.dtype.name == "bfloat16" else case.rtol
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=rtol,
                               atol=case.atol, err_msg=name)


@unittest.skipIf(onnx is None, "onnx and ml_dtypes are not installed")
class OnnxTest(unittest.TestCase):
    def test_attention(self):
        cases = direct_cases("Attention")
        self.assertGreaterEqual(len(cases), 93)
        for case in cases:
            with self.subTest(case.name):
                node, attributes, inputs, outputs = node_inputs(case)
                names = [name for name in node.output if name]
                results = attention(inputs, attributes, names)
                for name, expected in zip(names, outputs, strict=True):
                    assert_similar(name, results[name], expected, case)

    def test_rotary_embedding(self):
        cases = direct_cases("RotaryEmbedding")
        self.assertGreaterEqual(len(cases), 8)
        for case in cases:
            with self.subTest(case.name):
                _, attributes, inputs, (expected,) = node_inputs(case)
                assert_similar("output", rotary_embedding(inputs, attributes), expected, case)


if __name__ == "__main__":
    unittest.main()
