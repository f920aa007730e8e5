#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/attention.h"
#include "manyhead/isa.h"
#include "manyhead/kv_cache.h"

/// Speed of AttentionPlan::Run over a paged cache. Counters: flops, 2 (D + Dv) per visible (query
/// head, key) pair; bytes, K and V read once per KV head (what a decode step cannot avoid).

namespace {

using manyhead::AttentionParams;
using manyhead::AttentionPlan;
using manyhead::Isa;
using manyhead::KvCache;
using manyhead::KvType;

struct Shape {
  const char* name;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t q_len;
  std::int64_t kv_len;
  KvType type;
};

constexpr Shape kShapes[] = {
    {"decode_32_8_d128_4k_f32", 32, 8, 128, 1, 4096, KvType::kF32},
    {"decode_32_8_d128_4k_f16", 32, 8, 128, 1, 4096, KvType::kF16},
    {"decode_32_8_d128_4k_bf16", 32, 8, 128, 1, 4096, KvType::kBf16},
    {"decode_32_32_d128_4k_f16", 32, 32, 128, 1, 4096, KvType::kF16},
    {"decode_14_2_d64_4k_f16", 14, 2, 64, 1, 4096, KvType::kF16},
    {"decode_4_1_d256_4k_f16", 4, 1, 256, 1, 4096, KvType::kF16},
    {"decode_71_1_d64_4k_f16", 71, 1, 64, 1, 4096, KvType::kF16},
    {"append16_32_8_d128_4k_f16", 32, 8, 128, 16, 4096, KvType::kF16},
    {"prefill_32_8_d128_2k_f32", 32, 8, 128, 2048, 2048, KvType::kF32},
    {"prefill_32_8_d128_2k_f16", 32, 8, 128, 2048, 2048, KvType::kF16},
    {"prefill_14_2_d64_2k_f16", 14, 2, 64, 2048, 2048, KvType::kF16},
    {"prefill_4_1_d256_2k_f16", 4, 1, 256, 2048, 2048, KvType::kF16},
};

std::vector<float> Random(std::int64_t n) {
  std::vector<float> x(static_cast<std::size_t>(n));
  std::uint32_t state = 1;
  for (float& value : x) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(state >> 8) * 0x1p-23F - 1.0F;
  }
  return x;
}

manyhead::Result<KvCache> Fill(const Shape& shape, manyhead::SequenceId* id) {
  manyhead::KvCacheParams params;
  params.layers = {{shape.num_kv_heads, shape.head_dim, shape.head_dim}};
  params.k_type = params.v_type = shape.type;
  params.max_tokens = shape.kv_len;
  const auto bytes = KvCapacityBytes(params, 1, shape.kv_len);
  if (!bytes.ok()) return bytes.status();
  params.capacity_bytes = *bytes;
  auto cache = KvCache::Create(params);
  if (!cache.ok()) return cache.status();
  const auto sequence = cache->CreateSequence();
  if (!sequence.ok()) return sequence.status();
  *id = *sequence;
  if (auto status = cache->Reserve(*id, shape.kv_len); !status.ok()) return status;
  const std::vector<float> rows = Random(shape.kv_len * shape.num_kv_heads * shape.head_dim);
  const auto written = cache->Write(*id, 0, 0, shape.kv_len, rows.data(), rows.data());
  if (!written.ok()) return written;
  return cache;
}

void BM_Attention(benchmark::State& state, const Shape& shape, Isa isa, int threads) {
  const auto& [name, H, K, D, T, S, type] = shape;
  AttentionParams params;
  params.num_heads = H;
  params.num_kv_heads = K;
  params.head_dim = D;
  params.max_q_len = T;
  params.max_kv_len = S;
  params.threads = threads;
  params.isa = isa;
  auto plan = AttentionPlan::Create(params);
  if (!plan.ok()) return state.SkipWithError(plan.status().message().c_str());
  manyhead::SequenceId id{};
  const auto cache = Fill(shape, &id);
  if (!cache.ok()) return state.SkipWithError(cache.status().message().c_str());
  const std::vector<float> q_THD = Random(T * H * D);
  std::vector<float> out_THD(q_THD.size());
  const std::int64_t qo_indptr[] = {0, T};
  for (auto _ : state) {
    const auto status = plan->Run(*cache, 0, {&id, 1}, qo_indptr, q_THD.data(), out_THD.data());
    if (!status.ok()) return state.SkipWithError(status.message().c_str());
    benchmark::ClobberMemory();
  }
  const std::int64_t pairs = T * (S - T) + T * (T + 1) / 2;  // of a head: query, visible key
  const std::int64_t bytes = 2 * S * K * D * (type == KvType::kF32 ? 4 : 2);
  state.SetItemsProcessed(state.iterations() * T);
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["flops"] = benchmark::Counter(static_cast<double>(4 * H * D * pairs),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  for (const Shape& shape : kShapes) {
    for (const Isa isa : manyhead::SupportedIsas()) {
      for (const int threads : {1, 2}) {
        const std::string name = std::string(shape.name)
                                     .append("/")
                                     .append(manyhead::IsaName(isa))
                                     .append("/threads:")
                                     .append(std::to_string(threads));
        benchmark::RegisterBenchmark(name.c_str(), BM_Attention, shape, isa, threads)
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
