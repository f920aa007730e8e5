// Uses attention and its cache alone, inside the program's own decoder loop: here a toy with random
// weights, whose decode steps must give the bits of one prefill.
#include <manyhead/manyhead.h>

#include <iostream>
#include <random>
#include <vector>

constexpr std::int64_t kLayers = 2, kHeads = 8, kKvHeads = 2, kHeadDim = 64, kTokens = 40;
constexpr std::int64_t kModelDim = kHeads * kHeadDim, kKvDim = kKvHeads * kHeadDim;

manyhead::Result<manyhead::KvCache> CreateCache() {
  manyhead::KvCacheParams params;
  params.layers.assign(kLayers, {.num_kv_heads = kKvHeads, .head_dim = kHeadDim});
  params.k_type = params.v_type = manyhead::KvType::kF16;
  params.max_tokens = 4096;
  params.capacity_bytes = std::int64_t{64} << 20;  // a cap: only what is in use takes memory
  return manyhead::KvCache::Create(params);
}

manyhead::Result<manyhead::AttentionPlan> CreatePlan() {
  manyhead::AttentionParams params;
  params.num_heads = kHeads;
  params.num_kv_heads = kKvHeads;
  params.head_dim = kHeadDim;
  params.max_q_len = kTokens;
  params.max_kv_len = 4096;
  return manyhead::AttentionPlan::Create(params);
}

/// One step of `count` tokens through all layers; x [count, kModelDim] becomes the result.
manyhead::Status Step(manyhead::KvCache& cache, manyhead::AttentionPlan& plan,
                      manyhead::SequenceId sequence, std::int64_t count, std::vector<float>& x) {
  const std::int64_t position = cache.length(sequence);
  const std::int64_t queries[] = {0, count};
  std::vector<float> k(count * kKvDim), v(count * kKvDim), attended(x.size());
  if (auto status = cache.Reserve(sequence, count); !status.ok()) return status;
  for (std::int64_t layer = 0; layer < kLayers; ++layer) {
    for (std::int64_t i = 0; i < count * kKvDim; ++i) {  // stands for the projections
      k[i] = x[i / kKvDim * kModelDim + i % kKvDim];
      v[i] = 0.5F * k[i] + 0.1F;
    }
    auto status = cache.Write(sequence, layer, position, count, k.data(), v.data());
    if (status.ok())
      status = plan.Run(cache, layer, {&sequence, 1}, queries, x.data(), attended.data());
    if (!status.ok()) return status;
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += attended[i];  // the residual stream
  }
  return {};
}

int main() {
  auto cache = CreateCache();
  auto plan = CreatePlan();
  if (!cache.ok() || !plan.ok()) return 1;
  const auto decoded = cache->CreateSequence(), prefilled = cache->CreateSequence();
  if (!decoded.ok() || !prefilled.ok()) return 1;
  std::mt19937 random(7);
  std::vector<float> all(kTokens * kModelDim), last;
  for (float& value : all) value = static_cast<float>(random() % 1000) * 1e-3F - 0.5F;

  for (auto row = all.begin(); row != all.end(); row += kModelDim) {
    last.assign(row, row + kModelDim);
    if (!Step(*cache, *plan, *decoded, 1, last).ok()) return 1;
  }
  if (!Step(*cache, *plan, *prefilled, kTokens, all).ok()) return 1;
  const bool equal = std::equal(last.begin(), last.end(), all.end() - kModelDim);
  std::cout << kTokens << " tokens in " << cache->usage().used_bytes / 1024 << " KiB, "
            << (equal ? "decoding equals prefill" : "decoding differs") << "\n";
  return equal ? 0 : 1;
}
