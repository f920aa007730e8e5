#pragma once

// The library uses its own threads, and results must not depend on their number.
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Cholesky>
#include <Eigen/Core>
#include <Eigen/Eigenvalues>
#include <cstdint>
#include <vector>

#include "manyhead/circuits.h"

namespace manyhead {

/// The factors [d, D] of a layer's matrices, with a column for each element of a head, and their
/// Gram matrices [D, D]: W_QK = query * key^T, W_OV = output * value^T.
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

/// The matrices of a head that composition reads, independent of its layer.
struct HeadReader {
  HeadId id;
  LayerCircuits::Impl::Factor query, key, value, output;

  static HeadReader Of(const LayerCircuits::Impl& layer, std::int64_t head);
};

/// Returns the scores of `reader` with head `from` of `earlier`, which writes.
CompositionScores Compose(const LayerCircuits::Impl& earlier, std::int64_t from,
                          const HeadReader& reader);

Result<std::unique_ptr<LayerCircuits::Impl>> LoadLayerCircuits(const Model& model,
                                                               std::int64_t layer);

Spectrum SpectrumOf(const LayerCircuits::Impl::Factor& left,
                    const LayerCircuits::Impl::Factor& right);

}  // namespace manyhead
