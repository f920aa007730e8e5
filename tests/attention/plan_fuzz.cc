#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "manyhead/attention.h"
#include "tests/support/fuzz.h"
#include "tests/support/fuzz_bytes.h"

using manyhead::AttentionParams;
using manyhead::AttentionPlan;
using manyhead::KvType;
using manyhead::Result;
using manyhead::Status;
using manyhead::StatusCode;
using manyhead::testing::FuzzBytes;

namespace {

/// Mostly small, sometimes far beyond what is allowed; nothing that is allowed but takes gigabytes.
std::int64_t Size(FuzzBytes& bytes) {
  constexpr std::int64_t kFar[] = {-1,
                                   std::numeric_limits<std::int64_t>::min(),
                                   std::numeric_limits<std::int64_t>::max(),
                                   (std::int64_t{1} << 31) + 1,
                                   std::int64_t{1} << 62,
                                   1025,
                                   -(std::int64_t{1} << 32),
                                   0};
  const auto choice = bytes.Take<std::uint8_t>();
  return choice < 224 ? choice % 33 : kFar[choice % std::size(kFar)];
}

AttentionParams Params(FuzzBytes& bytes) {
  AttentionParams params;
  params.num_kv_heads = Size(bytes);
  const auto group = bytes.Take<std::uint8_t>();
  const bool few = params.num_kv_heads > -64 && params.num_kv_heads < 64;
  params.num_heads = group < 200 && few ? params.num_kv_heads * (group % 5) : Size(bytes);
  params.head_dim = Size(bytes);
  params.head_dim_v = Size(bytes);
  params.max_q_len = Size(bytes);
  params.max_kv_len = Size(bytes);
  const auto flags = bytes.Take<std::uint8_t>();
  params.causal = (flags & 1) != 0;
  params.strict = (flags & 2) != 0;
  if ((flags & 4) != 0) params.window = Size(bytes);
  if ((flags & 8) != 0) params.window_right = Size(bytes);
  if ((flags & 16) != 0) params.num_sink_tokens = Size(bytes);
  if ((flags & 32) != 0) params.softmax_scale = bytes.Take<float>();
  if ((flags & 64) != 0) params.logit_softcap = bytes.Take<float>();
  params.threads = bytes.Take<std::int8_t>() % 4;
  if (const auto isa = bytes.Take<std::uint8_t>(); isa % 2 == 1)
    params.isa = static_cast<manyhead::Isa>(isa / 2);
  for (std::vector<float>* list : {&params.alibi_slopes, &params.sink_logits}) {
    const auto length = bytes.Take<std::uint8_t>();
    if (length < 128) continue;
    const std::int64_t heads = params.num_heads;
    list->resize(length < 250 && heads >= 0 && heads < 4096 ? static_cast<std::size_t>(heads)
                                                            : length % 7);
    for (float& x : *list) x = bytes.empty() ? 0.5F : bytes.Take<float>();
  }
  return params;
}

/// Whether no logit of the inputs below overflows f32, where infinity less infinity is NaN.
bool LogitsAreFinite(const AttentionParams& params) {
  constexpr float kTame = 1e30F;
  bool finite = std::fabs(params.softmax_scale) < kTame;
  for (const float slope : params.alibi_slopes) finite = finite && std::fabs(slope) < kTame;
  return finite;
}

/// Lengths that fit run and leave nothing unwritten; others are refused with nothing written.
void Run(AttentionPlan& plan, std::int64_t q_len, std::int64_t kv_len) {
  const AttentionParams& params = plan.params();
  const bool fits =
      q_len >= 0 && q_len <= params.max_q_len && kv_len >= 0 && kv_len <= params.max_kv_len;
  const std::int64_t T = fits ? q_len : 1, S = fits ? kv_len : 1, H = params.num_heads;
  constexpr float kUnwritten = -12345.0F;
  const auto floats = [](std::int64_t n, float x) {
    return std::vector<float>(static_cast<std::size_t>(n), x);
  };
  const std::vector<float> q = floats(T * H * params.head_dim, 0.25F),
                           k = floats(S * params.num_kv_heads * params.head_dim, 0.5F),
                           v = floats(S * params.num_kv_heads * params.head_dim_v, 1.0F);
  std::vector<float> out = floats(T * H * params.head_dim_v, kUnwritten),
                     lse = floats(T * H, kUnwritten);
  const Status status =
      plan.Run(q_len, kv_len, q.data(), k.data(), v.data(), out.data(), lse.data());
  if (!status.ok()) FuzzCheckMessage(status.message());
  const bool refuses_slower = params.strict && status.code() == StatusCode::kUnsupported;
  FuzzCheck(status.ok() || !fits || (params.causal && q_len > kv_len) || refuses_slower);
  if (status.ok() && !LogitsAreFinite(params)) return;
  // A mean of ones, less by the share of a sink.
  for (const float x : out) FuzzCheck(status.ok() ? x >= 0.0F && x <= 1.001F : x == kUnwritten);
  for (const float x : lse) FuzzCheck(status.ok() ? !std::isnan(x) : x == kUnwritten);
}

}  // namespace

// Any bytes as the parameters of a plan: an error of one line, or a plan that explains itself, runs
// what it was made for and refuses the rest.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzBytes bytes(data, size);
  const AttentionParams params = Params(bytes);
  Result<AttentionPlan> plan = AttentionPlan::Create(params);
  if (!plan.ok()) {
    FuzzCheckMessage(plan.status().message());
    return 0;
  }
  FuzzCheck(plan->scratch_bytes() > 0);
  for (int i = 0; i < 4; ++i) {
    const std::int64_t q_len = Size(bytes), kv_len = Size(bytes);
    const auto type = bytes.Take<std::uint8_t>();
    const auto explained = plan->Explain(static_cast<KvType>(type % 8),
                                         static_cast<KvType>(type / 8 % 8), q_len, kv_len);
    if (!explained.ok()) {
      FuzzCheckMessage(explained.status().message());
    } else {
      FuzzCheck(!explained->ToString().empty() && explained->items >= 0 && explained->flops >= 0);
    }
    Run(*plan, q_len, kv_len);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  // KV heads, group, D, Dv, q, kv, flags, threads, isa, slopes, sinks; then lengths and types.
  std::vector<std::string> seeds = {
      std::string("\x02\x02\x10\x10\x04\x20\x01\x01\x00\x00\x00\x04\x20\x00\x01\x09\x09", 17),
      std::string("\x01\x03\x08\x00\x01\x20\x1d\x09\x01\x03\x02\x00\xc8\x00\x01\x20\x12", 17)};
  std::mt19937 random(1);
  for (int i = 0; i < 30; ++i) {
    std::string seed;
    for (int j = 0; j < 48; ++j) seed += static_cast<char>(random());
    seeds.push_back(std::move(seed));
  }
  return seeds;
}
