#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_support.h"
#include "manyhead/attention.h"
#include "manyhead/kv_cache.h"

/// Speed of AttentionPlan::Run over a paged cache: decoding, appending and prefill of models'
/// shapes, and decoding over a sweep of head counts. Bytes and flops are those of
/// AttentionPlan::Explain: K and V read once per KV head, 2 (D + Dv) per visible (query head, key)
/// pair.

namespace manyhead::bench {
namespace {

struct Case {
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t q_len;
  std::int64_t kv_len;
  KvType type;
};

void BM_Attention(benchmark::State& state, const Case& shape, int threads) {
  const auto& [H, K, D, T, S, type] = shape;
  AttentionParams params;
  params.num_heads = H;
  params.num_kv_heads = K;
  params.head_dim = D;
  params.max_q_len = T;
  params.max_kv_len = S;
  params.threads = threads;
  params.isa = BenchIsa();
  auto plan = AttentionPlan::Create(params);
  if (!plan.ok()) return state.SkipWithError(plan.status().message().c_str());
  const auto cost = plan->Explain(type, type, T, S);
  if (!cost.ok()) return state.SkipWithError(cost.status().message().c_str());
  const auto filled = FillCache({K, D, D}, 1, type, S, 0);
  if (!filled.ok()) return state.SkipWithError(filled.status().message().c_str());
  const std::vector<float> q_THD = Random(T * H * D);
  std::vector<float> out_THD(q_THD.size());
  const std::int64_t qo_indptr[] = {0, T};
  const std::int64_t start = Now();
  for (auto _ : state) {
    const auto status = plan->Run(filled->cache, 0, {&filled->sequence, 1}, qo_indptr, q_THD.data(),
                                  out_THD.data());
    if (!status.ok()) return state.SkipWithError(status.message().c_str());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * T);
  SetCounters(state, start, static_cast<double>(cost->bytes), static_cast<double>(cost->flops),
              threads);
}

void Register(const std::string& name, const Case& shape) {
  for (const int threads : BenchThreads())
    benchmark::RegisterBenchmark(FullName(name, threads).c_str(), BM_Attention, shape, threads)
        ->UseRealTime()
        ->Unit(benchmark::kMicrosecond);
}

void RegisterModels() {
  struct Work {
    const char* name;
    std::int64_t q_len, kv_len;
    std::vector<KvType> types;
  };
  const Work works[] = {
      {"decode_4k", 1, 4096, {KvType::kF32, KvType::kF16, KvType::kInt8, KvType::kInt4}},
      {"decode_32k", 1, 32768, {KvType::kF16}},
      {"append16_4k", 16, 4096, {KvType::kF16}},
      {"append512_4k", 512, 4608, {KvType::kF16}},
      {"prefill_2k", 2048, 2048, {KvType::kF32, KvType::kF16, KvType::kInt8}},
  };
  for (const ModelShape& model : kModels)
    for (const Work& work : works)
      for (const KvType type : work.types)
        Register(
            std::string(work.name)
                .append("/")
                .append(model.name)
                .append("/")
                .append(KvTypeName(type)),
            {model.num_heads, model.num_kv_heads, model.head_dim, work.q_len, work.kv_len, type});
}

void RegisterSweep() {
  const std::int64_t heads[][2] = {{32, 32}, {32, 16}, {32, 8}, {32, 4}, {32, 2}, {32, 1},
                                   {14, 2},  {12, 2},  {4, 1},  {71, 1}, {1, 1}};
  for (const auto& [num_heads, num_kv_heads] : heads)
    for (const std::int64_t head_dim : {64, 80, 128, 256})
      Register(std::string("sweep_4k/heads:")
                   .append(std::to_string(num_heads))
                   .append("/kv_heads:")
                   .append(std::to_string(num_kv_heads))
                   .append("/head_dim:")
                   .append(std::to_string(head_dim))
                   .append("/f16"),
               {num_heads, num_kv_heads, head_dim, 1, 4096, KvType::kF16});
}

}  // namespace
}  // namespace manyhead::bench

int main(int argc, char** argv) {
  manyhead::bench::RegisterModels();
  manyhead::bench::RegisterSweep();
  return manyhead::bench::RunBenchmarks(argc, argv);
}
