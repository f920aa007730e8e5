// The programs of README.md's section on embedding; tests/tools/check_readme.py compares the
// regions.
#include <cmath>
#include <cstdio>

// [model]
#include <manyhead/manyhead.h>

#include <iostream>

int Fail(const manyhead::Status& status) {
  std::cerr << status.message() << "\n";
  return 1;
}

int Continue(const std::string& path, const std::string& prompt) {
  const auto model = manyhead::Model::Load(path);
  if (!model.ok()) return Fail(model.status());
  auto session = manyhead::Session::Create(*model, {});
  if (!session.ok()) return Fail(session.status());
  const auto ids = model->tokenizer().Encode(prompt);
  if (!ids.ok()) return Fail(ids.status());

  manyhead::GenerateOptions options;
  options.max_tokens = 32;
  options.on_text = [](std::string_view text) { std::cout << text << std::flush; };
  const auto result = session->Generate(*ids, options);
  if (!result.ok()) return Fail(result.status());
  std::cout << "\n" << result->timings.decode_rate() << " tokens/s\n";
  return 0;
}
// [model]

// [attention]
// One decode step of one layer: 32 query heads share 8 key/value heads of a paged cache.
manyhead::Status DecodeStep(manyhead::KvCache& cache, manyhead::AttentionPlan& plan,
                            manyhead::SequenceId sequence, const float* q, const float* k,
                            const float* v, float* out) {
  const std::int64_t position = cache.length(sequence);
  if (auto status = cache.Reserve(sequence, 1); !status.ok()) return status;
  if (auto status = cache.Write(sequence, 0, position, 1, k, v); !status.ok()) return status;
  return plan.Run(cache, 0, {&sequence, 1}, nullptr, q, out);
}

manyhead::Result<manyhead::KvCache> CreateCache() {
  manyhead::KvCacheParams params;
  params.layers = {{.num_kv_heads = 8, .head_dim = 128}};  // one layer
  params.k_type = params.v_type = manyhead::KvType::kF16;
  params.max_tokens = 4096;
  params.capacity_bytes = std::int64_t{64} << 20;
  return manyhead::KvCache::Create(params);
}

manyhead::Result<manyhead::AttentionPlan> CreatePlan() {
  manyhead::AttentionParams params;
  params.num_heads = 32;
  params.num_kv_heads = 8;
  params.head_dim = 128;
  params.max_q_len = 1;
  params.max_kv_len = 4096;
  return manyhead::AttentionPlan::Create(params);
}
// [attention]

namespace {

/// Two steps with equal values: whatever the weights, attention returns them.
bool AttentionWorks() {
  auto cache = CreateCache();
  auto plan = CreatePlan();
  if (!cache.ok() || !plan.ok()) return false;
  const auto sequence = cache->CreateSequence();
  if (!sequence.ok()) return false;
  const std::vector<float> q(32 * 128, 0.5F), k(8 * 128, 0.25F), v(8 * 128, 3);
  std::vector<float> out(32 * 128, NAN);
  for (int step = 0; step < 2; ++step)
    if (!DecodeStep(*cache, *plan, *sequence, q.data(), k.data(), v.data(), out.data()).ok())
      return false;
  for (const float value : out)
    if (!(std::abs(value - 3) < 1e-3F)) return false;
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  if (!AttentionWorks()) {
    std::puts("attention: wrong result");
    return 2;
  }
  return argc == 2 ? Continue(argv[1], "the small bird sang. the small") : 3;
}
