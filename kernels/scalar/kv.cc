#include "kernels/kernel_table.h"

namespace manyhead::kernels::scalar {

constinit const KvKernels kKv = {};

}  // namespace manyhead::kernels::scalar
