#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "runtime/cache/kv_cache_impl.h"
#include "tests/cache/cache_testing.h"
#include "tests/cache/kv_model.h"
#include "tests/support/kv_reference.h"

/// Compares the real cache with the plain one.

namespace manyhead::testing {
namespace {

std::vector<float> KeyRow(std::int64_t serial, std::int64_t layer, std::int64_t head,
                          std::int64_t n) {
  std::vector<float> row;
  for (std::int64_t d = 0; d < n; ++d) row.push_back(KElement(serial, layer, head, d));
  return row;
}

std::vector<float> ValueRow(std::int64_t serial, std::int64_t layer, std::int64_t head,
                            std::int64_t n) {
  std::vector<float> row;
  for (std::int64_t d = 0; d < n; ++d) row.push_back(VElement(serial, layer, head, d));
  return row;
}

}  // namespace

void KvModel::CheckToken(SequenceId id, std::size_t index, std::int64_t s) {
  const HeadInfo& info = heads_[index];
  const ModelHead& head = state_.sequences[id].heads[index];
  const bool held = !info.off() && head.Held(s);
  ASSERT_EQ(cache_.Holds(id, info.layer, info.head, s), held) << "position " << s;
  std::vector<float> k(info.shape.head_dim), v(info.shape.head_dim_v);
  ASSERT_EQ(cache_.Read(id, info.layer, info.head, s, k.data(), v.data()).ok(), held);
  if (!held) return;
  const std::int64_t serial = head.tokens[s].serial;
  ASSERT_EQ(
      k, StoredRows(info.params.k_type, KeyRow(serial, info.layer, info.head, info.shape.head_dim),
                    info.shape.head_dim));
  ASSERT_EQ(v, StoredRows(info.params.v_type,
                          ValueRow(serial, info.layer, info.head, info.shape.head_dim_v),
                          info.shape.head_dim_v));
}

void KvModel::CheckSample(SequenceId id) {
  const ModelSequence& sequence = state_.sequences[id];
  ASSERT_EQ(cache_.length(id), sequence.length);
  ASSERT_EQ(cache_.impl().FirstQuery(id), sequence.first_query);
  for (int i = 0; i < 6 && sequence.length > 0; ++i)
    ASSERT_NO_FATAL_FAILURE(
        CheckToken(id, Below(static_cast<std::int64_t>(heads_.size())), Below(sequence.length)));
}

void KvModel::CheckContents() {
  for (const auto& [id, sequence] : state_.sequences)
    for (std::size_t i = 0; i < heads_.size(); ++i)
      for (std::int64_t s = 0; s < sequence.length; ++s)
        ASSERT_NO_FATAL_FAILURE(CheckToken(id, i, s));
}

void KvModel::CheckUsage() {
  const KvUsage usage = cache_.usage();
  const std::vector<std::int64_t> pages = PagesOf(state_);
  std::vector<std::vector<std::int64_t>> expected(cache_.params().layers.size());
  for (std::size_t i = 0; i < heads_.size(); ++i)
    expected[heads_[i].layer].push_back(pages[i] * heads_[i].page_bytes);
  ASSERT_EQ(usage.head_bytes, expected);
  ASSERT_EQ(usage.used_bytes, PageBytes(state_));
  ASSERT_EQ(usage.table_bytes, TableBytes(state_));
  ASSERT_LE(usage.used_bytes + usage.table_bytes, usage.capacity_bytes);
  if (state_.sequences.empty()) return;
  const SequenceId id = AnyId();
  const ModelSequence& sequence = state_.sequences[id];
  ASSERT_EQ(cache_.usage(id)->table_bytes, SequenceTableBytes(sequence));
  const auto head_usage = *cache_.head_usage(id);
  for (std::size_t i = 0; i < heads_.size(); ++i) {
    const KvHeadUsage& one = head_usage[heads_[i].layer][heads_[i].head];
    const ModelHead& head = sequence.heads[i];
    ASSERT_EQ(one.tokens, head.HeldIn(0, static_cast<std::int64_t>(head.tokens.size())));
    ASSERT_EQ(one.pages, static_cast<std::int64_t>(head.pages.size()) -
                             std::count(head.pages.begin(), head.pages.end(), -1));
    ASSERT_EQ(one.page_bytes, heads_[i].page_bytes);
  }
}

}  // namespace manyhead::testing
