"""Decoder models: tokenizer, logits, generation, heads."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._capture import Capture, Head, HeadPatch
from ._plan import KvTypeName
from ._session import (CallArgs, Edits, Generation, MathName, Session, SessionArgs, Text, TextOrIds,
                       edits_of, generate_options, run_generation, session_options, to_bytes, to_ids,
                       with_patches)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Model:
    """A decoder model's weights, mapped from its file, with its tokenizer. Immutable; threads share it.

    Attributes:
        bos, eos, end_tokens: ids of the tokens that begin and end a sequence.
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
        #: The tokens that begin and end a sequence, or None; and all that end a generation.
        self.bos: int | None = core.bos
        self.eos: int | None = core.eos
        self.end_tokens: list[int] = core.end_tokens

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
        return self._core.tokenize(to_bytes(text), add_special=add_special, parse_special=parse_special)

    def detokenize(self, ids: ArrayLike, *, special: bool = False) -> str:
        """The text of ids ``[n]``, control tokens only with `special`; bytes that are no UTF-8 read
        U+FFFD."""
        return self._core.detokenize(to_ids(ids), special=special).decode("utf-8", "replace")

    def _for_call(self, session: CallArgs) -> tuple[Model, SessionArgs]:
        """The model with the changes to heads that a call asks for, and the rest of its arguments."""
        options = dict(session)
        model = self
        if "ablate" in options:
            model = model.ablate(options.pop("ablate"))  # type: ignore[arg-type]
        if "patch" in options:
            model = model.patch(options.pop("patch"))  # type: ignore[arg-type]
        return model, options  # type: ignore[return-value]

    def _session_for(self, tokens: int, session: CallArgs) -> Session:
        """A session of one call, for so many tokens where no context is given."""
        model, options = self._for_call(session)
        options.setdefault("context", max(1, tokens))
        return Session(model, **options)

    def logits(self, ids: ArrayLike, *, positions: Literal["last", "all"] = "last",
               **session: Unpack[CallArgs]) -> NDArray[np.float32]:
        """The logits ``[vocab_size]`` after the last of ids ``[n]``; n is at least 1.

        Args:
            positions: 'all' gives those after every id, ``[n, vocab_size]``.
            **session: as in ``generate``; `context` is n where it is not given.
        """
        array = to_ids(ids)
        if positions not in ("last", "all"):
            raise ValueError(f"positions = {positions!r}; expected 'last' or 'all'")
        with self._session_for(len(array), session) as held:
            if positions == "all":
                return held.append_logits(array, role="prefill")
            held.append(array, role="prefill")
            logits = held.logits
            assert logits is not None
            return logits

    def loss(self, text: TextOrIds, **session: Unpack[CallArgs]) -> NDArray[np.float64]:
        """The loss of every token but the first of a text or ids ``[n]``, ``[n - 1]``: -log of its
        probability after all before, in nats. Their mean is the loss of the text.

        Args:
            **session: as in ``generate``; `context` is n where it is not given.
        """
        ids = self._text_ids(text)
        with self._session_for(len(ids), session) as held:
            return held.score(ids)

    def generate(self, prompt: TextOrIds, *, max_tokens: int = 128,
                 temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
                 repeat_penalty: float = 1.0, repeat_last_n: int = 64, seed: int | None = None,
                 stop: Text | Sequence[Text] = (), parse_special: bool = False,
                 on_text: Callable[[str], object] | None = None,
                 **session: Unpack[CallArgs]) -> Generation:
        """Continues a prompt: an iterator over pieces of text, each made when it is asked for.

        Args:
            prompt: text, or token ids ``[n]`` as they are.
            temperature: 0 always takes the best token, the lowest id among equals.
            top_k, top_p, min_p, repeat_penalty, repeat_last_n: filters; the defaults switch them off.
            seed: of the random draws; None draws one, which ``Generation.seed`` tells.
            stop: strings that end the text, which stops before them.
            parse_special: read control tokens in a prompt of text as tokens.
            on_text: called with each piece; the generation has then ended when this returns. False
                from it ends the generation, an exception too, which is passed on.
            **session: context, k_type, v_type, kv_policy, kv_budget_bytes, prefix_bytes, math, threads,
                isa, chunk (see ``SessionArgs``), and for this call ablate and patch.
        """
        if isinstance(prompt, (str, bytes)):
            prompt = self.tokenize(prompt, parse_special=parse_special)
        seed = secrets.randbits(64) if seed is None else seed
        options = generate_options(
            max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repeat_penalty=repeat_penalty, repeat_last_n=repeat_last_n, seed=seed, stop=stop)
        model, made_with = self._for_call(session)
        held = _core.Session(model._core, session_options(**made_with), model._ablation)
        return run_generation(_core.TextStream(held, to_ids(prompt), options, True), seed, on_text)

    def session(self, **options: Unpack[SessionArgs]) -> Session:
        """An empty session of this model, with its edits and patches of heads; see ``Session``."""
        return Session(self, **options)

    def ablate(self, edits: Edits, *, means_text: TextOrIds | None = None) -> Model:
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
        means_ids = None if means_text is None else self._text_ids(means_text)
        new = edits_of(self._core, edits, means_ids)
        return Model(self._core, self._ablation.with_edits(new))

    def patch(self, patches: Sequence[HeadPatch]) -> Model:
        """The same model, its weights shared, whose heads have given values at some positions.

        Args:
            patches: of ``Capture.patch``, or made by hand: layer, head, position and values
                ``[n, Dv]``. A patch takes effect after the edits of ``ablate``, which stay.
        """
        return Model(self._core, with_patches(self._core, self._ablation, patches))

    @property
    def ablation(self) -> list[dict[str, Any]]:
        """The edits of heads, one dict each; empty for a model as it was loaded."""
        edits: list[dict[str, Any]] = json.loads(self._ablation.edits)
        return edits

    @property
    def patches(self) -> list[tuple[int, int, int]]:
        """(layer, head, first position) of each patch; empty for a model as it was loaded."""
        return self._ablation.patches

    def head_effects(self, text: TextOrIds, *,
                     heads: Sequence[tuple[int, int]] = (), tokens: int = 0,
                     math: MathName = "fast", threads: int = 0) -> list[dict[str, Any]]:
        """Measures what switching off each of some (layer, head), or all, does to a loss: dicts of layer, head,
        loss_before and loss_after, in nats per token.

        Args:
            text: of which `tokens` are used, at least 2; 0 selects all, up to the model's context and
                8192.
        """
        return _core.head_effects(model=self._core, ids=self._text_ids(text), heads=list(heads), tokens=tokens,
                                  math=math, threads=threads)

    def prune_heads(self, text: TextOrIds, *, max_rise: float,
                    max_kv_heads: int = 0, uniform: bool = False, tokens: int = 0,
                    math: MathName = "fast", threads: int = 0) -> dict[str, Any]:
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
        return _core.prune_heads(model=self._core, ids=self._text_ids(text), max_rise=max_rise,
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

    def calibrate(self, text: TextOrIds, *, budget_bytes: int = 0,
                  budget_fraction: float = 0.0, context: int = 0,
                  types: Sequence[KvTypeName] = ("f32", "f16", "bf16", "int8", "int4"),
                  evict: bool = True, math: MathName = "fast", threads: int = 0,
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
        return _core.calibrate(
            model=self._core, ids=self._text_ids(text), budget_bytes=budget_bytes,
            budget_fraction=budget_fraction, context=context, types=list(types), evict=evict, math=math,
            threads=threads, isa=isa, chunk=chunk, probe_tokens=probe_tokens)

    def capture(self, text: TextOrIds, *, heads: Sequence[Head] | None = None,
                patterns: bool = True, outputs: bool = True, logits: bool = False,
                **session: Unpack[CallArgs]) -> Capture:
        """The attention patterns and outputs of all heads over a text or ids ``[n]``, in one pass.

        Args:
            heads: (layer, head) of those that are captured; None: all.
            patterns: attention weights, n * n numbers for each head.
            outputs: the weighted sum of values of each head and token, before W_O.
            logits: also the logits after each token.
            **session: as in ``generate``; `context` is n where it is not given.
        """
        ids = self._text_ids(text)
        with self._session_for(len(ids), session) as held:
            return held.capture(ids, heads=heads, patterns=patterns, outputs=outputs, logits=logits)

    def attention(self, layer: int, head: int, ids: TextOrIds,
                  **session: Unpack[CallArgs]) -> NDArray[np.float32]:
        """The attention weights ``[n, n]`` of one query head over a text of n tokens: row i is what
        query i gives to each key, 0 after it and where a window or policy hides the key. ``capture``
        gives those of many heads in one pass.

        Args:
            layer, head: counted from 0.
            ids: a text, or token ids ``[n]`` as they are.
            **session: as in ``generate``; `context` is n where it is not given.
        """
        capture = self.capture(ids, heads=[(layer, head)], outputs=False, **session)
        return capture.pattern(layer, head)

    def classify(self, text: TextOrIds | None = None, *, conllu: Text = "", seed: int = 0,
                 math: MathName = "fast", threads: int = 0) -> _core.HeadClassification:
        """Classifies every head by what it looks for: ``heads`` has layer, head, head_class and scores of each.

        Args:
            text: at least 256 tokens, of which 512 are used; None: a text of the library.
            conllu: annotated sentences in the form CoNLL-U, for heads that follow syntax.
            seed: of the random tokens that induction, duplicates and retrieval are measured on.
        """
        return _core.classify_heads(
            model=self._core, text=None if text is None else self._text_ids(text),
            conllu=conllu if isinstance(conllu, str) else conllu.decode("utf-8", "surrogateescape"),
            seed=seed, math=math, threads=threads)

    def class_policy(self, classification: _core.HeadClassification) -> str:
        """Returns the policy by which KV heads keep what the classes of their query heads need, as
        `kv_policy`."""
        return _core.class_policies(self._core, classification)

    def circuits(self, *, heads: Sequence[Head] = (), from_heads: Sequence[Head] = (),
                 to_heads: Sequence[Head] = (), threads: int = 0) -> _core.ModelCircuits:
        """The matrices W_QK and W_OV of `heads` (empty: all): singular values and ranks, and how much
        `to_heads` read of what `from_heads` of earlier layers write."""
        return _core.circuits(model=self._core, heads=list(heads), from_heads=list(from_heads),
                              to_heads=list(to_heads), threads=threads)

    def memory_plan(self, *, batch: int = 1, weights: Literal["packed", "mapped"] = "packed",
                    score: bool = False, **session: Unpack[SessionArgs]) -> _core.MemoryPlan:
        """The bytes and operations that the model needs; see ``manyhead.memory_plan``."""
        return memory_plan(self.path, batch=batch, weights=weights, score=score, **session)

    def profile(self, text: TextOrIds, *, every: int = 8, sink_tokens: int = 4,
                recent: int = 64, **session: Unpack[CallArgs]) -> _core.HeadProfile:
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
        model, options = self._for_call(session)
        options.setdefault("context", max(1, len(array)))
        return _core.head_profile(model=self._core, ids=array, options=session_options(**options),
                                  ablation=model._ablation, every=every, sink_tokens=sink_tokens,
                                  recent=recent)

    def _text_ids(self, text: TextOrIds) -> NDArray[np.int32]:
        return to_ids(self.tokenize(text) if isinstance(text, (str, bytes)) else text)


def memory_plan(source: str | os.PathLike[str], *, batch: int = 1,
                weights: Literal["packed", "mapped"] = "packed", score: bool = False,
                **session: Unpack[SessionArgs]) -> _core.MemoryPlan:
    """The bytes and operations that a model needs, before it is loaded.

    Args:
        source: a GGUF file, of which only the metadata are read, or a config.json of Hugging Face.
        batch: sequences of `context` tokens each.
        weights: as in ``Model.load``.
        score: the losses of tokens are computed too.
        **session: what sessions are made with; see ``SessionArgs``.
    """
    if weights not in ("packed", "mapped"):
        raise ValueError(f"weights = {weights!r}; expected 'packed' or 'mapped'")
    is_config = os.fspath(source).endswith(".json")
    data = os.fsencode(source)
    if is_config:
        with open(source, "rb") as file:
            data = file.read()
    return _core.plan_memory(source=data, is_config=is_config, session=session_options(**session),
                             batch=batch, packed=weights == "packed", score=score)
