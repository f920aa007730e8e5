#include "kernels/kernel_table.h"
#include "kernels/kv_rows.inl.h"

namespace manyhead::kernels {
namespace {

struct Scalar {
  template <class T>
  static void NarrowRow(const float* from, std::int64_t n, T* to) {
    for (std::int64_t i = 0; i < n; ++i) Narrow(from[i], to + i);
  }
  template <class T>
  static void StoreTile(const float* k, std::int64_t k_stride, std::int64_t d, T* tile) {
    for (std::int64_t c = 0; c < d; ++c)
      for (std::int64_t t = 0; t < kKvTile; ++t)
        Narrow(k[t * k_stride + c], tile + c * kKvTile + t);
  }
};

}  // namespace

namespace scalar {
constinit const KvKernels kKv = {&StoreRows<Scalar>, &LoadRow};
}  // namespace scalar

}  // namespace manyhead::kernels
