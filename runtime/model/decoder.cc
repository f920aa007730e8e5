#include "runtime/model/decoder.h"

#include <algorithm>

#include "runtime/model/decoder_call.h"

namespace manyhead {
namespace {

/// The caller's row of each row of logits.
auto LogitRowAt(const StepBatch& batch) noexcept {
  return [rows = batch.logit_rows](std::int64_t i) { return rows[static_cast<std::size_t>(i)]; };
}

}  // namespace

Status Decoder::Step(KvCache& cache, const StepBatch& batch) noexcept {
  return Run({cache, batch, {.last = layers_.size()}});
}

Status Decoder::StepLayers(KvCache& cache, const StepBatch& batch, const LayerPart& part) noexcept {
  return Run({cache, batch, part});
}

Status Decoder::Run(const Call& call) noexcept {
  const ModelConfig& config = model_->config;
  const bool learned = config.positions == PositionKind::kLearned;
  if (Status status = CheckBatch(call.batch, call.cache,
                                 {.max_rows = limits_.max_rows,
                                  .max_sequences = limits_.max_sequences,
                                  .vocab_size = config.vocab_size,
                                  .layers = std::ssize(layers_),
                                  .num_positions = learned ? config.num_positions : 0,
                                  .tapped = lse_.size() > 0});
      !status.ok())
    return status;
  rows_.Set(call.batch);
  head_rows_ = rows_.HeadRows(std::ssize(call.batch.logit_rows), LogitRowAt(call.batch));
  for (AttentionPlan& plan : plans_)
    if (Status status =
            plan.impl().Prepare(call.cache, rows_.sequences(), rows_.indptr(), {}, "Decoder");
        !status.ok())
      return status;
  edited_ = tapped_ = false;
  for (std::size_t b = 0; b < rows_.requests().size(); ++b) {
    const StepSequence& sequence = *rows_.requests()[b].sequence;
    edited_ |= sequence.edits != nullptr && !sequence.edits->empty();
    AttentionTap* tap = sequence.attention_tap;
    if (tap == nullptr) continue;
    tapped_ = true;
    for (AttentionPlan& plan : plans_)
      plan.impl().TimeHeads(static_cast<std::int64_t>(b), tap->head_times(),
                            tap->head_times_stride());
  }
  RunTeam(limits_.threads, [&](Worker& worker) {
    timer_.Begin(worker);
    RunLayers(worker, call);
  });
  timer_.Collect();
  if (timer_.profile() != nullptr) AddCosts(call);
  resident_rows_ += rows_.count();
  if (resident_rows_ >= kMaxResidentRows) {
    ReleaseEmbeddingPages();
    resident_rows_ = 0;
  }
  return {};
}

void Decoder::RunLayers(Worker& worker, const Call& call) noexcept {
  Embed(worker, call);
  timer_.Mark(worker, StepPhase::kEmbedding);
  for (std::size_t index = call.part.first; index < call.part.last; ++index) {
    Attend(worker, call, index);
    AddAttention(worker, layers_[index]);
    RunFeedForward(worker, layers_[index], NormAfter(index));
  }
  if (!call.batch.hidden_rows.empty()) CopyHidden(worker, call.batch);
  if (!call.batch.logit_rows.empty()) RunHead(worker, LogitRowAt(call.batch), call.batch.logits);
}

/// Returns the norm that reads the residual stream after `layer`: the next layer's, or the model's
/// last.
const Norm& Decoder::NormAfter(std::size_t layer) const noexcept {
  return layer + 1 < layers_.size() ? layers_[layer + 1].attention_norm : final_norm_;
}

void Decoder::EmbedRow(TokenId id, std::int64_t position, float* hidden, float* room) noexcept {
  const ModelConfig& config = model_->config;
  DequantizeRow(model_->weights.embedding, limits_.isa, id, hidden);
  if (config.embedding_scale != 1) kernels_->scale(hidden, config.embedding_scale, config.d_model);
  if (config.positions != PositionKind::kLearned) return;
  DequantizeRow(model_->weights.positions, limits_.isa, position, room);
  kernels_->add(hidden, room, config.d_model);
}

/// Computes the residual stream before the first layer of the part, its norm, and the rows' angles.
void Decoder::Embed(Worker& worker, const Call& call) noexcept {
  const std::int64_t d = model_->config.d_model;
  const Norm& norm = layers_[call.part.first].attention_norm;
  worker.ForEach(rows_.count(), [&](std::int64_t row) {
    const std::int64_t from = rows_.row(row).caller, position = rows_.PositionOf(row);
    float* hidden = hidden_.data() + row * d;
    if (call.part.hidden != nullptr)
      std::copy_n(call.part.hidden + from * d, d, hidden);
    else
      EmbedRow(call.batch.ids[static_cast<std::size_t>(from)], position, hidden,
               projected_.data() + row * d);
    norm.Run(*kernels_, hidden, d, normed_.data() + row * d);
    SetAngles(row, position);
    if (call.part.hidden == nullptr && (row + 1) % kMaxResidentRows == 0) ReleaseEmbeddingPages();
  });
}

void Decoder::SetAngles(std::int64_t row, std::int64_t position) noexcept {
  for (std::size_t i = 0; i < ropes_.size(); ++i) {
    const std::int64_t half = ropes_[i].config().rotary_dim / 2;
    ropes_[i].Angles(position, cosine_[i].data() + row * half, sine_[i].data() + row * half);
  }
}

/// Releases the file's pages of an embedding that is only used for look-ups: otherwise they would
/// become resident little by little, tens of KiB around each row, until the whole table is, and the
/// memory would depend on the tokens. The pages stay in the system's file cache, so mapping a row
/// again takes about a microsecond.
void Decoder::ReleaseEmbeddingPages() const noexcept {
  if (model_->config.tied_embeddings) return;
  const WeightView& embedding = model_->weights.embedding;
  model_->file->ReleasePages(
      {embedding.data, static_cast<std::size_t>(embedding.rows * WeightRowBytes(embedding))});
}

void Decoder::ComputeHeads(Worker& worker, const Call& call, std::size_t index) noexcept {
  const AttentionBlock& block = layers_[index].attention;
  const auto layer = static_cast<std::int64_t>(index);
  block.ProjectInputs(worker, *linear_, rows_.linear(), normed_.data(), model_->config.d_model);
  timer_.Mark(worker, StepPhase::kQueryKeyValue);
  block.Rotate(worker, rows_.count());
  if (worker.index() == 0) ShowQueries(index);
  block.Write(worker, call.cache, layer, rows_.kv_rows());
  timer_.Mark(worker, StepPhase::kRotaryAndWrite);
  block.Attend(worker, layer);
}

/// Computes the layer's attention, from the normed residual stream to the term that is added to it.
void Decoder::Attend(Worker& worker, const Call& call, std::size_t index) noexcept {
  if (call.part.attended != nullptr && index == call.part.first)
    CopyAttended(worker, call);
  else
    ComputeHeads(worker, call, index);
  if (edited_) EditHeads(worker, index);
  timer_.Mark(worker, StepPhase::kAttention);
  layers_[index].attention.ProjectOutput(worker, *linear_, rows_.linear(), projected_.data());
  timer_.Mark(worker, StepPhase::kAttentionOutput);
  if (tapped_) ShowAttention(worker, index);
}

/// Computes hidden += post_norm(projected), and the input of feed-forward: in parallel layers a
/// norm of the earlier stream, or that of attention where the layer has no other.
void Decoder::AddAttention(Worker& worker, const Layer& layer) noexcept {
  const std::int64_t d = model_->config.d_model;
  const bool parallel = model_->config.residual == ResidualKind::kParallel;
  worker.ForEach(rows_.count(), [&](std::int64_t row) {
    float* hidden = hidden_.data() + row * d;
    float* projected = projected_.data() + row * d;
    float* normed = normed_.data() + row * d;
    if (parallel && layer.ffn_norm.kind != NormKind::kNone)
      layer.ffn_norm.Run(*kernels_, hidden, d, normed);
    layer.post_attention_norm.Run(*kernels_, projected, d, projected);
    kernels_->add(hidden, projected, d);
    if (!parallel) layer.ffn_norm.Run(*kernels_, hidden, d, normed);
  });
  timer_.Mark(worker, StepPhase::kNorms);
}

/// Computes hidden += post_norm(feed_forward(normed)); normed = next(hidden).
void Decoder::RunFeedForward(Worker& worker, const Layer& layer, const Norm& next) noexcept {
  const std::int64_t d = model_->config.d_model;
  const FeedForward& block = layer.feed_forward;
  const bool exists = block.up->rows > 0;
  if (exists) {
    block.ProjectIn(worker, *linear_, rows_.linear(), normed_.data());
    timer_.Mark(worker, StepPhase::kGateUp);
    block.Activate(worker, rows_.linear());
    timer_.Mark(worker, StepPhase::kActivation);
    block.ProjectOut(worker, *linear_, rows_.linear(), projected_.data());
    timer_.Mark(worker, StepPhase::kDown);
  }
  worker.ForEach(rows_.count(), [&](std::int64_t row) {
    float* hidden = hidden_.data() + row * d;
    float* projected = projected_.data() + row * d;
    if (exists) {
      layer.post_ffn_norm.Run(*kernels_, projected, d, projected);
      kernels_->add(hidden, projected, d);
    }
    next.Run(*kernels_, hidden, d, normed_.data() + row * d);
  });
  timer_.Mark(worker, StepPhase::kNorms);
}

void Decoder::CopyHidden(Worker& worker, const StepBatch& batch) noexcept {
  const std::int64_t d = model_->config.d_model;
  worker.ForEach(std::ssize(batch.hidden_rows), [&](std::int64_t i) {
    const std::int64_t row = rows_.PlaceOf(batch.hidden_rows[static_cast<std::size_t>(i)]);
    std::copy_n(normed_.data() + row * d, d, batch.hidden + i * d);
  });
}

void Decoder::Logits(std::int64_t begin, std::int64_t count, float* logits) noexcept {
  const auto row_at = [begin](std::int64_t i) { return begin + i; };
  head_rows_ = rows_.HeadRows(count, row_at);
  RunTeam(limits_.threads, [&](Worker& worker) {
    timer_.Begin(worker);
    RunHead(worker, row_at, logits);
  });
  timer_.Collect();
  AddProduct(StepPhase::kHead, &model_->weights.head, count);
}

/// Computes logits [count, vocab] of the batch's rows row_at(0), row_at(1), ..., those of
/// head_rows_. Rows that are no neighbours are copied side by side, to what attention and
/// feed-forward have given before.
template <class RowAt>
void Decoder::RunHead(Worker& worker, RowAt row_at, float* logits) noexcept {
  const ModelConfig& config = model_->config;
  const std::int64_t count = head_rows_.count();
  const std::int64_t d = config.d_model, V = config.vocab_size;
  const std::int64_t first = rows_.PlaceOf(row_at(0));
  bool neighbours = true;
  for (std::int64_t i = 1; i < count && neighbours; ++i)
    neighbours = rows_.PlaceOf(row_at(i)) == first + i;
  const float* x = neighbours ? normed_.data() + first * d : projected_.data();
  if (!neighbours)
    worker.ForEach(count, [&](std::int64_t i) {
      std::copy_n(normed_.data() + rows_.PlaceOf(row_at(i)) * d, d, projected_.data() + i * d);
    });
  const LinearOutput output[] = {{&model_->weights.head, logits, V, nullptr}};
  RunLinear(worker, *linear_, x, d, head_rows_, output);
  if (config.logit_softcap != 0)
    worker.ForEach(count, [&](std::int64_t row) {
      kernels_->softcap(logits + row * V, config.logit_softcap, V);
    });
  timer_.Mark(worker, StepPhase::kHead);
}

}  // namespace manyhead
