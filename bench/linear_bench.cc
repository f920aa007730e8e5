#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_support.h"
#include "manyhead/isa.h"
#include "manyhead/types.h"
#include "runtime/linear/linear.h"
#include "runtime/linear/pack.h"
#include "runtime/platform/team.h"

/// Speed of RunLinear: rows that decode and rows of prompts. Bytes are the weights read once;
/// flops, 2 per weight and activation row. Weights rotate through 256 MB, as those of a model do
/// between two tokens.

namespace manyhead::bench {
namespace {

struct Shape {
  const char* name;
  WeightType type;
  std::int64_t rows;
  std::int64_t cols;
};

constexpr Shape kShapes[] = {
    {"qwen1.5b_up_q4_k", WeightType::kQ4_K, 8960, 1536},
    {"qwen1.5b_down_q6_k", WeightType::kQ6_K, 1536, 8960},
    {"qwen1.5b_up_q5_k", WeightType::kQ5_K, 8960, 1536},
    {"qwen1.5b_up_q2_k", WeightType::kQ2_K, 8960, 1536},
    {"qwen1.5b_up_q3_k", WeightType::kQ3_K, 8960, 1536},
    {"qwen1.5b_kv_q4_k", WeightType::kQ4_K, 256, 1536},
    {"qwen0.5b_head_q8_0", WeightType::kQ8_0, 151936, 896},
    {"qwen0.5b_up_q5_0", WeightType::kQ5_0, 4864, 896},
    {"qwen0.5b_up_q4_0", WeightType::kQ4_0, 4864, 896},
    {"qwen0.5b_up_q4_1", WeightType::kQ4_1, 4864, 896},
    {"qwen0.5b_up_q5_1", WeightType::kQ5_1, 4864, 896},
    {"gemma270m_up_q5_0", WeightType::kQ5_0, 2048, 640},
    {"gemma270m_head_q8_0", WeightType::kQ8_0, 262144, 640},
    {"qwen0.5b_up_f16", WeightType::kF16, 4864, 896},
    {"qwen0.5b_up_bf16", WeightType::kBf16, 4864, 896},
    {"qwen0.5b_up_f32", WeightType::kF32, 4864, 896},
};

/// Any bytes will do but scales that are NaN: every f16 below 0x78.. is finite.
std::vector<std::byte> RandomBytes(std::int64_t n) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(n));
  std::uint32_t state = 1;
  for (std::byte& b : bytes) {
    state = state * 1664525U + 1013904223U;
    b = static_cast<std::byte>((state >> 24) & 0x3f);
  }
  return bytes;
}

/// The storage of a model's weights: as their file stores them, or side by side.
struct Storage {
  const char* name;
  bool packed;
};

constexpr Storage kStorages[] = {{"packed", true}, {"mapped", false}};

void BM_Linear(benchmark::State& state, const Shape& shape, const Storage& storage, MathMode math,
               int threads) {
  const Isa isa = BenchIsa();
  const std::int64_t M = state.range(0);
  const RowRole role = state.range(1) == 0 ? RowRole::kDecode : RowRole::kPrefill;
  auto workspace = LinearWorkspace::Create({shape.cols, M, threads, isa, math});
  if (!workspace.ok()) return state.SkipWithError(workspace.status().message().c_str());
  WeightView view = {shape.type, shape.rows, shape.cols, nullptr};
  view.packed = storage.packed;
  const std::int64_t bytes = storage.packed ? PackedGroups(view) * PackedGroupBytes(view)
                                            : shape.rows * WeightRowBytes(view);
  const std::int64_t copies = std::max(std::int64_t{1}, (std::int64_t{256} << 20) / bytes);
  const std::vector<std::byte> weights = RandomBytes(bytes * copies);
  const std::vector<float> x(static_cast<std::size_t>(M * shape.cols), 0.25F);
  std::vector<float> y(static_cast<std::size_t>(M * shape.rows));
  const LinearRows rows =
      role == RowRole::kDecode ? LinearRows{.decode = M} : LinearRows{.prefill = M};
  std::int64_t copy = 0;
  const std::int64_t start = Now();
  for (auto _ : state) {
    view.data = weights.data() + copy * bytes;
    copy = (copy + 1) % copies;
    const LinearOutput output = {&view, y.data(), shape.rows, nullptr};
    RunTeam(threads, [&](Worker& worker) {
      RunLinear(worker, *workspace, x.data(), shape.cols, rows, {&output, 1});
    });
    benchmark::ClobberMemory();
  }
  SetCounters(state, start, static_cast<double>(bytes),
              2.0 * static_cast<double>(M * shape.rows * shape.cols), threads);
  state.SetLabel(LinearPathName(view, isa, math, role));
}

void Register(const Shape& shape, const Storage& storage, MathMode math, int threads) {
  const char* const mode = math == MathMode::kFast ? "fast" : "exact";
  const std::string name = std::string(shape.name) + "/" + storage.name + "/" + mode;
  benchmark::RegisterBenchmark(FullName(name, threads).c_str(), BM_Linear, shape, storage, math,
                               threads)
      ->ArgNames({"M", "prefill"})
      ->ArgsProduct({{1, 4, 8, 16, 64}, {0}})
      ->ArgsProduct({{8, 16, 512}, {1}})
      ->MeasureProcessCPUTime()
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
}

void RegisterAll() {
  for (const Shape& shape : kShapes) {
    for (const Storage& storage : kStorages) {
      if (storage.packed && !CanPack({shape.type, shape.rows, shape.cols, nullptr})) continue;
      for (const MathMode math : {MathMode::kFast, MathMode::kExact}) {
        for (const int threads : BenchThreads()) Register(shape, storage, math, threads);
      }
    }
  }
}

}  // namespace
}  // namespace manyhead::bench

int main(int argc, char** argv) {
  manyhead::bench::RegisterAll();
  return manyhead::bench::RunBenchmarks(argc, argv);
}
