#include "runtime/heads/observe/head_capture.h"

#include <algorithm>
#include <string>

#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

/// Number of weights in a batch, unless a single position needs more.
constexpr std::int64_t kBatchWeights = 1 << 20;

Status CheckIn(const char* function, const std::string& name, std::int64_t value, std::int64_t low,
               std::int64_t high) {
  return value >= low && value <= high ? Status() : OutOfRange(function, name, value, low, high);
}

}  // namespace

Status HeadCapture::Check(const ModelConfig& config, std::int64_t context,
                          const CaptureOptions& options, const char* function) {
  for (std::size_t i = 0; i < options.heads.size(); ++i) {
    const auto [layer, head] = options.heads[i];
    const std::string name = "heads[" + std::to_string(i) + "]";
    Status status = CheckIn(function, name + ".layer", layer, 0, std::ssize(config.layers) - 1);
    if (status.ok())
      status = CheckIn(function, name + ".head", head, 0,
                       config.layers[static_cast<std::size_t>(layer)].num_heads - 1);
    if (!status.ok()) return status;
  }
  Status status = CheckIn(function, "first", options.first, 0, context - 1);
  if (status.ok() && options.last != -1)
    status = CheckIn(function, "last", options.last, options.first, context - 1);
  if (status.ok()) status = CheckIn(function, "every", options.every, 1, INT64_MAX);
  if (status.ok() && !options.on_row)
    status = Status(StatusCode::kInvalidArgument,
                    std::string(function).append(": on_row is empty; expected a function"));
  return status;
}

HeadCapture::HeadCapture(const ModelConfig& config, std::int64_t context,
                         const CaptureOptions& options)
    : options_(options) {
  if (options_.last == -1) options_.last = context - 1;
  // Beyond the context only `first` is captured; the limit keeps positions and their sums small.
  options_.every = std::min(options_.every, context);
  std::int64_t most_rows = 0;
  for (std::size_t l = 0; l < config.layers.size(); ++l) {
    const LayerConfig& shape = config.layers[l];
    Layer layer;
    layer.group = shape.num_heads / shape.num_kv_heads;
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      const HeadId id{static_cast<std::int64_t>(l), h};
      if (!options.heads.empty() &&
          std::find(options.heads.begin(), options.heads.end(), id) == options.heads.end())
        continue;
      const std::int64_t kv_head = h / layer.group;
      if (layer.kv_heads.empty() || layer.kv_heads.back() != kv_head)
        layer.kv_heads.push_back(kv_head);
      layer.heads.push_back({h, layer.rows() - layer.group + h % layer.group});
    }
    most_rows = std::max(most_rows, layer.rows());
    layers_.push_back(std::move(layer));
  }
  if (!options_.weights) return;
  rows_ = AlignedBuffer<float>(std::max(kBatchWeights, most_rows * context));
}

void HeadCapture::Observe(Worker& worker, const AttentionStep& step) noexcept {
  const Layer& layer = layers_[static_cast<std::size_t>(step.layer)];
  const std::int64_t every = options_.every;
  const std::int64_t end = std::min(step.position + step.rows, options_.last + 1);
  // Finds the first position of the step that is options_.first plus a multiple of `every`.
  const std::int64_t behind = std::max<std::int64_t>(0, step.position - options_.first);
  const std::int64_t skipped = behind / every + (behind % every != 0);
  if (layer.heads.empty() || skipped > (end - 1 - options_.first) / every) return;
  const std::int64_t most =
      options_.weights ? rows_.size() / (layer.rows() * (step.position + step.rows)) : step.rows;
  for (Batch batch{options_.first + skipped * every, 0}; batch.first < end;
       batch.first += batch.count * every) {
    batch.count = std::min(most, (end - 1 - batch.first) / every + 1);
    if (options_.weights) Compute(worker, step, layer, batch);
    if (worker.index() == 0) HandOut(step, layer, batch);
    worker.Barrier();
  }
}

void HeadCapture::Compute(Worker& worker, const AttentionStep& step, const Layer& layer,
                          Batch batch) noexcept {
  const std::int64_t stride = step.position + step.rows, kv_heads = std::ssize(layer.kv_heads);
  worker.ForEach(batch.count * kv_heads, [&](std::int64_t i) {
    const std::int64_t index = i / kv_heads, g = i % kv_heads;
    const std::int64_t position = batch.first + index * options_.every;
    float* rows = rows_.data() + (index * layer.rows() + g * layer.group) * stride;
    step.WeightsOf(worker.index(), layer.kv_heads[static_cast<std::size_t>(g)],
                   position - step.position, {rows, stride, position + 1, nullptr});
  });
}

void HeadCapture::HandOut(const AttentionStep& step, const Layer& layer, Batch batch) const {
  const std::int64_t stride = step.position + step.rows;
  const std::int64_t num_heads = step.plan->params().num_heads;
  const std::int64_t width = step.plan->params().head_dim_v;
  for (std::int64_t i = 0; i < batch.count; ++i) {
    const std::int64_t position = batch.first + i * options_.every;
    for (const Layer::Head& head : layer.heads) {
      const std::int64_t number = (position - step.position) * num_heads + head.id;
      CapturedRow row;
      row.head = {step.layer, head.id};
      row.position = position;
      if (options_.weights)
        row.weights = {rows_.data() + (i * layer.rows() + head.row) * stride,
                       static_cast<std::size_t>(position + 1)};
      row.output = {step.attended + number * width, static_cast<std::size_t>(width)};
      row.lse = step.lse[number];
      row.sink_share = step.plan->SinkShare(head.id, row.lse);
      options_.on_row(row);
    }
  }
}

}  // namespace manyhead
