#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <utility>

#include "tests/attention/attention_config.h"

namespace manyhead::testing {

/// Random configurations of the whole operator, from a source of random 32-bit numbers.
class ConfigGenerator {
 public:
  using Bits = std::function<std::uint32_t()>;

  /// `products`: about the most multiplications that the reference does for one.
  ConfigGenerator(Isa isa, std::int64_t products, Bits bits)
      : isa_(isa), products_(products), bits_(std::move(bits)) {}

  AttentionConfig Next() {
    AttentionConfig config;
    config.isa = isa_;
    config.seed = static_cast<std::uint32_t>(bits_() % 100000);
    config.threads = static_cast<int>(Pick({1, 1, 1, 2, 3, 5}));
    config.route = OneIn(3) ? Route::kTensors : OneIn(6) ? Route::kDense : Route::kCache;
    ChooseHeads(config);
    ChooseLogits(config);
    ChooseLengths(config);
    ChooseStorage(config);
    return config;
  }

 private:
  std::int64_t Below(std::int64_t n) { return static_cast<std::int64_t>(bits_() % n); }
  bool OneIn(std::int64_t n) { return Below(n) == 0; }
  std::int64_t Pick(std::initializer_list<std::int64_t> values) {
    return values.begin()[Below(static_cast<std::int64_t>(values.size()))];
  }

  void ChooseHeads(AttentionConfig& config) {
    config.num_kv_heads = Pick({1, 1, 2, 3, 16});
    config.num_heads = config.num_kv_heads * Pick({1, 1, 2, 3, 4, 5, 7, 8, 12, 48, 71});
    config.head_dim = Pick({1, 3, 17, 32, 64, 80, 96, 100, 128, 256, 1 + Below(70)});
    config.head_dim_v = OneIn(2) ? config.head_dim : Pick({1, 8, 16, 33, 64, 100, 1 + Below(70)});
  }

  void ChooseLogits(AttentionConfig& config) {
    config.causal = !OneIn(3);
    if (OneIn(3)) config.window = Pick({1, 2, 9, 16, 40, 64, 300, 2000});
    if (OneIn(5)) config.window_right = Pick({0, 1, 10, 64});
    if (OneIn(4)) config.num_sink_tokens = Pick({1, 4, 17, 70});
    if (OneIn(3)) config.softcap = static_cast<float>(Pick({1, 5, 30}));
    config.alibi = OneIn(3);
    config.sinks = OneIn(3);
    if (OneIn(4)) config.scale = 0.05F * static_cast<float>(Pick({-3, 1, 7}));
    config.gain = static_cast<float>(Pick({1, 1, 4, 16}));
    if (config.route == Route::kDense) return;
    if (OneIn(3)) config.bias = static_cast<Spread>(1 + Below(5));
    if (OneIn(3)) config.mask = static_cast<Spread>(1 + Below(5));
  }

  /// Lengths for which the reference takes about products_.
  void ChooseLengths(AttentionConfig& config) {
    const bool dense = config.route == Route::kDense, paged = config.route == Route::kCache;
    const std::int64_t batch = dense ? 1 : Pick({1, 1, 2, 3, 5});
    const std::int64_t row = config.num_heads * (config.head_dim + config.head_dim_v);
    config.q_lens.clear();
    config.kv_lens.clear();
    for (std::int64_t b = 0; b < batch; ++b) {
      std::int64_t S = Pick({1, 2, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1100, 1 + Below(200)});
      S = std::clamp<std::int64_t>(products_ / batch / row, 1, S);
      std::int64_t T = Pick({1, 1, 2, 5, S, 1 + Below(S)});
      T = std::clamp<std::int64_t>(products_ / batch / row / S, 1, std::min(T, S));
      if (paged && batch > 1 && OneIn(8)) T = 0;
      const bool free_length = !paged || (!config.causal && config.window == 0);
      if (free_length && OneIn(6)) T += 3;  // than keys, perhaps
      if (!paged && b > 0) T = config.q_lens[0];
      config.q_lens.push_back(T);
      config.kv_lens.push_back(S);
    }
    if (config.route != Route::kTensors) return;
    if (OneIn(3)) config.kv_padding = Pick({1, 5, 40});
    if (OneIn(3)) {
      for (const std::int64_t S : config.kv_lens) {
        config.query_starts.push_back(Pick({0, S, S + 9, -2, Below(S + 1), S - config.q_lens[0]}));
      }
      if (OneIn(3)) config.kv_lens[0] = 0;
    }
  }

  void ChooseStorage(AttentionConfig& config) {
    const auto type = [this](std::int64_t count) { return static_cast<KvType>(Below(count)); };
    config.lse = !OneIn(4);
    config.page_size = Pick({16, 32, 48, 64, 80, 256});
    if (config.route == Route::kDense) return;
    const std::int64_t types = config.route == Route::kCache ? 5 : 3;
    config.k_type = type(types);
    config.v_type = OneIn(2) ? config.k_type : type(types);
    config.layout = static_cast<Layout>(Below(4));
  }

  Isa isa_;
  std::int64_t products_;
  Bits bits_;
};

}  // namespace manyhead::testing
