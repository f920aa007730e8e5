#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "manyhead/kv_cache.h"
#include "tests/cache/cache_testing.h"

/// Long random histories against the plainest possible cache: a map from ids to lists of tokens.

namespace manyhead {
namespace {

class Model {
 public:
  Model(KvCache cache, unsigned seed) : cache_(std::move(cache)), random_(seed) {}

  void Step() {
    const std::uint32_t choice = Below(100);
    if (tokens_.empty() || (choice < 8 && tokens_.size() < 12)) {
      Create();
    } else if (choice < 84) {
      AppendTo(AnyId(), choice < 50 ? 1 : Below(40));
    } else if (choice < 97) {
      TruncateTo(AnyId());
    } else {
      Free(AnyId());
    }
    CheckUsage();
  }

  void CheckContents() {
    for (const auto& [id, tokens] : tokens_)
      for (std::size_t s = 0; s < tokens.size(); ++s)
        ASSERT_TRUE(HoldsToken(cache_, id, static_cast<std::int64_t>(s), tokens[s]));
  }

  void FreeAll() {
    while (!tokens_.empty()) Free(tokens_.begin()->first);
    CheckUsage();
    EXPECT_EQ(cache_.usage().used_bytes, 0);
  }

  int refusals() const { return refusals_; }
  int successes() const { return successes_; }

 private:
  std::uint32_t Below(std::uint32_t end) { return static_cast<std::uint32_t>(random_()) % end; }
  SequenceId AnyId() {
    auto at = tokens_.begin();
    std::advance(at, Below(static_cast<std::uint32_t>(tokens_.size())));
    return at->first;
  }

  void Create() {
    const Result<SequenceId> id = cache_.CreateSequence();
    ASSERT_TRUE(id.ok());
    ASSERT_TRUE(tokens_.try_emplace(*id).second) << "an id that is in use";
  }

  void AppendTo(SequenceId id, std::int64_t count) {
    std::vector<std::int64_t>& tokens = tokens_[id];
    std::vector<std::int64_t> grown = tokens;
    for (const std::int64_t serial : Serials(next_serial_, count)) grown.push_back(serial);
    const std::int64_t used = UsedBytes();
    const std::int64_t needed = used + RowBytes() * (Pages(grown) - Pages(tokens));
    const bool fits = static_cast<std::int64_t>(grown.size()) <= cache_.params().max_tokens &&
                      needed <= cache_.params().capacity_bytes;
    const Status status = Append(cache_, id, Serials(next_serial_, count));
    ASSERT_EQ(status.ok(), fits) << status.message();
    ++(fits ? successes_ : refusals_);
    if (fits) {
      tokens = std::move(grown);
      next_serial_ += count;
    } else {
      ASSERT_EQ(status.code(), StatusCode::kOutOfPages);
    }
    CheckSample(id);
  }

  void TruncateTo(SequenceId id) {
    std::vector<std::int64_t>& tokens = tokens_[id];
    const std::uint32_t size = static_cast<std::uint32_t>(tokens.size());
    const std::uint32_t length =
        Below(4) == 0 ? Below(size + 1) : size - Below(std::min(size, 9U) + 1);
    ASSERT_TRUE(cache_.Truncate(id, length).ok());
    tokens.resize(length);
    CheckSample(id);
  }

  void Free(SequenceId id) {
    ASSERT_TRUE(cache_.FreeSequence(id).ok());
    tokens_.erase(id);
    ASSERT_EQ(cache_.length(id), -1);
  }

  void CheckSample(SequenceId id) {
    const std::vector<std::int64_t>& tokens = tokens_[id];
    ASSERT_EQ(cache_.length(id), static_cast<std::int64_t>(tokens.size()));
    for (int i = 0; i < 3 && !tokens.empty(); ++i) {
      const std::uint32_t s = Below(static_cast<std::uint32_t>(tokens.size()));
      ASSERT_TRUE(HoldsToken(cache_, id, s, tokens[s])) << "position " << s;
    }
  }

  std::int64_t Pages(const std::vector<std::int64_t>& tokens) const {
    const std::int64_t page_size = cache_.params().page_size;
    return (static_cast<std::int64_t>(tokens.size()) + page_size - 1) / page_size;
  }
  /// By the layout's definition: K [N, D], V [N, D rounded up to 16], each from a multiple of 64.
  std::int64_t PageBytes(const KvLayerShape& shape) const {
    const KvCacheParams& p = cache_.params();
    const std::int64_t k_size = p.k_type == KvType::kF32 ? 4 : 2;
    const std::int64_t v_size = p.v_type == KvType::kF32 ? 4 : 2;
    return (p.page_size * shape.head_dim * k_size + 63) / 64 * 64 +
           p.page_size * ((shape.head_dim_v + 15) / 16 * 16) * v_size;
  }
  std::int64_t RowBytes() const {
    std::int64_t sum = 0;
    for (const KvLayerShape& shape : cache_.params().layers)
      sum += shape.num_kv_heads * PageBytes(shape);
    return sum;
  }
  std::int64_t UsedBytes() const {
    std::int64_t pages = 0;
    for (const auto& [id, tokens] : tokens_) pages += Pages(tokens);
    return pages * RowBytes();
  }

  void CheckUsage() {
    const KvUsage usage = cache_.usage();
    ASSERT_EQ(usage.used_bytes, UsedBytes());
    ASSERT_LE(usage.used_bytes, usage.capacity_bytes);
    std::vector<std::vector<std::int64_t>> expected;
    for (const KvLayerShape& shape : cache_.params().layers) {
      std::int64_t pages = 0;
      for (const auto& [id, tokens] : tokens_) pages += Pages(tokens);
      expected.emplace_back(shape.num_kv_heads, pages * PageBytes(shape));
    }
    ASSERT_EQ(usage.head_bytes, expected);
    if (tokens_.empty()) return;
    const SequenceId id = AnyId();
    ASSERT_EQ(cache_.usage(id)->used_bytes, Pages(tokens_[id]) * RowBytes());
  }

  KvCache cache_;
  std::mt19937 random_;
  std::map<SequenceId, std::vector<std::int64_t>> tokens_;
  std::int64_t next_serial_ = 0;
  int refusals_ = 0, successes_ = 0;
};

TEST(KvCacheRandom, BehavesLikeAMapOfLists) {
  const struct {
    KvType k_type, v_type;
    std::int64_t page_size, sequences, tokens;
  } cases[] = {{KvType::kF16, KvType::kF16, 16, 4, 100},
               {KvType::kF32, KvType::kBf16, 32, 3, 150},
               {KvType::kBf16, KvType::kF32, 64, 5, 64}};
  for (const auto& c : cases) {
    KvCacheParams params;
    params.layers = {{2, 16, 0}, {1, 5, 19}, {2, 16, 0}, {1, 40, 8}};
    params.k_type = c.k_type;
    params.v_type = c.v_type;
    params.page_size = c.page_size;
    params.max_tokens = 2 * c.tokens;
    params.capacity_bytes = *KvCapacityBytes(params, c.sequences, c.tokens);
    Result<KvCache> cache = KvCache::Create(params);
    ASSERT_TRUE(cache.ok());
    Model model(std::move(*cache), 1234);
    for (int step = 0; step < 10000; ++step) {
      SCOPED_TRACE(step);
      model.Step();
      if (step % 250 == 0) model.CheckContents();
      if (HasFatalFailure()) return;
    }
    model.FreeAll();
    EXPECT_GT(model.refusals(), 200) << "the history must reach the cap";
    EXPECT_GT(model.successes(), 1000);
  }
}

}  // namespace
}  // namespace manyhead
