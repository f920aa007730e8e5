#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "manyhead/attention.h"
#include "manyhead/isa.h"
#include "manyhead/types.h"
#include "tests/support/attention_reference.h"
#include "tests/support/guarded_memory.h"

/// A configuration of the attention operator as one value, and the check that any of them passes:
/// outputs and lse within the derived bound of the reference in double precision, while everything
/// that no query may see holds NaN and memory ends where tensors end.

namespace manyhead::testing {

/// Which of its dimensions a bias or mask has; the others are broadcast.
enum class Spread : std::uint8_t { kNone, kFull, kHeads, kRequests, kQueries, kKeys };

enum class Route : std::uint8_t {
  kDense,    ///< Run over pointers
  kTensors,  ///< Run over AttentionTensors
  kCache,    ///< Run over a paged cache
};

/// Order and padding of plain tensors.
enum class Layout : std::uint8_t {
  kNHD,       ///< [B, T, H, D]
  kHND,       ///< [B, H, T, D]
  kPadded,    ///< NHD, with odd gaps between heads, tokens and requests
  kReversed,  ///< NHD with negative strides
};

struct AttentionConfig {
  Isa isa = Isa::kScalar;
  int threads = 1;
  Route route = Route::kTensors;
  KvType k_type = KvType::kF32;
  KvType v_type = KvType::kF32;
  std::int64_t num_heads = 6;
  std::int64_t num_kv_heads = 2;
  std::int64_t head_dim = 20;
  std::int64_t head_dim_v = 20;
  /// Lengths of the requests; equal where route is kTensors.
  std::vector<std::int64_t> q_lens = {1};
  std::vector<std::int64_t> kv_lens = {70};  ///< valid tokens
  std::int64_t kv_padding = 0;               ///< tokens of plain tensors beyond the longest request
  std::vector<std::int64_t> query_starts = {};  ///< plain tensors; empty: default
  bool causal = true;
  float scale = 0;
  float softcap = 0;
  std::int64_t window = 0;
  std::optional<std::int64_t> window_right = std::nullopt;
  std::int64_t num_sink_tokens = 0;
  bool alibi = false;
  bool sinks = false;
  Spread bias = Spread::kNone;
  Spread mask = Spread::kNone;
  Layout layout = Layout::kNHD;
  std::int64_t page_size = 32;
  bool lse = true;
  float gain = 1;  ///< factor on the queries, for softmaxes from flat to sharp
  std::uint32_t seed = 1;
};

/// Every field, as C++.
std::string Describe(const AttentionConfig& config);

AttentionParams ParamsFor(const AttentionConfig& config);

/// A bias and mask in memory that ends with them, NaN where no query looks.
struct LogitMemory {
  GuardedMemory<float> bias;
  GuardedMemory<std::uint8_t> mask;
  AttentionBias view;
};

/// One request: keys and values before they are stored as the configuration's types.
struct RequestInputs {
  AttentionCase shape;
  std::vector<float> q_THD, k_SKD, v_SKD;
};

struct ConfigInputs {
  std::vector<RequestInputs> requests;
  LogitMemory logits;
};

/// Random inputs.
ConfigInputs MakeInputs(const AttentionConfig& config);

/// Rows of all requests, one after the other.
struct Rows {
  std::vector<float> out_THD;
  std::vector<float> lse_TH;
};

/// Runs `inputs`, whose keys and values that no query sees become NaN, and checks that only outputs
/// were written.
Rows RunConfig(const AttentionConfig& config, ConfigInputs& inputs);

/// Runs the configuration and compares with the reference.
void CheckConfig(const AttentionConfig& config);

}  // namespace manyhead::testing
