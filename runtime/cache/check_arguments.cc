#include "runtime/cache/check_arguments.h"

#include "runtime/platform/errors.h"

namespace manyhead {

Status CheckSequence(const KvCache::Impl& impl, const char* function, SequenceId id) {
  if (impl.Has(id)) return Status();
  return InvalidArgument(
      function, "sequence = ", static_cast<std::int32_t>(id),
      "; expected one that CreateSequence returned and FreeSequence did not free");
}

Status CheckIndex(const char* function, const char* name, std::int64_t index, std::int64_t end) {
  if (index >= 0 && index < end) return Status();
  return InvalidArgument(function, name, " = ", index, "; expected 0..", end - 1);
}

Status CheckLayer(const KvCache::Impl& impl, const char* function, std::int64_t layer) {
  return CheckIndex(function, "layer", layer,
                    static_cast<std::int64_t>(impl.params().layers.size()));
}

Status CheckLength(const KvCache::Impl& impl, const char* function, SequenceId id,
                   std::int64_t length) {
  if (Status status = CheckSequence(impl, function, id); !status.ok()) return status;
  if (length >= 0 && length <= impl.Length(id)) return Status();
  return InvalidArgument(function, "length = ", length, "; expected 0..", impl.Length(id));
}

Status CheckTokens(const char* function, std::int64_t begin, std::int64_t end,
                   std::int64_t length) {
  if (begin >= 0 && begin <= end && end <= length) return Status();
  return InvalidArgument(function, "begin = ", begin, ", end = ", end, "; expected a range in 0..",
                         length);
}

namespace {

Status CheckStride(const char* name, std::int64_t stride, std::int64_t row) {
  if (stride >= row) return Status();
  return InvalidArgument("KvCache::Write", name, " = ", stride, "; expected 0 or at least ", row,
                         ", the elements of a token");
}

}  // namespace

Result<WriteArguments> CheckWrite(const KvCache::Impl& impl, SequenceId id,
                                  const WriteArguments& arguments) {
  if (Status status = CheckSequence(impl, "KvCache::Write", id); !status.ok()) return status;
  WriteArguments resolved = arguments;
  auto& [layer, position, count, k, v, k_stride, v_stride] = resolved;
  if (Status status = CheckLayer(impl, "KvCache::Write", layer); !status.ok()) return status;
  const std::int64_t length = impl.Length(id);
  if (position < 0 || count < 0 || position > length || count > length - position)
    return InvalidArgument("KvCache::Write", "position = ", position, ", count = ", count,
                           "; only ", length, " tokens are reserved");
  const KvLayerShape& shape = impl.params().layers[static_cast<std::size_t>(layer)];
  const std::int64_t k_row = shape.num_kv_heads * shape.head_dim;
  const std::int64_t v_row = shape.num_kv_heads * shape.head_dim_v;
  if (k_stride == 0) k_stride = k_row;
  if (v_stride == 0) v_stride = v_row;
  if (Status status = CheckStride("KvCache::k_stride", k_stride, k_row); !status.ok())
    return status;
  if (Status status = CheckStride("KvCache::v_stride", v_stride, v_row); !status.ok())
    return status;
  if (count == 0) return resolved;
  if (k == nullptr || v == nullptr)
    return InvalidArgument("KvCache::Write", (k == nullptr ? "k" : "v"), " is null; expected ",
                           count, " rows");
  return resolved;
}

Status CheckRead(const KvCache::Impl& impl, SequenceId id, std::int64_t layer, std::int64_t head,
                 std::int64_t position) {
  if (Status status = CheckSequence(impl, "KvCache::Read", id); !status.ok()) return status;
  if (Status status = CheckLayer(impl, "KvCache::Read", layer); !status.ok()) return status;
  const KvLayerShape& shape = impl.params().layers[static_cast<std::size_t>(layer)];
  if (Status status = CheckIndex("KvCache::Read", "head", head, shape.num_kv_heads); !status.ok())
    return status;
  const std::int64_t length = impl.Length(id);
  if (Status status = CheckIndex("KvCache::Read", "position", position, length); !status.ok())
    return status;
  if (!impl.Holds(id, layer, head, position))
    return InvalidArgument("KvCache::Read", "position = ", position, " is not held by head ", head,
                           " of layer ", layer, ", whose policy is ",
                           FormatKvPolicy(impl.Head(layer, head).params.policy));
  return Status();
}

}  // namespace manyhead
