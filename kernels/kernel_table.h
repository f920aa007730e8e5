#pragma once

#include "kernels/attention_kernels.h"
#include "kernels/kv_kernels.h"
#include "kernels/linear_kernels.h"
#include "kernels/vector_kernels.h"

/// Declares the arithmetic of one instruction set: plain function pointers, no threads, no
/// allocation, no errors. Neither this header nor those that it includes may define a function: an
/// inline function compiled for two instruction sets would be merged by the linker.

namespace manyhead::kernels {

struct KernelTable {
  const AttentionKernels* attention;
  const KvKernels* kv;
  const LinearKernels* linear;
  const VectorKernels* vector;
  const PackedKernels* packed;        ///< null: products read weights as files store them
  const TileKernels* tiles;           ///< null: the CPU has none
  const TileInt8Kernels* tiles_int8;  ///< null: the CPU has none
};

#define MANYHEAD_DECLARE_KERNELS(isa)                                                           \
  namespace isa {                                                                               \
  extern const AttentionProducts kAttentionF16, kAttentionBf16, kAttentionInt8, kAttentionInt4; \
  extern const AttentionKernels kAttention;                                                     \
  extern const KvKernels kKv;                                                                   \
  extern const LinearKernels kLinear;                                                           \
  extern const VectorKernels kVector;                                                           \
  }
MANYHEAD_DECLARE_KERNELS(scalar)
MANYHEAD_DECLARE_KERNELS(avx2)
MANYHEAD_DECLARE_KERNELS(avx512)
#undef MANYHEAD_DECLARE_KERNELS
#define MANYHEAD_DECLARE_PACKED(variant) \
  namespace variant {                    \
  extern const PackedKernels kPacked;    \
  }
MANYHEAD_DECLARE_PACKED(avx2)
MANYHEAD_DECLARE_PACKED(avx2_vnni)
MANYHEAD_DECLARE_PACKED(avx512)
MANYHEAD_DECLARE_PACKED(avx512_vnni)
#undef MANYHEAD_DECLARE_PACKED
namespace amx {
extern const TileKernels kTiles;
extern const TileInt8Kernels kTilesInt8;
}  // namespace amx

}  // namespace manyhead::kernels
