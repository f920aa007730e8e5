#include "manyhead/kv_cache.h"

#include <algorithm>
#include <utility>

#include "runtime/cache/kv_cache_impl.h"
#include "runtime/cache/page_layout.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/isa.h"
#include "runtime/platform/math.h"
#include "runtime/platform/team.h"

namespace manyhead {
namespace {

constexpr const char* kCreate = "KvCache::Create";

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

Status CheckStride(const char* name, std::int64_t stride, std::int64_t row) {
  if (stride >= row) return Status();
  return InvalidArgument("KvCache::Write", name, " = ", stride, "; expected 0 or at least ", row,
                         ", the elements of a token");
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

const Status& StatusOf(const Status& status) noexcept { return status; }
template <class T>
const Status& StatusOf(const Result<T>& result) noexcept {
  return result.status();
}

/// The result of `operation`, for which stored prefixes make room.
template <class Operation>
auto WithRoom(KvCache::Impl& impl, const Operation& operation) {
  for (;;) {
    auto result = operation();
    // Anew each time: what is shared, and so what has to be copied, changes as well.
    if (StatusOf(result).code() != StatusCode::kOutOfPages || !impl.DropOldestPrefix())
      return result;
  }
}

}  // namespace

Result<KvCache> KvCache::Create(const KvCacheParams& params) {
  Result<KvCacheParams> resolved = ResolveKvShapes(params, kCreate);
  if (!resolved.ok()) return resolved.status();
  if (params.max_tokens < 1)
    return InvalidArgument(kCreate, "max_tokens = ", params.max_tokens, "; expected 1 or more");
  if (params.max_prefixes < 0)
    return InvalidArgument(kCreate, "max_prefixes = ", params.max_prefixes, "; expected 0 or more");
  const Result<std::int64_t> least = KvCapacityBytes(*resolved, 1, 1);
  if (!least.ok()) return least.status();
  if (params.capacity_bytes < *least)
    return InvalidArgument(kCreate, "capacity_bytes = ", params.capacity_bytes, " is less than ",
                           *least, ", what a sequence of one token takes");
  const Result<Isa> isa = ResolveIsa(kCreate, params.isa);
  if (!isa.ok()) return isa.status();
  resolved->isa = *isa;
  Result<std::unique_ptr<Impl>> impl = Impl::Create(std::move(*resolved));
  if (!impl.ok()) return impl.status();
  return KvCache(std::move(*impl));
}

KvCache::KvCache(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

Result<SequenceId> KvCache::CreateSequence() {
  return WithRoom(*impl_, [&] { return impl_->CreateSequence(); });
}

Status KvCache::FreeSequence(SequenceId sequence) {
  if (Status status = CheckSequence(*impl_, "KvCache::FreeSequence", sequence); !status.ok())
    return status;
  impl_->FreeSequence(sequence);
  return Status();
}

Status KvCache::Reserve(SequenceId sequence, std::int64_t count) {
  if (Status status = CheckSequence(*impl_, "KvCache::Reserve", sequence); !status.ok())
    return status;
  if (count < 0)
    return InvalidArgument("KvCache::Reserve", "count = ", count, "; expected 0 or more");
  const auto reserve = [&] { return impl_->Reserve(sequence, count, "KvCache::Reserve"); };
  // No room in the pool helps a sequence that is too long.
  if (count > impl_->params().max_tokens - impl_->Length(sequence)) return reserve();
  return WithRoom(*impl_, reserve);
}

Status KvCache::Evict(SequenceId sequence) {
  if (Status status = CheckSequence(*impl_, "KvCache::Evict", sequence); !status.ok())
    return status;
  return WithRoom(*impl_, [&] { return impl_->Reserve(sequence, 0, "KvCache::Evict"); });
}

Result<SequenceId> KvCache::Fork(SequenceId sequence) {
  if (Status status = CheckSequence(*impl_, "KvCache::Fork", sequence); !status.ok()) return status;
  return WithRoom(*impl_, [&] { return impl_->Fork(sequence); });
}

Result<bool> KvCache::Truncate(SequenceId sequence, std::int64_t length) {
  if (Status status = CheckLength(*impl_, "KvCache::Truncate", sequence, length); !status.ok())
    return status;
  return impl_->Truncate(sequence, length);
}

Result<std::int64_t> KvCache::ExactLength(SequenceId sequence, std::int64_t length) const {
  if (Status status = CheckLength(*impl_, "KvCache::ExactLength", sequence, length); !status.ok())
    return status;
  return impl_->ExactLength(sequence, length);
}

Status KvCache::Copy(SequenceId source, std::int64_t begin, std::int64_t end, SequenceId sequence) {
  if (Status status = CheckSequence(*impl_, "KvCache::Copy", source); !status.ok()) return status;
  if (Status status = CheckSequence(*impl_, "KvCache::Copy", sequence); !status.ok()) return status;
  if (Status status = CheckTokens("KvCache::Copy", begin, end, impl_->Length(source)); !status.ok())
    return status;
  if (begin < impl_->Length(sequence))
    return InvalidArgument("KvCache::Copy", "begin = ", begin, "; the sequence it goes to has ",
                           impl_->Length(sequence), " tokens already");
  return WithRoom(*impl_, [&] { return impl_->Copy(source, begin, end, sequence); });
}

Status KvCache::Drop(SequenceId sequence, std::int64_t begin, std::int64_t end) {
  if (Status status = CheckSequence(*impl_, "KvCache::Drop", sequence); !status.ok()) return status;
  if (Status status = CheckTokens("KvCache::Drop", begin, end, impl_->Length(sequence));
      !status.ok())
    return status;
  return WithRoom(*impl_, [&] { return impl_->Drop(sequence, begin, end); });
}

Status KvCache::Write(SequenceId sequence, std::int64_t layer, std::int64_t position,
                      std::int64_t count, const float* k, const float* v, std::int64_t k_stride,
                      std::int64_t v_stride) {
  if (Status status = CheckSequence(*impl_, "KvCache::Write", sequence); !status.ok())
    return status;
  if (Status status = CheckLayer(*impl_, "KvCache::Write", layer); !status.ok()) return status;
  const std::int64_t length = impl_->Length(sequence);
  if (position < 0 || count < 0 || position > length || count > length - position)
    return InvalidArgument("KvCache::Write", "position = ", position, ", count = ", count,
                           "; only ", length, " tokens are reserved");
  const KvLayerShape& shape = impl_->params().layers[static_cast<std::size_t>(layer)];
  const std::int64_t k_row = shape.num_kv_heads * shape.head_dim;
  const std::int64_t v_row = shape.num_kv_heads * shape.head_dim_v;
  if (k_stride == 0) k_stride = k_row;
  if (v_stride == 0) v_stride = v_row;
  if (Status status = CheckStride("KvCache::k_stride", k_stride, k_row); !status.ok())
    return status;
  if (Status status = CheckStride("KvCache::v_stride", v_stride, v_row); !status.ok())
    return status;
  if (count == 0) return Status();
  if (k == nullptr || v == nullptr)
    return InvalidArgument("KvCache::Write", (k == nullptr ? "k" : "v"), " is null; expected ",
                           count, " rows");
  if (Status status =
          WithRoom(*impl_, [&] { return impl_->Unshare(sequence, layer, position, count); });
      !status.ok())
    return status;
  TeamState state;
  Worker alone(state, 0, 1);
  const KvRows rows[] = {{sequence, position, count, 0}};
  impl_->WriteOn(alone, layer, rows, k, v, k_stride, v_stride);
  return Status();
}

Status KvCache::Read(SequenceId sequence, std::int64_t layer, std::int64_t head,
                     std::int64_t position, float* k, float* v) const {
  if (Status status = CheckSequence(*impl_, "KvCache::Read", sequence); !status.ok()) return status;
  if (Status status = CheckLayer(*impl_, "KvCache::Read", layer); !status.ok()) return status;
  const KvLayerShape& shape = impl_->params().layers[static_cast<std::size_t>(layer)];
  if (Status status = CheckIndex("KvCache::Read", "head", head, shape.num_kv_heads); !status.ok())
    return status;
  const std::int64_t length = impl_->Length(sequence);
  if (Status status = CheckIndex("KvCache::Read", "position", position, length); !status.ok())
    return status;
  if (!impl_->Holds(sequence, layer, head, position))
    return InvalidArgument("KvCache::Read", "position = ", position, " is not held by head ", head,
                           " of layer ", layer, ", whose policy is ",
                           FormatKvPolicy(impl_->Head(layer, head).params.policy));
  impl_->ReadRow(sequence, layer, head, position, k, v);
  return Status();
}

Status KvCache::Save(const std::string& path, std::span<const SequenceId> sequences,
                     const KvSnapshotInfo& info) const {
  for (const SequenceId id : sequences)
    if (Status status = CheckSequence(*impl_, "KvCache::Save", id); !status.ok()) return status;
  return impl_->Save(path, sequences, info);
}

Result<KvRestored> KvCache::Restore(const std::string& path, const KvRestoreOptions& options) {
  return impl_->Restore(path, options);
}

std::vector<SequenceId> KvCache::sequences() const { return impl_->Sequences(); }

Status KvCache::StorePrefix(std::string_view key, std::span<const TokenId> tokens,
                            SequenceId sequence) {
  if (Status status = CheckSequence(*impl_, "KvCache::StorePrefix", sequence); !status.ok())
    return status;
  if (std::ssize(tokens) > impl_->Length(sequence))
    return InvalidArgument("KvCache::StorePrefix", "tokens has ", tokens.size(),
                           " ids; the sequence has ", impl_->Length(sequence), " tokens");
  return WithRoom(*impl_, [&] { return impl_->StorePrefix(key, tokens, sequence); });
}

Result<std::optional<SequenceId>> KvCache::ForkPrefix(std::string_view key,
                                                      std::span<const TokenId> tokens) {
  return WithRoom(*impl_, [&] { return impl_->ForkPrefix(key, tokens); });
}

std::int64_t KvCache::num_prefixes() const noexcept { return impl_->num_prefixes(); }

void KvCache::ClearPrefixes() noexcept {
  while (impl_->DropOldestPrefix()) {
  }
}

bool KvCache::Holds(SequenceId sequence, std::int64_t layer, std::int64_t head,
                    std::int64_t position) const noexcept {
  const std::vector<KvLayerShape>& layers = impl_->params().layers;
  return impl_->Has(sequence) && layer >= 0 && layer < static_cast<std::int64_t>(layers.size()) &&
         head >= 0 && head < layers[static_cast<std::size_t>(layer)].num_kv_heads &&
         position >= 0 && position < impl_->Length(sequence) &&
         impl_->Holds(sequence, layer, head, position);
}

std::int64_t KvCache::length(SequenceId sequence) const noexcept {
  return impl_->Has(sequence) ? impl_->Length(sequence) : -1;
}

const KvCacheParams& KvCache::params() const noexcept { return impl_->params(); }

KvUsage KvCache::usage() const { return impl_->Usage(); }

Result<KvUsage> KvCache::usage(SequenceId sequence) const {
  if (Status status = CheckSequence(*impl_, "KvCache::usage", sequence); !status.ok())
    return status;
  return impl_->Usage(sequence);
}

Result<std::vector<std::vector<KvHeadUsage>>> KvCache::head_usage(SequenceId sequence) const {
  if (Status status = CheckSequence(*impl_, "KvCache::head_usage", sequence); !status.ok())
    return status;
  return impl_->HeadUsage(sequence);
}

std::int64_t KvCache::bytes_per_token() const noexcept {
  const std::int64_t page_size = impl_->params().page_size;
  return CeilDiv(impl_->page_row_bytes(), page_size);
}

std::int64_t KvCache::bytes_per_token(std::int64_t layer, std::int64_t head) const noexcept {
  const std::int64_t page_size = impl_->params().page_size;
  return CeilDiv(KvRowBytes(impl_->Head(layer, head), page_size), page_size);
}

}  // namespace manyhead
