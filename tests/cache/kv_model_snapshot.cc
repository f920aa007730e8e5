#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "tests/cache/kv_model.h"

/// The plain cache's snapshots: a copy of its sequences, whose pages get new numbers when they come
/// back.

namespace manyhead::testing {

void KvModel::Save() {
  std::vector<SequenceId> ids;
  std::vector<ModelSequence> saved;
  for (const auto& [id, sequence] : state_.sequences) {
    if (Below(2) != 0) continue;
    ids.push_back(id);
    saved.push_back(sequence);
  }
  if (Below(2) == 0) {
    ids = cache_.sequences();
    saved.clear();
    ASSERT_EQ(ids.size(), state_.sequences.size());
    for (const SequenceId id : ids) saved.push_back(state_.sequences.at(id));
  }
  Status status;
  const KvSnapshotInfo info{"model", std::to_string(ids.size())};
  caller_([&] { status = cache_.Save(folder_.File("snapshot"), ids, info); });
  ASSERT_TRUE(status.ok()) << status.message();
  saved_ = std::move(saved);
}

void KvModel::Restore() {
  while (Below(4) != 0 && !state_.sequences.empty())
    Free(AnyId());  // beside others there is no room
  if (saved_.empty() || state_.sequences.size() + saved_.size() > 12) return;
  std::vector<std::map<int, int>> numbers(heads_.size());
  std::vector<ModelSequence> sequences;
  for (const ModelSequence& saved : saved_) {
    ModelSequence& one = sequences.emplace_back(Fitted(saved));
    for (std::size_t i = 0; i < heads_.size(); ++i)
      for (int& page : one.heads[i].pages) {
        if (page < 0) continue;
        const auto [number, is_new] = numbers[i].try_emplace(page, next_page_);
        next_page_ += is_new;
        page = number->second;
      }
  }
  Result<KvRestored> restored = Status();
  caller_([&] { restored = cache_.Restore(folder_.File("snapshot"), {.fingerprint = "model"}); });
  ModelState next = state_;
  std::vector<SequenceId> ids;
  if (restored.ok()) {
    ids = restored->sequences;
    ASSERT_EQ(ids.size(), saved_.size());
    ASSERT_EQ(restored->user_data, std::to_string(saved_.size()));
  }
  ASSERT_NO_FATAL_FAILURE(Add(next, ids, sequences));
  ASSERT_NO_FATAL_FAILURE(Settle(std::move(next), restored.status()));
  for (const SequenceId id : ids) CheckSample(id);
}

}  // namespace manyhead::testing
