#pragma once

#include "kernels/packed_lanes.inl.h"

/// Reads the quants and scales of 16 packed rows from a packed block, for each weight type.

namespace manyhead::kernels {
namespace {  // NOLINT(google-build-namespaces): one private copy per instruction set

// Blocks of 32: vector i of Quants holds columns 4 i to 4 i + 3.

template <int kQuantsAt, class L, int i>
MANYHEAD_INLINE typename L::Int PackedNibbles(PackedAt p) {
  const auto words = L::Load(p + (kQuantsAt + 4 * (i % 4)), 0);
  return L::And(L::template ShiftRight16<i / 4 * 4>(words), L::Set8(15));
}

/// Returns bit i of every byte, times 16.
template <class L, int i>
MANYHEAD_INLINE typename L::Int PackedFifthBits(PackedAt p) {
  const auto bits = L::Load(p, 0);
  if constexpr (i <= 4)
    return L::And(L::template ShiftLeft16<4 - i>(bits), L::Set8(16));
  else
    return L::And(L::template ShiftRight16<i - 4>(bits), L::Set8(16));
}

struct PackedQ4_0 : BlockQ4_0 {
  static constexpr int kLargest = 15;
  template <class L, int i>
  static MANYHEAD_INLINE typename L::Int Quants(PackedAt p) {
    return PackedNibbles<2, L, i>(p);
  }
};

struct PackedQ4_1 : BlockQ4_1 {
  static constexpr int kLargest = 15;
  template <class L, int i>
  static MANYHEAD_INLINE typename L::Int Quants(PackedAt p) {
    return PackedNibbles<4, L, i>(p);
  }
};

struct PackedQ5_0 : BlockQ5_0 {
  static constexpr int kLargest = 31;
  template <class L, int i>
  static MANYHEAD_INLINE typename L::Int Quants(PackedAt p) {
    return L::Or(PackedNibbles<6, L, i>(p), PackedFifthBits<L, i>(p + 2));
  }
};

struct PackedQ5_1 : BlockQ5_1 {
  static constexpr int kLargest = 31;
  template <class L, int i>
  static MANYHEAD_INLINE typename L::Int Quants(PackedAt p) {
    return L::Or(PackedNibbles<8, L, i>(p), PackedFifthBits<L, i>(p + 4));
  }
};

struct PackedQ8_0 : BlockQ8_0 {
  static constexpr int kLargest = 128;
  template <class L, int i>
  static MANYHEAD_INLINE typename L::Int Quants(PackedAt p) {
    return L::Load(p + (2 + 4 * i), 0);
  }
};

// The scales of sub-blocks in blocks of 256, four to a dword, and their position.

template <class L>
struct PackedScales {
  typename L::Int scales[4];
  typename L::Int mins[4];  ///< only in types that have them
};

struct PackedQ2_K : BlockQ2_K {
  static constexpr int kLargest = 3, kSubBlock = 16;
  static constexpr bool kSignedScales = false;
  template <class L>
  static MANYHEAD_INLINE PackedScales<L> Scales(PackedAt p) {
    PackedScales<L> s;
    Unroll<4>([&]<int w>() MANYHEAD_INLINE_LAMBDA {
      const auto both = L::Load(p + 4 * w, 0);
      s.scales[w] = L::And(both, L::Set8(15));
      s.mins[w] = L::And(L::template ShiftRight16<4>(both), L::Set8(15));
    });
    return s;
  }
};

struct PackedQ3_K : BlockQ3_K {
  static constexpr int kLargest = 7, kSubBlock = 16;
  static constexpr bool kSignedScales = true;
  template <class L>
  static MANYHEAD_INLINE PackedScales<L> Scales(PackedAt p) {
    PackedScales<L> s;
    const auto high = L::Load(p + 104, 0);
    Unroll<4>([&]<int w>() MANYHEAD_INLINE_LAMBDA {
      const auto low = L::template ShiftRight16<w / 2 * 4>(L::Load(p + (96 + w % 2 * 4), 0));
      const auto top = w < 2 ? L::template ShiftLeft16<(4 - 2 * w) & 15>(high)
                             : L::template ShiftRight16<(2 * w - 4) & 15>(high);
      const auto six = L::Or(L::And(low, L::Set8(15)), L::And(top, L::Set8(48)));
      s.scales[w] = L::Sub8(six, L::Set8(32));
    });
    return s;
  }
};

template <class L>
MANYHEAD_INLINE PackedScales<L> PackedScalesOfEight(PackedAt p) {
  const auto a = L::Load(p, 0), b = L::Load(p + 4, 0), c = L::Load(p + 8, 0);
  const auto six = L::Set8(63), low = L::Set8(15), top = L::Set8(48);
  const auto high = [&](auto nibbles, auto bits) {
    return L::Or(L::And(nibbles, low), L::And(L::template ShiftRight16<2>(bits), top));
  };
  PackedScales<L> s;
  s.scales[0] = L::And(a, six);
  s.scales[1] = high(c, a);
  s.mins[0] = L::And(b, six);
  s.mins[1] = high(L::template ShiftRight16<4>(c), b);
  return s;
}

struct PackedQ4_K : BlockQ4_K {
  static constexpr int kLargest = 15, kSubBlock = 32;
  static constexpr bool kSignedScales = false;
  template <class L>
  static MANYHEAD_INLINE PackedScales<L> Scales(PackedAt p) {
    return PackedScalesOfEight<L>(p + 4);
  }
};

struct PackedQ5_K : BlockQ5_K {
  static constexpr int kLargest = 31, kSubBlock = 32;
  static constexpr bool kSignedScales = false;
  template <class L>
  static MANYHEAD_INLINE PackedScales<L> Scales(PackedAt p) {
    return PackedScalesOfEight<L>(p + 4);
  }
};

struct PackedQ6_K : BlockQ6_K {
  static constexpr int kLargest = 63, kSubBlock = 16;
  static constexpr bool kSignedScales = true;
  template <class L>
  static MANYHEAD_INLINE PackedScales<L> Scales(PackedAt p) {
    PackedScales<L> s;
    Unroll<4>([&]<int w>() MANYHEAD_INLINE_LAMBDA { s.scales[w] = L::Load(p + (192 + 4 * w), 0); });
    return s;
  }
};

}  // namespace
}  // namespace manyhead::kernels
