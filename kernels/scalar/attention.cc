#include "kernels/attention.inl.h"
#include "kernels/kernel_table.h"

namespace manyhead::kernels::scalar {

constinit const AttentionKernels kAttention = MakeAttentionKernels<Simd>();

}  // namespace manyhead::kernels::scalar
