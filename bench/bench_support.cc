#include "bench/bench_support.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "tools/manyhead/machine.h"
#include "tools/manyhead/throughput.h"

namespace manyhead::bench {
namespace {

constexpr std::int64_t kFillTokens = 512;

const cli::Roofline& RooflineOf(int threads) {
  static std::map<int, cli::Roofline> measured;
  const auto [entry, is_new] = measured.try_emplace(threads);
  if (is_new) entry->second = cli::MeasureRoofline(BenchIsa(), threads);
  return entry->second;
}

}  // namespace

std::vector<float> Random(std::int64_t n) {
  std::vector<float> x(static_cast<std::size_t>(n));
  std::uint32_t state = 1;
  for (float& value : x) {
    state = state * 1664525U + 1013904223U;
    value = static_cast<float>(state >> 8) * 0x1p-23F - 1.0F;
  }
  return x;
}

Result<FilledCache> FillCache(const KvLayerShape& shape, std::int64_t layers, KvType type,
                              std::int64_t tokens, std::int64_t spare) {
  KvCacheParams params;
  params.layers.assign(static_cast<std::size_t>(layers), shape);
  params.k_type = params.v_type = type;
  params.max_tokens = tokens + spare;
  params.isa = BenchIsa();
  const auto bytes = KvCapacityBytes(params, 2, params.max_tokens);
  if (!bytes.ok()) return bytes.status();
  params.capacity_bytes = *bytes;
  auto cache = KvCache::Create(params);
  if (!cache.ok()) return cache.status();
  const auto sequence = cache->CreateSequence();
  if (!sequence.ok()) return sequence.status();
  const std::vector<float> rows = Random(kFillTokens * shape.num_kv_heads * shape.head_dim);
  Status status = cache->Reserve(*sequence, tokens);
  for (std::int64_t layer = 0; layer < layers; ++layer)
    for (std::int64_t done = 0; status.ok() && done < tokens; done += kFillTokens)
      status = cache->Write(*sequence, layer, done, std::min(kFillTokens, tokens - done),
                            rows.data(), rows.data());
  if (!status.ok()) return status;
  return FilledCache{*std::move(cache), *sequence};
}

std::int64_t Now() { return cli::SteadyNanoseconds(); }

void SetCounters(benchmark::State& state, std::int64_t start, double bytes, double flops,
                 int threads) {
  const double seconds =
      static_cast<double>(Now() - start) * 1e-9 / static_cast<double>(state.iterations());
  constexpr auto kRate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["bytes/s"] = benchmark::Counter(bytes, kRate);
  state.counters["flops/s"] = benchmark::Counter(flops, kRate);
  state.counters["of_roofline"] = RooflineOf(threads).Bound(bytes, flops) / seconds;
}

Isa BenchIsa() {
  static const Isa isa = [] {
    const Result<Isa> selected = SelectIsa();
    if (selected.ok()) return *selected;
    std::fprintf(stderr, "%s\n", selected.status().message().c_str());
    std::exit(1);
  }();
  return isa;
}

std::vector<int> BenchThreads() {
  const int cpus = cli::AllowedCpus();
  return cpus > 1 ? std::vector<int>{1, cpus} : std::vector<int>{1};
}

std::string FullName(const std::string& name, int threads) {
  std::string full = name;
  full.append("/").append(IsaName(BenchIsa()));
  return full.append("/threads:").append(std::to_string(threads));
}

int RunBenchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  for (const int threads : BenchThreads()) {
    const cli::Roofline& roofline = RooflineOf(threads);
    benchmark::AddCustomContext(
        std::to_string(threads) + "_threads",
        std::to_string(static_cast<std::int64_t>(roofline.bytes_per_second / 1e6)) + " MB/s, " +
            std::to_string(static_cast<std::int64_t>(roofline.flops_per_second / 1e6)) +
            " MFLOP/s");
  }
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace manyhead::bench
