#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "manyhead/export.h"
#include "manyhead/head_id.h"
#include "manyhead/isa.h"
#include "manyhead/model.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// left * right^T, a [rows, cols] matrix of rank at most `rank`.
struct LowRankMatrix {
  std::int64_t rows = 0;      ///< rows of the product
  std::int64_t cols = 0;      ///< columns of the product
  std::int64_t rank = 0;      ///< columns of both factors
  std::vector<double> left;   ///< [rows, rank]
  std::vector<double> right;  ///< [cols, rank]
};

/// The singular values of a matrix, and measures of its effective rank.
struct Spectrum {
  std::vector<double> singular_values;  ///< at most `rank` of them, in descending order
  double norm = 0;                      ///< Frobenius norm
  /// e to the entropy of the singular values divided by their sum (Roy and Vetterli, EUSIPCO 2007);
  /// 0 for a zero matrix.
  double effective_rank = 0;
  double participation = 0;  ///< (sum of squares)^2 over the sum of fourth powers
};

/// Scores that say how much a head reads of what an earlier head writes, through its queries, keys
/// or values: |W_QK^T W_OV|, |W_QK W_OV| and |W_OV W_OV| (reader's first) over the product of the
/// two norms, minus the `baseline` of unrelated matrices. A score is 0 where one of the two
/// matrices is zero.
///
/// Source   transformer-circuits.pub/2021/framework, "Virtual weights and composition"
struct CompositionScores {
  double query = 0;  ///< through the reader's queries
  double key = 0;    ///< through the reader's keys
  double value = 0;  ///< through the reader's values
};

/// The heads of one layer as maps of the residual stream x (a column), where the layer's norm
/// counts only by its weights:
///   logit of query position i and key position j = x_i^T W_QK x_j,  W_QK = W_Q^T W_K
///   what j adds to i, per weight                 = W_OV x_j,        W_OV = W_O W_V
/// Both matrices are [d, d] and are never computed in full: they stay products of two [d, D]
/// factors.
///
/// Norms    W_Q, W_K and W_V include the weights of the norm before attention, W_Q and W_K those of
///          a query and key norm, W_O those of a norm after attention. A norm's factor 1 / rms
///          depends on the text and is left out; the scores here do not depend on it.
/// Rotation W_QK is that of equal positions: rotary embedding turns W_Q x_i against W_K x_j by an
///          angle that grows with the distance. Biases of projections are left out.
/// Groups   query heads share W_K and W_V of their KV head.
class LayerCircuits {
 public:
  /// Errors   kInvalidArgument for a layer that the model does not have, with the valid range.
  static Result<LayerCircuits> Create(const Model& model, std::int64_t layer);
  LayerCircuits(LayerCircuits&&) noexcept;
  LayerCircuits& operator=(LayerCircuits&&) noexcept;
  ~LayerCircuits();

  /// The layer that was given to Create.
  std::int64_t layer() const noexcept;
  /// H, the number of query heads of the layer.
  std::int64_t num_heads() const noexcept;
  /// d, the number of elements of the residual stream.
  std::int64_t d_model() const noexcept;

  /// Returns W_QK [d, d]. Here and below, `head` is in [0, num_heads()).
  LowRankMatrix Qk(std::int64_t head) const;
  /// Returns W_OV [d, d].
  LowRankMatrix Ov(std::int64_t head) const;
  /// Returns the spectrum of W_QK.
  Spectrum QkSpectrum(std::int64_t head) const;
  /// Returns the spectrum of W_OV.
  Spectrum OvSpectrum(std::int64_t head) const;

  /// Scores the composition of head `from` of this layer with head `to` of `later`, a later layer
  /// of the same model.
  CompositionScores Compose(std::int64_t from, const LayerCircuits& later, std::int64_t to) const;
  /// The number that CompositionScores are reduced by: 1 / sqrt(d), the root mean square of the
  /// unreduced score over all rotations of one matrix against the other.
  /// one matrix against the other.
  double baseline() const noexcept;

  struct Impl;  ///< incomplete outside the library

 private:
  explicit LayerCircuits(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// The matrices of one head.
struct HeadCircuit {
  HeadId id;                 ///< the head
  std::int64_t kv_head = 0;  ///< KV head that the head reads
  Spectrum qk;               ///< spectrum of W_QK
  Spectrum ov;               ///< spectrum of W_OV
};

/// The composition of one head with a later one.
struct HeadLink {
  HeadId from;                ///< head that writes
  HeadId to;                  ///< head that reads
  CompositionScores scores;   ///< one score for each input of `to`
  std::int64_t rank = 0;      ///< rank of scores.key among all heads before `to`; 1 = the largest
  std::int64_t num_from = 0;  ///< number of heads in the layers before `to`
};

/// Says which heads and links are described.
struct CircuitOptions {
  std::vector<HeadId> heads{};  ///< heads to describe; empty: all
  /// Heads whose links to each head of `to` in a later layer are described.
  std::vector<HeadId> from{};
  std::vector<HeadId> to{};  ///< heads that these links lead to
  int threads = 0;           ///< 0 selects the CPUs this process may use
  /// Called after each layer with (layers done, number of layers); may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_progress{};
  const std::atomic<bool>* cancel = nullptr;  ///< when set, ends the work after the current layer
};

/// The result of DescribeCircuits.
struct ModelCircuits {
  std::vector<HeadCircuit> heads;  ///< in the order of the layers
  std::vector<HeadLink> links;     ///< sorted by `to`, then by descending scores.key
  double baseline = 0;             ///< value of LayerCircuits::baseline
};

/// Describes heads and their links, with one layer in memory at a time.
/// Errors   kInvalidArgument for a head that the model does not have, with the valid range;
///          kIoError when cancelled. Throws bad_alloc.
/// Threads  the bits are the same for every number of threads.
Result<ModelCircuits> DescribeCircuits(const Model& model, const CircuitOptions& options = {});

/// A head's part of what its layer adds to the residual stream over a text. The layer's output is
/// the sum over its heads of A_i X W_i^VO: attention weights A_i [T, T], the layer's normed input X
/// [T, d], and W_VO = W_V^T W_O^T, the transpose of W_OV.
struct HeadTerm {
  HeadId id;  ///< the head
  /// sum_t <term_t, sum_t> / sum_t |sum_t|^2: the shares of a layer's heads add up to 1; a head
  /// that works against the others has a negative share.
  double share = 0;
  double norm = 0;  ///< sqrt(sum_t |term_t|^2 / sum_t |sum_t|^2)
};

/// The terms of one layer.
struct LayerTerms {
  std::int64_t layer = 0;       ///< from 0
  std::vector<HeadTerm> heads;  ///< [H]
  double norm = 0;              ///< root mean square over tokens of |sum_t|
  /// Least number of heads whose shares together reach 0.9.
  std::int64_t heads_for_90 = 0;
  /// Largest difference between the sum of the heads' terms and the decoder's own output
  /// projection, divided by the largest element of that projection.
  double difference = 0;
};

/// Says how the text is evaluated.
struct TermOptions {
  MathMode math = MathMode::kFast;  ///< arithmetic of the products with weights
  int threads = 0;                  ///< 0 selects the CPUs this process may use
  std::optional<Isa> isa{};         ///< default SelectIsa()
};

/// The largest number of tokens that MeasureTerms accepts.
inline constexpr std::int64_t kMostTermTokens = 256;

/// Measures the terms of every layer over a text, from the decoder's own attention.
///
/// Memory   4 T L (H Dv + d) bytes.
/// Errors   kInvalidArgument for no tokens, more than kMostTermTokens or than the model's context,
///          or an id out of the vocabulary; kUnsupported as Session::Create.
Result<std::vector<LayerTerms>> MeasureTerms(const Model& model, std::span<const TokenId> ids,
                                             const TermOptions& options = {});

}  // namespace manyhead
