#include <algorithm>
#include <cmath>
#include <string>

#include "manyhead/attention.h"
#include "runtime/platform/dispatch.h"
#include "runtime/platform/errors.h"

namespace manyhead {

std::vector<float> AlibiSlopes(std::int64_t num_heads) {
  std::vector<float> slopes;
  std::int64_t power = 1;
  while (power * 2 <= num_heads) power *= 2;
  // 2^(-8 h / n) for the heads of the power of two, then every other slope of twice that power.
  for (std::int64_t h = 1; h <= std::min(power, num_heads); ++h) {
    slopes.push_back(
        static_cast<float>(std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(power))));
  }
  for (std::int64_t h = 1; static_cast<std::int64_t>(slopes.size()) < num_heads; h += 2) {
    slopes.push_back(static_cast<float>(
        std::exp2(-8.0 * static_cast<double>(h) / static_cast<double>(2 * power))));
  }
  return slopes;
}

Status MergeAttentionStates(std::int64_t rows, std::int64_t head_dim_v, const float* out_a,
                            const float* lse_a, const float* out_b, const float* lse_b, float* out,
                            float* lse) noexcept {
  constexpr const char* kName = "MergeAttentionStates";
  if (rows < 0) return InvalidArgument(kName, "rows = ", rows, "; expected 0 or more");
  if (head_dim_v < 0)
    return InvalidArgument(kName, "head_dim_v = ", head_dim_v, "; expected 0 or more");
  const struct {
    const char* name;
    const float* data;
  } pointers[] = {{"out_a", out_a}, {"lse_a", lse_a}, {"out_b", out_b},
                  {"lse_b", lse_b}, {"out", out},     {"lse", lse}};
  for (const auto& [name, data] : pointers) {
    if (rows > 0 && data == nullptr)
      return InvalidArgument(kName, name, " = null; expected ", rows, " rows");
  }
  const Result<Isa> isa = SelectIsa();
  if (!isa.ok()) return isa.status();
  const kernels::AttentionKernels& kernels = *KernelsFor(*isa).attention;
  for (std::int64_t r = 0; r < rows; ++r) {
    kernels.merge_rows(out_a + r * head_dim_v, lse_a[r], out_b + r * head_dim_v, lse_b[r],
                       head_dim_v, out + r * head_dim_v, lse + r);
  }
  return Status();
}

}  // namespace manyhead
