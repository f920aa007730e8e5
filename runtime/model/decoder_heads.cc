#include <algorithm>

#include "runtime/model/decoder.h"
#include "runtime/model/decoder_call.h"

/// Implements heads that are edited, skipped, observed, or known before the step.

namespace manyhead {

void Decoder::CopyAttended(Worker& worker, const Call& call) noexcept {
  const std::int64_t width = model_->weights.layers[call.part.first].output.cols;
  worker.ForEach(rows_.count(), [&](std::int64_t row) {
    std::copy_n(call.part.attended + rows_.row(row).caller * width, width,
                attended_.data() + row * width);
  });
}

/// Changes each row by the edits of its own sequence.
void Decoder::EditHeads(Worker& worker, std::size_t layer) noexcept {
  const std::int64_t width = model_->weights.layers[layer].output.cols;
  worker.ForEach(rows_.count(), [&](std::int64_t row) {
    const StepRequest& request = rows_.requests()[static_cast<std::size_t>(rows_.row(row).request)];
    const std::vector<HeadEdits>* edits = request.sequence->edits;
    if (edits == nullptr || edits->empty()) return;
    for (const HeadEdits::Edit& edit : (*edits)[layer].edits) {
      float* head = attended_.data() + row * width + edit.begin;
      if (!edit.mean.empty())
        std::copy(edit.mean.begin(), edit.mean.end(), head);
      else if (edit.scale == 0)
        std::fill_n(head, edit.count, 0.0F);  // also replaces NaN
      else
        kernels_->scale(head, edit.scale, edit.count);
    }
    const std::int64_t position = rows_.PositionOf(row);
    for (const HeadEdits::Patch& patch : (*edits)[layer].patches)
      if (const float* values = patch.RowAt(position); values != nullptr)
        std::copy_n(values, patch.width, attended_.data() + row * width + patch.begin);
  });
}

void Decoder::ShowQueries(std::size_t layer) noexcept {
  const std::int64_t width = model_->weights.layers[layer].query.rows;
  for (const StepRequest& request : rows_.requests()) {
    const QueryTap* tap = request.sequence->query_tap;
    if (tap != nullptr && *tap)
      (*tap)(layer, request.sequence->position, request.rows,
             query_.data() + request.first * width);
  }
}

void Decoder::ShowAttention(Worker& worker, std::size_t layer) noexcept {
  const AttentionBlock& block = layers_[layer].attention;
  const AttentionParams& params = block.plan->params();
  for (std::size_t b = 0; b < rows_.requests().size(); ++b) {
    const StepRequest& request = rows_.requests()[b];
    if (request.sequence->attention_tap == nullptr) continue;
    AttentionStep step;
    step.layer = static_cast<std::int64_t>(layer);
    step.sequence = request.sequence->id;
    step.position = request.sequence->position;
    step.rows = request.rows;
    step.query = block.query + request.first * params.num_heads * params.head_dim;
    step.lse = block.lse + request.first * params.num_heads;
    step.attended = block.attended + request.first * params.num_heads * params.head_dim_v;
    step.projected = projected_.data() + request.first * model_->config.d_model;
    step.plan = block.plan;
    step.request = static_cast<std::int64_t>(b);
    step.first_row = request.first;
    request.sequence->attention_tap->Observe(worker, step);
  }
  timer_.Skip(worker);
}

}  // namespace manyhead
