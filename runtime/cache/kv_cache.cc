#include "manyhead/kv_cache.h"

#include <utility>
#include <vector>

#include "runtime/cache/cache_usage.h"
#include "runtime/cache/check_arguments.h"
#include "runtime/cache/kv_cache_impl.h"
#include "runtime/cache/kv_resolve.h"
#include "runtime/cache/sequence_edits.h"
#include "runtime/cache/snapshot_restore.h"
#include "runtime/cache/snapshot_save.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/math.h"
#include "runtime/platform/team.h"

namespace manyhead {
namespace {

const Status& StatusOf(const Status& status) noexcept { return status; }
template <class T>
const Status& StatusOf(const Result<T>& result) noexcept {
  return result.status();
}

/// Returns the result of `operation`; stored prefixes are evicted where it finds no room.
template <class Operation>
auto WithRoom(KvCache::Impl& impl, const Operation& operation) {
  for (;;) {
    auto result = operation();
    // The operation is planned again each time: evicting changes which pages are shared and must be
    // copied.
    if (StatusOf(result).code() != StatusCode::kOutOfPages || !impl.prefixes.DropOldest())
      return result;
  }
}

}  // namespace

Result<KvCache> KvCache::Create(const KvCacheParams& params) {
  Result<KvCacheParams> resolved = ResolveKvCacheParams(params);
  if (!resolved.ok()) return resolved.status();
  Result<std::unique_ptr<Impl>> impl = Impl::Create(*std::move(resolved));
  if (!impl.ok()) return impl.status();
  return KvCache(std::move(*impl));
}

KvCache::KvCache(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;
KvCache::~KvCache() = default;

Result<SequenceId> KvCache::CreateSequence() {
  return WithRoom(*impl_, [&] { return impl_->sequences.Create(); });
}

Status KvCache::FreeSequence(SequenceId sequence) {
  if (Status status = CheckSequence(*impl_, "KvCache::FreeSequence", sequence); !status.ok())
    return status;
  impl_->sequences.Free(sequence);
  return Status();
}

Status KvCache::Reserve(SequenceId sequence, std::int64_t count) {
  if (Status status = CheckSequence(*impl_, "KvCache::Reserve", sequence); !status.ok())
    return status;
  if (count < 0)
    return InvalidArgument("KvCache::Reserve", "count = ", count, "; expected 0 or more");
  const auto reserve = [&] {
    return ReserveTokens(impl_->pages, impl_->At(sequence), count, "KvCache::Reserve");
  };
  // Evicting does not help a sequence that is too long.
  if (count > impl_->params().max_tokens - impl_->Length(sequence)) return reserve();
  return WithRoom(*impl_, reserve);
}

Status KvCache::Evict(SequenceId sequence) {
  if (Status status = CheckSequence(*impl_, "KvCache::Evict", sequence); !status.ok())
    return status;
  return WithRoom(*impl_, [&] {
    return ReserveTokens(impl_->pages, impl_->At(sequence), 0, "KvCache::Evict");
  });
}

Result<SequenceId> KvCache::Fork(SequenceId sequence) {
  if (Status status = CheckSequence(*impl_, "KvCache::Fork", sequence); !status.ok()) return status;
  return WithRoom(*impl_, [&] { return impl_->sequences.Fork(sequence); });
}

Result<bool> KvCache::Truncate(SequenceId sequence, std::int64_t length) {
  if (Status status = CheckLength(*impl_, "KvCache::Truncate", sequence, length); !status.ok())
    return status;
  return TruncateSequence(impl_->pages, impl_->At(sequence), length);
}

Status KvCache::Rollback(SequenceId sequence, std::int64_t count) {
  constexpr const char* kName = "KvCache::Rollback";
  if (Status status = CheckSequence(*impl_, kName, sequence); !status.ok()) return status;
  KvSequence& held = impl_->At(sequence);
  if (count < 0 || count > held.length)
    return InvalidArgument(kName, "count = ", count, "; expected 0..", held.length);
  const std::int64_t wanted = held.length - count;
  if (const std::int64_t exact = ExactLengthOf(impl_->heads, held, wanted); exact != wanted)
    return InvalidArgument(
        kName, "count = ", count, " leads back to length ", wanted,
        ", where tokens that policies would show were evicted; the largest exact "
        "length up to it is ",
        exact);
  TruncateSequence(impl_->pages, held, wanted);
  return Status();
}

Result<std::int64_t> KvCache::ExactLength(SequenceId sequence, std::int64_t length) const {
  if (Status status = CheckLength(*impl_, "KvCache::ExactLength", sequence, length); !status.ok())
    return status;
  return ExactLengthOf(impl_->heads, impl_->At(sequence), length);
}

Status KvCache::Copy(SequenceId source, std::int64_t begin, std::int64_t end, SequenceId sequence) {
  if (Status status = CheckSequence(*impl_, "KvCache::Copy", source); !status.ok()) return status;
  if (Status status = CheckSequence(*impl_, "KvCache::Copy", sequence); !status.ok()) return status;
  if (Status status = CheckTokens("KvCache::Copy", begin, end, impl_->Length(source)); !status.ok())
    return status;
  if (begin < impl_->Length(sequence))
    return InvalidArgument("KvCache::Copy", "begin = ", begin, "; the sequence it goes to has ",
                           impl_->Length(sequence), " tokens already");
  return WithRoom(*impl_, [&] {
    return CopyTokens(impl_->pages, impl_->At(source), begin, end, impl_->At(sequence));
  });
}

Status KvCache::Drop(SequenceId sequence, std::int64_t begin, std::int64_t end) {
  if (Status status = CheckSequence(*impl_, "KvCache::Drop", sequence); !status.ok()) return status;
  if (Status status = CheckTokens("KvCache::Drop", begin, end, impl_->Length(sequence));
      !status.ok())
    return status;
  return WithRoom(*impl_,
                  [&] { return DropTokens(impl_->pages, impl_->At(sequence), begin, end); });
}

Status KvCache::Write(SequenceId sequence, std::int64_t layer, std::int64_t position,
                      std::int64_t count, const float* k, const float* v, std::int64_t k_stride,
                      std::int64_t v_stride) {
  const Result<WriteArguments> checked =
      CheckWrite(*impl_, sequence, {layer, position, count, k, v, k_stride, v_stride});
  if (!checked.ok()) return checked.status();
  if (count == 0) return Status();
  const auto unshare = [&] {
    return UnshareTokens(impl_->pages, impl_->At(sequence), layer, position, count);
  };
  if (Status status = WithRoom(*impl_, unshare); !status.ok()) return status;
  TeamState state;
  Worker alone(state, 0, 1);
  const KvRows rows[] = {{sequence, position, count, 0}};
  impl_->WriteOn(alone, layer, rows, k, v, checked->k_stride, checked->v_stride);
  return Status();
}

Status KvCache::Read(SequenceId sequence, std::int64_t layer, std::int64_t head,
                     std::int64_t position, float* k, float* v) const {
  if (Status status = CheckRead(*impl_, sequence, layer, head, position); !status.ok())
    return status;
  impl_->ReadRow(sequence, layer, head, position, k, v);
  return Status();
}

Status KvCache::Save(const std::string& path, std::span<const SequenceId> sequences,
                     const KvSnapshotInfo& info) const {
  std::vector<const KvSequence*> found;
  for (const SequenceId id : sequences) {
    if (Status status = CheckSequence(*impl_, "KvCache::Save", id); !status.ok()) return status;
    found.push_back(&impl_->At(id));
  }
  return SaveSequences(impl_->heads, found, path, info);
}

Result<KvRestored> KvCache::Restore(const std::string& path, const KvRestoreOptions& options) {
  return RestoreSequences(impl_->pages, impl_->sequences, impl_->prefixes, *impl_->kernels, path,
                          options);
}

std::vector<SequenceId> KvCache::sequences() const { return impl_->sequences.slots().Ids(); }

Status KvCache::StorePrefix(std::string_view key, std::span<const TokenId> tokens,
                            SequenceId sequence) {
  if (Status status = CheckSequence(*impl_, "KvCache::StorePrefix", sequence); !status.ok())
    return status;
  if (std::ssize(tokens) > impl_->Length(sequence))
    return InvalidArgument("KvCache::StorePrefix", "tokens has ", tokens.size(),
                           " ids; the sequence has ", impl_->Length(sequence), " tokens");
  return WithRoom(*impl_, [&] { return impl_->prefixes.Store(key, tokens, sequence); });
}

Result<std::optional<SequenceId>> KvCache::ForkPrefix(std::string_view key,
                                                      std::span<const TokenId> tokens) {
  return WithRoom(*impl_, [&] { return impl_->prefixes.Fork(key, tokens); });
}

std::int64_t KvCache::num_prefixes() const noexcept { return impl_->prefixes.count(); }

void KvCache::ClearPrefixes() noexcept {
  while (impl_->prefixes.DropOldest()) {
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

KvUsage KvCache::usage() const { return UsageOf(impl_->pages); }

Result<KvUsage> KvCache::usage(SequenceId sequence) const {
  if (Status status = CheckSequence(*impl_, "KvCache::usage", sequence); !status.ok())
    return status;
  return UsageOf(impl_->pages, impl_->At(sequence));
}

Result<std::vector<std::vector<KvHeadUsage>>> KvCache::head_usage(SequenceId sequence) const {
  if (Status status = CheckSequence(*impl_, "KvCache::head_usage", sequence); !status.ok())
    return status;
  return HeadUsageOf(impl_->heads, impl_->At(sequence));
}

std::int64_t KvCache::bytes_per_token() const noexcept {
  const std::int64_t page_size = impl_->params().page_size;
  return CeilDiv(impl_->heads.page_row_bytes(), page_size);
}

std::int64_t KvCache::bytes_per_token(std::int64_t layer, std::int64_t head) const noexcept {
  const std::int64_t page_size = impl_->params().page_size;
  return CeilDiv(KvRowBytes(impl_->Head(layer, head), page_size), page_size);
}

}  // namespace manyhead
