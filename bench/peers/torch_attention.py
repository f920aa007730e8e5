"""Times PyTorch's scaled_dot_product_attention on one shape, for bench/compare.py.

usage: torch_attention.py HEADS KV_HEADS HEAD_DIM Q_LEN KV_LEN TYPE THREADS REPETITIONS
"""
import json
import sys
import time

import torch


def main(heads, kv_heads, dim, q_len, kv_len, dtype, threads, repetitions):
    if 1 < q_len < kv_len:
        sys.exit("its causal mask is that of a whole sequence")
    torch.set_num_threads(threads)
    torch.manual_seed(1)

    def random(*shape):
        return (torch.rand(*shape) * 2 - 1).to(dtype)
    q, k, v = random(1, heads, q_len, dim), random(1, kv_heads, kv_len, dim), random(1, kv_heads, kv_len, dim)
    samples = []
    with torch.inference_mode():
        for i in range(repetitions + 2):
            start = time.perf_counter()
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=q_len > 1, enable_gqa=True)
            if i >= 2:
                samples.append(time.perf_counter() - start)
    return {"samples_seconds": samples, "checksum": float(out.double().abs().sum())}


if __name__ == "__main__":
    types = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
    if sys.argv[6] not in types:
        sys.exit("no such type")
    print(json.dumps(main(*[int(x) for x in sys.argv[1:6]], types[sys.argv[6]], int(sys.argv[7]), int(sys.argv[8]))))
