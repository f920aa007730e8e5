#include "kernels/kernel_table.h"

namespace manyhead::kernels::avx512 {

constinit const LinearKernels kLinear = {};

}  // namespace manyhead::kernels::avx512
