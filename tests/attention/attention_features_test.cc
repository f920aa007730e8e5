// Each feature of the operator alone, in pairs and all together: decoding, appending and
// prefilling, over plain tensors and paged caches of every type.

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "tests/attention/attention_config.h"
#include "tests/attention/attention_fixture.h"

namespace manyhead::testing {
namespace {

class AttentionFeatures : public EveryIsa {};
INSTANTIATE_TEST_SUITE_P(Isa, AttentionFeatures, ::testing::ValuesIn(kAllIsas), IsaTestName);

using Feature = void (*)(AttentionConfig&);

constexpr Feature kFeatures[] = {
    [](AttentionConfig& c) { c.softcap = 0.8F, c.gain = 3; },
    [](AttentionConfig& c) { c.window = 9; },
    [](AttentionConfig& c) { c.causal = false, c.window = 12, c.window_right = 3; },
    [](AttentionConfig& c) { c.window = c.window > 0 ? c.window : 7, c.num_sink_tokens = 4; },
    [](AttentionConfig& c) { c.alibi = true; },
    [](AttentionConfig& c) { c.sinks = true; },
    [](AttentionConfig& c) { c.bias = Spread::kFull; },
    [](AttentionConfig& c) { c.mask = Spread::kFull; },
    [](AttentionConfig& c) { c.head_dim_v = 37; },
    [](AttentionConfig& c) { c.causal = false; },
};

using Types = std::pair<KvType, KvType>;

constexpr Types kCacheTypes[] = {
    {KvType::kF32, KvType::kF32},   {KvType::kF16, KvType::kF16},   {KvType::kBf16, KvType::kBf16},
    {KvType::kInt8, KvType::kInt8}, {KvType::kInt4, KvType::kInt4}, {KvType::kF16, KvType::kInt4},
    {KvType::kInt8, KvType::kF32},  {KvType::kInt4, KvType::kBf16}, {KvType::kBf16, KvType::kInt8},
};
constexpr Types kTensorTypes[] = {
    {KvType::kF32, KvType::kF32},
    {KvType::kF16, KvType::kF16},
    {KvType::kBf16, KvType::kBf16},
    {KvType::kBf16, KvType::kF32},
};

void SetTypes(AttentionConfig& config, const Types& types) {
  config.k_type = types.first;
  config.v_type = types.second;
}

/// The configuration over plain tensors or pages, with the `turn`-th of their types.
void CheckTurn(AttentionConfig config, std::size_t turn) {
  config.seed = static_cast<std::uint32_t>(turn + 1);
  config.route = Route::kCache;
  SetTypes(config, kCacheTypes[turn % std::size(kCacheTypes)]);
  CheckConfig(config);
  config.route = Route::kTensors;
  SetTypes(config, kTensorTypes[turn % std::size(kTensorTypes)]);
  CheckConfig(config);
}

void EnableAll(AttentionConfig& config) {
  config.softcap = 2.5F;
  config.gain = 3;
  config.window = 40;
  config.num_sink_tokens = 3;
  config.alibi = config.sinks = true;
  config.bias = Spread::kFull;
  config.mask = Spread::kFull;
}

struct Lengths {
  std::int64_t q_len, kv_len;
};
constexpr Lengths kPhases[] = {{1, 75}, {5, 75}, {75, 75}};  // decode, append, prefill

TEST_P(AttentionFeatures, Alone) {
  for (const Feature apply : kFeatures) {
    for (const auto& [T, S] : kPhases) {
      AttentionConfig config;
      config.isa = GetParam();
      config.q_lens = {T};
      config.kv_lens = {S};
      apply(config);
      for (std::size_t turn = 0; turn < std::size(kCacheTypes); ++turn) CheckTurn(config, turn);
      if (HasFailure()) return;  // one is enough
    }
  }
}

TEST_P(AttentionFeatures, InPairs) {
  std::size_t turn = 0;
  for (const Feature first : kFeatures) {
    for (const Feature second : kFeatures) {
      if (first == second) continue;
      for (const auto& [T, S] : kPhases) {
        AttentionConfig config;
        config.isa = GetParam();
        config.q_lens = {T};
        config.kv_lens = {S};
        first(config);
        second(config);
        CheckTurn(config, ++turn);
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(AttentionFeatures, AllAtOnceWithEveryTypeOnSeveralThreads) {
  for (const int threads : {1, 3}) {
    for (const auto& [T, S] : {Lengths{1, 1100}, Lengths{7, 600}, Lengths{130, 130}}) {
      AttentionConfig config;
      config.isa = GetParam();
      config.threads = threads;
      config.q_lens = {T};
      config.kv_lens = {S};
      EnableAll(config);
      for (std::size_t turn = 0; turn < std::size(kCacheTypes); ++turn) CheckTurn(config, turn);
    }
  }
}

TEST_P(AttentionFeatures, HeadSizes) {
  std::size_t turn = 0;
  for (const std::int64_t D : {1, 3, 17, 31, 33, 64, 80, 96, 100, 128, 256}) {
    for (const std::int64_t Dv : {D, std::int64_t{1}, std::int64_t{19}, std::int64_t{96}}) {
      for (const std::int64_t T : {1, 20}) {
        AttentionConfig config;
        config.isa = GetParam();
        config.num_heads = 2;
        config.num_kv_heads = 1;
        config.head_dim = D;
        config.head_dim_v = Dv;
        config.q_lens = {T};
        config.kv_lens = {67};
        EnableAll(config);
        CheckTurn(config, ++turn);
        config.window = 0;
        config.softcap = 0;
        config.bias = config.mask = Spread::kNone;
        CheckTurn(config, ++turn);
      }
    }
  }
}

TEST_P(AttentionFeatures, LargeHeads) {
  std::size_t turn = 0;
  for (const auto& [D, Dv] : {std::pair{576, 512}, {1024, 1024}, {1023, 1}}) {
    for (const std::int64_t T : {1, 3}) {
      AttentionConfig config;
      config.isa = GetParam();
      config.num_heads = 4;
      config.num_kv_heads = 1;
      config.head_dim = D;
      config.head_dim_v = Dv;
      config.q_lens = {T};
      config.kv_lens = {70};
      EnableAll(config);
      for (int i = 0; i < 4; ++i) CheckTurn(config, ++turn);
    }
  }
}

// The first tokens, far before the window, by splits of their own.
TEST_P(AttentionFeatures, SinkTokensOverSeveralSplits) {
  std::size_t turn = 0;
  for (const std::int64_t sinks : {1, 511, 512, 513, 700, 1200}) {
    for (const std::int64_t window : {1, 100, 600}) {
      for (const std::int64_t T : {1, 3}) {
        AttentionConfig config;
        config.isa = GetParam();
        config.threads = turn % 2 == 0 ? 1 : 3;
        config.num_heads = 4;
        config.num_kv_heads = 1;
        config.head_dim = config.head_dim_v = 8;
        config.q_lens = {T};
        config.kv_lens = {1800};
        config.window = window;
        config.num_sink_tokens = sinks;
        config.sinks = turn % 3 == 0;
        CheckTurn(config, ++turn);
      }
    }
  }
}

TEST_P(AttentionFeatures, LengthsAroundLanesTilesAndSplits) {
  std::size_t turn = 0;
  for (const std::int64_t S : {1, 15, 16, 17, 63, 64, 65, 511, 512, 513, 1100}) {
    for (const std::int64_t T : {1, 2, 13}) {
      if (T > S) continue;
      AttentionConfig config;
      config.isa = GetParam();
      config.q_lens = {T};
      config.kv_lens = {S};
      config.page_size = turn % 2 == 0 ? 16 : 80;
      EnableAll(config);
      config.window = turn % 3 == 0 ? 0 : S / 2 + 1;
      for (int i = 0; i < 3; ++i) CheckTurn(config, ++turn);
    }
  }
}

TEST_P(AttentionFeatures, GroupsOfHeads) {
  std::size_t turn = 0;
  for (const std::int64_t G : {1, 2, 3, 5, 7, 12, 48, 71}) {
    for (const std::int64_t K : {1, 3}) {
      for (const std::int64_t T : {1, 3}) {
        AttentionConfig config;
        config.isa = GetParam();
        config.num_heads = G * K;
        config.num_kv_heads = K;
        config.q_lens = {T};
        config.kv_lens = {50};
        EnableAll(config);
        CheckTurn(config, ++turn);
        config.mask = Spread::kHeads;
        config.bias = Spread::kQueries;
        CheckTurn(config, ++turn);
      }
    }
  }
}

// Heads enough for tiles of several chunks of rows; the last chunk is of any size.
TEST_P(AttentionFeatures, TilesOfManyRows) {
  std::size_t turn = 0;
  for (const std::int64_t T : {25, 48, 71, 91, 97}) {
    for (const bool all : {false, true}) {
      AttentionConfig config;
      config.isa = GetParam();
      config.num_heads = 32;
      config.num_kv_heads = 16;
      config.head_dim = 20;
      config.q_lens = {T};
      config.kv_lens = {150};
      if (all) EnableAll(config);
      CheckTurn(config, ++turn);
      config.causal = false;
      CheckTurn(config, ++turn);
    }
  }
}

TEST_P(AttentionFeatures, BiasAndMaskOfEveryBroadcast) {
  constexpr Spread kSpreads[] = {Spread::kNone,     Spread::kFull,    Spread::kHeads,
                                 Spread::kRequests, Spread::kQueries, Spread::kKeys};
  for (const Spread bias : kSpreads) {
    for (const Spread mask : kSpreads) {
      for (const std::uint32_t seed : {1, 2}) {  // rows longer than the keys, and not
        AttentionConfig config;
        config.isa = GetParam();
        config.bias = bias;
        config.mask = mask;
        config.seed = seed;
        config.q_lens = {3, 3, 3};
        config.kv_lens = {150, 41, 97};
        CheckConfig(config);
        config.route = Route::kCache;
        config.q_lens = {3, 1, 60};
        config.k_type = KvType::kInt8;
        config.v_type = KvType::kF16;
        CheckConfig(config);
      }
    }
  }
}

TEST_P(AttentionFeatures, RaggedBatchesWithEmptyRequests) {
  std::size_t turn = 0;
  for (const int threads : {1, 4}) {
    for (const std::vector<std::int64_t>& q_lens :
         {std::vector<std::int64_t>{1, 1, 1, 1, 1}, {0, 5, 1, 0, 40}, {33, 0, 0, 1, 2}}) {
      AttentionConfig config;
      config.isa = GetParam();
      config.threads = threads;
      config.route = Route::kCache;
      config.q_lens = q_lens;
      config.kv_lens = {700, 17, 1, 3, 64};
      for (std::size_t i = 0; i < q_lens.size(); ++i) {
        config.kv_lens[i] = std::max(config.kv_lens[i], q_lens[i]);
      }
      EnableAll(config);
      for (const Types& types : kCacheTypes) {
        SetTypes(config, types);
        config.seed = static_cast<std::uint32_t>(++turn);
        CheckConfig(config);
      }
    }
  }
}

}  // namespace
}  // namespace manyhead::testing
