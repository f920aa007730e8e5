#include "kernels/attention.inl.h"
#include "kernels/kernel_table.h"

namespace manyhead::kernels::avx512 {

constinit const AttentionKernels kAttention = MakeAttentionKernels<Simd>();

}  // namespace manyhead::kernels::avx512
