#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/model/fingerprint.h"
#include "runtime/model/weights.h"
#include "runtime/session/session_impl.h"

/// Stores a session in a file: a snapshot of its sequence with the following user data,
/// little-endian,
///
///   i64 number of tokens, i32 each
///   i64 number of first tokens that have the bits of a prompt
///   u64 seed that continues the random numbers
///   i64 number of logits, 0 or those of the vocabulary, f32 each
///   i64 number of runs of tokens of one role, i64 the length of each; the first run is a prompt's,
///       the next was decoded, and so on. Without them, tokens without the bits of a prompt were
///       decoded.

namespace manyhead {
namespace {

template <class T>
void Put(std::string& bytes, const T* values, std::size_t count) {
  bytes.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

template <class T>
void PutCounted(std::string& bytes, std::span<const T> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  Put(bytes, &count, 1);
  Put(bytes, values.data(), values.size());
}

/// Reads values from the front of `bytes`; returns false where there are not enough.
template <class T>
bool Get(std::string_view& bytes, T* values, std::int64_t count) {
  if (count < 0 || static_cast<std::uint64_t>(count) > bytes.size() / sizeof(T)) return false;
  const std::size_t size = static_cast<std::size_t>(count) * sizeof(T);
  if (size > 0) std::memcpy(values, bytes.data(), size);
  bytes.remove_prefix(size);
  return true;
}

/// Reads a number and that many values, at most `most`.
template <class T>
bool GetCounted(std::string_view& bytes, std::vector<T>& values, std::int64_t most) {
  std::int64_t count = 0;
  if (!Get(bytes, &count, 1) || count < 0 || count > most) return false;
  values.resize(static_cast<std::size_t>(count));
  return Get(bytes, values.data(), count);
}

std::vector<std::int64_t> RunsOf(std::span<const RowRole> roles) {
  std::vector<std::int64_t> runs;
  RowRole role = RowRole::kPrefill;
  for (auto at = roles.begin(); at != roles.end();) {
    const auto end = std::find_if(at, roles.end(), [&](RowRole other) { return other != role; });
    runs.push_back(end - at);
    role = role == RowRole::kPrefill ? RowRole::kDecode : RowRole::kPrefill;
    at = end;
  }
  return runs;
}

/// Expands `runs`, which RunsOf returns for `count` tokens, to roles; returns false for other runs.
bool RolesOf(std::span<const std::int64_t> runs, std::int64_t count, std::vector<RowRole>& roles) {
  RowRole role = RowRole::kPrefill;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::int64_t left = count - std::ssize(roles);
    if (runs[i] < (i == 0 ? 0 : 1) || runs[i] > left) return false;
    roles.resize(roles.size() + static_cast<std::size_t>(runs[i]), role);
    role = role == RowRole::kPrefill ? RowRole::kDecode : RowRole::kPrefill;
  }
  return std::ssize(roles) == count;
}

}  // namespace

Status Session::Impl::Save(const std::string& path) const {
  std::string state;
  PutCounted(state, std::span(tokens));
  Put(state, &as_prompt, 1);
  Put(state, &next_seed, 1);
  PutCounted(state, HasLogits() ? std::span<const float>(logits.data(), logits.size())
                                : std::span<const float>());
  const std::vector<std::int64_t> runs = RunsOf(roles);
  PutCounted(state, std::span(runs));
  return cache.Save(path, {&sequence, 1}, {Fingerprint(), std::move(state)});
}

std::string Session::Impl::Fingerprint() const {
  const std::string of_model = FingerprintOf(model.impl());
  return ablation_key.empty() ? of_model : of_model + ", " + ablation_key;
}

Status Session::Impl::Restore(const std::string& path, const SessionRestoreOptions& restore) {
  // The file is read into another cache; the current one does not change until nothing can fail any
  // more.
  Result<KvCache> other = KvCache::Create(cache.params());
  if (!other.ok()) return other.status();
  const Result<KvRestored> restored = other->Restore(path, {Fingerprint(), restore.convert_types});
  if (!restored.ok()) return restored.status();
  const auto damaged = [&](const std::string& what) {
    return Status(StatusCode::kIoError, path + ": " + what);
  };
  if (restored->sequences.size() != 1)
    return damaged("has " + std::to_string(restored->sequences.size()) +
                   " sequences; a session has 1");
  const std::int64_t held = other->length(restored->sequences[0]);
  std::string_view state = restored->user_data;
  std::vector<TokenId> ids;
  ids.reserve(static_cast<std::size_t>(options.context));
  std::vector<float> last_logits;
  std::vector<std::int64_t> runs;
  std::int64_t prompt = 0;
  std::uint64_t seed = 0;
  if (!GetCounted(state, ids, held) || !Get(state, &prompt, 1) || !Get(state, &seed, 1) ||
      !GetCounted(state, last_logits, vocab()) ||
      (!state.empty() && !GetCounted(state, runs, held + 1)) || !state.empty())
    return damaged("is no session's: its user data have another form");
  const auto count = static_cast<std::int64_t>(ids.size());
  if (count != held || prompt < 0 || prompt > held)
    return damaged("has " + std::to_string(count) + " token ids, " + std::to_string(prompt) +
                   " of them of a prompt; its sequence has " + std::to_string(held));
  if (runs.empty()) runs = {prompt, held - prompt};
  if (runs.back() == 0 && runs.size() > 1) runs.pop_back();
  std::vector<RowRole> held_roles;
  held_roles.reserve(static_cast<std::size_t>(options.context));
  if (!RolesOf(runs, held, held_roles))
    return damaged("has " + std::to_string(runs.size()) + " runs of roles that do not make " +
                   std::to_string(held) + " tokens");
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (ids[i] < 0 || ids[i] >= vocab())
      return damaged("ids[" + std::to_string(i) + "] = " + std::to_string(ids[i]) +
                     "; expected 0 to " + std::to_string(vocab() - 1));
  if (!last_logits.empty() && static_cast<std::int64_t>(last_logits.size()) != vocab())
    return damaged("has " + std::to_string(last_logits.size()) + " logits; expected 0 or " +
                   std::to_string(vocab()));
  cache = *std::move(other);
  sequence = restored->sequences[0];
  tokens = std::move(ids);
  roles = std::move(held_roles);
  as_prompt = prompt;
  next_seed = seed;
  std::copy(last_logits.begin(), last_logits.end(), logits.data());
  logits_length = last_logits.empty() ? -1 : length();
  return Status();
}

Status Session::Save(const std::string& path) const { return impl_->Save(path); }

Status Session::Restore(const std::string& path, const SessionRestoreOptions& options) {
  return impl_->Restore(path, options);
}

std::span<const float> Session::logits() const noexcept {
  if (!impl_->HasLogits()) return {};
  return {impl_->logits.data(), static_cast<std::size_t>(impl_->vocab())};
}

std::uint64_t Session::next_seed() const noexcept { return impl_->next_seed; }

}  // namespace manyhead
