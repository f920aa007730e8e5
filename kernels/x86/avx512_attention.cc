#include "kernels/attention.inl.h"
#include "kernels/kernel_table.h"

namespace manyhead::kernels::avx512 {
namespace {

constinit const AttentionProducts kAttentionF32 = MakeAttentionProducts<Simd, float>();
constexpr const AttentionProducts* kProducts[] = {&kAttentionF32, &kAttentionF16, &kAttentionBf16,
                                                  &kAttentionInt8, &kAttentionInt4};

}  // namespace

constinit const AttentionKernels kAttention = MakeAttentionKernels<Simd, kProducts>();

}  // namespace manyhead::kernels::avx512
