#include "tests/support/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <tuple>

#include "kernels/kv_layout.h"
#include "runtime/cache/kv_cache_impl.h"

namespace manyhead::testing {

AttentionResult ReferenceAttention(const AttentionCase& shape, const std::vector<float>& q_THD,
                                   const std::vector<float>& k_SKD,
                                   const std::vector<float>& v_SKD) {
  const auto& [H, K, D, Dv, T, S, scale, causal, window] = shape;
  AttentionResult result;
  result.out_THD.assign(static_cast<std::size_t>(T * H * Dv), 0.0);
  result.lse_TH.assign(static_cast<std::size_t>(T * H), -std::numeric_limits<double>::infinity());
  for (std::int64_t t = 0; t < T; ++t) {
    for (std::int64_t h = 0; h < H; ++h) {
      const std::int64_t g = h / (H / K), position = S - T + t;
      std::vector<double> logits;
      std::vector<std::int64_t> keys;
      for (std::int64_t s = 0; s < S; ++s) {
        if ((causal || window > 0) && s > position) continue;
        if (window > 0 && s <= position - window) continue;
        double dot = 0;
        for (std::int64_t d = 0; d < D; ++d) {
          dot += double{q_THD[(t * H + h) * D + d]} * double{k_SKD[(s * K + g) * D + d]};
        }
        logits.push_back(dot * scale);
        keys.push_back(s);
      }
      if (keys.empty()) continue;
      const double max = *std::max_element(logits.begin(), logits.end());
      double sum = 0;
      for (double& x : logits) sum += x = std::exp(x - max);
      for (std::size_t i = 0; i < keys.size(); ++i) {
        for (std::int64_t d = 0; d < Dv; ++d) {
          result.out_THD[(t * H + h) * Dv + d] +=
              logits[i] / sum * double{v_SKD[(keys[i] * K + g) * Dv + d]};
        }
      }
      result.lse_TH[t * H + h] = max + std::log(sum);
    }
  }
  return result;
}

double AttentionTolerance(const AttentionCase& shape, double q_max, double k_max, double v_max) {
  const double eps = std::ldexp(1.0, -24), D = static_cast<double>(shape.head_dim);
  const double e = eps * (std::sqrt(D) + 3) * std::fabs(shape.scale) * D * q_max * k_max;
  return v_max * (2 * e + eps * (std::sqrt(static_cast<double>(shape.kv_len)) + 8));
}

std::vector<float> RandomTensor(std::int64_t n, std::uint32_t seed) {
  std::mt19937 bits(seed);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& value : x) value = static_cast<float>(bits() >> 8) * 0x1p-23F - 1.0F;
  return x;
}

namespace {

struct Format {
  int mantissa_bits;
  int min_exponent;
  int max_exponent;
};

Format FormatOf(KvType type) {
  return type == KvType::kF16 ? Format{10, -14, 15} : Format{7, -126, 127};
}

/// The bits of a value that `type` holds exactly; NaN and infinities too.
std::uint16_t Encode(KvType type, float x) {
  const Format format = FormatOf(type);
  const unsigned sign = std::signbit(x) ? 0x8000U : 0U;
  const unsigned top = static_cast<unsigned>(format.max_exponent) * 2 + 1;  // all ones
  if (std::isnan(x)) return static_cast<std::uint16_t>((top << format.mantissa_bits) | 1U);
  if (std::isinf(x)) return static_cast<std::uint16_t>(sign | top << format.mantissa_bits);
  if (x == 0) return static_cast<std::uint16_t>(sign);
  const int exponent = std::max(std::ilogb(x), format.min_exponent);
  const auto mantissa =
      static_cast<unsigned>(std::ldexp(std::fabs(double{x}), format.mantissa_bits - exponent));
  const auto biased = static_cast<unsigned>(exponent - format.min_exponent);
  // A normal number's leading one adds 1 to the exponent field.
  return static_cast<std::uint16_t>(sign | ((biased << format.mantissa_bits) + mantissa));
}

void Put(KvType type, std::byte* base, std::int64_t index, float x) {
  if (type == KvType::kF32) {
    std::memcpy(base + index * 4, &x, 4);
  } else {
    const std::uint16_t bits = Encode(type, x);
    std::memcpy(base + index * 2, &bits, 2);
  }
}

}  // namespace

float RoundTo(KvType type, float x) {
  if (type == KvType::kF32 || !std::isfinite(x) || x == 0) return x;
  const Format format = FormatOf(type);
  const int exponent = std::max(std::ilogb(x), format.min_exponent);
  const double ulp = std::ldexp(1.0, exponent - format.mantissa_bits);
  return static_cast<float>(std::nearbyint(double{x} / ulp) * ulp);
}

void PackPages(KvCache& cache, SequenceId sequence, std::int64_t layer, std::int64_t num_kv_heads,
               const std::vector<float>& k_SKD, const std::vector<float>& v_SKD, float poison) {
  for (std::int64_t head = 0; head < num_kv_heads; ++head) {
    const kernels::KvHeadView view = cache.impl().HeadView(sequence, layer, head);
    const kernels::KvPageLayout& layout = *view.layout;
    const auto [k_type, v_type, D, Dv, row, N, v_offset] =
        std::tuple(layout.k_type, layout.v_type, layout.head_dim, layout.head_dim_v, layout.v_row,
                   layout.page_size, layout.v_offset_bytes);
    const std::int64_t pages = (view.length + N - 1) / N;
    for (std::int64_t s = 0; s < pages * N; ++s) {
      std::byte* page = view.pages[s / N];
      const std::int64_t slot = s % N;
      for (std::int64_t d = 0; d < D; ++d) {
        const bool stored = s < view.length;
        Put(k_type, page, ((slot / 16) * D + d) * 16 + slot % 16,
            stored ? k_SKD[(s * num_kv_heads + head) * D + d] : poison);
      }
      for (std::int64_t d = 0; d < row; ++d) {
        const bool stored = s < view.length && d < Dv;
        Put(v_type, page + v_offset, slot * row + d,
            stored ? v_SKD[(s * num_kv_heads + head) * Dv + d] : poison);
      }
    }
  }
}

}  // namespace manyhead::testing
