#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <vector>

#include "manyhead/kv_cache.h"
#include "tests/support/temp_dir.h"

/// A cache as plain as can be, and random histories that a real one must go through alike.

namespace manyhead::testing {

/// A token of one head. Why it is gone matters for whether a truncation is exact.
struct ModelToken {
  enum class State { kHeld, kEvicted, kDropped };
  State state = State::kHeld;
  std::int64_t serial = 0;  ///< number that was written, see cache_testing.h
};

struct ModelHead {
  std::vector<ModelToken> tokens;
  std::vector<int> pages;  ///< numbers, equal where pages are shared; -1: none
  std::vector<std::int64_t> scores;
  std::int64_t pages_room = 0, gaps_room = 0;

  bool Held(std::int64_t s) const { return tokens[s].state == ModelToken::State::kHeld; }
  std::int64_t HeldIn(std::int64_t begin, std::int64_t end) const;
  std::int64_t Gaps() const;
};

struct ModelSequence {
  std::int64_t length = 0, first_query = 0;
  std::vector<ModelHead> heads;  ///< heads of all layers
};

/// Everything a step may change, so that one can be tried on a copy.
struct ModelState {
  std::map<SequenceId, ModelSequence> sequences;
  /// [page size] largest number of pages that lists were made for.
  std::vector<std::int64_t> most_pages;
  std::int64_t most_sequences = 0;
  std::int64_t retired = 0;  ///< places of sequences whose ids are used up
};

class KvModel {
 public:
  /// Runs a call of the cache; tests may let it fail on the way before it succeeds.
  using Caller = std::function<void(const std::function<void()>&)>;

  KvModel(KvCache cache, unsigned seed, Caller caller);

  /// One random operation, and its checks.
  void Step();
  /// Every token of every sequence.
  void CheckContents();
  void CheckUsage();
  void FreeAll();

  int refusals() const { return refusals_; }
  int successes() const { return successes_; }

 private:
  struct HeadInfo {
    std::int64_t layer = 0, head = 0;
    KvLayerShape shape;
    KvHeadParams params;
    std::int64_t page_size = 0, page_bytes = 0;
    std::size_t size_class = 0;

    bool off() const { return params.policy.kind == KvPolicyKind::kOff; }
    bool scored() const { return params.policy.kind == KvPolicyKind::kBudget; }
    std::int64_t PagesFor(std::int64_t tokens) const {
      return off() ? 0 : (tokens + page_size - 1) / page_size;
    }
  };

  std::uint32_t Below(std::int64_t end) {
    return static_cast<std::uint32_t>(random_()) % static_cast<std::uint32_t>(end);
  }
  SequenceId AnyId();
  void Create();
  void Fork();
  void Append(std::int64_t count);
  void Evict();
  void Truncate();
  void Drop();
  void Copy();
  void Rewrite();
  void Free(SequenceId id);
  void Save();
  void Restore();

  // The plain cache's operations; what they took shows in the state.
  void TryStep(ModelState& state, ModelSequence& sequence, std::int64_t count);
  bool EvictHead(const HeadInfo& info, ModelHead& head, std::int64_t length);
  void CopyHead(const ModelState& state, const HeadInfo& info, const ModelHead& from,
                ModelHead& head, std::int64_t begin, std::int64_t end, std::size_t index);
  void ReleaseEmpty(const HeadInfo& info, ModelHead& head, std::int64_t first, std::int64_t last);
  bool IsShared(const ModelState& state, std::size_t index, int page) const;
  void GrowRooms(const HeadInfo& info, ModelHead& head, std::int64_t pages,
                 std::int64_t gaps) const;
  ModelSequence Empty() const;
  /// `from` with the room its tables get in a new sequence.
  ModelSequence Fitted(ModelSequence from) const;
  /// Adds new sequences to `next`; unknown ids replace those of a call that failed.
  void Add(ModelState& next, const std::vector<SequenceId>& ids,
           const std::vector<ModelSequence>& sequences);
  bool IsExact(const ModelSequence& sequence, std::int64_t length) const;
  bool HasDrops(const ModelSequence& sequence) const;

  /// Pages in use, by head.
  std::vector<std::int64_t> PagesOf(const ModelState& state) const;
  std::int64_t PageBytes(const ModelState& state) const;
  std::int64_t TableBytes(const ModelState& state) const;
  std::int64_t SequenceTableBytes(const ModelSequence& sequence) const;
  /// Makes the lists long enough for the pages that `state` has in use.
  void NoteMost(ModelState& state) const;
  /// Whether the cap lets the cache go from the present state to `next`.
  bool Fits(const ModelState& next) const;
  /// Takes over `next` if it fits, and checks that `status` says so.
  void Settle(ModelState next, const Status& status);
  void CheckToken(SequenceId id, std::size_t index, std::int64_t s);
  void CheckSample(SequenceId id);

  KvCache cache_;
  Caller caller_;
  std::mt19937 random_;
  std::vector<HeadInfo> heads_;
  std::size_t num_size_classes_ = 0;
  ModelState state_;
  std::int64_t next_serial_ = 0;
  int next_page_ = 0;
  int refusals_ = 0, successes_ = 0;
  TempDir folder_;
  std::vector<ModelSequence> saved_;  ///< contents of the file
};

/// A cache of few, short, very different heads, whose histories reach its cap.
KvCacheParams ModelParams(std::int64_t page_size);

}  // namespace manyhead::testing
