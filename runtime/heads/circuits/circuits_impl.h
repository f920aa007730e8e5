#pragma once

// Threads are the library's own, and results must not depend on how many there are.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <cstdint>
#include <vector>

#include "manyhead/circuits.h"

namespace manyhead {

/// Factors [d, D] of a layer's matrices, a column for each element of a head, and their Gram
/// matrices [D, D]: W_QK = query * key^T, W_OV = output * value^T.
struct LayerCircuits::Impl {
  struct Factor {
    Eigen::MatrixXd matrix;
    Eigen::MatrixXd gram;
  };

  std::int64_t layer = 0;
  std::int64_t num_heads = 0, num_kv_heads = 0;
  std::vector<Factor> query, output;  // [head]
  std::vector<Factor> key, value;     // [KV head]

  std::size_t KvHead(std::int64_t head) const noexcept {
    return static_cast<std::size_t>(head / (num_heads / num_kv_heads));
  }
  const Factor& Query(std::int64_t head) const { return query[static_cast<std::size_t>(head)]; }
  const Factor& Output(std::int64_t head) const { return output[static_cast<std::size_t>(head)]; }
  const Factor& Key(std::int64_t head) const { return key[KvHead(head)]; }
  const Factor& Value(std::int64_t head) const { return value[KvHead(head)]; }
};

/// The part of a head that composition looks at, apart from its layer: what it reads.
struct HeadReader {
  HeadId id;
  LayerCircuits::Impl::Factor query, key, value, output;

  static HeadReader Of(const LayerCircuits::Impl& layer, std::int64_t head);
};

/// Scores of `reader` for what head `from` of `earlier` writes.
CompositionScores Compose(const LayerCircuits::Impl& earlier, std::int64_t from,
                          const HeadReader& reader);

Result<std::unique_ptr<LayerCircuits::Impl>> LoadLayerCircuits(const Model& model,
                                                               std::int64_t layer);

Spectrum SpectrumOf(const LayerCircuits::Impl::Factor& left,
                    const LayerCircuits::Impl::Factor& right);

}  // namespace manyhead
