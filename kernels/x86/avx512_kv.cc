#include "kernels/kernel_table.h"
#include "kernels/kv_rows.inl.h"

namespace manyhead::kernels::avx512 {

constinit const KvKernels kKv = {&StoreRows, &LoadRow};

}  // namespace manyhead::kernels::avx512
