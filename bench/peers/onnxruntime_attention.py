"""Times ONNX Runtime's GroupQueryAttention (f32, shared KV buffer) on one shape, for bench/compare.py.

usage: onnxruntime_attention.py HEADS KV_HEADS HEAD_DIM Q_LEN KV_LEN TYPE THREADS REPETITIONS
"""
import json
import sys
import time

import numpy as np
import onnxruntime
from onnx import TensorProto, helper


def model(heads, kv_heads):
    def info(name, kind, shape):
        return helper.make_tensor_value_info(name, kind, shape)
    f32, i32 = TensorProto.FLOAT, TensorProto.INT32
    inputs = [info("q", f32, [1, "T", "QD"]), info("k", f32, [1, "T", "KD"]), info("v", f32, [1, "T", "KD"]),
              info("past_k", f32, [1, kv_heads, "S", "D"]), info("past_v", f32, [1, kv_heads, "S", "D"]),
              info("last", i32, [1]), info("total", i32, [1])]
    outputs = [info(name, f32, None) for name in ("out", "present_k", "present_v")]
    node = helper.make_node("GroupQueryAttention", [i.name for i in inputs], [o.name for o in outputs],
                            domain="com.microsoft", num_heads=heads, kv_num_heads=kv_heads)
    proto = helper.make_model(helper.make_graph([node], "attention", inputs, outputs), opset_imports=[
        helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)])
    proto.ir_version = 10
    return proto.SerializeToString()


def main(heads, kv_heads, dim, q_len, kv_len, threads, repetitions):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model(heads, kv_heads), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)

    def random(*shape):
        return rng.uniform(-1, 1, shape).astype(np.float32)
    binding = session.io_binding()
    for name, array in {"q": random(1, q_len, heads * dim), "k": random(1, q_len, kv_heads * dim),
                        "v": random(1, q_len, kv_heads * dim), "last": np.array([kv_len - 1], np.int32),
                        "total": np.array([kv_len], np.int32)}.items():
        binding.bind_cpu_input(name, array)
    for half in "kv":
        value = onnxruntime.OrtValue.ortvalue_from_numpy(random(1, kv_heads, kv_len, dim))
        binding.bind_ortvalue_input("past_" + half, value)
        binding.bind_ortvalue_output("present_" + half, value)
    out = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((1, q_len, heads * dim), np.float32))
    binding.bind_ortvalue_output("out", out)
    samples = []
    for i in range(repetitions + 2):
        start = time.perf_counter()
        session.run_with_iobinding(binding)
        if i >= 2:
            samples.append(time.perf_counter() - start)
    return {"samples_seconds": samples, "checksum": float(np.abs(out.numpy().astype(float)).sum())}


if __name__ == "__main__":
    shape = [int(x) for x in sys.argv[1:6]]
    if sys.argv[6] != "f32":
        sys.exit("f32 only")
    print(json.dumps(main(*shape, int(sys.argv[7]), int(sys.argv[8]))))
