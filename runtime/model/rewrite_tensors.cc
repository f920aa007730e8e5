#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/linear/encode.h"
#include "runtime/linear/linear.h"
#include "runtime/model/place_tensors.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/math.h"
#include "runtime/platform/printable.h"
#include "runtime/platform/team.h"

namespace manyhead {
namespace {

constexpr std::int64_t kRowsAtOnce = 16;
constexpr std::int64_t kAlignment = 64;

bool IsFloat(WeightType type) {
  return type == WeightType::kF32 || type == WeightType::kF16 || type == WeightType::kBf16;
}

/// A matrix as it will lie: rows of outputs.
struct Rewritten {
  PlacedTensor* tensor = nullptr;
  WeightType type = WeightType::kF32;
  std::int64_t rows = 0, cols = 0;
  std::int64_t row_bytes = 0;
  std::int64_t offset = 0;  ///< in the memory of all
};

bool IsAligned(const StoredTensor& tensor) {
  const std::int64_t bytes = IsFloat(tensor.type) ? WeightBlockOf(tensor.type).bytes : 1;
  return reinterpret_cast<std::uintptr_t>(tensor.data) % static_cast<std::uintptr_t>(bytes) == 0;
}

/// Returns the type that a matrix gets: tables of positions keep theirs, and so do rows that are
/// not whole blocks.
WeightType TypeOf(const PlacedTensor& tensor, std::int64_t cols, const RewriteOptions& options) {
  if (!options.weight_type || tensor.wanted.row->role == TensorRole::kPositions)
    return tensor.stored.type;
  const bool fits = cols % WeightBlockOf(*options.weight_type).elements == 0;
  return fits ? *options.weight_type : tensor.stored.type;
}

/// Returns the row of the file that has row `row` of queries, keys and values one kind after the
/// other, where the file has head by head: its query, its key and its value.
std::int64_t RowByHead(std::int64_t row, std::int64_t rows, std::int64_t head_dim) {
  const std::int64_t kind_rows = rows / 3, kind = row / kind_rows, within = row % kind_rows;
  return (within / head_dim * 3 + kind) * head_dim + within % head_dim;
}

/// Widens rows [first, first + count) of `tensor` as the model has them into out [count, cols].
void LoadRows(const PlacedTensor& tensor, std::int64_t head_dim, const Rewritten& to,
              std::int64_t first, std::int64_t count, float* out) {
  const StoredTensor& stored = tensor.stored;
  if (tensor.transposed) {
    for (std::int64_t c = 0; c < to.cols; ++c)
      for (std::int64_t r = 0; r < count; ++r)
        out[r * to.cols + c] = LoadWeight(stored.type, stored.data, c * to.rows + first + r);
    return;
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t row = tensor.by_head ? RowByHead(first + r, to.rows, head_dim) : first + r;
    for (std::int64_t c = 0; c < to.cols; ++c)
      out[r * to.cols + c] = LoadWeight(stored.type, stored.data, row * to.cols + c);
  }
}

/// Lists the matrices that have to be rewritten, each with its place in memory.
Result<std::vector<Rewritten>> ListRewritten(const RewriteOptions& options,
                                             std::vector<PlacedTensor>& tensors,
                                             std::int64_t* bytes) {
  std::vector<Rewritten> list;
  *bytes = 0;
  for (PlacedTensor& tensor : tensors) {
    if (tensor.wanted.row->part != TensorPart::kMatrix) continue;
    Rewritten one;
    one.tensor = &tensor;
    one.rows = tensor.transposed ? tensor.stored.cols() : tensor.stored.rows();
    one.cols = tensor.transposed ? tensor.stored.rows() : tensor.stored.cols();
    one.type = TypeOf(tensor, one.cols, options);
    const bool changes = one.type != tensor.stored.type;
    if (!changes && !tensor.transposed && !tensor.by_head && IsAligned(tensor.stored)) continue;
    if (!IsFloat(tensor.stored.type) || !CanEncode(one.type))
      return MakeError(StatusCode::kUnsupported, "tensor ", Printable(tensor.stored.name), " is ",
                       WeightTypeName(tensor.stored.type), "; no ", WeightTypeName(one.type),
                       " can be made of it, only of F32, F16 and BF16");
    one.row_bytes = one.cols / WeightBlockOf(one.type).elements * WeightBlockOf(one.type).bytes;
    one.offset = *bytes;
    *bytes = RoundUp(*bytes + one.rows * one.row_bytes, kAlignment);
    list.push_back(one);
  }
  return list;
}

void RewriteRows(const Checkpoint& file, const Rewritten& to, std::int64_t head_dim,
                 std::int64_t first, std::int64_t count, std::byte* out) {
  std::vector<float> rows(static_cast<std::size_t>(count * to.cols));
  LoadRows(*to.tensor, head_dim, to, first, count, rows.data());
  EncodeWeights(to.type, rows.data(), count * to.cols, out + to.offset + first * to.row_bytes);
  const StoredTensor& stored = to.tensor->stored;
  if (to.tensor->transposed || to.tensor->by_head) return;
  const std::int64_t row_bytes = stored.size_bytes / to.rows;
  file.ReleasePages({stored.data + first * row_bytes, static_cast<std::size_t>(count * row_bytes)});
}

}  // namespace

Result<ReservedMemory> RewriteTensors(const Checkpoint& file, const RewriteOptions& options,
                                      std::vector<PlacedTensor>& tensors) {
  std::int64_t bytes = 0;
  const Result<std::vector<Rewritten>> list = ListRewritten(options, tensors, &bytes);
  if (!list.ok()) return list.status();
  if (list->empty()) return ReservedMemory();
  std::optional<ReservedMemory> memory = ReservedMemory::Reserve(bytes);
  if (!memory)
    return MakeError(StatusCode::kUnsupported, "the operating system does not give ", bytes,
                     " bytes for rewritten weights");
  memory->PreferHugePages();
  RunTeam(options.threads, [&](Worker& worker) {
    for (const Rewritten& to : *list) {
      const std::int64_t head_dim = to.tensor->wanted.head_dim;
      worker.ForEach(CeilDiv(to.rows, kRowsAtOnce), [&](std::int64_t chunk) {
        const std::int64_t first = chunk * kRowsAtOnce;
        RewriteRows(file, to, head_dim, first, std::min(kRowsAtOnce, to.rows - first),
                    memory->data());
      });
    }
  });
  for (const Rewritten& to : *list) {
    PlacedTensor& tensor = *to.tensor;
    StoredTensor& stored = tensor.stored;
    file.ReleasePages({stored.data, static_cast<std::size_t>(stored.size_bytes)});
    stored.type = to.type;
    stored.shape[0] = to.cols;
    stored.shape[1] = to.rows;
    stored.data = memory->data() + to.offset;
    stored.size_bytes = to.rows * to.row_bytes;
    tensor.transposed = tensor.by_head = false;
  }
  return *std::move(memory);
}

std::vector<float> WidenedTensor(const PlacedTensor& tensor) {
  const StoredTensor& stored = tensor.stored;
  const std::int64_t size = stored.rows() * stored.cols();
  std::vector<float> values(static_cast<std::size_t>(size));
  if (!IsFloat(stored.type)) {
    DequantizeRow({stored.type, 1, size, stored.data}, Isa::kScalar, 0, values.data());
    return values;
  }
  for (std::int64_t i = 0; i < size; ++i) {
    const std::int64_t from = tensor.by_head ? RowByHead(i, size, tensor.wanted.head_dim) : i;
    values[static_cast<std::size_t>(i)] = LoadWeight(stored.type, stored.data, from) + tensor.added;
  }
  return values;
}

}  // namespace manyhead
