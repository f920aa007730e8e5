#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "manyhead/status.h"
#include "tools/manyhead/machine.h"
#include "tools/manyhead/memory_sweep.h"

namespace manyhead::cli {

struct MeasureOptions {
  std::string model;  ///< a GGUF file; empty: random weights of the case's shape
  std::int64_t decode_tokens = 32;
};

/// Runs a case in a process of its own, so that the most that is resident is that case's alone:
/// fills the context but for the last tokens as one prompt, and decodes these.
///
///   kv_bytes, kv_table_bytes   held with the context full (KvUsage)
///   scratch_bytes              Session::scratch_bytes
///   resident_bytes             the most that process held, as the kernel counts it
///   prefill_tokens_per_second, decode_tokens_per_second
///   seconds_per_head           attention's part of a decoded token, for one query head of one
///   layer bytes_per_token            of weights and cache that a decoded token reads
///
/// Nothing when it was interrupted.
/// Errors   what Model::Load, Session and WriteRandomModel say; kIoError where the process ends
///          early.
Result<std::optional<Json>> MeasureCase(const MemoryCase& one, const MeasureOptions& options);

/// The machine's roofline, measured in a process of its own, whose buffers are then no one's; zeros
/// when it was interrupted.
Roofline MeasureRooflineInChildProcess(const SessionOptions& session);

}  // namespace manyhead::cli
