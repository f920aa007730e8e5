#include <algorithm>
#include <string>
#include <utility>

#include "runtime/cache/kv_cache_impl.h"
#include "runtime/cache/sequence_cache.h"
#include "runtime/session/session_impl.h"

/// Switches heads off, and on again, while a session holds tokens.

namespace manyhead {

/// Checks that the cache, which holds tokens, has all that `heads` need.
Status Session::Impl::CheckKept(const KvHeads& heads) const {
  const KvHeads& now = cache.params().heads;
  for (std::size_t l = 0; l < heads.size(); ++l)
    for (std::size_t h = 0; h < heads[l].size(); ++h)
      if (now[l][h].policy.kind == KvPolicyKind::kOff &&
          heads[l][h].policy.kind != KvPolicyKind::kOff)
        return Status(StatusCode::kInvalidArgument,
                      "Session: KV head " + std::to_string(h) + " of layer " + std::to_string(l) +
                          " lacks the " + std::to_string(length()) +
                          " tokens held; expected an empty session, or kReevaluate or kDrop");
  return Status();
}

void Session::Impl::SetEdits(std::vector<HeadEdits> wanted) {
  decoder.SkipUnread(wanted);
  edits = std::move(wanted);
}

/// Replaces the cache by one for `heads`, which is empty or holds the same tokens, evaluated again.
Status Session::Impl::StartAnew(const Ablation& wanted, const KvHeads& heads, bool evaluate) {
  KvCacheParams params = cache_params;
  params.heads = heads;
  Result<SequenceCache> other = CreateSequenceCache(params, options.chunk, options.prefix_bytes);
  if (!other.ok()) return other.status();
  std::vector<TokenId> other_tokens;
  std::vector<RowRole> other_roles;
  other_tokens.reserve(static_cast<std::size_t>(options.context));
  other_roles.reserve(static_cast<std::size_t>(options.context));
  const std::vector<float> last_logits(logits.data(), logits.data() + vocab());
  std::int64_t other_as_prompt = 0, other_length = -1;
  const auto swap_with_other = [&] {
    std::swap(cache, other->cache);
    std::swap(sequence, other->sequence);
    std::swap(tokens, other_tokens);
    std::swap(roles, other_roles);
    std::swap(as_prompt, other_as_prompt);
    std::swap(logits_length, other_length);
  };
  swap_with_other();
  SetEdits(EditsOf(model.config(), wanted, heads));
  const Status status = evaluate ? AppendAgain(other_tokens, other_roles) : Status();
  if (status.ok()) return status;
  swap_with_other();
  std::copy(last_logits.begin(), last_logits.end(), logits.data());
  SetEdits(EditsOf(model.config(), ablation, cache.params().heads));
  return status;
}

/// Keeps the tokens that are held, except in heads that no query reads any more.
Status Session::Impl::Keep(const Ablation& wanted, const KvHeads& heads) {
  if (Status status = CheckKept(heads); !status.ok()) return status;
  SetEdits(EditsOf(model.config(), wanted, heads));
  for (std::size_t l = 0; l < heads.size(); ++l)
    for (std::size_t h = 0; h < heads[l].size(); ++h)
      if (heads[l][h].policy.kind == KvPolicyKind::kOff)
        cache.impl().TurnOff(static_cast<std::int64_t>(l), static_cast<std::int64_t>(h));
  if (wanted == ablation) return Status();
  mixed = true;
  as_prompt = 0;  // the bits are no longer those of a prompt under one ablation
  return Status();
}

Status Session::Impl::SetAblation(const Ablation& wanted, HeldTokens held) {
  const ModelConfig& config = model.config();
  if (Status status = CheckAblation(config, wanted); !status.ok()) return status;
  if (held > HeldTokens::kDrop)
    return Status(StatusCode::kInvalidArgument,
                  "Session: held = " + std::to_string(static_cast<int>(held)) +
                      "; expected 0..2 (reevaluate, keep, drop)");
  const KvHeads heads = HeadsRead(config, wanted, cache_params.heads);
  Status status;
  if (held == HeldTokens::kKeep && length() > 0) {
    status = Keep(wanted, heads);
  } else if (held == HeldTokens::kReevaluate && wanted == ablation && !mixed) {
    return status;
  } else if (heads == cache.params().heads && (held == HeldTokens::kDrop || length() == 0)) {
    status = Cut(0);
    if (status.ok()) SetEdits(EditsOf(config, wanted, heads));
  } else {
    status = StartAnew(wanted, heads, held == HeldTokens::kReevaluate);
  }
  if (!status.ok()) return status;
  if (held != HeldTokens::kKeep) mixed = false;
  ablation = wanted;
  ablation_key = AblationKey(wanted);
  return status;
}

Status Session::SetAblation(const Ablation& ablation, HeldTokens held) {
  return impl_->SetAblation(ablation, held);
}

const Ablation& Session::ablation() const noexcept { return impl_->ablation; }

}  // namespace manyhead
