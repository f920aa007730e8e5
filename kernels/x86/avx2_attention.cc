#include "kernels/kernel_table.h"

namespace manyhead::kernels::avx2 {

constinit const AttentionKernels kAttention = {};

}  // namespace manyhead::kernels::avx2
