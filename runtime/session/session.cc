#include "manyhead/session.h"

#include <algorithm>
#include <string>
#include <utility>

#include "runtime/cache/sequence_cache.h"
#include "runtime/model/score_rows.h"
#include "runtime/platform/errors.h"
#include "runtime/platform/isa.h"
#include "runtime/platform/threads.h"
#include "runtime/session/session_impl.h"

namespace manyhead {
namespace {

constexpr std::int64_t kDefaultContext = 8192;
constexpr std::int64_t kMaxContext = std::int64_t{1} << 31;

}  // namespace

Status CompleteSessionOptions(const ModelConfig& config, SessionOptions& options) {
  if (options.context == 0) options.context = std::min(config.context_length, kDefaultContext);
  if (options.threads == 0) options.threads = DefaultThreads();
  if (options.context < 1 || options.context > kMaxContext)
    return OutOfRange("Session", "context", options.context, 1, kMaxContext);
  if (options.threads < 1 || options.threads > kMaxThreads)
    return OutOfRange("Session", "threads", options.threads, 1, kMaxThreads);
  if (options.chunk < 1 || options.chunk > kMaxContext)
    return OutOfRange("Session", "chunk", options.chunk, 1, kMaxContext);
  if (options.kv_budget_bytes < 0)
    return OutOfRange("Session", "kv_budget_bytes", options.kv_budget_bytes, 0, INT64_MAX);
  if (options.prefix_bytes < 0)
    return OutOfRange("Session", "prefix_bytes", options.prefix_bytes, 0, INT64_MAX);
  if (config.positions == PositionKind::kLearned && options.context > config.num_positions)
    return OutOfRange("Session", "context", options.context, 1, config.num_positions);
  options.chunk = std::min(options.chunk, options.context);
  const Result<Isa> isa = ResolveIsa("Session", options.isa);
  if (!isa.ok()) return isa.status();
  options.isa = *isa;
  if (const Result<Team> team = SelectTeam(); !team.ok()) return team.status();
  return {};
}

Result<KvCacheParams> SessionCacheParams(const ModelConfig& config, const SessionOptions& options) {
  KvCacheParams params;
  params.layers = Decoder::CacheLayers(config);
  params.k_type = options.k_type;
  params.v_type = options.v_type;
  params.max_tokens = options.context;
  params.isa = options.isa;
  if (!options.kv_policy.empty()) {
    auto heads = ParseKvHeads(options.kv_policy, params);
    if (!heads.ok()) return heads.status();
    params.heads = *std::move(heads);
  }
  return params;
}

Status Session::Impl::CheckIds(std::span<const TokenId> ids, std::int64_t held) const {
  if (ids.empty())
    return Status(StatusCode::kInvalidArgument, "Session: ids has 0 tokens; expected at least 1");
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab())
      return Status(StatusCode::kInvalidArgument,
                    "Session: ids[" + std::to_string(i) + "] = " + std::to_string(ids[i]) +
                        "; expected 0 to " + std::to_string(vocab() - 1));
  const std::int64_t count = static_cast<std::int64_t>(ids.size());
  if (held + count > options.context)
    return Status(StatusCode::kOutOfPages,
                  "Session: " + std::to_string(held) + " tokens + " + std::to_string(count) +
                      " exceed context = " + std::to_string(options.context));
  return {};
}

/// Appends tokens in one step. Tokens count as a prompt's if they, and all before them, were
/// evaluated as a prompt, or in a role that uses the same products.
Status Session::Impl::AppendChunk(std::span<const TokenId> ids, RowRole role, float* out) {
  logits_length = -1;
  if (Status status = cache.Reserve(sequence, static_cast<std::int64_t>(ids.size())); !status.ok())
    return status;
  SequenceStep step(cache, sequence, ids, role);
  step.sequence.edits = &edits;
  if (!observer.is_idle()) step.sequence.attention_tap = &observer;
  if (Status status = decoder.Step(cache, step.Batch(out)); !status.ok()) {
    const Result<bool> undone = cache.Truncate(sequence, length());
    return undone.ok() ? status : undone.status();
  }
  if (as_prompt == length() && (role == RowRole::kPrefill || decoder.RolesAgree(length())))
    as_prompt += std::ssize(ids);
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  roles.resize(tokens.size(), role);
  if (out != nullptr) logits_length = length();
  return {};
}

Status Session::Impl::AppendAll(std::span<const TokenId> ids, RowRole role,
                                const ChunkObserver& after_chunk) {
  if (Status status = CheckIds(ids, length()); !status.ok()) return status;
  while (!ids.empty()) {
    const auto chunk = ids.first(std::min(ids.size(), static_cast<std::size_t>(options.chunk)));
    ids = ids.subspan(chunk.size());
    // Only the last token of the last chunk needs logits.
    if (Status status = AppendChunk(chunk, role, ids.empty() ? logits.data() : nullptr);
        !status.ok())
      return status;
    if (after_chunk && !after_chunk(static_cast<std::int64_t>(chunk.size()))) break;
  }
  return {};
}

Status Session::Impl::AppendAgain(std::span<const TokenId> ids,
                                  std::span<const RowRole> ids_roles) {
  while (!ids.empty()) {
    const auto other = std::find_if(ids_roles.begin(), ids_roles.end(),
                                    [&](RowRole role) { return role != ids_roles.front(); });
    const auto count = static_cast<std::size_t>(other - ids_roles.begin());
    if (Status status = AppendAll(ids.first(count), ids_roles.front(), nullptr); !status.ok())
      return status;
    ids = ids.subspan(count);
    ids_roles = ids_roles.subspan(count);
  }
  return {};
}

/// Keeps the first `length` tokens, where the cache can do so exactly.
Status Session::Impl::Cut(std::int64_t length_wanted) {
  if (Status status = cache.Truncate(sequence, length_wanted).status(); !status.ok()) return status;
  if (length_wanted < length()) logits_length = -1;
  tokens.resize(static_cast<std::size_t>(length_wanted));
  roles.resize(tokens.size());
  as_prompt = std::min(as_prompt, length_wanted);
  return Status();
}

Status Session::Impl::Truncate(std::int64_t length_wanted) {
  if (length_wanted < 0 || length_wanted > length())
    return OutOfRange("Session", "length", length_wanted, 0, length());
  const Result<std::int64_t> exact = cache.ExactLength(sequence, length_wanted);
  if (!exact.ok()) return exact.status();
  const std::vector<TokenId> again(tokens.begin() + *exact, tokens.begin() + length_wanted);
  const std::vector<RowRole> again_roles(roles.begin() + *exact, roles.begin() + length_wanted);
  if (Status status = Cut(*exact); !status.ok()) return status;
  return AppendAgain(again, again_roles);
}

Status Session::Impl::Score(std::span<const TokenId> ids, std::span<double> nll) {
  if (Status status = CheckIds(ids, length()); !status.ok()) return status;
  if (nll.size() + 1 != ids.size())
    return Status(StatusCode::kInvalidArgument,
                  "Session: nll has " + std::to_string(nll.size()) +
                      " elements; expected ids - 1 = " + std::to_string(ids.size() - 1));
  if (score_logits.size() == 0) score_logits = AlignedBuffer<float>(kScoreRows * vocab());
  const std::size_t chunk_size = static_cast<std::size_t>(options.chunk);
  const std::int64_t before = length();
  for (std::size_t begin = 0; begin < ids.size(); begin += chunk_size) {
    const auto chunk = ids.subspan(begin, std::min(chunk_size, ids.size() - begin));
    if (Status status = AppendChunk(chunk, RowRole::kPrefill, nullptr); !status.ok()) return status;
    const auto targets = ids.subspan(begin + 1, std::min(chunk.size(), ids.size() - begin - 1));
    ScoreRows(decoder, targets, options.threads, score_logits, nll.data() + begin);
  }
  if (Status status = CheckNll("Session: ", nll); !status.ok()) {
    const Status undone = Truncate(before);
    return undone.ok() ? status : undone;
  }
  return {};
}

Status Session::Impl::AppendLogits(std::span<const TokenId> ids, RowRole role,
                                   std::span<float> rows) {
  if (Status status = CheckIds(ids, length()); !status.ok()) return status;
  const std::int64_t wanted = std::ssize(ids) * vocab();
  if (std::ssize(rows) != wanted)
    return Status(StatusCode::kInvalidArgument,
                  "Session: logits has " + std::to_string(rows.size()) +
                      " elements; expected ids * vocab_size = " + std::to_string(wanted));
  float* out = rows.data();
  while (!ids.empty()) {
    const auto chunk = ids.first(std::min(ids.size(), static_cast<std::size_t>(options.chunk)));
    if (Status status = AppendChunk(chunk, role, nullptr); !status.ok()) return status;
    const std::int64_t count = std::ssize(chunk);
    for (std::int64_t begin = 0; begin < count; begin += kScoreRows) {
      const std::int64_t block = std::min(kScoreRows, count - begin);
      decoder.Logits(begin, block, out);
      out += block * vocab();
    }
    ids = ids.subspan(chunk.size());
  }
  std::copy(out - vocab(), out, logits.data());
  logits_length = length();
  return Status();
}

Result<Session> Session::Create(const Model& model, const SessionOptions& wanted) {
  SessionOptions options = wanted;
  if (Status status = CompleteSessionOptions(model.config(), options); !status.ok()) return status;
  Result<KvCacheParams> cache_params = SessionCacheParams(model.config(), options);
  if (!cache_params.ok()) return cache_params.status();
  Result<Decoder> decoder = Decoder::Create(model.impl(), {.max_rows = options.chunk,
                                                           .max_tokens = options.context,
                                                           .threads = options.threads,
                                                           .isa = *options.isa,
                                                           .math = options.math});
  if (!decoder.ok()) return decoder.status();
  if (options.kv_budget_bytes > 0) {
    const Result<std::int64_t> token = KvCapacityBytes(*cache_params, 1, 1);
    if (!token.ok()) return token.status();
    const std::int64_t least = decoder->attention_bytes() + *token;
    if (options.kv_budget_bytes < least)
      return OutOfRange("Session", "kv_budget_bytes", options.kv_budget_bytes, least, INT64_MAX);
    cache_params->capacity_bytes = options.kv_budget_bytes - decoder->attention_bytes();
  }
  Result<SequenceCache> made =
      CreateSequenceCache(*cache_params, options.chunk, options.prefix_bytes);
  if (!made.ok()) return made.status();
  auto impl = std::make_unique<Impl>(Impl{model,
                                          options,
                                          std::move(made->cache),
                                          made->sequence,
                                          *std::move(decoder),
                                          AlignedBuffer<float>(model.config().vocab_size),
                                          {},
                                          {}});
  impl->cache_params = *std::move(cache_params);
  impl->cache_params.heads = impl->cache.params().heads;  // defaults filled in
  impl->SetEdits(EditsOf(model.config(), {}, impl->cache_params.heads));
  impl->tokens.reserve(static_cast<std::size_t>(options.context));
  impl->roles.reserve(static_cast<std::size_t>(options.context));
  return Session(std::move(impl));
}

Session::Session(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

namespace {

/// Returns the role that `ids` are appended in.
Result<RowRole> RoleOf(std::span<const TokenId> ids, std::optional<RowRole> role) {
  if (role && *role > RowRole::kDecode)
    return OutOfRange("Session", "role", static_cast<std::int64_t>(*role), 0, 1);
  return role.value_or(ids.size() == 1 ? RowRole::kDecode : RowRole::kPrefill);
}

}  // namespace

Result<std::span<const float>> Session::Append(std::span<const TokenId> ids,
                                               std::optional<RowRole> wanted) {
  const Result<RowRole> role = RoleOf(ids, wanted);
  if (!role.ok()) return role.status();
  if (Status status = impl_->AppendAll(ids, *role, nullptr); !status.ok()) return status;
  return std::span<const float>(impl_->logits.data(), static_cast<std::size_t>(impl_->vocab()));
}

Status Session::AppendLogits(std::span<const TokenId> ids, std::span<float> logits,
                             std::optional<RowRole> wanted) {
  const Result<RowRole> role = RoleOf(ids, wanted);
  return role.ok() ? impl_->AppendLogits(ids, *role, logits) : role.status();
}

Status Session::Score(std::span<const TokenId> ids, std::span<double> nll) {
  return impl_->Score(ids, nll);
}

Status Session::Truncate(std::int64_t length) { return impl_->Truncate(length); }

std::vector<ProductPath> Session::ProductPaths() const { return impl_->decoder.ProductPaths(); }

void Session::SetProfile(StepProfile* profile) { impl_->decoder.SetProfile(profile); }

std::int64_t Session::length() const noexcept { return impl_->length(); }
std::span<const TokenId> Session::tokens() const noexcept { return impl_->tokens; }
std::int64_t Session::context() const noexcept { return impl_->options.context; }
int Session::threads() const noexcept { return impl_->options.threads; }
Isa Session::isa() const noexcept { return *impl_->options.isa; }
const SessionOptions& Session::options() const noexcept { return impl_->options; }
const KvCache& Session::cache() const noexcept { return impl_->cache; }
std::int64_t Session::scratch_bytes() const noexcept {
  return impl_->decoder.scratch_bytes() + impl_->logits.size_bytes() +
         impl_->score_logits.size_bytes();
}

}  // namespace manyhead
