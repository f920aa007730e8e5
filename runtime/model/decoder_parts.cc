#include <algorithm>
#include <utility>

#include "kernels/linear_kernels.h"
#include "runtime/model/decoder.h"
#include "runtime/model/decoder_call.h"

/// Steps that begin or end between layers, and heads that are changed or left out.

namespace manyhead {
namespace {

/// Rows of a projection, all heads' [first, first + count) times `head_dim`.
struct HeadRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

/// The KV heads that somebody reads, as runs.
std::vector<HeadRun> RunsRead(const std::vector<bool>& unread, std::int64_t num_kv_heads) {
  if (unread.empty()) return {{0, num_kv_heads}};
  std::vector<HeadRun> runs;
  for (std::int64_t head = 0; head < num_kv_heads; ++head) {
    if (unread[static_cast<std::size_t>(head)]) continue;
    if (runs.empty() || runs.back().first + runs.back().count != head) runs.push_back({head, 0});
    ++runs.back().count;
  }
  return runs;
}

/// Whether each run's rows, `rows` of them for each KV head, can be multiplied by themselves.
bool CanCut(const WeightView& weight, const std::vector<HeadRun>& runs, std::int64_t rows) {
  return !weight.packed || std::all_of(runs.begin(), runs.end(), [&](const HeadRun& run) {
    return run.first * rows % kernels::kPackedRows == 0 &&
           run.count * rows % kernels::kPackedRows == 0;
  });
}

}  // namespace

/// A matrix whose rows are packed across heads is multiplied whole.
Decoder::Inputs Decoder::InputsOf(std::size_t index, const std::vector<bool>& unread) {
  const LayerConfig& layer = model_->config.layers[index];
  const LayerWeights& w = model_->weights.layers[index];
  const std::int64_t K = layer.num_kv_heads;
  const std::vector<HeadRun> read = RunsRead(unread, K), all = {{0, K}};
  Inputs inputs;
  inputs.weights.reserve(3 * read.size() + 3);  // products point into it
  const auto add = [&](const WeightView& weight, const std::vector<float>& bias, float* y) {
    const std::int64_t rows = weight.rows / K;  // of a KV head
    for (const HeadRun& run : CanCut(weight, read, rows) ? read : all) {
      const std::int64_t first = run.first * rows;
      inputs.weights.push_back(WeightRows(weight, first, run.count * rows));
      inputs.products.push_back({&inputs.weights.back(), y + first, weight.rows,
                                 bias.empty() ? nullptr : bias.data() + first});
    }
  };
  add(w.query, w.query_bias, query_.data());
  add(w.key, w.key_bias, key_.data());
  add(w.value, w.value_bias, value_.data());
  return inputs;
}

void Decoder::SetEdits(std::vector<HeadEdits> edits) {
  std::vector<Inputs> inputs;
  for (std::size_t layer = 0; layer < model_->config.layers.size(); ++layer)
    inputs.push_back(InputsOf(layer, edits.empty() ? std::vector<bool>() : edits[layer].unread));
  inputs_ = std::move(inputs);
  edits_ = std::move(edits);
}

Status Decoder::StepLayers(KvCache& cache, SequenceId sequence, std::span<const TokenId> ids,
                           const LayerPart& part) noexcept {
  const std::int64_t position = cache.length(sequence) - static_cast<std::int64_t>(ids.size());
  return Run({cache, sequence, ids, position, part}, nullptr);
}

void Decoder::SetAngles(std::int64_t row, std::int64_t position) noexcept {
  for (std::size_t i = 0; i < ropes_.size(); ++i) {
    const std::int64_t half = ropes_[i].config().rotary_dim / 2;
    ropes_[i].Angles(position, cosine_[i].data() + row * half, sine_[i].data() + row * half);
  }
}

void Decoder::TakeHidden(Worker& worker, const Call& call) noexcept {
  const std::int64_t d = model_->config.d_model;
  const std::vector<float>& norm = model_->weights.layers[call.part.first].attention_norm.scale;
  worker.ForEach(call.rows(), [&](std::int64_t row) {
    float* hidden = hidden_.data() + row * d;
    std::copy_n(call.part.hidden + row * d, d, hidden);
    kernels_->rms_norm(hidden, norm.data(), model_->config.norm_eps, d, normed_.data() + row * d);
    SetAngles(row, call.position + row);
  });
}

void Decoder::TakeAttended(Worker& worker, const Call& call) noexcept {
  const std::int64_t width = model_->weights.layers[call.part.first].output.cols;
  worker.ForEach(call.rows(), [&](std::int64_t row) {
    std::copy_n(call.part.attended + row * width, width, attended_.data() + row * width);
  });
}

void Decoder::EditHeads(Worker& worker, std::int64_t rows, std::size_t layer) noexcept {
  const std::vector<HeadEdits::Edit>& edits = edits_[layer].edits;
  if (edits.empty()) return;
  const std::int64_t width = model_->weights.layers[layer].output.cols;
  worker.ForEach(rows, [&](std::int64_t row) {
    for (const HeadEdits::Edit& edit : edits) {
      float* head = attended_.data() + row * width + edit.begin;
      if (!edit.mean.empty())
        std::copy(edit.mean.begin(), edit.mean.end(), head);
      else if (edit.scale == 0)
        std::fill_n(head, edit.count, 0.0F);  // of NaN too
      else
        kernels_->scale(head, edit.scale, edit.count);
    }
  });
}

}  // namespace manyhead
