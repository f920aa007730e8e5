"""manyhead: CPU attention with a KV cache managed head by head.

``attention`` is the whole operator over NumPy arrays; ``KvCache``, ``AttentionPlan`` and ``rope`` are its
parts for an engine; ``MultiHeadAttention`` adds the projections; ``Model`` loads and runs decoders, and
``Session`` is one sequence of a model.
"""

from ._attention import alibi_slopes, attention, merge_attention_states
from ._cache import KvCache, kv_capacity_bytes
from ._capture import Capture, HeadPatch
from ._core import (AttentionExplanation, Calibration, HeadClassification, HeadProfile, HeadReport,
                    HeadScores, HeadStats, KvHeadParams, KvHeadUsage, KvUsage, MemoryPlan,
                    ModelCircuits, default_threads, select_isa, supported_isas)
from ._core import version as __version__
from ._errors import FileError, OutOfPagesError, UnsupportedError
from ._layer import MultiHeadAttention
from ._model import Model, memory_plan
from ._plan import AttentionArgs, AttentionPlan
from ._rope import RopeConfig, rope
from ._session import CallArgs, Generation, Session, SessionArgs

__all__ = [
    "AttentionArgs", "AttentionExplanation", "AttentionPlan", "Calibration", "CallArgs", "Capture",
    "FileError", "Generation", "HeadClassification", "HeadPatch", "HeadProfile", "HeadReport",
    "HeadScores", "HeadStats", "KvCache", "KvHeadParams", "KvHeadUsage", "KvUsage", "MemoryPlan",
    "Model", "ModelCircuits", "MultiHeadAttention", "OutOfPagesError", "RopeConfig", "Session",
    "SessionArgs", "UnsupportedError", "__version__", "alibi_slopes", "attention", "default_threads",
    "kv_capacity_bytes", "memory_plan", "merge_attention_states", "rope", "select_isa",
    "supported_isas",
]
