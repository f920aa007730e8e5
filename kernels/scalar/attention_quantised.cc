#include "kernels/attention_products.inl.h"
#include "kernels/kernel_table.h"

namespace manyhead::kernels::scalar {

constinit const AttentionProducts kAttentionInt8 = MakeAttentionProducts<Simd, I8>();
constinit const AttentionProducts kAttentionInt4 = MakeAttentionProducts<Simd, I4>();

}  // namespace manyhead::kernels::scalar
