#include "kernels/kernel_table.h"
#include "kernels/kv_rows_x86.inl.h"

namespace manyhead::kernels::avx512 {

constinit const KvKernels kKv = {&StoreRows<X86>, &LoadRow};

}  // namespace manyhead::kernels::avx512
