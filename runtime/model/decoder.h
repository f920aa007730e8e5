#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kernels/vector_kernels.h"
#include "manyhead/attention.h"
#include "manyhead/isa.h"
#include "manyhead/kv_cache.h"
#include "manyhead/model.h"
#include "manyhead/rope.h"
#include "runtime/linear/linear.h"
#include "runtime/model/attention_tap.h"
#include "runtime/model/head_edits.h"
#include "runtime/model/step_timer.h"
#include "runtime/model/weights.h"
#include "runtime/platform/aligned_buffer.h"
#include "runtime/platform/team.h"

namespace manyhead {

struct DecoderLimits {
  std::int64_t max_rows = 0;    ///< M, tokens of one step
  std::int64_t max_tokens = 0;  ///< of the sequence
  int threads = 1;
  Isa isa = Isa::kScalar;
  MathMode math = MathMode::kFast;
};

/// The part of a step that Decoder::StepLayers runs: layers [first, last), from what stands before
/// them.
struct LayerPart {
  std::size_t first = 0;
  std::size_t last = 0;
  const float* hidden = nullptr;    ///< [rows, d] the residual stream; null: that of the ids
  const float* attended = nullptr;  ///< [rows, H * Dv] of layer `first`; null: to be computed
};

/// The layer loop: one for all families, driven by ModelConfig. Plain calls in a fixed order, one
/// parallel region for a step of any number of tokens, every buffer allocated when it is made.
class Decoder {
 public:
  /// Rows of the embedding between two times that its pages of the file are let go.
  static constexpr std::int64_t kRowsRemembered = 64;

  static Result<Decoder> Create(const Model::Impl& model, const DecoderLimits& limits);

  /// The layers of a cache for `config`.
  static std::vector<KvLayerShape> CacheLayers(const ModelConfig& config);

  /// Runs `ids`, the last tokens of `sequence`, for which the cache has reserved room, through all
  /// layers as `role`. With `logits`, [vocab], those after the last token are computed in the same
  /// region.
  Status Step(KvCache& cache, SequenceId sequence, std::span<const TokenId> ids, RowRole role,
              float* logits) noexcept;

  /// Runs a part of such a step. Of the layers in between, the cache holds keys and values then.
  Status StepLayers(KvCache& cache, SequenceId sequence, std::span<const TokenId> ids,
                    const LayerPart& part) noexcept;
  /// The residual stream [rows, d] after the last layer of the last step.
  const float* hidden() const noexcept { return hidden_.data(); }
  /// What attention gave in that layer, [rows, H * Dv], edited.
  const float* attended() const noexcept { return attended_.data(); }

  /// Changes to heads in every step from now on, [layer]; empty: none. Rows of the projections that
  /// only heads nobody reads have are not computed; where the cache has no such head off, its
  /// numbers are undefined.
  void SetEdits(std::vector<HeadEdits> edits);

  /// Whether tokens give the same bits in both roles.
  bool RolesAgree() const noexcept;

  /// Logits [count, vocab] of rows [begin, begin + count) of the last Step. Rows of both roles take
  /// the product of rows that decode.
  void Logits(std::int64_t begin, std::int64_t count, float* logits) noexcept;

  std::int64_t scratch_bytes() const noexcept;
  /// What scratch_bytes() of a decoder of `config` is going to be. No dimension of `config` is more
  /// than 2^26, no limit more than 2^31, and config.ropes may be empty: no rotation then.
  static std::int64_t ScratchBytes(const ModelConfig& config, const DecoderLimits& limits);
  /// Of these, attention's.
  std::int64_t attention_bytes() const noexcept;

  /// Called with each layer's queries [rows, H, D] of a step, as attention gets them: rotated, the
  /// first at `position`. By one thread of the region, while the others work on.
  using QueryTap = std::function<void(std::size_t layer, std::int64_t position, std::int64_t rows,
                                      const float* query)>;
  /// Null = off.
  void SetQueryTap(QueryTap tap) noexcept { query_tap_ = std::move(tap); }

  /// Shows every layer's attention to `*tap`, which outlives the decoder or the next call; null =
  /// off, which costs a test of a pointer per layer. Throws bad_alloc.
  void SetAttentionTap(AttentionTap* tap);

  /// Times steps into `*profile` from now on; null = off.
  void SetProfile(StepProfile* profile) { timer_.SetProfile(profile, limits_.threads); }
  /// Adds what a step of `rows` tokens, the last of `length`, had to read and compute.
  void AddCosts(const KvCache& cache, std::int64_t rows, std::int64_t length, bool with_logits);

 private:
  struct Call;  // the arguments of one Step and where its rows stand
  /// The query, key and value rows of a layer that somebody reads.
  struct Inputs {
    std::vector<WeightView> weights;
    std::vector<LinearOutput> products;
  };

  Decoder(const Model::Impl& model, const DecoderLimits& limits);
  Status CreateRopes();
  Status CreatePlans();
  Inputs InputsOf(std::size_t layer, const std::vector<bool>& unread);
  Status Run(const Call& call, float* logits) noexcept;
  void RunStep(Worker& worker, const Call& call, float* logits) noexcept;
  void Embed(Worker& worker, const Call& call) noexcept;
  void ForgetEmbedding() const noexcept;
  void TakeHidden(Worker& worker, const Call& call) noexcept;
  void SetAngles(std::int64_t row, std::int64_t position) noexcept;
  void TakeAttended(Worker& worker, const Call& call) noexcept;
  void EditHeads(Worker& worker, std::int64_t rows, std::size_t layer) noexcept;
  void ComputeHeads(Worker& worker, const Call& call, std::size_t layer) noexcept;
  void Attend(Worker& worker, const Call& call, std::size_t layer) noexcept;
  void ShowAttention(Worker& worker, const Call& call, std::size_t layer) noexcept;
  void RotateHeads(const LayerConfig& layer, const LayerWeights& w, std::int64_t row) noexcept;
  void FeedForward(Worker& worker, const Call& call, std::size_t layer) noexcept;
  void AddAndNormalize(Worker& worker, std::int64_t rows, const NormWeights& post_norm,
                       const NormWeights& next_norm) noexcept;
  void RunHead(Worker& worker, std::int64_t begin, std::int64_t count, float* logits) noexcept;
  void AddProduct(StepPhase phase, const WeightView& weight, std::int64_t rows) noexcept;
  void AddAttention(const KvCache& cache, std::int64_t rows, std::int64_t length);
  const NormWeights& NormAfter(std::size_t layer) const noexcept;

  const Model::Impl* model_;
  const kernels::VectorKernels* kernels_;
  DecoderLimits limits_;
  StepTimer timer_;
  QueryTap query_tap_;
  AttentionTap* attention_tap_ = nullptr;
  std::vector<Rope> ropes_;              // as in ModelConfig
  std::vector<AttentionPlan> plans_;     // one for each distinct layer shape
  std::vector<std::size_t> plan_index_;  // [layer]
  std::vector<HeadEdits> edits_;         // [layer], or none
  std::vector<Inputs> inputs_;           // [layer]
  std::int64_t rows_remembered_ = 0;     // of the embedding since its pages were let go
  std::optional<LinearWorkspace> linear_;
  AlignedBuffer<float> hidden_;     // [M, d] the residual stream
  AlignedBuffer<float> normed_;     // [M, d]
  AlignedBuffer<float> projected_;  // [M, d] output of attention and feed-forward
  AlignedBuffer<float> query_, key_, value_, attended_;  // [M, H*D], [M, K*D], [M, K*Dv], [M, H*Dv]
  AlignedBuffer<float> lse_;                             // [M, H] for the attention tap, else empty
  AlignedBuffer<float> gate_, up_;                       // [M, F]
  std::vector<AlignedBuffer<float>> cosine_, sine_;      // [rope][M, rotary_dim / 2]
};

}  // namespace manyhead
