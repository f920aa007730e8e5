#include "kernels/kernel_table.h"

namespace manyhead::kernels::scalar {

constinit const AttentionKernels kAttention = {};

}  // namespace manyhead::kernels::scalar
