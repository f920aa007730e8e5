#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "manyhead/isa.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace manyhead::cli {

/// The shape of one layer's attention of `q_len` queries, which are the last of `kv_len` tokens.
struct AttentionShape {
  std::int64_t heads = 32, kv_heads = 8, head_dim = 128, q_len = 1, kv_len = 4096;
  KvType kv_type = KvType::kF16;
  std::int64_t threads = 0;
  std::int64_t window = 0;
  double softcap = 0;
  bool sinks = false;  ///< each head has a sink logit
  bool alibi = false;
  std::int64_t off = 0;  ///< number of KV heads, from the first, that are neither stored nor read
};

struct AttentionTiming {
  AttentionShape shape;  ///< threads resolved
  Isa isa = Isa::kScalar;
  std::vector<double> samples_seconds;
  double median_seconds = 0;
  double min_seconds = 0;
  std::int64_t bytes = 0;  ///< bytes of keys and values that memory must deliver
  std::int64_t flops = 0;
  double max_abs_error = 0;  ///< error of a sample of rows, compared with double precision
};

/// Times the production plan over a paged cache, after runs that are not counted. Returns nothing
/// when it was interrupted before the first counted run.
Result<std::optional<AttentionTiming>> TimeAttention(const AttentionShape& shape,
                                                     std::int64_t repetitions);

}  // namespace manyhead::cli
