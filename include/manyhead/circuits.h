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
  std::int64_t rows = 0;      ///< of the product
  std::int64_t cols = 0;      ///< of the product
  std::int64_t rank = 0;      ///< columns of both factors
  std::vector<double> left;   ///< [rows, rank]
  std::vector<double> right;  ///< [cols, rank]
};

/// The singular values of a matrix, and of how many directions it makes use.
struct Spectrum {
  std::vector<double> singular_values;  ///< at most `rank` of them, falling
  double norm = 0;                      ///< Frobenius
  /// e to the entropy of the singular values over their sum (Roy and Vetterli, EUSIPCO 2007); 0 of
  /// a zero matrix.
  double effective_rank = 0;
  double participation = 0;  ///< (sum of squares)^2 over the sum of fourth powers
};

/// How much a head reads of what an earlier head writes, by way of its queries, keys or values:
/// |W_QK^T W_OV|, |W_QK W_OV| and |W_OV W_OV| (reader's first) over the product of the two norms,
/// less the `baseline` of unrelated matrices. 0 where one of the two is zero.
///
/// Source   transformer-circuits.pub/2021/framework, "Virtual weights and composition"
struct CompositionScores {
  double query = 0;  ///< by way of the reader's queries
  double key = 0;    ///< by way of its keys
  double value = 0;  ///< by way of its values
};

/// The heads of one layer as maps of the residual stream x (a column): with the layer's norm taken
/// as its weights alone,
///   logit of query position i and key position j = x_i^T W_QK x_j,  W_QK = W_Q^T W_K
///   what j adds to i, per weight                 = W_OV x_j,        W_OV = W_O W_V
/// both [d, d] and never made: they stay products of two [d, D] factors.
///
/// Norms    the weights of the norm before attention are part of W_Q, W_K and W_V, those of a query
///          and key norm of W_Q and W_K, those of a norm after attention of W_O. A norm's factor 1
///          / rms depends on the text and is left out; the scores here do not depend on it.
/// Rotation W_QK is that of equal positions: rotary embedding turns W_Q x_i against W_K x_j by the
///          distance. Biases of projections are left out.
/// Groups   query heads share W_K and W_V of their KV head.
class LayerCircuits {
 public:
  /// Errors   kInvalidArgument for a layer the model does not have, with the valid range.
  static Result<LayerCircuits> Create(const Model& model, std::int64_t layer);
  LayerCircuits(LayerCircuits&&) noexcept;
  LayerCircuits& operator=(LayerCircuits&&) noexcept;
  ~LayerCircuits();

  /// As given to Create.
  std::int64_t layer() const noexcept;
  /// H of the layer.
  std::int64_t num_heads() const noexcept;
  /// Elements of the residual stream.
  std::int64_t d_model() const noexcept;

  /// W_QK [d, d]; `head` is in [0, num_heads()) from here on.
  LowRankMatrix Qk(std::int64_t head) const;
  /// W_OV [d, d].
  LowRankMatrix Ov(std::int64_t head) const;
  /// Of W_QK.
  Spectrum QkSpectrum(std::int64_t head) const;
  /// Of W_OV.
  Spectrum OvSpectrum(std::int64_t head) const;

  /// What head `from` of this layer passes on to head `to` of `later`, a layer of the same model.
  CompositionScores Compose(std::int64_t from, const LayerCircuits& later, std::int64_t to) const;
  /// What CompositionScores are less: 1 / sqrt(d), the root mean square over all rotations of the
  /// one matrix against the other.
  double baseline() const noexcept;

  struct Impl;  ///< incomplete outside the library

 private:
  explicit LayerCircuits(std::unique_ptr<Impl> impl) noexcept;
  std::unique_ptr<Impl> impl_;
};

/// One head's matrices.
struct HeadCircuit {
  HeadId id;                 ///< which head
  std::int64_t kv_head = 0;  ///< that it reads
  Spectrum qk;               ///< of W_QK
  Spectrum ov;               ///< of W_OV
};

/// What one head passes on to a later one.
struct HeadLink {
  HeadId from;                ///< that writes
  HeadId to;                  ///< that reads
  CompositionScores scores;   ///< by way of each input
  std::int64_t rank = 0;      ///< of scores.key among all heads before `to`; 1 = the largest
  std::int64_t num_from = 0;  ///< heads before `to`
};

/// Which heads and links are described.
struct CircuitOptions {
  std::vector<HeadId> heads{};  ///< that are described; empty: all
  std::vector<HeadId> from{};   ///< heads whose links to each of `to` in a later layer are wanted
  std::vector<HeadId> to{};     ///< of these links
  int threads = 0;              ///< 0 selects the CPUs this process may use
  /// Called after each layer with (layers done, layers); may be empty.
  std::function<void(std::int64_t, std::int64_t)> on_progress{};
  const std::atomic<bool>* cancel = nullptr;  ///< ends the work after the layer it is in
};

/// What DescribeCircuits gives.
struct ModelCircuits {
  std::vector<HeadCircuit> heads;  ///< layer by layer
  std::vector<HeadLink> links;     ///< by `to`, then falling scores.key
  double baseline = 0;             ///< see LayerCircuits::baseline
};

/// Describes heads and their links, one layer in memory at a time.
/// Errors   kInvalidArgument for a head the model does not have, with the valid range; kIoError
/// when
///          cancelled. Throws bad_alloc.
/// Threads  the same bits for every number of threads.
Result<ModelCircuits> DescribeCircuits(const Model& model, const CircuitOptions& options = {});

/// A head's part in what its layer adds to the residual stream over a text. The layer's output is
/// the sum over its heads of A_i X W_i^VO: attention weights A_i [T, T], the layer's normed input X
/// [T, d], and W_VO = W_V^T W_O^T, the transpose of W_OV.
struct HeadTerm {
  HeadId id;  ///< which head
  /// sum_t <term_t, sum_t> / sum_t |sum_t|^2: the shares of a layer's heads add up to 1, and one
  /// that works against the others has a negative share.
  double share = 0;
  double norm = 0;  ///< sqrt(sum_t |term_t|^2 / sum_t |sum_t|^2)
};

/// The terms of one layer.
struct LayerTerms {
  std::int64_t layer = 0;         ///< from 0
  std::vector<HeadTerm> heads;    ///< [H]
  double norm = 0;                ///< root mean square over tokens of |sum_t|
  std::int64_t heads_for_90 = 0;  ///< heads of the largest shares that together reach 0.9
  /// Largest difference between the sum of the heads' terms and the decoder's own output
  /// projection, over the largest element of that.
  double difference = 0;
};

/// How the text is evaluated.
struct TermOptions {
  MathMode math = MathMode::kFast;  ///< of the products with weights
  int threads = 0;                  ///< 0 selects the CPUs this process may use
  std::optional<Isa> isa{};         ///< default SelectIsa()
};

/// The longest text whose terms can be had.
inline constexpr std::int64_t kMostTermTokens = 256;

/// The terms of every layer over a text, from the decoder's own attention.
///
/// Memory   4 T L (H Dv + d) bytes.
/// Errors   kInvalidArgument for no tokens, more than kMostTermTokens or than the model's context,
///          or an id out of the vocabulary; kUnsupported as Session::Create.
Result<std::vector<LayerTerms>> MeasureTerms(const Model& model, std::span<const TokenId> ids,
                                             const TermOptions& options = {});

}  // namespace manyhead
