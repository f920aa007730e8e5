#include "kernels/kernel_table.h"

namespace manyhead::kernels::avx2 {

constinit const KvKernels kKv = {};

}  // namespace manyhead::kernels::avx2
