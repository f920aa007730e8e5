"""Decoder models: tokenizer, logits, generation."""

from __future__ import annotations

import json
import os
import secrets
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._cache import Policies, policies_text
from ._plan import KvTypeName

Text = str | bytes
#: Edits of heads: a text such as "3.1,4.*=0.5", or a list of dicts such as
#: {"layers": [3, "5-7"], "heads": [1], "edit": 0.5}.
Edits = str | Sequence[Mapping[str, Any]]


def _bytes(text: Text) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def _ids(ids: ArrayLike) -> NDArray[np.int32]:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size > 0):
        raise ValueError(f"ids has shape {list(array.shape)} and dtype {array.dtype}; expected [n] "
                         "integers")
    outside = array[(array < 0) | (array > np.iinfo(np.int32).max)]
    if outside.size > 0:
        raise ValueError(f"ids has {outside[0]}; expected 0 to {np.iinfo(np.int32).max}")
    return np.ascontiguousarray(array, dtype=np.int32)


class Generation(Iterator[str]):
    """A generation in progress, from ``Model.generate``: an iterator over its pieces of whole characters.

    Every piece is made when it is asked for. ``close``, or leaving a ``with`` block, ends it early and
    releases its memory. ``ids``, ``text``, ``stop_reason`` and ``timings`` tell of what there is so
    far. Other Python threads run while a piece is made; Ctrl-C is heard between the chunks of a long
    prompt.
    """

    def __init__(self, stream: _core.TextStream, seed: int) -> None:
        self._stream = stream
        #: What the random draws began with.
        self.seed = seed
        # A session has threads of its own, which must not outlive the interpreter.
        self._finalizer = weakref.finalize(self, stream.close)

    def __next__(self) -> str:
        piece = self._stream.next()
        if piece is None:
            raise StopIteration
        return piece.decode("utf-8", "replace")

    def close(self) -> None:
        """Ends the text here."""
        self._finalizer()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    @property
    def ids(self) -> list[int]:
        """Tokens drawn so far, without the end token."""
        return self._stream.ids()

    @property
    def text(self) -> str:
        """All text so far."""
        return self._stream.text().decode("utf-8", "replace")

    @property
    def stop_reason(self) -> str | None:
        """'length', 'eos', 'stop', 'context' or 'cancelled'; None while the text goes on."""
        return None if self._stream.active() else self._stream.stop_reason()

    @property
    def timings(self) -> _core.Timings:
        return self._stream.timings()


class Model:
    """A decoder model's weights, mapped from its file, with its tokenizer. Immutable; threads share it.

    Attributes:
        architecture, name, path: of the file.
        vocab_size, d_model, context_length, num_parameters, weight_bytes: sizes.
        layers: one LayerConfig per layer: num_heads, num_kv_heads, head_dim, window, ...
    """

    def __init__(self, core: _core.Model, ablation: _core.Ablation | None = None) -> None:
        self._core = core
        self._ablation = ablation or _core.Ablation()
        self.architecture: str = core.architecture
        self.name: str = core.name.decode("utf-8", "replace")
        self.path: str = os.fsdecode(core.path)
        self.vocab_size: int = core.vocab_size
        self.d_model: int = core.d_model
        self.context_length: int = core.context_length
        self.num_parameters: int = core.num_parameters
        self.weight_bytes: int = core.weight_bytes
        #: Bytes of weights that were packed, beside the mapped file.
        self.packed_bytes: int = core.packed_bytes
        self.layers: list[_core.LayerConfig] = core.layers

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, weights: str = "packed") -> Model:
        """The model in a GGUF file. Raises FileError (an OSError and a ValueError) for a bad file, or
        UnsupportedError for a kind of model this library does not know.

        Args:
            weights: "packed" copies low-bit matrices into the order that multiplies fastest;
                "mapped" leaves them in the file's pages, which loads faster.
        """
        return cls(_core.Model.load(os.fsencode(path), weights=weights))

    def __repr__(self) -> str:
        return (f"<manyhead.Model {self.architecture} {self.num_parameters / 1e6:.0f}M "
                f"{self._core.weight_type} '{self.path}'>")

    def tokenize(self, text: Text, *, add_special: bool = True,
                 parse_special: bool = False) -> list[int]:
        """The token ids of a text.

        Args:
            add_special: begin and end tokens as the model asks for.
            parse_special: read control tokens such as ``<|im_start|>`` in the text as tokens.
        """
        return self._core.tokenize(_bytes(text), add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: ArrayLike, *, special: bool = False) -> str:
        """The text of ids ``[n]``, control tokens only with `special`; bytes that are no UTF-8 read
        U+FFFD."""
        return self._core.detokenize(_ids(ids), special=special).decode("utf-8", "replace")

    def logits(self, ids: ArrayLike, **session: Any) -> NDArray[np.float32]:
        """The logits ``[vocab_size]`` after the last of ids ``[n]``; n is at least 1.

        Args:
            **session: as in ``generate``; `context` is n where it is not given.
        """
        array = _ids(ids)
        out = np.empty(self.vocab_size, np.float32)
        session.setdefault("context", max(1, len(array)))
        ablation = self._ablation_of(session)
        self._core.logits(array, _session_options(**session), ablation, out)
        return out

    def generate(self, prompt: Text | Sequence[int] | NDArray[Any], *, max_tokens: int = 128,
                 temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
                 repeat_penalty: float = 1.0, repeat_last_n: int = 64, seed: int | None = None,
                 stop: Text | Sequence[Text] = (), parse_special: bool = False,
                 **session: Any) -> Generation:
        """Continues a prompt: an iterator over pieces of text, each made when it is asked for.

        Args:
            prompt: text, or token ids ``[n]`` as they are.
            temperature: 0 always takes the best token, the lowest id among equals.
            top_k, top_p, min_p, repeat_penalty, repeat_last_n: filters; the defaults switch them off.
            seed: of the random draws; None draws one, which ``Generation.seed`` tells.
            stop: strings that end the text, which stops before them.
            parse_special: read control tokens in a prompt of text as tokens.
            **session: context (most tokens held; 0 selects the smaller of the model's and 8192),
                k_type and v_type (how keys and values are stored), kv_policy (what each KV head
                keeps, and how, as `heads` of ``KvCache``), kv_budget_bytes (hard cap on the cache and
                attention's scratch; 0: what the context takes), math ('fast': int8 activations where
                weights are low-bit and rows few; 'exact'), threads, isa, chunk (most tokens of one
                prefill step).
        """
        if isinstance(prompt, (str, bytes)):
            prompt = self.tokenize(prompt, parse_special=parse_special)
        stops = [stop] if isinstance(stop, (str, bytes)) else stop
        seed = secrets.randbits(64) if seed is None else seed
        options = _core.GenerateOptions(
            max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repeat_penalty=repeat_penalty, repeat_last_n=repeat_last_n, seed=seed,
            stop=[_bytes(text) for text in stops])
        ablation = self._ablation_of(session)
        stream = _core.TextStream(self._core, _ids(prompt), _session_options(**session), ablation,
                                  options)
        return Generation(stream, seed)

    def ablate(self, edits: Edits, *, means_text: Text | Sequence[int] | None = None) -> Model:
        """The same model, its weights shared, with heads that give something else.

        Args:
            edits: "3.1" (head 1 of layer 3 gives zeros), "4.*=0.5" (all of layer 4 give half),
                "2.0=mean", "5.k1" (all query heads of KV head 1), "6.2=keep" (only it stays in its
                layer), separated by commas; or the same as a list of dicts: {"layers": [3, "5-7"],
                "heads": [1], "edit": 0.5}. "edit" is "zero" if it is left out, "mean", "keep" or a
                number; "kv_heads" stands for "heads".
            means_text: what the means of "mean" are measured on.

        A KV head that no query reads is neither computed nor stored.
        """
        ids = self.tokenize(means_text) if isinstance(means_text, (str, bytes)) else means_text
        text = edits if isinstance(edits, str) else json.dumps([dict(edit) for edit in edits])
        ablation = _core.ablation(model=self._core, edits=text,
                                  means_ids=None if ids is None else _ids(ids))
        return Model(self._core, ablation)

    @property
    def ablation(self) -> list[dict[str, Any]]:
        """The edits of heads, one dict each; empty for a model as it was loaded."""
        return json.loads(self._ablation.edits)

    def _ablation_of(self, session: dict[str, Any]) -> _core.Ablation:
        edits = session.pop("ablate", None)
        return self._ablation if edits is None else self.ablate(edits)._ablation

    def head_effects(self, text: Text | Sequence[int] | NDArray[Any], *,
                     heads: Sequence[tuple[int, int]] = (), tokens: int = 0,
                     math: Literal["fast", "exact"] = "fast", threads: int = 0) -> list[dict[str, Any]]:
        """Measures what switching off each of some (layer, head), or all, does to a loss: dicts of layer, head,
        loss_before and loss_after, in nats per token.

        Args:
            text: of which `tokens` are used, at least 2; 0 selects all, up to the model's context and
                8192.
        """
        ids = self.tokenize(text) if isinstance(text, (str, bytes)) else text
        return _core.head_effects(model=self._core, ids=_ids(ids), heads=list(heads), tokens=tokens,
                                  math=math, threads=threads)

    def prune_heads(self, text: Text | Sequence[int] | NDArray[Any], *, max_rise: float,
                    max_kv_heads: int = 0, uniform: bool = False, tokens: int = 0,
                    math: Literal["fast", "exact"] = "fast", threads: int = 0) -> dict[str, Any]:
        """KV heads, with their query heads, whose removal raises a text's loss by no more than a limit.

        Args:
            text: of which `tokens` are used, at least 256, every third run of 64 only to measure the
                result.
            max_rise: of the mean loss of the others, nats.
            max_kv_heads: most to remove; 0 is no limit.
            uniform: as many from every layer.

        Returns `removed` as (layer, KV head), the `kv_policy` that ``generate`` takes, and the losses
        `before` and `after`. ``write_pruned`` makes a model of it.
        """
        ids = self.tokenize(text) if isinstance(text, (str, bytes)) else text
        return _core.prune_heads(model=self._core, ids=_ids(ids), max_rise=max_rise,
                                 max_kv_heads=max_kv_heads, uniform=uniform, tokens=tokens, math=math,
                                 threads=threads)

    def write_pruned(self, removed: Sequence[tuple[int, int]], path: str | os.PathLike[str], *,
                     widen: bool = False) -> None:
        """Writes the model as loaded without some (layer, KV head) and their query heads to a GGUF file.

        Args:
            widen: store W_O of a layer as F32 where its heads end inside a block of its type, which is
                refused otherwise.
        """
        _core.write_pruned_model(model=self._core, removed=list(removed), path=os.fsencode(path),
                                 widen=widen)

    def calibrate(self, text: Text | Sequence[int] | NDArray[Any], *, budget_bytes: int = 0,
                  budget_fraction: float = 0.0, context: int = 0,
                  types: Sequence[KvTypeName] = ("f32", "f16", "bf16", "int8", "int4"),
                  evict: bool = True, math: Literal["fast", "exact"] = "fast", threads: int = 0,
                  isa: str | None = None, chunk: int = 512,
                  probe_tokens: int = 512) -> _core.Calibration:
        """Types and policies for every KV head that raise the loss of a text least within a budget.

        Args:
            text: of which `context` tokens are used, every third run of 64 only to measure the result.
            budget_bytes, budget_fraction: one of them: bytes of the cache, or their share of what f16
                and every token take.
            context: tokens the budget is for, at least 256; 0 selects the text's, up to the model's
                and 8192.
            types: what keys and values may be stored as.
            evict: heads may also drop tokens; False leaves them all that the model's own window shows.
            math, threads, isa, chunk: as in ``generate``.
            probe_tokens: of the pass that tries one head; there are as many passes as KV heads.

        Returns what was chosen, `heads` and as `kv_policy` for ``generate``, with loss and bytes `before`
        and `after`. At most 6 * context + KV heads * probe_tokens tokens are evaluated.
        """
        ids = self.tokenize(text) if isinstance(text, (str, bytes)) else text
        return _core.calibrate(
            model=self._core, ids=_ids(ids), budget_bytes=budget_bytes,
            budget_fraction=budget_fraction, context=context, types=list(types), evict=evict, math=math,
            threads=threads, isa=isa, chunk=chunk, probe_tokens=probe_tokens)

    def attention(self, layer: int, head: int, ids: Text | Sequence[int] | NDArray[Any],
                  **session: Any) -> NDArray[np.float32]:
        """The attention weights ``[n, n]`` of one query head over a text of n tokens: row i is what
        query i gives to each key, 0 after it and where a window or policy hides the key.

        Args:
            layer, head: counted from 0.
            ids: a text, or token ids ``[n]`` as they are.
            **session: as in ``generate``; `context` is n where it is not given.
        """
        array = self._text_ids(ids)
        out = np.empty((len(array), len(array)), np.float32)
        session.setdefault("context", max(1, len(array)))
        ablation = self._ablation_of(session)
        _core.head_attention(model=self._core, ids=array, options=_session_options(**session),
                             ablation=ablation, layer=layer, head=head, out=out)
        return out

    def profile(self, text: Text | Sequence[int] | NDArray[Any], *, every: int = 8,
                sink_tokens: int = 4, recent: int = 64, **session: Any) -> _core.HeadProfile:
        """Profiles every head over a text: ``heads[layer][head]`` has seconds,
        kv_bytes, and means over rows of the weights: entropy, sink_mass, mean_distance, ...

        Args:
            text: or token ids ``[n]`` as they are.
            every: looks at the weights of every n-th token.
            sink_tokens: how many first tokens sink_mass counts.
            recent: how many last tokens recent_mass counts.
            **session: as in ``generate``; `context` is n where it is not given.
        """
        array = self._text_ids(text)
        session.setdefault("context", max(1, len(array)))
        ablation = self._ablation_of(session)
        return _core.head_profile(model=self._core, ids=array, options=_session_options(**session),
                                  ablation=ablation, every=every, sink_tokens=sink_tokens, recent=recent)

    def _text_ids(self, text: Text | Sequence[int] | NDArray[Any]) -> NDArray[np.int32]:
        return _ids(self.tokenize(text) if isinstance(text, (str, bytes)) else text)


def _session_options(*, context: int = 0, k_type: KvTypeName = "f16", v_type: KvTypeName = "f16",
                     kv_policy: Policies | None = None, kv_budget_bytes: int = 0,
                     math: Literal["fast", "exact"] = "fast", threads: int = 0,
                     isa: str | None = None, chunk: int = 512) -> _core.SessionOptions:
    return _core.SessionOptions(
        context=context, k_type=k_type, v_type=v_type,
        kv_policy=policies_text(kv_policy, "kv_policy"), kv_budget_bytes=kv_budget_bytes, math=math,
        threads=threads, isa=isa, chunk=chunk)
