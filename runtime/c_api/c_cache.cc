#include "runtime/c_api/c_handles.h"

using manyhead::SequenceId;
using manyhead::Status;
using manyhead::c_api::Call;
using manyhead::c_api::CheckArray;
using manyhead::c_api::CheckPointer;
using manyhead::c_api::CheckSize;
using manyhead::c_api::Invalid;
using manyhead::c_api::Outcome;

namespace {

std::optional<Outcome> ReadParams(const mh_cache_params& params, manyhead::KvCacheParams& result) {
  if (auto error = CheckSize(params, "mh_cache_params")) return error;
  if (auto error = CheckArray(params.layers, params.num_layers, "layers")) return error;
  for (const mh_layer_shape& layer : std::span(params.layers, params.num_layers))
    result.layers.push_back({layer.num_kv_heads, layer.head_dim, layer.head_dim_v});
  if (auto error = manyhead::c_api::ReadKvType(params.k_type, "k_type", result.k_type))
    return error;
  if (auto error = manyhead::c_api::ReadKvType(params.v_type, "v_type", result.v_type))
    return error;
  result.page_size = params.page_size;
  result.capacity_bytes = params.capacity_bytes;
  result.max_tokens = params.max_tokens;
  if (auto error = manyhead::c_api::ReadIsa(params.isa, result.isa)) return error;
  if (params.heads == nullptr) return std::nullopt;
  auto heads = manyhead::ParseKvHeads(params.heads, result);
  if (!heads.ok()) return heads.status();
  result.heads = std::move(*heads);
  return std::nullopt;
}

/// Stores the id of a new sequence, or returns the error.
Outcome GiveSequence(const manyhead::Result<SequenceId>& made, int32_t* sequence) {
  if (!made.ok()) return made.status();
  *sequence = static_cast<int32_t>(*made);
  return Status();
}

}  // namespace

void mh_cache_params_init(mh_cache_params* params) {
  if (params == nullptr) return;
  *params = {};
  params->struct_size = sizeof *params;
  params->k_type = params->v_type = MH_KV_F16;
}

mh_status mh_cache_create(const mh_cache_params* params, mh_cache** cache, mh_message* message) {
  return manyhead::c_api::CreateHandle(cache, message, [&](mh_cache*& place) -> Outcome {
    if (auto error = CheckPointer(params, "params")) return *error;
    manyhead::KvCacheParams chosen;
    if (auto error = ReadParams(*params, chosen)) return *error;
    auto created = manyhead::KvCache::Create(chosen);
    if (!created.ok()) return created.status();
    place = new mh_cache{std::move(*created)};
    return Status();
  });
}

void mh_cache_free(mh_cache** cache) { manyhead::c_api::FreeHandle(cache); }

const char* mh_cache_message(const mh_cache* cache) {
  return cache == nullptr ? "the cache is NULL" : cache->message.text;
}

mh_status mh_cache_create_sequence(mh_cache* cache, int32_t* sequence) {
  return Call(cache, [&]() -> Outcome {
    if (auto error = CheckPointer(sequence, "sequence")) return *error;
    return GiveSequence(cache->cache.CreateSequence(), sequence);
  });
}

mh_status mh_cache_free_sequence(mh_cache* cache, int32_t sequence) {
  return Call(cache, [&]() -> Outcome { return cache->cache.FreeSequence(SequenceId{sequence}); });
}

mh_status mh_cache_fork(mh_cache* cache, int32_t sequence, int32_t* fork) {
  return Call(cache, [&]() -> Outcome {
    if (auto error = CheckPointer(fork, "fork")) return *error;
    return GiveSequence(cache->cache.Fork(SequenceId{sequence}), fork);
  });
}

mh_status mh_cache_reserve(mh_cache* cache, int32_t sequence, int64_t count) {
  return Call(cache,
              [&]() -> Outcome { return cache->cache.Reserve(SequenceId{sequence}, count); });
}

mh_status mh_cache_write(mh_cache* cache, int32_t sequence, int64_t layer, int64_t position,
                         int64_t count, const float* k, const float* v) {
  return Call(cache, [&]() -> Outcome {
    return cache->cache.Write(SequenceId{sequence}, layer, position, count, k, v);
  });
}

mh_status mh_cache_read(mh_cache* cache, int32_t sequence, int64_t layer, int64_t head,
                        int64_t position, float* k, float* v) {
  return Call(cache, [&]() -> Outcome {
    return cache->cache.Read(SequenceId{sequence}, layer, head, position, k, v);
  });
}

mh_status mh_cache_truncate(mh_cache* cache, int32_t sequence, int64_t length, int* exact) {
  return Call(cache, [&]() -> Outcome {
    const auto truncated = cache->cache.Truncate(SequenceId{sequence}, length);
    if (!truncated.ok()) return truncated.status();
    if (exact != nullptr) *exact = *truncated ? 1 : 0;
    return Status();
  });
}

mh_status mh_cache_rollback(mh_cache* cache, int32_t sequence, int64_t count) {
  return Call(cache,
              [&]() -> Outcome { return cache->cache.Rollback(SequenceId{sequence}, count); });
}

mh_status mh_cache_drop(mh_cache* cache, int32_t sequence, int64_t begin, int64_t end) {
  return Call(cache,
              [&]() -> Outcome { return cache->cache.Drop(SequenceId{sequence}, begin, end); });
}

mh_status mh_cache_evict(mh_cache* cache, int32_t sequence) {
  return Call(cache, [&]() -> Outcome { return cache->cache.Evict(SequenceId{sequence}); });
}

mh_status mh_cache_save(mh_cache* cache, const char* path, const int32_t* sequences, size_t count,
                        const char* fingerprint) {
  return Call(cache, [&]() -> Outcome {
    if (auto error = CheckPointer(path, "path")) return *error;
    if (auto error = CheckArray(sequences, count, "sequences")) return *error;
    std::vector<SequenceId> ids;
    for (const int32_t id : std::span(sequences, count)) ids.push_back(SequenceId{id});
    manyhead::KvSnapshotInfo info;
    if (fingerprint != nullptr) info.fingerprint = fingerprint;
    return cache->cache.Save(path, ids, info);
  });
}

mh_status mh_cache_restore(mh_cache* cache, const char* path, const char* fingerprint,
                           int convert_types, int32_t* sequences, size_t capacity, size_t* count) {
  return Call(cache, [&]() -> Outcome {
    if (auto error = CheckPointer(path, "path")) return *error;
    if (auto error = CheckArray(sequences, capacity, "sequences")) return *error;
    if (auto error = CheckPointer(count, "count")) return *error;
    manyhead::KvRestoreOptions options;
    if (fingerprint != nullptr) options.fingerprint = fingerprint;
    options.convert_types = convert_types != 0;
    const auto restored = cache->cache.Restore(path, options);
    if (!restored.ok()) return restored.status();
    static_assert(sizeof(SequenceId) == sizeof(int32_t));
    const auto& ids = restored->sequences;
    Outcome outcome = manyhead::c_api::CopyOut(reinterpret_cast<const int32_t*>(ids.data()),
                                               ids.size(), sequences, capacity, count, "sequences");
    if (outcome.code != MH_OK)
      for (const SequenceId id : ids)
        if (Status status = cache->cache.FreeSequence(id); !status.ok()) return status;
    return outcome;
  });
}

int64_t mh_cache_length(const mh_cache* cache, int32_t sequence) {
  return cache == nullptr ? -1 : cache->cache.length(SequenceId{sequence});
}

int64_t mh_cache_bytes_per_token(const mh_cache* cache) {
  return cache == nullptr ? 0 : cache->cache.bytes_per_token();
}

mh_status mh_cache_get_usage(mh_cache* cache, mh_kv_usage* usage) {
  return Call(cache, [&]() -> Outcome {
    if (auto error = CheckPointer(usage, "usage")) return *error;
    const manyhead::KvUsage held = cache->cache.usage();
    *usage = {held.capacity_bytes, held.used_bytes, held.table_bytes};
    return Status();
  });
}

mh_status mh_cache_get_head_usage(mh_cache* cache, int32_t sequence, int64_t layer, int64_t head,
                                  mh_head_usage* usage) {
  return Call(cache, [&]() -> Outcome {
    if (auto error = CheckPointer(usage, "usage")) return *error;
    const auto heads = cache->cache.head_usage(SequenceId{sequence});
    if (!heads.ok()) return heads.status();
    if (layer < 0 || layer >= std::ssize(*heads))
      return Invalid("layer = " + std::to_string(layer) + "; expected 0 to " +
                     std::to_string(std::ssize(*heads) - 1));
    const auto& of_layer = (*heads)[static_cast<std::size_t>(layer)];
    if (head < 0 || head >= std::ssize(of_layer))
      return Invalid("head = " + std::to_string(head) + "; expected 0 to " +
                     std::to_string(std::ssize(of_layer) - 1));
    const manyhead::KvHeadUsage& held = of_layer[static_cast<std::size_t>(head)];
    *usage = {held.tokens, held.pages, held.page_bytes};
    return Status();
  });
}
