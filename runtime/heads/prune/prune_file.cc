#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "manyhead/output_file.h"
#include "manyhead/prune.h"
#include "runtime/architecture/gguf_keys.h"
#include "runtime/architecture/tensor_table.h"
#include "runtime/formats/gguf.h"
#include "runtime/formats/gguf_output.h"
#include "runtime/linear/linear.h"
#include "runtime/model/weights.h"
#include "runtime/platform/errors.h"

/// Writes models without some of their KV heads as files.

namespace manyhead {
namespace {

constexpr const char* kName = "WritePrunedModel";

/// The rows or columns [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// The heads that remain in one layer: runs of KV heads.
struct KeptHeads {
  std::int64_t count = 0;
  std::vector<Range> runs;

  std::vector<Range> Times(std::int64_t unit) const {
    std::vector<Range> ranges;
    for (const Range& run : runs) ranges.push_back({run.begin * unit, run.end * unit});
    return ranges;
  }
};

Result<std::vector<KeptHeads>> KeptOf(const ModelConfig& config,
                                      std::span<const KvHeadId> removed) {
  const auto num_layers = static_cast<std::int64_t>(config.layers.size());
  std::set<KvHeadId> gone;
  for (const KvHeadId& id : removed) {
    if (id.layer < 0 || id.layer >= num_layers)
      return InvalidArgument(kName, "layer = ", id.layer, "; expected 0..", num_layers - 1);
    const std::int64_t heads = config.layers[static_cast<std::size_t>(id.layer)].num_kv_heads;
    if (id.kv_head < 0 || id.kv_head >= heads)
      return InvalidArgument(kName, "kv_head = ", id.kv_head, " of layer ", id.layer,
                             "; expected 0..", heads - 1);
    if (!gone.insert(id).second)
      return InvalidArgument(kName, "KV head ", id.kv_head, " of layer ", id.layer,
                             " is removed twice; expected once");
  }
  std::vector<KeptHeads> layers;
  for (std::int64_t l = 0; l < num_layers; ++l) {
    KeptHeads& kept = layers.emplace_back();
    const std::int64_t heads = config.layers[static_cast<std::size_t>(l)].num_kv_heads;
    for (std::int64_t h = 0; h < heads; ++h) {
      if (gone.contains({l, h})) continue;
      if (kept.runs.empty() || kept.runs.back().end != h) kept.runs.push_back({h, h});
      kept.runs.back().end = h + 1;
      ++kept.count;
    }
    if (kept.count == 0)
      return InvalidArgument(kName, "layer ", l, " would have 0 of its ", heads,
                             " KV heads left; expected at least 1");
  }
  return layers;
}

/// Returns the tensor with its bytes unchanged.
GgufOutput::Tensor Whole(const StoredTensor& tensor) {
  return {std::string(tensor.name),
          tensor.type,
          {tensor.shape, tensor.shape + tensor.num_dims},
          [&tensor](const GgufOutput::Sink& sink) {
            return sink({tensor.data, static_cast<std::size_t>(tensor.size_bytes)});
          }};
}

std::int64_t Sum(const std::vector<Range>& ranges) {
  std::int64_t sum = 0;
  for (const Range& range : ranges) sum += range.end - range.begin;
  return sum;
}

/// Returns some rows of a matrix, or elements of a vector.
GgufOutput::Tensor Rows(const StoredTensor& tensor, const std::vector<Range>& ranges) {
  GgufOutput::Tensor made = Whole(tensor);
  const bool matrix = tensor.num_dims > 1;
  made.shape[matrix ? 1 : 0] = Sum(ranges);
  const std::int64_t unit = tensor.size_bytes / (matrix ? tensor.rows() : tensor.cols());
  made.write = [&tensor, ranges, unit](const GgufOutput::Sink& sink) {
    for (const Range& range : ranges)
      if (Status status = sink({tensor.data + range.begin * unit,
                                static_cast<std::size_t>((range.end - range.begin) * unit)});
          !status.ok())
        return status;
    return Status();
  };
  return made;
}

/// Returns columns that end with blocks of the type.
GgufOutput::Tensor Columns(const StoredTensor& tensor, const std::vector<Range>& ranges) {
  GgufOutput::Tensor made = Whole(tensor);
  made.shape[0] = Sum(ranges);
  const WeightBlock block = WeightBlockOf(tensor.type);
  made.write = [&tensor, ranges, block](const GgufOutput::Sink& sink) {
    const std::int64_t row_bytes = tensor.cols() / block.elements * block.bytes;
    for (std::int64_t row = 0; row < tensor.rows(); ++row)
      for (const Range& range : ranges) {
        const std::int64_t begin = range.begin / block.elements * block.bytes;
        const std::int64_t end = range.end / block.elements * block.bytes;
        const Status status =
            sink({tensor.data + row * row_bytes + begin, static_cast<std::size_t>(end - begin)});
        if (!status.ok()) return status;
      }
    return Status();
  };
  return made;
}

/// Returns any columns, as f32.
GgufOutput::Tensor WidenedColumns(const StoredTensor& tensor, const std::vector<Range>& ranges) {
  GgufOutput::Tensor made = Whole(tensor);
  made.type = WeightType::kF32;
  made.shape[0] = Sum(ranges);
  made.write = [&tensor, ranges](const GgufOutput::Sink& sink) {
    const WeightView view = {tensor.type, tensor.rows(), tensor.cols(), tensor.data};
    std::vector<float> row(static_cast<std::size_t>(tensor.cols()));
    for (std::int64_t r = 0; r < tensor.rows(); ++r) {
      DequantizeRow(view, Isa::kScalar, r, row.data());
      for (const Range& range : ranges) {
        const auto part = std::span(row).subspan(static_cast<std::size_t>(range.begin),
                                                 static_cast<std::size_t>(range.end - range.begin));
        if (Status status = sink(std::as_bytes(part)); !status.ok()) return status;
      }
    }
    return Status();
  };
  return made;
}

Result<GgufOutput::Tensor> CutOutput(const StoredTensor& tensor, const std::vector<Range>& ranges,
                                     bool widen) {
  const std::int64_t block = WeightBlockOf(tensor.type).elements;
  for (const Range& range : ranges) {
    const std::int64_t odd = range.begin % block != 0 ? range.begin : range.end;
    if (odd % block == 0) continue;
    if (widen) return WidenedColumns(tensor, ranges);
    return Unsupported(kName, "tensor ", tensor.name, " would be cut at column ", odd,
                       ", inside a block of ", block, " of ", WeightTypeName(tensor.type),
                       "; stored as F32 it can be");
  }
  return Columns(tensor, ranges);
}

/// Returns the rows of queries, then of keys, then of values.
std::vector<Range> FusedRows(const KeptHeads& kept, const LayerConfig& shape) {
  const std::int64_t group = shape.num_heads / shape.num_kv_heads;
  std::vector<Range> rows;
  std::int64_t begin = 0;
  for (const std::int64_t unit : {group * shape.head_dim, shape.head_dim, shape.head_dim_v}) {
    for (const Range& range : kept.Times(unit))
      rows.push_back({begin + range.begin, begin + range.end});
    begin += shape.num_kv_heads * unit;
  }
  return rows;
}

Result<GgufOutput::Tensor> Cut(const StoredTensor& tensor, const ModelConfig& config,
                               const std::vector<KeptHeads>& layers, bool widen) {
  const std::optional<TensorPlace> place = FindGgufTensor(tensor.name);
  if (!place || !IsPerHead(*place->row)) return Whole(tensor);
  const LayerConfig& shape = config.layers[static_cast<std::size_t>(place->layer)];
  const KeptHeads& kept = layers[static_cast<std::size_t>(place->layer)];
  if (kept.count == shape.num_kv_heads) return Whole(tensor);
  const std::int64_t group = shape.num_heads / shape.num_kv_heads;
  switch (place->row->heads) {
    case HeadAxis::kOutputColumns:
      return CutOutput(tensor, kept.Times(group * shape.head_dim_v), widen);
    case HeadAxis::kQueryRows:
      return Rows(tensor, kept.Times(group * shape.head_dim));
    case HeadAxis::kKeyRows:
      return Rows(tensor, kept.Times(shape.head_dim));
    case HeadAxis::kValueRows:
      return Rows(tensor, kept.Times(shape.head_dim_v));
    case HeadAxis::kFusedRows:
      return Rows(tensor, FusedRows(kept, shape));
    case HeadAxis::kPerQueryHead:
      return Rows(tensor, kept.Times(group));
    case HeadAxis::kNone:
      break;
  }
  return Whole(tensor);
}

/// Adds one number where all layers have the same count, otherwise a list.
void AddCounts(GgufOutput& output, const std::string& key,
               const std::vector<std::uint32_t>& counts) {
  const bool same = std::all_of(counts.begin(), counts.end(),
                                [&](std::uint32_t count) { return count == counts.front(); });
  if (same)
    output.AddKey(key, counts.front());
  else
    output.AddKey(key, counts);
}

void AddKeys(GgufOutput& output, const GgufFile& file, const ModelConfig& config,
             const std::vector<KeptHeads>& layers) {
  const auto name = [&](std::string_view key) {
    return std::string(config.architecture).append(".").append(key);
  };
  const std::string heads = name(gguf_keys::kHeadCount), kv_heads = name(gguf_keys::kHeadCountKv);
  const std::string k_length = name(gguf_keys::kKeyLength);
  const std::string v_length = name(gguf_keys::kValueLength);
  for (const GgufFile::KeyBytes& key : file.key_bytes())
    if (key.key != heads && key.key != kv_heads && key.key != k_length && key.key != v_length)
      output.AddKey(key.bytes);
  std::vector<std::uint32_t> counts, kv_counts;
  for (std::size_t l = 0; l < layers.size(); ++l) {
    const std::int64_t group = config.layers[l].num_heads / config.layers[l].num_kv_heads;
    counts.push_back(static_cast<std::uint32_t>(layers[l].count * group));
    kv_counts.push_back(static_cast<std::uint32_t>(layers[l].count));
  }
  AddCounts(output, heads, counts);
  AddCounts(output, kv_heads, kv_counts);
  // Without these keys, the lengths would follow from the number of heads.
  output.AddKey(k_length, static_cast<std::uint32_t>(config.layers[0].head_dim));
  output.AddKey(v_length, static_cast<std::uint32_t>(config.layers[0].head_dim_v));
}

}  // namespace

Status WritePrunedModel(const Model& model, std::span<const KvHeadId> removed,
                        const std::string& path, const PrunedModelOptions& options) {
  const ModelConfig& config = model.config();
  const Result<std::vector<KeptHeads>> layers = KeptOf(config, removed);
  if (!layers.ok()) return layers.status();
  if (config.softmax_scale != 0)
    return Unsupported(kName, "the softmax scale of ", config.architecture, " with ",
                       config.layers.size(), " layers follows from its number of heads");
  const auto* const gguf = dynamic_cast<const GgufFile*>(model.impl().file.get());
  if (gguf == nullptr) return Unsupported(kName, model.path(), " is no GGUF file; expected one");
  const GgufFile& file = *gguf;
  GgufOutput output;
  AddKeys(output, file, config, *layers);
  for (const StoredTensor& tensor : file.tensors()) {
    Result<GgufOutput::Tensor> cut = Cut(tensor, config, *layers, options.widen);
    if (!cut.ok()) return cut.status();
    output.AddTensor(*std::move(cut));
  }
  return output.Write(path, file.alignment());
}

std::string FormatRemoved(std::span<const KvHeadId> removed) {
  std::ostringstream text;
  text << "{\"heads\": [";
  for (std::size_t i = 0; i < removed.size(); ++i)
    text << (i == 0 ? "\n  " : ",\n  ") << "{\"layers\": [" << removed[i].layer
         << "], \"kv_heads\": [" << removed[i].kv_head << "], \"policy\": \"off\"}";
  text << "\n]}\n";
  return text.str();
}

Status WriteRemoved(std::span<const KvHeadId> removed, const std::string& path) {
  return WriteOutputFile(path, FormatRemoved(removed));
}

}  // namespace manyhead
