#pragma once

namespace manyhead::kernels {

struct LinearKernels {};

}  // namespace manyhead::kernels
