#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_support.h"
#include "manyhead/kv_cache.h"

/// Speed of what a KV cache does besides being read, on one thread, over all layers of models'
/// shapes at 4000 tokens: appending rows (bytes: f32 rows read and stored bytes written), and
/// taking and giving back pages, which moves nothing and is counted in pages.

namespace manyhead::bench {
namespace {

constexpr std::int64_t kTokens = 4000;  // half a page begun: one token more takes none
constexpr std::int64_t kPageTokens = 64;

Result<FilledCache> Fill(const ModelShape& model, KvType type) {
  return FillCache({model.num_kv_heads, model.head_dim, model.head_dim}, model.layers, type,
                   kTokens, 512);
}

/// Pages that `tokens` tokens take on every head.
double Pages(const ModelShape& model, std::int64_t tokens) {
  return static_cast<double>(model.layers * model.num_kv_heads *
                             ((tokens + kPageTokens - 1) / kPageTokens));
}

void SetPages(benchmark::State& state, double pages) {
  state.counters["pages/s"] =
      benchmark::Counter(pages, benchmark::Counter::kIsIterationInvariantRate);
}

void BM_Append(benchmark::State& state, const ModelShape& model, KvType type, std::int64_t count) {
  auto filled = Fill(model, type);
  if (!filled.ok()) return state.SkipWithError(filled.status().message().c_str());
  auto& [cache, sequence] = *filled;
  const std::int64_t elements = count * model.num_kv_heads * model.head_dim;
  const std::vector<float> rows = Random(elements);
  const std::int64_t start = Now();
  for (auto _ : state) {
    bool ok = cache.Reserve(sequence, count).ok();
    for (std::int64_t layer = 0; layer < model.layers; ++layer)
      ok = ok && cache.Write(sequence, layer, kTokens, count, rows.data(), rows.data()).ok();
    ok = ok && cache.Truncate(sequence, kTokens).ok();
    if (!ok) return state.SkipWithError("append failed");
  }
  state.SetItemsProcessed(state.iterations() * count);
  const double read = 2.0 * sizeof(float) * static_cast<double>(elements * model.layers);
  const double stored = static_cast<double>(count * cache.bytes_per_token());
  SetCounters(state, start, read + stored, 0, 1);
}

/// Gives back the pages of the last 512 tokens and takes them again.
void BM_Truncate(benchmark::State& state, const ModelShape& model, KvType type) {
  auto filled = Fill(model, type);
  if (!filled.ok()) return state.SkipWithError(filled.status().message().c_str());
  auto& [cache, sequence] = *filled;
  for (auto _ : state) {
    const bool ok =
        cache.Truncate(sequence, kTokens - 512).ok() && cache.Reserve(sequence, 512).ok();
    if (!ok) return state.SkipWithError("truncate failed");
  }
  SetPages(state, Pages(model, 512));
}

/// A sequence of 4000 tokens from nothing to its end; its pages are not written.
void BM_CreateFree(benchmark::State& state, const ModelShape& model, KvType type) {
  auto filled = Fill(model, type);
  if (!filled.ok()) return state.SkipWithError(filled.status().message().c_str());
  KvCache& cache = filled->cache;
  for (auto _ : state) {
    const auto sequence = cache.CreateSequence();
    const bool ok = sequence.ok() && cache.Reserve(*sequence, kTokens).ok() &&
                    cache.FreeSequence(*sequence).ok();
    if (!ok) return state.SkipWithError("create failed");
  }
  SetPages(state, Pages(model, kTokens));
}

/// A second sequence with all of the first's pages, which goes again.
void BM_Fork(benchmark::State& state, const ModelShape& model, KvType type) {
  auto filled = Fill(model, type);
  if (!filled.ok()) return state.SkipWithError(filled.status().message().c_str());
  auto& [cache, sequence] = *filled;
  for (auto _ : state) {
    const auto fork = cache.Fork(sequence);
    if (!fork.ok() || !cache.FreeSequence(*fork).ok()) return state.SkipWithError("fork failed");
  }
  SetPages(state, Pages(model, kTokens));
}

/// As BM_Fork, and a token appended to it: on every head the last page is copied first.
void BM_ForkAppend(benchmark::State& state, const ModelShape& model, KvType type) {
  auto filled = Fill(model, type);
  if (!filled.ok()) return state.SkipWithError(filled.status().message().c_str());
  auto& [cache, sequence] = *filled;
  const std::vector<float> rows = Random(model.num_kv_heads * model.head_dim);
  for (auto _ : state) {
    const auto fork = cache.Fork(sequence);
    bool ok = fork.ok() && cache.Reserve(*fork, 1).ok();
    for (std::int64_t layer = 0; layer < model.layers; ++layer)
      ok = ok && cache.Write(*fork, layer, kTokens, 1, rows.data(), rows.data()).ok();
    if (!ok || !cache.FreeSequence(*fork).ok()) return state.SkipWithError("fork failed");
  }
  SetPages(state, Pages(model, kTokens));
}

void RegisterAll() {
  for (const ModelShape& model : kModels) {
    for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kInt8, KvType::kInt4}) {
      const std::string suffix =
          std::string("/").append(model.name).append("/").append(KvTypeName(type));
      for (const std::int64_t count : {1, 512})
        benchmark::RegisterBenchmark(FullName("append" + std::to_string(count) + suffix, 1).c_str(),
                                     BM_Append, model, type, count)
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      if (type != KvType::kF16) continue;  // pages are allocated and released alike
      const auto add = [&](const char* name, auto function) {
        benchmark::RegisterBenchmark(FullName(name + suffix, 1).c_str(), function, model, type)
            ->UseRealTime()
            ->Unit(benchmark::kMicrosecond);
      };
      add("truncate512", BM_Truncate);
      add("create_free", BM_CreateFree);
      add("fork", BM_Fork);
      add("fork_append1", BM_ForkAppend);
    }
  }
}

}  // namespace
}  // namespace manyhead::bench

int main(int argc, char** argv) {
  manyhead::bench::RegisterAll();
  return manyhead::bench::RunBenchmarks(argc, argv);
}
