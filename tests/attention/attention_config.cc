#include "tests/attention/attention_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "tests/support/kv_reference.h"

namespace manyhead::testing {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

const char* Name(Spread spread) {
  constexpr const char* kNames[] = {"kNone", "kFull", "kHeads", "kRequests", "kQueries", "kKeys"};
  return kNames[static_cast<int>(spread)];
}
const char* Name(Route route) {
  constexpr const char* kNames[] = {"kDense", "kTensors", "kCache"};
  return kNames[static_cast<int>(route)];
}
const char* Name(Layout layout) {
  constexpr const char* kNames[] = {"kNHD", "kHND", "kPadded", "kReversed"};
  return kNames[static_cast<int>(layout)];
}

std::string List(const std::vector<std::int64_t>& values) {
  std::string text = "{";
  for (const std::int64_t x : values) text.append(std::to_string(x)).append(", ");
  if (!values.empty()) text.resize(text.size() - 2);
  return text.append("}");
}

std::int64_t Sum(const std::vector<std::int64_t>& values) {
  std::int64_t sum = 0;
  for (const std::int64_t x : values) sum += x;
  return sum;
}

std::int64_t Max(const std::vector<std::int64_t>& values) {
  return *std::max_element(values.begin(), values.end());
}

bool StoresGroups(KvType type) { return type == KvType::kInt4; }

AttentionCase CaseFor(const AttentionConfig& config, std::size_t request) {
  AttentionCase shape;
  shape.num_heads = config.num_heads;
  shape.num_kv_heads = config.num_kv_heads;
  shape.head_dim = config.head_dim;
  shape.head_dim_v = config.head_dim_v;
  shape.q_len = config.q_lens[request];
  shape.kv_len = config.kv_lens[request];
  const float scale =
      config.scale != 0 ? config.scale : 1.0F / std::sqrt(static_cast<float>(config.head_dim));
  shape.scale = double{scale};
  shape.causal = config.causal;
  shape.window = config.window;
  shape.window_right = config.window_right;
  shape.num_sink_tokens = config.num_sink_tokens;
  shape.logit_softcap = double{config.softcap};
  if (!config.query_starts.empty()) shape.query_start = config.query_starts[request];
  const AttentionParams params = ParamsFor(config);
  shape.alibi_slopes = params.alibi_slopes;
  shape.sink_logits = params.sink_logits;
  shape.k_terms = StoresGroups(config.k_type) ? 3 : 1;
  shape.v_terms = StoresGroups(config.v_type) ? 3 : 1;
  return shape;
}

/// Element (b, h, t, s) of a broadcast tensor.
template <class T>
std::int64_t IndexOf(const LogitTensor<T>& tensor, std::size_t b, std::int64_t h, std::int64_t t,
                     std::int64_t s) {
  return static_cast<std::int64_t>(b) * tensor.batch_stride + h * tensor.head_stride +
         t * tensor.query_stride + s;
}

/// Strides of a dense tensor whose rows are a few elements longer than needed for odd seeds, and
/// memory for it.
template <class T>
GuardedMemory<T> AllocateLogits(const AttentionConfig& config, Spread spread,
                                LogitTensor<T>& view) {
  if (spread == Spread::kNone) return GuardedMemory<T>(0);
  const bool by_request = spread == Spread::kFull || spread == Spread::kRequests;
  const bool by_head = spread == Spread::kFull || spread == Spread::kHeads;
  const std::int64_t rows =
      spread == Spread::kKeys ? 1 : std::max<std::int64_t>(1, Max(config.q_lens));
  view.kv_len = std::max<std::int64_t>(1, Max(config.kv_lens)) + (config.seed % 2 == 1 ? 5 : 0);
  view.query_stride = spread == Spread::kKeys ? 0 : view.kv_len;
  view.head_stride = by_head ? rows * view.kv_len : 0;
  const std::int64_t matrices = by_head ? config.num_heads : 1;
  view.batch_stride = by_request ? matrices * rows * view.kv_len : 0;
  const std::int64_t requests = by_request ? static_cast<std::int64_t>(config.q_lens.size()) : 1;
  GuardedMemory<T> memory(requests * matrices * rows * view.kv_len);
  view.data = memory.data();
  return memory;
}

/// Hides a quarter of the keys; all of them in some rows, and the first blocks in others.
void FillMask(std::uint32_t seed, std::int64_t kv_len, GuardedMemory<std::uint8_t>& mask) {
  const std::vector<float> random = RandomTensor(mask.size(), seed);
  constexpr std::uint8_t kShown[] = {1, 2, 255};
  const bool several_rows = mask.size() > kv_len;
  for (std::int64_t i = 0; i < mask.size(); ++i) {
    const std::int64_t row = i / kv_len, s = i % kv_len;
    const bool hidden = random[i] < -0.5F || (several_rows && row % 5 == 3) ||
                        (several_rows && row % 7 == 1 && s < 130 && s + 1 < kv_len);
    mask[i] = hidden ? 0 : kShown[i % 3];
  }
}

void FillBias(std::uint32_t seed, GuardedMemory<float>& bias) {
  const std::vector<float> random = RandomTensor(bias.size(), seed);
  for (std::int64_t i = 0; i < bias.size(); ++i) {
    bias[i] = random[i] > 0.875F ? -kInf : 2 * random[i];
  }
}

/// Calls fn(b, h, t, s) for every logit.
template <class Fn>
void ForEachLogit(const std::vector<RequestInputs>& requests, Fn&& fn) {
  for (std::size_t b = 0; b < requests.size(); ++b) {
    const AttentionCase& shape = requests[b].shape;
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      for (std::int64_t t = 0; t < shape.q_len; ++t) {
        for (std::int64_t s = 0; s < shape.kv_len; ++s) fn(b, h, t, s);
      }
    }
  }
}

/// Gives each request its part of bias and mask, then overwrites hidden keys and values with NaN.
LogitMemory MakeLogits(const AttentionConfig& config, std::vector<RequestInputs>& requests) {
  LogitMemory logits;
  logits.bias = AllocateLogits(config, config.bias, logits.view.bias);
  logits.mask = AllocateLogits(config, config.mask, logits.view.mask);
  FillBias(config.seed * 31 + 5, logits.bias);
  FillMask(config.seed * 31 + 6, logits.view.mask.kv_len, logits.mask);
  ForEachLogit(requests, [&](std::size_t b, std::int64_t h, std::int64_t t, std::int64_t s) {
    AttentionCase& shape = requests[b].shape;
    if (config.bias != Spread::kNone) {
      shape.bias_HTS.push_back(logits.bias[IndexOf(logits.view.bias, b, h, t, s)]);
    }
    if (config.mask != Spread::kNone) {
      shape.mask_HTS.push_back(logits.mask[IndexOf(logits.view.mask, b, h, t, s)]);
    }
  });
  if (config.bias == Spread::kNone) return logits;
  std::vector<bool> read(static_cast<std::size_t>(logits.bias.size()));
  ForEachLogit(requests, [&](std::size_t b, std::int64_t h, std::int64_t t, std::int64_t s) {
    const std::int64_t index = IndexOf(logits.view.bias, b, h, t, s);
    if (Sees(requests[b].shape, h, t, s) || logits.bias[index] == -kInf) read[index] = true;
  });
  for (std::int64_t i = 0; i < logits.bias.size(); ++i) {
    if (!read[i]) logits.bias[i] = kNan;
  }
  return logits;
}

}  // namespace

std::string Describe(const AttentionConfig& c) {
  std::ostringstream text;
  text << "isa " << IsaName(c.isa) << ", threads " << c.threads << ", route " << Name(c.route)
       << ", types " << KvTypeName(c.k_type) << "/" << KvTypeName(c.v_type) << ", H " << c.num_heads
       << ", K " << c.num_kv_heads << ", D " << c.head_dim << ", Dv " << c.head_dim_v << ", q_lens "
       << List(c.q_lens) << ", kv_lens " << List(c.kv_lens) << ", kv_padding " << c.kv_padding
       << ", query_starts " << List(c.query_starts) << ", causal " << c.causal << ", scale "
       << c.scale << ", softcap " << c.softcap << ", window " << c.window << ", window_right ";
  text << (c.window_right.has_value() ? std::to_string(*c.window_right) : "unset");
  text << ", num_sink_tokens " << c.num_sink_tokens << ", alibi " << c.alibi << ", sinks "
       << c.sinks << ", bias " << Name(c.bias) << ", mask " << Name(c.mask) << ", layout "
       << Name(c.layout) << ", page_size " << c.page_size << ", lse " << c.lse << ", gain "
       << c.gain << ", seed " << c.seed;
  return text.str();
}

AttentionParams ParamsFor(const AttentionConfig& config) {
  AttentionParams params;
  params.num_heads = config.num_heads;
  params.num_kv_heads = config.num_kv_heads;
  params.head_dim = config.head_dim;
  params.head_dim_v = config.head_dim_v;
  params.max_q_len = std::max<std::int64_t>(1, Sum(config.q_lens));
  params.max_kv_len = std::max<std::int64_t>(1, Max(config.kv_lens) + config.kv_padding);
  params.softmax_scale = config.scale;
  params.logit_softcap = config.softcap;
  params.causal = config.causal;
  params.window = config.window;
  params.window_right = config.window_right;
  params.num_sink_tokens = config.num_sink_tokens;
  params.threads = config.threads;
  params.isa = config.isa;
  for (std::int64_t h = 0; h < config.num_heads; ++h) {
    if (config.alibi) {
      const float exponent =
          -8.0F * static_cast<float>(h + 1) / static_cast<float>(config.num_heads);
      params.alibi_slopes.push_back(h % 5 == 4 ? 0 : std::exp2(exponent));
    }
    if (config.sinks) {
      params.sink_logits.push_back(h % 4 == 3 ? -kInf : static_cast<float>(h % 7) * 0.75F - 2);
    }
  }
  return params;
}

ConfigInputs MakeInputs(const AttentionConfig& config) {
  ConfigInputs inputs;
  for (std::size_t b = 0; b < config.q_lens.size(); ++b) {
    RequestInputs request;
    request.shape = CaseFor(config, b);
    const AttentionCase& shape = request.shape;
    const auto seed = static_cast<std::uint32_t>(config.seed * 1000 + b * 3);
    request.q_THD = RandomTensor(shape.q_len * shape.num_heads * shape.head_dim, seed);
    request.k_SKD = RandomTensor(shape.kv_len * shape.num_kv_heads * shape.head_dim, seed + 1);
    request.v_SKD = RandomTensor(shape.kv_len * shape.num_kv_heads * shape.head_dim_v, seed + 2);
    for (float& x : request.q_THD) x *= config.gain;
    inputs.requests.push_back(std::move(request));
  }
  inputs.logits = MakeLogits(config, inputs.requests);
  return inputs;
}

void CheckConfig(const AttentionConfig& config) {
  SCOPED_TRACE(Describe(config));
  ConfigInputs inputs = MakeInputs(config);
  const Rows rows = RunConfig(config, inputs);
  const std::int64_t H = config.num_heads, Dv = config.head_dim_v;
  ASSERT_EQ(static_cast<std::int64_t>(rows.out_THD.size()), Sum(config.q_lens) * H * Dv);
  std::int64_t first = 0;  // row of all requests
  for (const RequestInputs& request : inputs.requests) {
    const AttentionResult expected = ReferenceAttention(
        request.shape, request.q_THD, StoredRows(config.k_type, request.k_SKD, config.head_dim),
        StoredRows(config.v_type, request.v_SKD, config.head_dim_v));
    const std::int64_t num_rows = request.shape.q_len * H;
    for (std::int64_t row = 0; row < num_rows; ++row) {
      for (std::int64_t d = 0; d < Dv; ++d) {
        const float actual = rows.out_THD[(first + row) * Dv + d];
        ASSERT_NEAR(actual, expected.out_THD[row * Dv + d], expected.out_bound_TH[row])
            << "request " << &request - inputs.requests.data() << ", t " << row / H << ", h "
            << row % H << ", d " << d;
      }
      if (!config.lse) continue;
      const float lse = rows.lse_TH[first + row];
      const double right = expected.lse_TH[row];
      ASSERT_TRUE(lse == right || std::fabs(lse - right) <= expected.lse_bound_TH[row])
          << "lse " << lse << ", expected " << right << " +- " << expected.lse_bound_TH[row]
          << ", t " << row / H << ", h " << row % H;
    }
    first += num_rows;
  }
}

}  // namespace manyhead::testing
