"""Attention in float64 over whole matrices, as plain as it can be said; shares no code with the library."""
import numpy as np


def visible(q_len, kv_len, total, start, causal, window, num_sink_tokens):
    """[T, total] bools: which keys the rules let each query see. window = (left, right), None: unbounded."""
    i = start + np.arange(q_len)[:, None]
    j = np.arange(total)[None, :]
    left, right = window
    see = np.ones((q_len, total), bool)
    if left is not None:
        see &= (j >= i - left) | (j < num_sink_tokens)
    if right is not None:
        see &= j <= i + right
    if causal:
        see &= j <= i
    return see & (j < kv_len)


def attention(q, k, v, *, causal=False, scale=None, softcap=0.0, window=(None, None), bias=None, mask=None,
              alibi_slopes=None, sinks=None, num_sink_tokens=0, kv_lens=None, query_start=None):
    """q [B,H,T,D], k [B,K,S,D], v [B,K,S,Dv]: a dict of out, lse, scores, capped, biased, probs."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, heads, q_len, dim = q.shape
    group, kv_len = heads // k.shape[1], k.shape[2]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    lens = np.broadcast_to(kv_len if kv_lens is None else kv_lens, (batch,))
    starts = np.broadcast_to(lens - q_len if query_start is None else query_start, (batch,))
    with np.errstate(invalid="ignore"):
        scores = np.einsum("bhtd,bhsd->bhts", q, k) * (dim**-0.5 if scale is None else scale)
        capped = softcap * np.tanh(scores / softcap) if softcap else scores
    biased = capped + (0 if bias is None else np.asarray(bias, np.float64))
    for b in range(batch):
        if alibi_slopes is not None:
            distance = np.abs(starts[b] + np.arange(q_len)[:, None] - np.arange(kv_len)[None, :])
            biased[b] = biased[b] - np.asarray(alibi_slopes, np.float64)[:, None, None] * distance
        see = visible(q_len, lens[b], kv_len, starts[b], causal, window, num_sink_tokens)
        biased[b] = np.where(see, biased[b], -np.inf)
    if mask is not None:
        biased = np.where(mask, biased, -np.inf)
    if bias is not None:
        biased = np.where(np.isneginf(bias), -np.inf, biased)
    sink = np.full(heads, -np.inf) if sinks is None else np.asarray(sinks, np.float64)
    sink = np.broadcast_to(sink[None, :, None], biased.shape[:3])
    top = np.maximum(biased.max(axis=-1, initial=-np.inf), sink)
    finite = np.where(np.isneginf(top), 0, top)
    weights = np.exp(biased - finite[..., None])
    total = weights.sum(axis=-1) + np.exp(sink - finite)
    probs = weights / np.where(total == 0, 1, total)[..., None]
    with np.errstate(divide="ignore"):
        lse = np.where(total == 0, -np.inf, np.log(total) + finite)
    hidden = np.isneginf(biased)  # their values are not read, NaN or not
    out = np.stack([np.where(hidden[..., s, None], 0, probs[..., s, None] * v[:, :, None, s])
                    for s in range(kv_len)]).sum(axis=0) if kv_len else np.zeros((*q.shape[:3], v.shape[3]))
    return {"out": out, "lse": lse, "scores": scores, "capped": capped, "biased": biased, "probs": probs}
