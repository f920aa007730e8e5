#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "manyhead/types.h"
#include "tests/attention/attention_config.h"
#include "tests/support/guarded_memory.h"

namespace manyhead::testing {

/// A tensor [B, T, H, D] of f32, f16 or bf16 that ends where memory ends. Gaps, some elements in
/// front, and everything that is never set are bytes of 0xff: NaN in each of the types.
class StridedTensor {
 public:
  struct Sizes {
    std::int64_t batch, tokens, heads, dim;
  };

  StridedTensor(KvType type, Layout layout, const Sizes& sizes)
      : type_(type), bytes_(type == KvType::kF32 ? 4 : 2), sizes_(sizes) {
    const std::int64_t gap = layout == Layout::kPadded ? 3 : 0;
    head_stride_ = sizes.dim + gap;
    token_stride_ = sizes.heads * head_stride_ + 2 * gap;
    batch_stride_ = sizes.tokens * token_stride_ + 2 * gap + gap / 3;
    if (layout == Layout::kHND) {
      token_stride_ = sizes.dim;
      head_stride_ = sizes.tokens * sizes.dim;
    } else if (layout == Layout::kReversed) {
      for (std::int64_t* stride : {&head_stride_, &token_stride_, &batch_stride_}) *stride *= -1;
    }
    std::int64_t low = 0, high = 0;
    const auto extend = [&](std::int64_t count, std::int64_t stride) {
      const std::int64_t reach = std::max<std::int64_t>(0, count - 1) * stride;
      (reach < 0 ? low : high) += reach;
    };
    extend(sizes.batch, batch_stride_);
    extend(sizes.tokens, token_stride_);
    extend(sizes.heads, head_stride_);
    origin_ = kFront - low;
    memory_ = GuardedMemory<std::byte>((origin_ + high + sizes.dim) * bytes_);
    std::memset(memory_.data(), 0xff, static_cast<std::size_t>(memory_.size()));
  }

  template <class T>
  TensorView<T> view() {
    return {reinterpret_cast<T*>(memory_.data() + origin_ * bytes_), batch_stride_, token_stride_,
            head_stride_};
  }
  TensorView<const void> const_void_view() {
    return {memory_.data() + origin_ * bytes_, batch_stride_, token_stride_, head_stride_};
  }

  /// Rows [tokens, H, D] of one request, from its token 0 on.
  void Set(std::int64_t request, const std::vector<float>& rows_THD) {
    const std::int64_t row = sizes_.heads * sizes_.dim;
    for (std::size_t i = 0; i < rows_THD.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      std::byte* to = At(request, at / row, at % row / sizes_.dim) + at % sizes_.dim * bytes_;
      if (type_ == KvType::kF32) {
        std::memcpy(to, &rows_THD[i], 4);
      } else {
        const std::uint16_t bits = Encode(type_, rows_THD[i]);
        std::memcpy(to, &bits, 2);
      }
    }
  }

  /// All f32 elements, [B, T, H, D].
  std::vector<float> Values() {
    std::vector<float> values(
        static_cast<std::size_t>(sizes_.batch * sizes_.tokens * sizes_.heads * sizes_.dim));
    float* next = values.data();
    ForEachRow([&](const std::byte* row) {
      std::memcpy(next, row, static_cast<std::size_t>(sizes_.dim) * 4);
      next += sizes_.dim;
    });
    return values;
  }

  /// Whether all bytes that belong to no element are as they were.
  bool GapsIntact() {
    std::vector<bool> element(static_cast<std::size_t>(memory_.size()));
    ForEachRow([&](const std::byte* row) {
      std::fill_n(element.begin() + (row - memory_.data()), sizes_.dim * bytes_, true);
    });
    for (std::int64_t i = 0; i < memory_.size(); ++i) {
      if (!element[i] && memory_[i] != std::byte{0xff}) return false;
    }
    return true;
  }

 private:
  static constexpr std::int64_t kFront = 33;

  std::byte* At(std::int64_t b, std::int64_t t, std::int64_t h) {
    return memory_.data() +
           (origin_ + b * batch_stride_ + t * token_stride_ + h * head_stride_) * bytes_;
  }
  template <class Fn>
  void ForEachRow(Fn&& fn) {
    for (std::int64_t b = 0; b < sizes_.batch; ++b) {
      for (std::int64_t t = 0; t < sizes_.tokens; ++t) {
        for (std::int64_t h = 0; h < sizes_.heads; ++h) fn(At(b, t, h));
      }
    }
  }

  KvType type_;
  std::int64_t bytes_;
  Sizes sizes_;
  std::int64_t batch_stride_ = 0, token_stride_ = 0, head_stride_ = 0;
  std::int64_t origin_ = 0;
  GuardedMemory<std::byte> memory_;
};

}  // namespace manyhead::testing
