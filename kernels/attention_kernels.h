#pragma once

namespace manyhead::kernels {

struct AttentionKernels {};

}  // namespace manyhead::kernels
