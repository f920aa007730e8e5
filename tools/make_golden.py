#!/usr/bin/env python3
"""Writes reference logits of a GGUF model, computed by NumPy from the formulas, for tests/model/data.

usage: make_golden.py MODEL.gguf --prompts PROMPTS.json [--greedy 24] [--top 8] > GOLDEN.json

PROMPTS.json is a list of {"text": ..., "prompt": [ids]}. Needs `pip install numpy gguf`. It shares nothing with
the library: weights are de-quantised by the gguf package, products are NumPy's in float32, sums of norms and
softmax in float64. Families: llama, qwen2, qwen3, gemma3, without scaled rotary frequencies.
"""
import argparse
import hashlib
import json
import math
import sys

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


class Model:
    def __init__(self, path):
        self.reader = GGUFReader(path)
        self.tensors = {t.name: t for t in self.reader.tensors}
        self.family = self.value("general.architecture")
        key = lambda name, default=None: self.value(f"{self.family}.{name}", default)
        if key("rope.scaling.type") not in (None, "none") or "rope_freqs.weight" in self.tensors:
            sys.exit("make_golden: scaled rotary frequencies are not implemented")
        self.layers = key("block_count")
        self.d = key("embedding_length")
        self.heads = key("attention.head_count")
        self.kv_heads = key("attention.head_count_kv", self.heads)
        self.head_dim = key("attention.key_length", self.d // self.heads)
        self.eps = key("attention.layer_norm_rms_epsilon")
        self.base = key("rope.freq_base", 10000.0)
        self.window = key("attention.sliding_window", 0)
        self.gemma = self.family == "gemma3"
        self.qk_norm = self.gemma or self.family == "qwen3"
        self.head = "output.weight" if "output.weight" in self.tensors else "token_embd.weight"
        self.cache = {}
        self.clear()

    def value(self, name, default=None):
        field = self.reader.get_field(name)
        return default if field is None else field.contents()

    def weight(self, name):
        if name not in self.cache:
            t = self.tensors[name]
            self.cache[name] = dequantize(t.data, t.tensor_type).astype(np.float32).reshape(
                tuple(reversed([int(n) for n in t.shape])))
        return self.cache[name]

    def clear(self):
        self.keys = [np.zeros((0, self.kv_heads, self.head_dim), np.float32) for _ in range(self.layers)]
        self.values = list(self.keys)

    def norm(self, x, name):
        mean = np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True)
        return (x / np.sqrt(mean + self.eps) * self.weight(name)).astype(np.float32)

    def project(self, x, name):
        y = x @ self.weight(name + ".weight").T
        return y + self.weight(name + ".bias") if name + ".bias" in self.tensors else y

    def rotate(self, x, first, local):
        """x [T, heads, D]: pairs (i, i + D/2), in llama's files (2i, 2i + 1)."""
        half = self.head_dim // 2
        base = 10000.0 if self.gemma and local else self.base
        angle = np.outer(np.arange(first, first + len(x)), base ** (-np.arange(half) / half))[:, None, :]
        c, s = np.cos(angle), np.sin(angle)
        out = np.empty_like(x)
        even, odd = ((slice(0, None, 2), slice(1, None, 2)) if self.family == "llama" else
                     (slice(0, half), slice(half, None)))
        out[..., even] = x[..., even] * c - x[..., odd] * s
        out[..., odd] = x[..., even] * s + x[..., odd] * c
        return out

    def attention(self, x, i):
        b = f"blk.{i}."
        local = self.gemma and (i + 1) % 6 != 0
        first, rows = len(self.keys[i]), len(x)
        q = self.project(x, b + "attn_q").reshape(rows, self.heads, self.head_dim)
        k = self.project(x, b + "attn_k").reshape(rows, self.kv_heads, self.head_dim)
        v = self.project(x, b + "attn_v").reshape(rows, self.kv_heads, self.head_dim)
        if self.qk_norm:
            q, k = self.norm(q, b + "attn_q_norm.weight"), self.norm(k, b + "attn_k_norm.weight")
        q, k = self.rotate(q, first, local), self.rotate(k, first, local)
        self.keys[i] = np.concatenate([self.keys[i], k])
        self.values[i] = np.concatenate([self.values[i], v])
        distance = np.arange(first, first + rows)[:, None] - np.arange(first + rows)[None, :]
        visible = distance >= 0
        if self.window and (local or not self.gemma):
            visible &= distance < self.window
        out = np.empty((rows, self.heads, self.head_dim), np.float32)
        for h in range(self.heads):
            g = h // (self.heads // self.kv_heads)
            scores = (q[:, h] @ self.keys[i][:, g].T).astype(np.float64) / math.sqrt(self.head_dim)
            scores = np.where(visible, scores, -np.inf)
            p = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, h] = (p / p.sum(axis=-1, keepdims=True)) @ self.values[i][:, g]
        return self.project(out.reshape(rows, -1), b + "attn_output")

    def feed_forward(self, x, i):
        b = f"blk.{i}."
        gate, up = self.project(x, b + "ffn_gate").astype(np.float64), self.project(x, b + "ffn_up")
        if self.gemma:
            gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate ** 3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return self.project((gate * up).astype(np.float32), b + "ffn_down")

    def append(self, ids):
        """Hidden states [len(ids), d] after the last norm."""
        x = self.weight("token_embd.weight")[ids]
        if self.gemma:
            x = x * np.float32(math.sqrt(self.d))
        for i in range(self.layers):
            b = f"blk.{i}."
            y = self.attention(self.norm(x, b + "attn_norm.weight"), i)
            x = x + (self.norm(y, b + "post_attention_norm.weight") if self.gemma else y)
            y = self.feed_forward(self.norm(x, b + "ffn_norm.weight"), i)
            x = x + (self.norm(y, b + "post_ffw_norm.weight") if self.gemma else y)
        return self.norm(x, "output_norm.weight")

    def logits(self, hidden):
        return hidden @ self.weight(self.head).T


def run_case(model, case, top, greedy):
    ids = case["prompt"]
    model.clear()
    hidden = model.append(ids)
    nll = []
    for t in range(len(ids) - 1):
        row = model.logits(hidden[t]).astype(np.float64)
        nll.append(row.max() + math.log(np.exp(row - row.max()).sum()) - row[ids[t + 1]])
    row = model.logits(hidden[-1])
    best = np.argsort(-row, kind="stable")[:top]
    result = {"text": case["text"], "prompt": ids, "top_ids": best.tolist(),
              "top_logits": [round(float(row[i]), 5) for i in best],
              "mean_nll": float(np.mean(nll)) if nll else 0.0, "greedy": []}
    margins = []
    for _ in range(greedy):
        second, first = np.sort(row)[-2:]
        margins.append(float(first - second))
        result["greedy"].append(int(np.argmax(row)))
        row = model.logits(model.append([result["greedy"][-1]])[0])
    result["min_margin"] = round(min(margins), 5) if margins else None
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--prompts", required=True)
    parser.add_argument("--greedy", type=int, default=24)
    parser.add_argument("--top", type=int, default=8)
    args = parser.parse_args()
    with open(args.model, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    model = Model(args.model)
    with open(args.prompts) as file:
        cases = [run_case(model, case, args.top, args.greedy) for case in json.load(file)]
    print(json.dumps({"model": model.value("general.name", ""), "sha256": digest,
                      "source": "tools/make_golden.py",
                      "reference": "NumPy float32 on de-quantised weights; logits at the last prompt position; "
                                   "mean_nll in nats over the prompt; greedy = next ids, min_margin = least gap "
                                   "between the first and second logit along them", "cases": cases}))


if __name__ == "__main__":
    main()
