#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cache/kv_cache_impl.h"
#include "tests/cache/cache_testing.h"
#include "tests/cache/kv_model.h"
#include "tests/support/kv_reference.h"
#include "tests/support/read_bytes.h"
#include "tests/support/temp_dir.h"

/// Tests the contents of a restored snapshot, and how its file is written.

namespace manyhead {
namespace {

using ::manyhead::testing::ReadBytes;
using ::testing::HasSubstr;
using testing::TempDir;

/// Heads of every type and policy.
KvCacheParams MixedParams(std::int64_t sequences = 4) {
  KvCacheParams params = testing::ModelParams(32);
  params.max_tokens = 400;
  params.capacity_bytes = *KvCapacityBytes(params, sequences, 400);
  return params;
}

void AddScores(KvCache& cache, SequenceId id) {
  for (const auto& [layer, head] : {std::pair{1, 1}, {2, 0}}) {
    const kernels::KvHeadView view = cache.impl().HeadView(id, layer, head);
    for (std::int64_t p = 0; p * 16 < view.length; ++p)
      if (view.pages[p] != nullptr) view.scores[p] += p * 7919 % 101;
  }
}

Status AppendScored(KvCache& cache, SequenceId id, const std::vector<std::int64_t>& serials) {
  Status status = Append(cache, id, serials);
  if (status.ok()) AddScores(cache, id);
  return status;
}

/// Whether two sequences hold the same, to the bit.
void ExpectSame(const KvCache& a, SequenceId ida, const KvCache& b, SequenceId idb) {
  ASSERT_EQ(a.length(ida), b.length(idb));
  EXPECT_EQ(a.impl().FirstQuery(ida), b.impl().FirstQuery(idb));
  const auto& layers = a.params().layers;
  for (std::size_t l = 0; l < layers.size(); ++l)
    for (std::int64_t h = 0; h < layers[l].num_kv_heads; ++h) {
      const auto layer = static_cast<std::int64_t>(l);
      for (std::int64_t s = 0; s < a.length(ida); ++s) {
        ASSERT_EQ(a.Holds(ida, layer, h, s), b.Holds(idb, layer, h, s))
            << l << " " << h << " " << s;
        if (!a.Holds(ida, layer, h, s)) continue;
        std::vector<float> ka(layers[l].head_dim), va(layers[l].head_dim_v), kb = ka, vb = va;
        ASSERT_TRUE(a.Read(ida, layer, h, s, ka.data(), va.data()).ok());
        ASSERT_TRUE(b.Read(idb, layer, h, s, kb.data(), vb.data()).ok());
        ASSERT_EQ(std::memcmp(ka.data(), kb.data(), ka.size() * sizeof(float)), 0);
        ASSERT_EQ(std::memcmp(va.data(), vb.data(), va.size() * sizeof(float)), 0);
      }
      const kernels::KvHeadView one = a.impl().HeadView(ida, layer, h);
      const kernels::KvHeadView two = b.impl().HeadView(idb, layer, h);
      ASSERT_EQ(one.scores == nullptr, two.scores == nullptr);
      for (std::int64_t p = 0; one.scores != nullptr && p * 16 < one.length; ++p)
        ASSERT_EQ(one.scores[p], two.scores[p]);
    }
}

TEST(KvSnapshot, BringsBackAllThatSequencesHold) {
  const TempDir folder;
  KvCache cache = *KvCache::Create(MixedParams());
  const SequenceId a = *cache.CreateSequence(), empty = *cache.CreateSequence();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(AppendScored(cache, a, Serials(i * 23, 23)).ok());
  ASSERT_TRUE(cache.Drop(a, 3, 70).ok());
  const SequenceId b = *cache.Fork(a);
  ASSERT_TRUE(AppendScored(cache, a, Serials(500, 9)).ok());
  ASSERT_TRUE(cache.Truncate(b, 222).ok());
  ASSERT_TRUE(AppendScored(cache, b, Serials(900, 30)).ok());
  EXPECT_EQ(cache.sequences(), (std::vector<SequenceId>{a, empty, b}));
  const std::string path = folder.File("s");
  std::string user_data = "any bytes";
  user_data += '\0';
  ASSERT_TRUE(cache.Save(path, cache.sequences(), {"model", user_data}).ok());

  KvCacheParams params = MixedParams(9);
  params.max_tokens = 300;  // neither has to be what it was
  KvCache other = *KvCache::Create(params);
  const auto restored = other.Restore(path, {.fingerprint = "model"});
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  EXPECT_EQ(restored->user_data, user_data);
  ASSERT_EQ(restored->sequences.size(), 3U);
  const SequenceId pairs[][2] = {
      {a, restored->sequences[0]}, {empty, restored->sequences[1]}, {b, restored->sequences[2]}};
  for (const auto& [saved, back] : pairs)
    ASSERT_NO_FATAL_FAILURE(ExpectSame(cache, saved, other, back));
  EXPECT_EQ(other.usage().used_bytes, cache.usage().used_bytes) << "what was shared still is";
  EXPECT_EQ(other.usage().head_bytes, cache.usage().head_bytes);
  EXPECT_LT(other.usage().used_bytes,
            other.usage(pairs[0][1])->used_bytes + other.usage(pairs[2][1])->used_bytes);

  // Later steps are the same too: evictions by windows and by scores, copies of shared pages.
  for (int i = 0; i < 4; ++i)
    for (const auto& [saved, back] : pairs) {
      ASSERT_TRUE(AppendScored(cache, saved, Serials(2000 + i, 11)).ok());
      ASSERT_TRUE(AppendScored(other, back, Serials(2000 + i, 11)).ok());
    }
  for (const auto& [saved, back] : pairs) {
    ASSERT_NO_FATAL_FAILURE(ExpectSame(cache, saved, other, back));
    EXPECT_EQ(*cache.ExactLength(saved, 20), *other.ExactLength(back, 20));
  }
  EXPECT_EQ(other.usage().used_bytes, cache.usage().used_bytes);
  for (const auto& [saved, back] : pairs) ASSERT_TRUE(other.FreeSequence(back).ok());
  EXPECT_EQ(other.usage().used_bytes, 0);
}

TEST(KvSnapshot, OneSequenceComesWithoutTheOthers) {
  const TempDir folder;
  KvCache cache = *KvCache::Create(MixedParams());
  const SequenceId a = *cache.CreateSequence(), b = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, a, Serials(0, 200)).ok());
  ASSERT_TRUE(Append(cache, b, Serials(700, 40)).ok());
  const std::string path = folder.File("one");
  ASSERT_TRUE(cache.Save(path, {&b, 1}).ok());
  const auto restored = cache.Restore(path);  // beside what is there
  ASSERT_TRUE(restored.ok()) << restored.status().message();
  ASSERT_EQ(restored->sequences.size(), 1U);
  ASSERT_NO_FATAL_FAILURE(ExpectSame(cache, b, cache, restored->sequences[0]));
  EXPECT_EQ(cache.usage(restored->sequences[0])->used_bytes, cache.usage(b)->used_bytes);
  EXPECT_EQ(cache.sequences().size(), 3U);
  std::int64_t bytes = static_cast<std::int64_t>(std::filesystem::file_size(path));
  EXPECT_LT(bytes, cache.usage(b)->used_bytes + 4096);
  EXPECT_GE(bytes, cache.usage(b)->used_bytes);
}

// A restored sequence can go back as far as the one that was saved, and no other margin takes it.
TEST(KvSnapshot, MarginsAreKept) {
  const TempDir folder;
  KvCacheParams params;
  params.layers = {{2, 24, 0}};
  params.page_size = 16;
  params.max_tokens = 300;
  const auto create = [&](std::int64_t margin) {
    params.heads = {{{KvType::kInt8, KvType::kInt8, KvPolicy::SinkRecent(4, 40, margin)},
                     {KvType::kF16, KvType::kInt4, KvPolicy::Window(33, margin)}}};
    params.capacity_bytes = *KvCapacityBytes(params, 2, 300);
    return *KvCache::Create(params);
  };
  KvCache cache = create(5), other = create(5), none = create(0);
  const SequenceId id = *cache.CreateSequence();
  for (std::int64_t s = 0; s < 200; ++s) ASSERT_TRUE(Append(cache, id, {s}).ok());
  ASSERT_TRUE(cache.Evict(id).ok());
  ASSERT_TRUE(cache.Save(folder.File("s"), {&id, 1}).ok());
  EXPECT_EQ(ReadBytes(folder.File("s"))[8], 2);
  const SequenceId restored = other.Restore(folder.File("s"))->sequences.front();
  ExpectSame(cache, id, other, restored);
  ASSERT_TRUE(cache.Rollback(id, 5).ok());
  ASSERT_TRUE(other.Rollback(restored, 5).ok());
  ExpectSame(cache, id, other, restored);
  EXPECT_THAT(
      none.Restore(folder.File("s")).status().message(),
      HasSubstr("policy = sink(4)+recent(40)+margin(5); the cache's is sink(4)+recent(40)"));
  const SequenceId plain = *none.CreateSequence();
  ASSERT_TRUE(none.Save(folder.File("t"), {&plain, 1}).ok());
  EXPECT_EQ(ReadBytes(folder.File("t"))[8], 1) << "what older programs read";
}

// Evicted tokens take no room in the file, nor do heads that are off.
TEST(KvSnapshot, EvictedTokensAreNotStored) {
  const TempDir folder;
  KvCacheParams params;
  params.layers = {{2, 64, 0}};
  params.max_tokens = 4096;
  std::int64_t sizes[2];
  for (const int i : {0, 1}) {
    params.heads = {{{KvType::kF16, KvType::kF16, i == 0 ? KvPolicy::Full() : KvPolicy::Window(64)},
                     {KvType::kF16, KvType::kF16, i == 0 ? KvPolicy::Full() : KvPolicy::Off()}}};
    params.capacity_bytes = *KvCapacityBytes(params, 1, 4096);
    KvCache cache = *KvCache::Create(params);
    const SequenceId id = *cache.CreateSequence();
    ASSERT_TRUE(cache.Reserve(id, 4096).ok());
    ASSERT_TRUE(cache.Evict(id).ok());
    ASSERT_TRUE(cache.Save(folder.File("s"), {&id, 1}).ok());
    sizes[i] = static_cast<std::int64_t>(std::filesystem::file_size(folder.File("s")));
  }
  EXPECT_GE(sizes[0], 2 * 4096 * 256);
  EXPECT_LE(sizes[1], 2 * 64 * 256 + 2048);
}

// Nothing of other texts, once stored in the same pages, gets into a file: neither where no token
// is nor in lanes of no element.
TEST(KvSnapshot, PagesHaveOnlyWhatIsSaved) {
  const TempDir folder;
  std::string files[2];
  for (const bool used_before : {false, true}) {
    KvCache cache = *KvCache::Create(MixedParams());
    const SequenceId id = *cache.CreateSequence();
    ASSERT_TRUE(cache.Reserve(id, 45).ok());
    const std::vector<KvLayerShape>& layers = cache.params().layers;
    for (std::int64_t l = 0; l < std::ssize(layers); ++l) {
      for (std::int64_t h = 0; h < layers[l].num_kv_heads; ++h) {
        const kernels::KvHeadView view = cache.impl().HeadView(id, l, h);
        for (std::int64_t s = 0; view.recent > 0 && s < 45; s += view.layout->page_size)
          std::memset(view.pages[s / view.layout->page_size], used_before ? 0xEE : 0,
                      static_cast<std::size_t>(view.layout->page_bytes));
      }
      const Rows rows = MakeRows(layers[l], l, Serials(0, 45));
      ASSERT_TRUE(cache.Write(id, l, 0, 45, rows.k.data(), rows.v.data()).ok());
    }
    ASSERT_TRUE(cache.Truncate(id, 37).ok());
    ASSERT_TRUE(cache.Drop(id, 8, 20).ok());
    ASSERT_TRUE(cache.Save(folder.File("s"), {&id, 1}).ok());
    files[used_before] = ReadBytes(folder.File("s"));
  }
  EXPECT_TRUE(files[0] == files[1]);

  // A page of 16 tokens that holds one, after a page that was full.
  KvCacheParams params;
  params.layers = {{1, 16, 16}};
  params.k_type = params.v_type = KvType::kF32;
  params.page_size = 16;
  params.max_tokens = 20;
  params.capacity_bytes = *KvCapacityBytes(params, 1, 20);
  KvCache cache = *KvCache::Create(params);
  const SequenceId id = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, id, Serials(0, 17)).ok());
  ASSERT_TRUE(cache.Save(folder.File("s"), {&id, 1}).ok());
  const std::string bytes = ReadBytes(folder.File("s"));
  std::vector<float> page(2 * 16 * 16);
  std::memcpy(page.data(), bytes.data() + bytes.size() - 8 - 2048, 2048);
  EXPECT_LE(std::count_if(page.begin(), page.end(), [](float x) { return x != 0; }), 32);
}

TEST(KvSnapshot, ConvertsTypesOnRequest) {
  const TempDir folder;
  const KvType types[] = {KvType::kF32, KvType::kF16, KvType::kBf16, KvType::kInt8, KvType::kInt4};
  std::mt19937 random(3);
  for (const KvType from : types)
    for (const KvType to : types) {
      SCOPED_TRACE(::testing::Message() << KvTypeName(from) << " to " << KvTypeName(to));
      KvCacheParams params;
      params.layers = {{2, 40, 24}};
      params.page_size = 16;
      params.max_tokens = 100;
      params.k_type = params.v_type = from;
      params.capacity_bytes = *KvCapacityBytes(params, 1, 100);
      KvCache cache = *KvCache::Create(params);
      const SequenceId id = *cache.CreateSequence();
      std::vector<float> k(37 * 2 * 40), v(37 * 2 * 24);
      for (float& x : k) x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 300.0F;
      for (float& x : v) x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 700.0F;
      ASSERT_TRUE(cache.Reserve(id, 37).ok());
      ASSERT_TRUE(cache.Write(id, 0, 0, 37, k.data(), v.data()).ok());
      ASSERT_TRUE(cache.Save(folder.File("s"), {&id, 1}).ok());

      KvCacheParams wanted = params;
      wanted.v_type = to;  // one of two, and both
      wanted.capacity_bytes = 1 << 20;
      KvCache one = *KvCache::Create(wanted);
      wanted.k_type = to;
      KvCache both = *KvCache::Create(wanted);
      if (from != to) {
        EXPECT_THAT(one.Restore(folder.File("s")).status().message(),
                    HasSubstr(std::string("layers[0], KV head 0: k_type, v_type = ") +
                              KvTypeName(from) + ", " + KvTypeName(from) + "; the cache's are " +
                              KvTypeName(from) + ", " + KvTypeName(to)));
      }
      for (KvCache* other : {&one, &both}) {
        const auto restored = other->Restore(folder.File("s"), {.convert_types = true});
        ASSERT_TRUE(restored.ok()) << restored.status().message();
        for (std::int64_t s = 0; s < 37; ++s)
          for (std::int64_t h = 0; h < 2; ++h) {
            std::vector<float> k0(40), v0(24), k1(40), v1(24);
            ASSERT_TRUE(cache.Read(id, 0, h, s, k0.data(), v0.data()).ok());
            ASSERT_TRUE(other->Read(restored->sequences[0], 0, h, s, k1.data(), v1.data()).ok());
            const bool k_same = other == &one || from == to;
            ASSERT_EQ(k1, k_same ? k0 : testing::StoredRows(to, k0, 40));
            ASSERT_EQ(v1, from == to ? v0 : testing::StoredRows(to, v0, 24));
          }
      }
    }
}

TEST(KvSnapshot, NeedsRoom) {
  const TempDir folder;
  KvCacheParams params = MixedParams();
  KvCache cache = *KvCache::Create(params);
  const SequenceId id = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, id, Serials(0, 300)).ok());
  ASSERT_TRUE(cache.Save(folder.File("s"), {&id, 1}).ok());

  params.max_tokens = 299;
  KvCache shorter = *KvCache::Create(params);
  Status status = shorter.Restore(folder.File("s")).status();
  EXPECT_EQ(status.code(), StatusCode::kOutOfPages);
  EXPECT_THAT(status.message(), HasSubstr("sequence 0 has 300 tokens; max_tokens = 299"));

  params.max_tokens = 300;
  const KvUsage usage = cache.usage();
  params.capacity_bytes = usage.used_bytes + usage.table_bytes;
  KvCache exact = *KvCache::Create(params);
  EXPECT_TRUE(exact.Restore(folder.File("s")).ok());
  EXPECT_EQ(exact.usage().used_bytes + exact.usage().table_bytes, params.capacity_bytes);

  --params.capacity_bytes;
  KvCache less = *KvCache::Create(params);
  const KvUsage before = less.usage();
  status = less.Restore(folder.File("s")).status();
  EXPECT_EQ(status.code(), StatusCode::kOutOfPages);
  EXPECT_THAT(status.message(), HasSubstr("KvCache::Restore: pages and tables need "));
  EXPECT_EQ(less.usage().table_bytes, before.table_bytes);
  EXPECT_EQ(less.usage().used_bytes, 0);
  EXPECT_TRUE(less.sequences().empty());
  const SequenceId small = *less.CreateSequence();
  EXPECT_TRUE(Append(less, small, Serials(0, 40)).ok()) << "smaller requests still work";
}

TEST(KvSnapshot, WhatCannotBeWrittenIsSaid) {
  const TempDir folder;
  KvCache cache = *KvCache::Create(MixedParams());
  const SequenceId id = *cache.CreateSequence();
  ASSERT_TRUE(Append(cache, id, Serials(0, 100)).ok());
  const auto save = [&](const std::string& path) { return cache.Save(path, {&id, 1}); };
  for (const auto& [path, message] :
       {std::pair<std::string, const char*>{folder.File("none/s"), "cannot create: No such file"},
        {folder.path(), "is a directory; expected a regular file"},
        {"/dev/null", "is a device; expected a regular file"},
        {std::string("a\0b", 3), "contains a NUL byte"}}) {
    const Status status = save(path);
    EXPECT_EQ(status.code(), StatusCode::kIoError) << path;
    EXPECT_THAT(status.message(), HasSubstr(message));
  }
  const SequenceId unknown{77};
  EXPECT_THAT(cache.Save(folder.File("s"), {&unknown, 1}).message(), HasSubstr("sequence = 77"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));

  // A disk that is full: the old file stays, and nothing else.
  ASSERT_TRUE(save(folder.File("s")).ok());
  const std::string before = ReadBytes(folder.File("s"));
  ASSERT_TRUE(Append(cache, id, Serials(100, 100)).ok());
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{4096, limit.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const Status status = save(folder.File("s"));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_THAT(status.message(), HasSubstr("cannot write: File too large"));
  EXPECT_TRUE(ReadBytes(folder.File("s")) == before);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

// A process that saves one snapshot after the other is killed at any moment: the file is always a
// whole one, the last that was finished or the one after.
TEST(KvSnapshot, AKillLeavesTheOldFileOrTheNew) {
  const TempDir folder;
  const std::string path = folder.File("s");
  const KvCacheParams params = MixedParams();
  std::mt19937 random(7);
  const std::int64_t saving = -1;  // a file is being written, from then on
  int interrupted = 0;
  std::int64_t last = -1;
  // Some of the kills must come while a file is written; how many depends on the disk.
  for (int round = 0; round < 60 || (interrupted == 0 && round < 600); ++round) {
    int finished[2];
    ASSERT_EQ(pipe(finished), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      KvCache cache = *KvCache::Create(params);
      const SequenceId id = *cache.CreateSequence();
      for (std::int64_t n = last + 1;; ++n) {
        const std::int64_t length = 1 + n % 150;
        if (!cache.Truncate(id, 0).ok() || !Append(cache, id, Serials(n, length)).ok() ||
            write(finished[1], &saving, sizeof saving) != sizeof saving ||
            !cache.Save(path, {&id, 1}, {"", std::to_string(n)}).ok() ||
            write(finished[1], &n, sizeof n) != sizeof n)
          _exit(1);
      }
    }
    close(finished[1]);
    std::int64_t number = 0;
    while (last < 0) ASSERT_EQ(read(finished[0], &last, sizeof last), ssize_t{sizeof last});
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 20000));
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int how = 0;
    ASSERT_EQ(waitpid(child, &how, 0), child);
    ASSERT_TRUE(WIFSIGNALED(how));
    number = 0;
    while (read(finished[0], &number, sizeof number) == sizeof number)
      if (number != saving) last = number;
    interrupted += number == saving;
    close(finished[0]);

    KvCache cache = *KvCache::Create(params);
    const auto restored = cache.Restore(path);
    ASSERT_TRUE(restored.ok()) << restored.status().message();
    const std::int64_t n = std::stoll(restored->user_data);
    ASSERT_TRUE(n == last || n == last + 1) << n << ", finished " << last;
    last = n;
    ASSERT_EQ(cache.length(restored->sequences[0]), 1 + n % 150);
    for (std::int64_t s = std::max<std::int64_t>(0, n % 150 - 15); s < 1 + n % 150; ++s)
      for (const auto& [layer, head] : {std::pair{0, 0}, {1, 0}, {2, 1}})
        ASSERT_TRUE(cache.Holds(restored->sequences[0], layer, head, s));
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      if (entry.path() != path) std::filesystem::remove(entry.path());
  }
  EXPECT_GT(interrupted, 0);
}

}  // namespace
}  // namespace manyhead
