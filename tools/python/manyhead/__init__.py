"""manyhead: CPU attention with a KV cache managed head by head.

``attention`` is the whole operator over NumPy arrays; ``KvCache``, ``AttentionPlan`` and ``rope`` are its
parts for an engine; ``MultiHeadAttention`` adds the projections; ``Model`` loads and runs decoders.
"""

from ._attention import alibi_slopes, attention, merge_attention_states
from ._cache import KvCache, kv_capacity_bytes
from ._core import (AttentionExplanation, Calibration, HeadProfile, HeadStats, KvHeadParams,
                    KvHeadUsage, KvUsage, default_threads, select_isa, supported_isas)
from ._core import version as __version__
from ._errors import FileError, OutOfPagesError, UnsupportedError
from ._layer import MultiHeadAttention
from ._model import Generation, Model
from ._plan import AttentionPlan
from ._rope import RopeConfig, rope

__all__ = [
    "AttentionExplanation", "AttentionPlan", "Calibration", "FileError", "Generation", "HeadProfile",
    "HeadStats", "KvCache", "KvHeadParams", "KvHeadUsage", "KvUsage", "Model", "MultiHeadAttention", "OutOfPagesError",
    "RopeConfig", "UnsupportedError", "__version__", "alibi_slopes", "attention", "default_threads",
    "kv_capacity_bytes", "merge_attention_states", "rope", "select_isa", "supported_isas",
]
