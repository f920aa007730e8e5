#pragma once

#include <benchmark/benchmark.h>

#include <cstdint>
#include <string>
#include <vector>

#include "manyhead/isa.h"
#include "manyhead/kv_cache.h"
#include "manyhead/types.h"

/// Declares what the benchmark programs share. They run the instruction set that MANYHEAD_ISA
/// names, or else the best, on one thread and on all CPUs.

namespace manyhead::bench {

/// The attention of a model that many use.
struct ModelShape {
  const char* name;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t layers;
};

inline constexpr ModelShape kModels[] = {
    {"llama3_8b", 32, 8, 128, 32},    {"llama2_7b", 32, 32, 128, 32},
    {"qwen2.5_1.5b", 12, 2, 128, 28}, {"qwen2.5_0.5b", 14, 2, 64, 24},
    {"gemma3_270m", 4, 1, 256, 18},   {"falcon_7b", 71, 1, 64, 32},
};

/// `n` numbers in [-1, 1), the same at every call.
std::vector<float> Random(std::int64_t n);

/// A cache with one sequence of `tokens` tokens on every layer, and room for `spare` more.
struct FilledCache {
  KvCache cache;
  SequenceId sequence;
};
Result<FilledCache> FillCache(const KvLayerShape& shape, std::int64_t layers, KvType type,
                              std::int64_t tokens, std::int64_t spare);

/// Nanoseconds of the monotonic clock.
std::int64_t Now();

/// Counters of a benchmark whose iteration moves `bytes` and computes `flops`, and whose loop began
/// at `start`: bytes/s, flops/s, and of_roofline, the least time that the memory bandwidth and the
/// f32 FMA peak of `threads` threads allow over the time taken. What fits the CPU's caches, and
/// products in int8 or bf16, can be above 1.
void SetCounters(benchmark::State& state, std::int64_t start, double bytes, double flops,
                 int threads);

/// The instruction set of every benchmark; ends the program where MANYHEAD_ISA names none.
Isa BenchIsa();

/// One and the CPUs this process may use.
std::vector<int> BenchThreads();

/// "decode/llama3_8b/f16" -> "decode/llama3_8b/f16/avx512/threads:2".
std::string FullName(const std::string& name, int threads);

/// Runs what was registered; the exit code of main.
int RunBenchmarks(int argc, char** argv);

}  // namespace manyhead::bench
