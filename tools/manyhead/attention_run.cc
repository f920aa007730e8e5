#include "tools/manyhead/attention_run.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "manyhead/attention.h"
#include "manyhead/kv_cache.h"
#include "tools/manyhead/interrupt.h"
#include "tools/manyhead/throughput.h"

namespace manyhead::cli {
namespace {

constexpr int kWarmUps = 2;
constexpr std::int64_t kFillTokens = 512;
/// Number of rows (query head at a query) that are checked.
constexpr std::int64_t kCheckedRows = 6;

/// Generates numbers in [-1, 1) that differ from call to call, but not between runs of the program.
class Numbers {
 public:
  float Next() {
    state_ = state_ * 1664525U + 1013904223U;
    return static_cast<float>(state_ >> 8) * 0x1p-23F - 1.0F;
  }
  void Fill(std::vector<float>& x) {
    for (float& value : x) value = Next();
  }

 private:
  std::uint32_t state_ = 1;
};

AttentionParams ParamsOf(const AttentionShape& shape) {
  AttentionParams params;
  params.num_heads = shape.heads;
  params.num_kv_heads = shape.kv_heads;
  params.head_dim = shape.head_dim;
  params.max_q_len = shape.q_len;
  params.max_kv_len = shape.kv_len;
  params.logit_softcap = static_cast<float>(shape.softcap);
  params.window = shape.window;
  params.threads = static_cast<int>(shape.threads);
  if (shape.alibi) params.alibi_slopes = AlibiSlopes(shape.heads);
  if (shape.sinks) {
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      params.sink_logits.push_back(static_cast<float>(h % 5) - 2.0F);
    }
  }
  return params;
}

struct FilledCache {
  KvCache cache;
  SequenceId sequence;
};

Result<FilledCache> Fill(const AttentionShape& shape, Numbers& numbers) {
  KvCacheParams params;
  params.layers = {{shape.kv_heads, shape.head_dim, shape.head_dim}};
  params.k_type = params.v_type = shape.kv_type;
  params.max_tokens = shape.kv_len;
  params.heads = {std::vector<KvHeadParams>(static_cast<std::size_t>(shape.kv_heads),
                                            {shape.kv_type, shape.kv_type, KvPolicy::Full()})};
  for (std::int64_t h = 0; h < shape.off; ++h) params.heads[0][h].policy = KvPolicy::Off();
  const Result<std::int64_t> bytes = KvCapacityBytes(params, 1, shape.kv_len);
  if (!bytes.ok()) return bytes.status();
  params.capacity_bytes = *bytes;
  Result<KvCache> cache = KvCache::Create(params);
  if (!cache.ok()) return cache.status();
  const Result<SequenceId> sequence = cache->CreateSequence();
  if (!sequence.ok()) return sequence.status();
  Status status = cache->Reserve(*sequence, shape.kv_len);
  std::vector<float> k(static_cast<std::size_t>(kFillTokens * shape.kv_heads * shape.head_dim)),
      v(k.size());
  for (std::int64_t done = 0; status.ok() && done < shape.kv_len; done += kFillTokens) {
    numbers.Fill(k);
    numbers.Fill(v);
    status = cache->Write(*sequence, 0, done, std::min(kFillTokens, shape.kv_len - done), k.data(),
                          v.data());
  }
  if (!status.ok()) return status;
  return FilledCache{std::move(*cache), *sequence};
}

/// Computes row (t, h) in double precision from the numbers in the cache.
Result<std::vector<double>> ReferenceRow(const AttentionParams& params, const FilledCache& filled,
                                         const AttentionShape& shape, const std::vector<float>& q,
                                         std::int64_t t, std::int64_t h) {
  const std::int64_t dim = shape.head_dim, position = shape.kv_len - shape.q_len + t;
  const std::int64_t first =
      shape.window > 0 ? std::max<std::int64_t>(0, position - shape.window + 1) : 0;
  const float* query = q.data() + (t * shape.heads + h) * dim;
  std::vector<float> k(static_cast<std::size_t>(dim)), v(k.size());
  std::vector<double> sum(k.size(), 0.0);
  const std::int64_t kv_head = h / (shape.heads / shape.kv_heads);
  if (kv_head < shape.off) return sum;
  double denominator = 0, max = shape.sinks ? params.sink_logits[h] : -HUGE_VAL;
  if (shape.sinks) denominator = 1;
  for (std::int64_t s = first; s <= position; ++s) {
    const Status status = filled.cache.Read(filled.sequence, 0, kv_head, s, k.data(), v.data());
    if (!status.ok()) return status;
    double logit = 0;
    for (std::int64_t d = 0; d < dim; ++d) logit += double{query[d]} * double{k[d]};
    logit *= double{params.softmax_scale};
    if (shape.softcap > 0) logit = shape.softcap * std::tanh(logit / shape.softcap);
    if (shape.alibi) logit -= double{params.alibi_slopes[h]} * static_cast<double>(position - s);
    const double new_max = std::max(max, logit), old = std::exp(max - new_max),
                 weight = std::exp(logit - new_max);
    max = new_max;
    denominator = denominator * old + weight;
    for (std::int64_t d = 0; d < dim; ++d) sum[d] = sum[d] * old + weight * double{v[d]};
  }
  for (double& x : sum) x /= denominator;
  return sum;
}

Result<double> MaxError(const AttentionParams& params, const FilledCache& filled,
                        const AttentionShape& shape, const std::vector<float>& q,
                        const std::vector<float>& out) {
  double worst = 0;
  const std::int64_t rows = shape.q_len * shape.heads;
  for (std::int64_t i = 0; i < std::min(rows, kCheckedRows); ++i) {
    const std::int64_t row = rows <= kCheckedRows ? i : i * (rows - 1) / (kCheckedRows - 1);
    const auto expected =
        ReferenceRow(params, filled, shape, q, row / shape.heads, row % shape.heads);
    if (!expected.ok()) return expected.status();
    for (std::int64_t d = 0; d < shape.head_dim; ++d) {
      const double error = std::fabs((*expected)[d] - double{out[row * shape.head_dim + d]});
      worst = error <= worst ? worst : error;  // NaN stays
    }
  }
  return worst;
}

}  // namespace

Result<std::optional<AttentionTiming>> TimeAttention(const AttentionShape& shape,
                                                     std::int64_t repetitions) {
  Result<AttentionPlan> plan = AttentionPlan::Create(ParamsOf(shape));
  if (!plan.ok()) return plan.status();
  Numbers numbers;
  const Result<FilledCache> filled = Fill(shape, numbers);
  if (!filled.ok()) return filled.status();
  std::vector<float> q(static_cast<std::size_t>(shape.q_len * shape.heads * shape.head_dim));
  numbers.Fill(q);
  std::vector<float> out(q.size());
  const std::int64_t qo_indptr[] = {0, shape.q_len};

  AttentionTiming timing;
  timing.shape = shape;
  timing.shape.threads = plan->params().threads;
  timing.isa = *plan->params().isa;
  const auto explanation = plan->Explain(shape.kv_type, shape.kv_type, shape.q_len, shape.kv_len);
  if (!explanation.ok()) return explanation.status();
  const std::int64_t read = shape.kv_heads - shape.off;
  timing.bytes = explanation->bytes / shape.kv_heads * read;
  timing.flops = explanation->flops / shape.kv_heads * read;
  Status status;
  const auto run = [&] {
    if (Interrupted().load()) return false;
    status = plan->Run(filled->cache, 0, {&filled->sequence, 1}, qo_indptr, q.data(), out.data());
    return status.ok();
  };
  for (int i = 0; i < kWarmUps; ++i) {
    if (!run()) break;
  }
  for (const std::int64_t ns : TimeRepetitions(
           repetitions, SteadyNanoseconds, [] { return true; }, run)) {
    timing.samples_seconds.push_back(static_cast<double>(ns) * 1e-9);
  }
  if (!status.ok()) return status;
  if (timing.samples_seconds.empty()) return std::optional<AttentionTiming>();
  std::vector<double> sorted = timing.samples_seconds;
  std::sort(sorted.begin(), sorted.end());
  timing.min_seconds = sorted.front();
  timing.median_seconds = (sorted[(sorted.size() - 1) / 2] + sorted[sorted.size() / 2]) / 2;
  const Result<double> error = MaxError(plan->params(), *filled, shape, q, out);
  if (!error.ok()) return error.status();
  timing.max_abs_error = *error;
  return std::optional<AttentionTiming>(std::move(timing));
}

}  // namespace manyhead::cli
