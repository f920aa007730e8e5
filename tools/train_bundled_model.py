#!/usr/bin/env python3
"""Trains the bundled model from nothing and writes it as GGUF.

The committed tools/models/bundled.gguf, tools/bundled.log and tests/model/data/bundled.json are
the output of

    pip install jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6 gguf==0.19.0
    python tools/train_bundled_model.py > tools/bundled.log
    python tools/train_bundled_model.py --reference >> tools/bundled.log

with the default arguments and CPython 3.11.7; that run was stopped after step 550 and continued with
--checkpoint. The seed fixes the data and the initial weights. The rounding of matrix products depends on the
machine, so a run elsewhere ends in slightly different weights.

The model: a decoder of the GGUF architecture `llama` (RMSNorm, rotary positions, grouped query heads,
SwiGLU, untied output) over bytes. It learns to continue repeated random sequences, for which it must grow
previous-token and induction heads (arXiv:2209.11895; start_heads gives it a start), and a little English. The
log ends with a score of every head for both patterns.

Rotary positions turn the element pairs (2i, 2i+1) of each head, the pairing that GGUF files of `llama`
are stored in. The model is trained with that pairing, so no row of Wq or Wk is permuted on the way out.

Texts and their licences:
  stories, scenes, notes    written by the grammar in bundled_corpus.py, Apache-2.0 as the rest of the project
  docstrings                of the standard library of the Python that runs this script, PSF licence 2
  repeats                   random bytes

Token ids are byte + 3 after <unk>, <s>, </s>. SentencePiece readers turn a blank into U+2581 before they
look anything up, so id 35, the place of byte 0x20, is the ordinary token U+2581; the byte token <0x20>
itself, which readers may expect to exist, is the last id and never occurs in text.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import pathlib
import pickle
import platform
import time

import gguf
import numpy as np
from bundled_corpus import BOS, EOS, FIRST_BYTE, UNK, Mixture, decode, docstrings, encode

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL_PATH = ROOT / "tools/models/bundled.gguf"
REFERENCE_PATH = ROOT / "tests/model/data/bundled.json"
MAX_FILE_BYTES = 2_000_000

VOCAB = 3 + 256 + 1
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN = 4, 128, 4, 2, 32, 384
CONTEXT = 1024
ROPE_BASE = 100000.0
EPSILON = 1e-5
SEED = 20240

# ---------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------

MATRICES = {"attn_q": (HEADS * HEAD_DIM, WIDTH), "attn_k": (KV_HEADS * HEAD_DIM, WIDTH),
            "attn_v": (KV_HEADS * HEAD_DIM, WIDTH), "attn_output": (WIDTH, HEADS * HEAD_DIM),
            "ffn_gate": (HIDDEN, WIDTH), "ffn_up": (HIDDEN, WIDTH), "ffn_down": (WIDTH, HIDDEN)}


def initial_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights by GGUF name without `.weight`; matrices are [out, in]."""
    weights = {"token_embd": rng.normal(0, 0.5, (VOCAB, WIDTH)),
               "output": rng.normal(0, 0.02, (VOCAB, WIDTH)), "output_norm": np.ones(WIDTH)}
    for layer in range(LAYERS):
        for name, (rows, columns) in MATRICES.items():
            scale = 0.1 if name in ("attn_output", "ffn_down") else 1.0
            weights[f"blk.{layer}.{name}"] = rng.normal(0, scale / math.sqrt(columns), (rows, columns))
        weights[f"blk.{layer}.attn_norm"] = np.ones(WIDTH)
        weights[f"blk.{layer}.ffn_norm"] = np.ones(WIDTH)
    start_heads(weights, rng)
    return {name: value.astype(np.float32) for name, value in weights.items()}


def start_heads(weights: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    """Starts one previous-token head and one induction head; the training takes them from there.

    From random weights the loss on repeats had not moved after 250 steps, a quarter of an hour's work that
    is better spent on English. So head 0 of layer 0 starts out copying what is one token back, and head 0 of
    layer 1 starts out looking for tokens whose predecessor equals the current one and predicting them. All
    other heads start at random.

    Element 0 of every embedding starts at the same value, so a row of Wq or Wk that reads only this element
    gives the same vector for every token. With k = a * (1, 0) and q = a * (cos f, -sin f) in the pairs of the
    higher frequencies f, the rotated product is a^2 * sum of cos((distance - 1) * f): greatest at distance 1.
    The match uses the pairs of the lower frequencies, which hardly turn over the distances in the data.
    """
    constant, pairs, sharpness, match = 4.0, 6, 7.5, 3.0
    weights["token_embd"][:, 0] = constant
    normed = constant / math.sqrt(np.mean(weights["token_embd"] ** 2) + EPSILON)
    frequencies = ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)[:pairs]
    q, k = weights["blk.0.attn_q"], weights["blk.0.attn_k"]
    q[:HEAD_DIM] = k[:HEAD_DIM] = 0
    k[0 : 2 * pairs : 2, 0] = sharpness / normed
    q[0 : 2 * pairs : 2, 0] = sharpness / normed * np.cos(frequencies)
    q[1 : 2 * pairs : 2, 0] = -sharpness / normed * np.sin(frequencies)

    # Orthogonal directions that leave out element 0: to read bytes, to pass them on, and to predict them.
    directions = np.linalg.qr(rng.normal(size=(WIDTH - 1, 3 * HEAD_DIM)))[0].T
    read, passed, predicted = np.pad(directions, ((0, 0), (1, 0))).reshape(3, HEAD_DIM, WIDTH)
    weights["blk.0.attn_v"][:HEAD_DIM] = read
    weights["blk.0.attn_output"][:, :HEAD_DIM] = 3 * passed.T
    q, k = weights["blk.1.attn_q"], weights["blk.1.attn_k"]
    q[:HEAD_DIM] = k[:HEAD_DIM] = 0
    low = slice(18, HEAD_DIM)
    q[low], k[low] = match * read[low], match * passed[low]
    weights["blk.1.attn_v"][:HEAD_DIM] = read
    weights["blk.1.attn_output"][:, :HEAD_DIM] = 3 * predicted.T
    weights["output"] += weights["token_embd"] @ read.T @ predicted


def make_loss():
    """loss(weights, ids [B, T+1], counts [B, T]) -> mean negative log-likelihood of the counted tokens."""
    import jax
    import jax.numpy as jnp

    def rms_norm(x, weight):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPSILON) * weight

    def rotate(x, cos, sin):  # x [B, T, heads, D]
        pairs = x.reshape(*x.shape[:-1], -1, 2)
        even, odd = pairs[..., 0], pairs[..., 1]
        return jnp.stack([even * cos - odd * sin, even * sin + odd * cos], -1).reshape(x.shape)

    def loss(w, ids, counts):
        tokens, targets = ids[:, :-1].reshape(-1), ids[:, 1:].reshape(-1)
        B, T = counts.shape
        angles = jnp.arange(T)[:, None] * ROPE_BASE ** (-jnp.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        cos, sin = jnp.cos(angles)[:, None, :], jnp.sin(angles)[:, None, :]
        mask = jnp.where(jnp.tril(jnp.ones((T, T), bool)), 0.0, -1e30)

        def heads_first(x, heads, turn):  # [B*T, heads*D] -> [B, heads, T, D]
            x = x.reshape(B, T, heads, HEAD_DIM)
            return (rotate(x, cos, sin) if turn else x).transpose(0, 2, 1, 3)

        x = jax.nn.one_hot(tokens, VOCAB) @ w["token_embd"]  # a product, for the sake of its gradient
        for layer in range(LAYERS):
            p = {name: w[f"blk.{layer}.{name}"] for name in (*MATRICES, "attn_norm", "ffn_norm")}
            h = rms_norm(x, p["attn_norm"])
            # The query heads of a group become rows of one product with their shared keys.
            q = heads_first(h @ p["attn_q"].T, HEADS, True).reshape(B * KV_HEADS, -1, HEAD_DIM)
            k = heads_first(h @ p["attn_k"].T, KV_HEADS, True).reshape(B * KV_HEADS, T, HEAD_DIM)
            v = heads_first(h @ p["attn_v"].T, KV_HEADS, False).reshape(B * KV_HEADS, T, HEAD_DIM)
            scores = (q @ k.transpose(0, 2, 1) * HEAD_DIM**-0.5).reshape(B * KV_HEADS, -1, T, T) + mask
            probs = jax.nn.softmax(scores, -1).reshape(B * KV_HEADS, -1, T)
            out = (probs @ v).reshape(B, HEADS, T, HEAD_DIM).transpose(0, 2, 1, 3).reshape(B * T, -1)
            x = x + out @ p["attn_output"].T
            h = rms_norm(x, p["ffn_norm"])
            x = x + (jax.nn.silu(h @ p["ffn_gate"].T) * (h @ p["ffn_up"].T)) @ p["ffn_down"].T
        logits = rms_norm(x, w["output_norm"]) @ w["output"].T
        nll = jax.nn.logsumexp(logits, -1) - (logits * jax.nn.one_hot(targets, VOCAB)).sum(-1)
        nll = nll.reshape(B, T)
        return (nll * counts).sum() / counts.sum()

    return loss


def make_step(loss):
    """One step: orthogonalised momentum (Muon) for the matrices of the layers, Adam for the rest."""
    import jax
    import jax.numpy as jnp

    def orthogonal(g):  # Newton-Schulz iteration towards the nearest semi-orthogonal matrix
        g = g / (jnp.linalg.norm(g) + 1e-7)
        flip = g.shape[0] > g.shape[1]
        g = g.T if flip else g
        for _ in range(5):
            square = g @ g.T
            g = 3.4445 * g + (-4.775 * square + 2.0315 * square @ square) @ g
        return g.T if flip else g

    def step(w, first, second, number, rate, ids, counts):
        value, gradient = jax.value_and_grad(loss)(w, ids, counts)
        new_w, new_first, new_second = {}, {}, {}
        for name, g in gradient.items():
            if name.startswith("blk.") and w[name].ndim == 2:
                m = 0.95 * first[name] + g
                update = 0.015 * orthogonal(g + 0.95 * m) * max(1.0, g.shape[0] / g.shape[1]) ** 0.5
                update = update + 0.015 * 0.05 * w[name]
                s = second[name]
            else:
                m = 0.9 * first[name] + 0.1 * g
                s = 0.99 * second[name] + 0.01 * g * g
                update = 0.004 * (m / (1 - 0.9**number)) / (jnp.sqrt(s / (1 - 0.99**number)) + 1e-8)
            new_w[name], new_first[name], new_second[name] = w[name] - rate * update, m, s
        return new_w, new_first, new_second, value

    return jax.jit(step, donate_argnums=(0, 1, 2))


# Steps until the rate is full, and over which it falls to nothing at the end.
WARM_UP, COOL_DOWN = 50, 300
# (rows, length) of a step and how often: most is learned from short rows, long ones are for reach.
SHAPES, SHAPE_ODDS = [(8, 128), (4, 256), (1, CONTEXT)], [0.85, 0.12, 0.03]


def split_documents() -> tuple[list[str], list[str]]:
    """Docstrings to train on and, one in twenty, to measure with."""
    parts = [], []
    for text in docstrings():
        parts[hashlib.sha256(text.encode()).digest()[0] < 13].append(text)
    digest = hashlib.sha256("\0".join(parts[0]).encode()).hexdigest()[:16]
    print(f"python {platform.python_version()}, {len(parts[0])} docstrings for training, "
          f"{len(parts[1])} held out, sha256 {digest}")
    return parts


def train(steps: int, checkpoint: pathlib.Path | None) -> None:
    os.environ.setdefault("XLA_FLAGS", "--xla_cpu_prefer_vector_width=512")
    import jax

    documents, held_out = split_documents()
    data, test = Mixture(SEED, documents), Mixture(SEED + 1, held_out)
    weights = initial_weights(np.random.default_rng(SEED))
    print(f"{sum(v.size for v in weights.values())} weights, seed {SEED}", flush=True)
    done, state = 0, [weights, *({n: np.zeros_like(v) for n, v in weights.items()} for _ in range(2))]
    if checkpoint and checkpoint.exists():
        done, state = pickle.loads(checkpoint.read_bytes())
    loss = make_loss()
    step, evaluate = make_step(loss), jax.jit(loss)
    probes = {kind: test.batch(16, 128, kind) for kind in test.rows}
    begin, recent = time.monotonic(), []
    for number in range(1, steps + 1):
        ids, counts = data.batch(*SHAPES[data.rng.choice(len(SHAPES), p=SHAPE_ODDS)])
        if number <= done:
            continue  # only the generator has to catch up
        rate = min(1.0, number / WARM_UP, (steps + 1 - number) / COOL_DOWN)
        *state, value = step(*state, number, rate, ids, counts)
        recent.append(value)
        if number % 50 == 0 or number == steps:
            mean = float(np.mean(recent))
            recent = []
            probed = " ".join(f"{kind} {evaluate(state[0], *probe):.4f}" for kind, probe in probes.items())
            print(f"step {number:5d}  loss {mean:.4f}  held out: {probed}  {time.monotonic() - begin:6.0f} s",
                  flush=True)
            if not math.isfinite(mean):
                raise SystemExit("the loss is not finite")
            if checkpoint:
                checkpoint.write_bytes(pickle.dumps((number, jax.tree.map(np.asarray, state))))
    weights = {name: np.asarray(value) for name, value in state[0].items()}
    print_losses("trained weights", evaluate, weights, held_out)
    write_model(MODEL_PATH, weights)
    stored = {name: value.astype(np.float32) for name, value in read_model(MODEL_PATH).items()}
    print_losses("weights as stored", evaluate, stored, held_out)


def print_losses(title: str, evaluate, weights: dict[str, np.ndarray], held_out: list[str]) -> None:
    """Held-out loss by kind of data and length of row; the same rows on every call."""
    for rows, length in SHAPES:
        test = Mixture(SEED + 3, held_out)
        losses = {kind: float(np.mean([evaluate(weights, *test.batch(rows, length, kind)) for _ in range(4)]))
                  for kind in test.rows}
        print(f"{title}, held-out nll at {length} tokens: " +
              ", ".join(f"{kind} {value:.4f}" for kind, value in losses.items()))


# ---------------------------------------------------------------------------------------------------------
# GGUF
# ---------------------------------------------------------------------------------------------------------


def vocabulary() -> tuple[list[bytes], list[int]]:
    """Token texts and types; see the head of this file for the two kinds of blank."""
    kind = gguf.TokenType
    tokens = [b"<unk>", b"<s>", b"</s>"] + [b"<0x%02X>" % byte for byte in range(256)] + [b"<0x20>"]
    types = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL] + [kind.BYTE] * 257
    tokens[FIRST_BYTE + 0x20], types[FIRST_BYTE + 0x20] = "\u2581".encode(), kind.NORMAL
    return tokens, [int(t) for t in types]


def stored_type(name: str, value: np.ndarray) -> gguf.GGMLQuantizationType:
    if value.ndim == 1:
        return gguf.GGMLQuantizationType.F32
    return gguf.GGMLQuantizationType.F16 if name == "token_embd" else gguf.GGMLQuantizationType.Q8_0


def write_model(path: pathlib.Path, weights: dict[str, np.ndarray]) -> None:
    """Matrices as Q8_0, the embedding as F16, norms as F32."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("manyhead bundled")
    writer.add_author("manyhead")
    writer.add_version("1")
    writer.add_license("apache-2.0")
    writer.add_description("Byte-level decoder that continues repeated sequences and writes simple English")
    writer.add_languages(["en"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_custom_alignment(32)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_vocab_size(VOCAB)
    tokens, types = vocabulary()
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * VOCAB)
    writer.add_token_types(types)
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_unk_token_id(UNK)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    writer.add_add_space_prefix(False)
    for name, value in weights.items():
        kind = stored_type(name, value)
        writer.add_tensor(f"{name}.weight", gguf.quantize(value, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if path.stat().st_size > MAX_FILE_BYTES:
        raise SystemExit(f"{path.name}: {path.stat().st_size} bytes; at most {MAX_FILE_BYTES} are wanted")


def read_model(path: pathlib.Path) -> dict[str, np.ndarray]:
    """De-quantised weights in double precision, by GGUF name without `.weight`."""
    return {tensor.name.removesuffix(".weight"):
            gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)
            for tensor in gguf.GGUFReader(path).tensors}


# ---------------------------------------------------------------------------------------------------------
# The model once more in double-precision NumPy: what the C++ is compared with
# ---------------------------------------------------------------------------------------------------------


def forward(w: dict[str, np.ndarray], ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Logits [T, VOCAB] and attention weights [LAYERS, HEADS, T, T], head by head, without a cache."""

    def rms_norm(x, weight):
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + EPSILON) * weight

    T = len(ids)
    frequencies = ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    turns = np.exp(1j * np.arange(T)[:, None] * frequencies)  # pair i of a row at position t turns by t * f_i

    def rotate(x):
        pairs = np.ascontiguousarray(x).view(np.complex128) * turns
        return pairs.view(np.float64)

    visible = np.tril(np.ones((T, T), bool))
    attention = np.zeros((LAYERS, HEADS, T, T))
    x = w["token_embd"][ids]
    for layer in range(LAYERS):
        p = {name: w[f"blk.{layer}.{name}"] for name in (*MATRICES, "attn_norm", "ffn_norm")}
        h = rms_norm(x, p["attn_norm"])
        q, k, v = h @ p["attn_q"].T, h @ p["attn_k"].T, h @ p["attn_v"].T
        outputs = []
        for head in range(HEADS):
            mine = slice(head * HEAD_DIM, (head + 1) * HEAD_DIM)
            shared = head // (HEADS // KV_HEADS)
            theirs = slice(shared * HEAD_DIM, (shared + 1) * HEAD_DIM)
            scores = rotate(q[:, mine]) @ rotate(k[:, theirs]).T / math.sqrt(HEAD_DIM)
            probs = np.exp(np.where(visible, scores - scores.max(-1, keepdims=True), -np.inf))
            probs /= probs.sum(-1, keepdims=True)
            attention[layer, head] = probs
            outputs.append(probs @ v[:, theirs])
        x = x + np.concatenate(outputs, -1) @ p["attn_output"].T
        h = rms_norm(x, p["ffn_norm"])
        gate = h @ p["ffn_gate"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ p["ffn_up"].T)) @ p["ffn_down"].T
    return rms_norm(x, w["output_norm"]) @ w["output"].T, attention


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def greedy(w: dict[str, np.ndarray], prompt: list[int], count: int) -> tuple[list[int], float]:
    """The next `count` ids (fewer after </s>) and the least gap between first and second logit on the way."""
    ids, margin = list(prompt), math.inf
    while len(ids) < len(prompt) + count:
        logits = forward(w, ids)[0][-1]
        second, first = np.sort(logits)[-2:]
        margin = min(margin, first - second)
        ids.append(int(np.argmax(logits)))
        if ids[-1] == EOS:
            break
    return ids[len(prompt):], float(margin)


def report_heads(w: dict[str, np.ndarray]) -> None:
    """Scores every head on random printable segments that are repeated once.

    previous: mean weight a token gives to the one before it. induction: mean weight a token of the second
    copy gives to the successor of its own first occurrence. Both are 1 for a perfect head.
    """
    rng = np.random.default_rng(SEED + 2)
    for period in (50, 200, 500):
        previous, induction = np.zeros((LAYERS, HEADS)), np.zeros((LAYERS, HEADS))
        hits, tries, rounds = 0, 0, 4
        for _ in range(rounds):
            segment = rng.integers(33, 127, period) + FIRST_BYTE
            ids = np.concatenate([[BOS], segment, segment])
            logits, attention = forward(w, ids)
            at = np.arange(period + 1, 2 * period)
            previous += attention[:, :, np.arange(1, len(ids)), np.arange(len(ids) - 1)].mean(-1) / rounds
            induction += attention[:, :, at, at - period + 1].mean(-1) / rounds
            hits += int((logits[at].argmax(-1) == ids[at + 1]).sum())
            tries += len(at)
        print(f"random segments of {period} bytes, repeated once: {hits} of {tries} bytes of the copy right")
        for name, scores in (("previous", previous), ("induction", induction)):
            for layer in range(LAYERS):
                print(f"  {name:9s} layer {layer}  " + " ".join(f"{score:5.2f}" for score in scores[layer]))


SAMPLES = ["Once upon a time", "The reader opens the book", "abcXYZ123 abcXYZ123 abc", "An attention head",
           "One day Anna found a", "Return the", "q7#Kp0&zRw q7#Kp0&zRw q7#"]


def report_samples(w: dict[str, np.ndarray]) -> None:
    for text in SAMPLES:
        ids, _ = greedy(w, [BOS] + encode(text), 120)
        print(f"{json.dumps(text)} -> {json.dumps(decode(ids))}{' </s>' if ids[-1] == EOS else ''}")


# Prompts whose continuation is certain: a story may go on with any of many equally likely words.
REFERENCE_TEXTS = ["An attention head", "The reader opens the book", "abcXYZ123 abcXYZ123 abc"]


def write_reference(w: dict[str, np.ndarray], path: pathlib.Path) -> None:
    """Writes the results of a correct implementation for the file, for tests/model."""
    cases = []
    for text in REFERENCE_TEXTS:
        prompt = [BOS] + encode(text)
        logits = forward(w, prompt)[0]
        nll = -log_softmax(logits[:-1])[np.arange(len(prompt) - 1), prompt[1:]]
        top = np.argsort(-logits[-1], kind="stable")[:8]
        ids, margin = greedy(w, prompt, 24)
        cases.append({"text": text, "prompt": prompt, "top_ids": top.tolist(),
                      "top_logits": [round(float(value), 6) for value in logits[-1][top]],
                      "mean_nll": round(float(nll.mean()), 8), "greedy": ids, "min_margin": round(margin, 6)})
        print(f"reference {json.dumps(text)} -> {json.dumps(decode(ids))}, least margin {margin:.4f}")
    head = {"model": "bundled", "sha256": hashlib.sha256(MODEL_PATH.read_bytes()).hexdigest(),
            "source": "tools/train_bundled_model.py --reference",
            "reference": "double-precision NumPy on the de-quantised weights; logits at the last prompt "
                         "position; mean_nll in nats over prompt ids 1..; greedy = next 24 ids, min_margin = "
                         "least gap between the first and the second logit along them"}
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("    " + json.dumps(case) for case in cases)
    head = json.dumps(head, indent=2).removesuffix("\n}")
    path.write_text(f'{head},\n  "cases": [\n{lines}\n  ]\n}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description="train the bundled model, or report on the one that exists")
    parser.add_argument("--steps", type=int, default=850)
    parser.add_argument("--checkpoint", type=pathlib.Path,
                        help="file to continue from, if it exists, and to keep the state in; until the last "
                             f"{COOL_DOWN} steps a run does not depend on --steps")
    parser.add_argument("--reference", action="store_true",
                        help="train nothing: score the heads of the existing file, print samples, write "
                             "the reference")
    arguments = parser.parse_args()
    if not arguments.reference:
        train(arguments.steps, arguments.checkpoint)
        return
    weights = read_model(MODEL_PATH)
    print(f"{MODEL_PATH.name}: {MODEL_PATH.stat().st_size} bytes")
    report_heads(weights)
    report_samples(weights)
    write_reference(weights, REFERENCE_PATH)


if __name__ == "__main__":
    main()
