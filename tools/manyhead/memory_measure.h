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

/// Runs a case in a child process, so that the peak memory is that of the case alone: fills the
/// context except the last tokens as one prompt, and decodes these.
///
///   kv_bytes, kv_table_bytes   bytes with the context full (KvUsage)
///   scratch_bytes              Session::scratch_bytes
///   resident_bytes             peak memory of that process, as the kernel counts it
///   prefill_tokens_per_second, decode_tokens_per_second
///   seconds_per_head           attention of a decoded token, for one query head of one layer
///   bytes_per_token            bytes of weights and cache that a decoded token reads
///
/// Returns nothing when it was interrupted.
/// Errors   those of Model::Load, Session and WriteRandomModel; kIoError where the process ends
///          early.
Result<std::optional<Json>> MeasureCase(const MemoryCase& one, const MeasureOptions& options);

/// Measures the machine's roofline in a child process, so that its buffers do not count here;
/// returns zeros when it was interrupted.
Roofline MeasureRooflineInChildProcess(const SessionOptions& session);

}  // namespace manyhead::cli
