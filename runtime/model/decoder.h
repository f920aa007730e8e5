#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/vector_kernels.h"
#include "manyhead/attention.h"
#include "manyhead/isa.h"
#include "manyhead/kv_cache.h"
#include "manyhead/model.h"
#include "manyhead/rope.h"
#include "runtime/layer/attention_block.h"
#include "runtime/layer/feed_forward.h"
#include "runtime/layer/norm.h"
#include "runtime/linear/linear.h"
#include "runtime/model/step_batch.h"
#include "runtime/model/step_rows.h"
#include "runtime/model/step_timer.h"
#include "runtime/model/weights.h"
#include "runtime/platform/aligned_buffer.h"
#include "runtime/platform/team.h"

namespace manyhead {

struct DecoderLimits {
  std::int64_t max_rows = 0;    ///< M, tokens of one step
  std::int64_t max_tokens = 0;  ///< largest number of tokens of a sequence
  int threads = 1;
  Isa isa = Isa::kScalar;
  MathMode math = MathMode::kFast;
  std::int64_t max_sequences = 1;  ///< B, largest number of sequences of one step
};

/// Returns the parameters of the attention of `layer` in a decoder of `limits`.
AttentionParams AttentionParamsOf(const ModelConfig& config, const LayerConfig& layer,
                                  const DecoderLimits& limits);

/// The part of a step that Decoder::StepLayers runs: layers [first, last), from the state before
/// them. Rows are those of the batch.
struct LayerPart {
  std::size_t first = 0;
  std::size_t last = 0;
  const float* hidden = nullptr;  ///< [rows, d] the residual stream; null: it follows from the ids
  const float* attended = nullptr;  ///< [rows, H * Dv] of layer `first`; null: it is computed
};

/// The layer loop, one for all families of models, driven by ModelConfig. It makes plain calls in a
/// fixed order, in one parallel region for a step of any number of sequences; every buffer is
/// allocated on creation.
class Decoder {
 public:
  /// Number of embedding rows that are looked up before the file's pages are released.
  static constexpr std::int64_t kMaxResidentRows = 64;

  static Result<Decoder> Create(const Model::Impl& model, const DecoderLimits& limits);

  /// Returns the layers of a cache for `config`.
  static std::vector<KvLayerShape> CacheLayers(const ModelConfig& config);

  /// Runs the rows of `batch` through all layers, and writes the logits and hidden states that it
  /// asks for. Logits of rows in both roles use the products of decode rows.
  ///
  /// Errors   kInvalidArgument naming what is wrong with the batch; nothing is written then.
  Status Step(KvCache& cache, const StepBatch& batch) noexcept;

  /// Runs a part of such a step, without logits. Afterwards the cache holds the keys and values of
  /// these layers.
  Status StepLayers(KvCache& cache, const StepBatch& batch, const LayerPart& part) noexcept;
  /// The residual stream [rows, d] after the last layer of the last step, and the results of
  /// attention in that layer, [rows, H * Dv], after edits. Decode rows precede prompts.
  const float* hidden() const noexcept { return hidden_.data(); }
  const float* attended() const noexcept { return attended_.data(); }

  /// Skips, from now on, the rows of projections that belong only to KV heads marked as unread in
  /// `edits` ([layer], or empty: none), which must be off in the cache: their numbers are
  /// undefined.
  void SkipUnread(const std::vector<HeadEdits>& edits);

  /// Returns the products of all matrices, by phase and weight type.
  std::vector<ProductPath> ProductPaths() const;
  /// Whether tokens at `position` and after it give the same bits in both roles.
  bool RolesAgree(std::int64_t position) const noexcept;

  /// Computes the logits [count, vocab] of rows [begin, begin + count) of the last step.
  void Logits(std::int64_t begin, std::int64_t count, float* logits) noexcept;

  std::int64_t scratch_bytes() const noexcept;
  /// Returns the scratch_bytes() of a decoder of `config`. Dimensions of `config` must be at most
  /// 2^26 and limits at most 2^31; config.ropes may be empty, for no rotation.
  static std::int64_t ScratchBytes(const ModelConfig& config, const DecoderLimits& limits);
  /// The part of scratch_bytes() that attention uses.
  std::int64_t attention_bytes() const noexcept;

  /// Allocates or frees the buffers that attention taps of a step read. Throws bad_alloc.
  void AllowTaps(bool allowed);

  /// Times steps into `*profile` from now on, with the bytes they read and the operations; null =
  /// off.
  void SetProfile(StepProfile* profile) { timer_.SetProfile(profile, limits_.threads); }

 private:
  struct Call;  // cache, batch and part of one step
  /// The rows of a layer's query, key and value projections that are needed.
  struct Inputs {
    std::vector<WeightView> weights;
    std::vector<LinearOutput> products;
  };
  /// The blocks of a layer; views of this decoder and its model.
  struct Layer {
    Inputs inputs;
    Norm attention_norm, post_attention_norm, ffn_norm, post_ffn_norm;
    AttentionBlock attention;
    FeedForward feed_forward;
  };

  Decoder(const Model::Impl& model, const DecoderLimits& limits);
  Status CreateRopes();
  Status CreatePlans();
  Inputs InputsOf(std::size_t layer, const std::vector<bool>& unread);
  Layer MakeLayer(std::size_t index);
  void MakeLayers();
  Norm NormOf(const NormWeights& weights) const noexcept;
  const Norm& NormAfter(std::size_t layer) const noexcept;

  Status Run(const Call& call) noexcept;
  void RunLayers(Worker& worker, const Call& call) noexcept;
  void Embed(Worker& worker, const Call& call) noexcept;
  void EmbedRow(TokenId id, std::int64_t position, float* hidden, float* room) noexcept;
  void SetAngles(std::int64_t row, std::int64_t position) noexcept;
  void ReleaseEmbeddingPages() const noexcept;
  void Attend(Worker& worker, const Call& call, std::size_t layer) noexcept;
  void ComputeHeads(Worker& worker, const Call& call, std::size_t layer) noexcept;
  void CopyAttended(Worker& worker, const Call& call) noexcept;
  void EditHeads(Worker& worker, std::size_t layer) noexcept;
  void ShowQueries(std::size_t layer) noexcept;
  void ShowAttention(Worker& worker, std::size_t layer) noexcept;
  void AddAttention(Worker& worker, const Layer& layer) noexcept;
  void RunFeedForward(Worker& worker, const Layer& layer, const Norm& next) noexcept;
  void CopyHidden(Worker& worker, const StepBatch& batch) noexcept;
  template <class RowAt>
  void RunHead(Worker& worker, RowAt row_at, float* logits) noexcept;

  void AddProduct(StepPhase phase, const WeightView* weight, std::int64_t rows) noexcept;
  void AddCosts(const Call& call);
  void AddAttentionCosts(const KvCache& cache, std::int64_t rows, std::int64_t length);

  const Model::Impl* model_;
  const kernels::VectorKernels* kernels_;
  DecoderLimits limits_;
  StepTimer timer_;
  StepRows rows_;
  LinearRows head_rows_;                 ///< rows of the current product with the output matrix
  bool edited_ = false;                  // some sequence of the step has edits
  bool tapped_ = false;                  // or an attention tap
  std::vector<Rope> ropes_;              // as in ModelConfig
  std::vector<AttentionPlan> plans_;     // one for each distinct layer shape
  std::vector<std::size_t> plan_index_;  // [layer]
  std::vector<Layer> layers_;
  Norm final_norm_;
  std::int64_t resident_rows_ = 0;  // embedding rows since pages were released
  std::optional<LinearWorkspace> linear_;
  AlignedBuffer<float> hidden_;     // [M, d] the residual stream
  AlignedBuffer<float> normed_;     // [M, d]
  AlignedBuffer<float> projected_;  // [M, d] output of attention and feed-forward
  AlignedBuffer<float> query_, key_, value_, attended_;  // [M, H*D], [M, K*D], [M, K*Dv], [M, H*Dv]
  AlignedBuffer<float> lse_;                             // [M, H] for attention taps, else empty
  AlignedBuffer<float> gate_, up_;                       // [M, F]; plain blocks have no gate
  std::vector<AlignedBuffer<float>> cosine_, sine_;      // [rope][M, rotary_dim / 2]
};

}  // namespace manyhead
