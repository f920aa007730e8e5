"""One sequence of a model: its tokens, their keys and values, and what continues it."""

from __future__ import annotations

import json
import os
import secrets
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _core
from ._cache import Policies, policies_text
from ._capture import Capture, Head, HeadPatch, head_list
from ._plan import KvTypeName

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ._model import Model

Text = str | bytes
#: A text, or token ids as they are.
TextOrIds = Text | Sequence[int] | NDArray[Any]
MathName = Literal["fast", "exact"]
RoleName = Literal["prefill", "decode"]
#: Edits of heads: a text such as "3.1,4.*=0.5", or a list of dicts such as
#: {"layers": [3, "5-7"], "heads": [1], "edit": 0.5}.
Edits = str | Sequence[Mapping[str, Any]]


class SessionArgs(TypedDict, total=False):
    """Names the arguments that a session is made with; every entry may be left out.

    context: most tokens held; 0 selects the smaller of the model's and 8192.
    k_type, v_type: how keys and values are stored: f32, f16 (the default), bf16, int8 or int4.
    kv_policy: what each KV head keeps, and how, as `heads` of ``KvCache``.
    kv_budget_bytes: hard cap on the cache and attention's scratch; 0: what the context takes.
    prefix_bytes: bytes for cached prefixes of prompts, under the same cap; 0: only the last prompt's.
    math: 'fast': int8 activations where weights are low-bit; 'exact': float32 activations.
    threads: 0 selects ``default_threads()``.
    isa: None selects the best of ``supported_isas()``.
    chunk: most tokens of one prefill step.
    """

    context: int
    k_type: KvTypeName
    v_type: KvTypeName
    kv_policy: Policies | None
    kv_budget_bytes: int
    prefix_bytes: int
    math: MathName
    threads: int
    isa: str | None
    chunk: int


class CallArgs(SessionArgs, total=False):
    """Names the arguments of a call that makes a session of its own: SessionArgs, and changes to heads.

    ablate: edits for this call, in place of those of the model; see ``Model.ablate``.
    patch: patches for this call, in place of those of the model; see ``Model.patch``.
    """

    ablate: Edits
    patch: Sequence[HeadPatch]


def to_bytes(text: Text) -> bytes:
    return text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")


def to_ids(ids: ArrayLike) -> NDArray[np.int32]:
    array = np.asarray(ids)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size > 0):
        raise ValueError(f"ids has shape {list(array.shape)} and dtype {array.dtype}; expected [n] "
                         "integers")
    outside = array[(array < 0) | (array > np.iinfo(np.int32).max)]
    if outside.size > 0:
        raise ValueError(f"ids has {outside[0]}; expected 0 to {np.iinfo(np.int32).max}")
    return np.ascontiguousarray(array, dtype=np.int32)


def session_options(*, context: int = 0, k_type: KvTypeName = "f16", v_type: KvTypeName = "f16",
                    kv_policy: Policies | None = None, kv_budget_bytes: int = 0,
                    prefix_bytes: int = 0, math: MathName = "fast", threads: int = 0,
                    isa: str | None = None, chunk: int = 512) -> _core.SessionOptions:
    return _core.SessionOptions(
        context=context, k_type=k_type, v_type=v_type,
        kv_policy=policies_text(kv_policy, "kv_policy"), kv_budget_bytes=kv_budget_bytes,
        prefix_bytes=prefix_bytes, math=math, threads=threads, isa=isa, chunk=chunk)


def generate_options(*, max_tokens: int = 128, temperature: float = 0.0, top_k: int = 0,
                     top_p: float = 1.0, min_p: float = 0.0, repeat_penalty: float = 1.0,
                     repeat_last_n: int = 64, seed: int,
                     stop: Text | Sequence[Text] = ()) -> _core.GenerateOptions:
    stops = [stop] if isinstance(stop, (str, bytes)) else stop
    return _core.GenerateOptions(
        max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        repeat_penalty=repeat_penalty, repeat_last_n=repeat_last_n, seed=seed,
        stop=[to_bytes(text) for text in stops])


def edits_of(core: _core.Model, edits: Edits,
             means_ids: NDArray[np.int32] | None = None) -> _core.Ablation:
    text = edits if isinstance(edits, str) else json.dumps([dict(edit) for edit in edits])
    return _core.ablation(model=core, edits=text, means_ids=means_ids)


def with_patches(core: _core.Model, ablation: _core.Ablation,
                 patches: Sequence[HeadPatch]) -> _core.Ablation:
    rows = [(layer, head, position, np.ascontiguousarray(np.atleast_2d(values), np.float32))
            for layer, head, position, values in patches]
    return _core.with_patches(ablation, core, rows)


class Generation(Iterator[str]):
    """A generation under way: an iterator over its pieces of whole characters.

    Every piece is made when it is asked for. ``close``, or leaving a ``with`` block, ends it early.
    ``ids``, ``text``, ``stop_reason`` and ``timings`` tell of what there is so far. Other Python
    threads run while a piece is made; Ctrl-C is heard between the chunks of a long prompt.
    """

    def __init__(self, stream: _core.TextStream, seed: int, session: Session | None = None) -> None:
        self._stream = stream
        self._session = session  # which would close itself when it goes
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
        """Ends the text here; `stop_reason` is 'cancelled' unless it had ended before."""
        self._finalizer()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<manyhead.Generation {len(self.ids)} tokens, {self.stop_reason or 'under way'}>"

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


def run_generation(stream: _core.TextStream, seed: int, on_text: Callable[[str], object] | None,
                   session: Session | None = None) -> Generation:
    """The generation; one that has ended where pieces go to `on_text`."""
    generation = Generation(stream, seed, session)
    if on_text is None:
        return generation
    try:
        for piece in generation:
            if on_text(piece) is False:
                break
    finally:
        generation.close()
    return generation


class Session:
    """One sequence of a model: its tokens, and their keys and values, which every call extends.

    Args:
        model: whose weights are shared, with its ablation and patches.
        **options: context, k_type, v_type, kv_policy, kv_budget_bytes, prefix_bytes, math, threads,
            isa, chunk; see ``SessionArgs``.

    Python threads may share a session: their calls wait for each other. While a generation is under
    way, and after ``close``, calls raise ValueError. Leaving a ``with`` block closes it.
    """

    def __init__(self, model: Model, **options: Unpack[SessionArgs]) -> None:
        self.model = model
        self._options = options
        self._ablation = model._ablation
        self._core = _core.Session(model._core, session_options(**options), self._ablation)
        # A session has threads of its own, which must not outlive the interpreter.
        self._finalizer = weakref.finalize(self, self._core.close)

    def close(self) -> None:
        """Releases the session's memory; a generation under way ends as cancelled."""
        self._finalizer()

    @property
    def closed(self) -> bool:
        return self._core.closed

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._core.tokens())

    def __repr__(self) -> str:
        if self.closed:
            return "<manyhead.Session closed>"
        return (f"<manyhead.Session {len(self)} of {self.context} tokens, {self._core.isa}, "
                f"{self.threads} threads: {self.model!r}>")

    def _text_ids(self, text: TextOrIds, add_special: bool | None = None) -> NDArray[np.int32]:
        """Ids of a text, with begin and end tokens only where it is the first of the session."""
        if isinstance(text, (str, bytes)):
            special = len(self) == 0 if add_special is None else add_special
            return to_ids(self.model.tokenize(text, add_special=special))
        return to_ids(text)

    def append(self, text: TextOrIds, *, role: RoleName | None = None,
               add_special: bool | None = None) -> None:
        """Appends a text or token ids ``[n]``, n at least 1.

        Args:
            role: what they are evaluated as; None: one token decodes, more are a prompt.
            add_special: begin and end tokens of a text; None: only where the session is empty.
        """
        self._core.append(self._text_ids(text, add_special), role)

    def append_logits(self, text: TextOrIds, *, role: RoleName | None = None,
                      add_special: bool | None = None) -> NDArray[np.float32]:
        """The same, and returns the logits ``[n, vocab_size]`` after each of the tokens."""
        ids = self._text_ids(text, add_special)
        out = np.empty((len(ids), self.model.vocab_size), np.float32)
        self._core.append_logits(ids, role, out)
        return out

    def score(self, text: TextOrIds, *, add_special: bool | None = None) -> NDArray[np.float64]:
        """Appends a text or ids ``[n]`` and returns the loss of each but the first, ``[n - 1]``: -log of
        its probability after all before, in nats."""
        ids = self._text_ids(text, add_special)
        out = np.empty(max(0, len(ids) - 1), np.float64)
        self._core.score(ids, out)
        return out

    @property
    def logits(self) -> NDArray[np.float32] | None:
        """The logits ``[vocab_size]`` after the last token; None where they are not known."""
        out = np.empty(self.model.vocab_size, np.float32)
        return out if self._core.logits(out) else None

    def generate(self, prompt: TextOrIds | None = None, *, max_tokens: int = 128,
                 temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0,
                 repeat_penalty: float = 1.0, repeat_last_n: int = 64, seed: int | None = None,
                 stop: Text | Sequence[Text] = (), parse_special: bool = False,
                 on_text: Callable[[str], object] | None = None) -> Generation:
        """Continues the session: an iterator over pieces of text, each made when it is asked for.

        Args:
            prompt: None continues the tokens held. A text or token ids stand for the whole sequence:
                what the session holds of its beginning is reused, the rest dropped.
            on_text: called with each piece; the generation has then ended when this returns. False
                from it ends the generation, an exception too, which is passed on.

        The other arguments are those of ``Model.generate``. The tokens drawn are held afterwards.
        """
        if prompt is None:
            ids = to_ids(self.tokens)
        elif isinstance(prompt, (str, bytes)):
            ids = to_ids(self.model.tokenize(prompt, parse_special=parse_special))
        else:
            ids = to_ids(prompt)
        seed = secrets.randbits(64) if seed is None else seed
        options = generate_options(
            max_tokens=max_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
            repeat_penalty=repeat_penalty, repeat_last_n=repeat_last_n, seed=seed, stop=stop)
        return run_generation(_core.TextStream(self._core, ids, options, False), seed, on_text, self)

    @property
    def tokens(self) -> list[int]:
        """The ids held, those that were generated included."""
        return self._core.tokens()

    @property
    def text(self) -> str:
        """The text of the tokens held, without control tokens."""
        return self.model.detokenize(self.tokens)

    def truncate(self, length: int) -> None:
        """Keeps the first `length` tokens. Where policies have evicted tokens that these would still
        hold, some are evaluated again."""
        self._core.truncate(length)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes tokens, keys and values, and logits to a file, which appears under its name when it is
        whole."""
        self._core.save(os.fsencode(path))

    def restore(self, path: str | os.PathLike[str], *, convert_types: bool = False) -> None:
        """Makes the session what it was when it was saved; it is unchanged where the file is refused.

        Args:
            convert_types: keys and values may have been saved in other types.
        """
        self._core.restore(os.fsencode(path), convert_types)

    def fork(self) -> Session:
        """Another session with the same tokens, keys, values, edits and options, which goes on by
        itself. They pass through a temporary file."""
        other = Session(self.model, **self._options)
        try:
            other._set(self._ablation, "drop")
            if len(self) > 0:
                with tempfile.TemporaryDirectory(prefix="manyhead") as folder:
                    path = os.path.join(folder, "session")
                    self.save(path)
                    other.restore(path)
        except BaseException:
            other.close()
            raise
        return other

    def ablate(self, edits: Edits | None, *, means_text: TextOrIds | None = None,
               held: Literal["reevaluate", "keep", "drop"] = "reevaluate") -> None:
        """Changes what heads give from now on, in place of the edits before; patches stay.

        Args:
            edits: as in ``Model.ablate``; None removes them.
            means_text: what the means of "mean" are measured on.
            held: what becomes of the tokens held: "reevaluate" evaluates them again, "keep" leaves
                them as they are, "drop" drops them.
        """
        new = _core.Ablation() if edits is None else edits_of(
            self.model._core, edits,
            None if means_text is None else self.model._text_ids(means_text))
        self._set(self._ablation.with_edits(new), held)

    def patch(self, patches: Sequence[HeadPatch], *,
              held: Literal["reevaluate", "keep", "drop"] = "reevaluate") -> None:
        """Sets patches, in place of those before; edits stay. An empty list removes them; see
        ``Model.patch`` and ``ablate``."""
        self._set(with_patches(self.model._core, self._ablation, patches), held)

    def _set(self, ablation: _core.Ablation, held: str) -> None:
        self._core.set_ablation(ablation, held)
        self._ablation = ablation

    def capture(self, text: TextOrIds, *, heads: Sequence[Head] | None = None, patterns: bool = True,
                outputs: bool = True, logits: bool = False,
                add_special: bool | None = None) -> Capture:
        """Appends a text or ids ``[n]`` as a prompt and returns what heads did, all in one pass.

        Args:
            heads: (layer, head) of those that are captured; None: all.
            patterns: attention weights, n * (tokens held + n) numbers for each head.
            outputs: the weighted sum of values of each head and token.
            logits: also the logits after each token.
        """
        ids = self._text_ids(text, add_special)
        layers = self.model.layers
        chosen = head_list(heads, [layer.num_heads for layer in layers])
        first, n = len(self), len(ids)
        capture = Capture(tokens=ids.tolist(), first=first, heads=chosen)
        for layer, of_layer in chosen.items():
            if not 0 <= layer < len(layers):
                continue  # the library names it
            if patterns:
                capture.patterns[layer] = np.empty((len(of_layer), n, first + n), np.float32)
            if outputs:
                shape = (n, len(of_layer), layers[layer].head_dim_v)
                capture.outputs[layer] = np.empty(shape, np.float32)
        if logits:
            capture.logits = np.empty((n, self.model.vocab_size), np.float32)
        self._core.capture(
            ids=ids, heads=[(layer, head) for layer, of in chosen.items() for head in of],
            weights=[capture.patterns.get(layer) for layer in range(len(layers))],
            outputs=[capture.outputs.get(layer) for layer in range(len(layers))],
            logits=capture.logits)
        return capture

    def usage(self) -> _core.KvUsage:
        """Bytes of keys and values held."""
        return self._core.usage()

    @property
    def ablation(self) -> list[dict[str, Any]]:
        """The edits of heads, one dict each."""
        edits: list[dict[str, Any]] = json.loads(self._ablation.edits)
        return edits

    @property
    def context(self) -> int:
        """Most tokens it can hold."""
        return self._core.context

    @property
    def threads(self) -> int:
        return self._core.threads

    @property
    def scratch_bytes(self) -> int:
        """Bytes of activations and scratch, without weights and cache."""
        return self._core.scratch_bytes
