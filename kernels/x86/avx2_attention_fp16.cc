#include "kernels/attention_products.inl.h"
#include "kernels/kernel_table.h"

namespace manyhead::kernels::avx2 {

constinit const AttentionProducts kAttentionF16 = MakeAttentionProducts<Simd, F16>();
constinit const AttentionProducts kAttentionBf16 = MakeAttentionProducts<Simd, Bf16>();

}  // namespace manyhead::kernels::avx2
