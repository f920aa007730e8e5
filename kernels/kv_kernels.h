#pragma once

namespace manyhead::kernels {

struct KvKernels {};

}  // namespace manyhead::kernels
