#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "manyhead/kv_cache.h"
#include "tests/cache/cache_testing.h"
#include "tests/support/fuzz.h"
#include "tests/support/fuzz_snapshot.h"
#include "tests/support/temp_dir.h"

using manyhead::Append;
using manyhead::KvCache;
using manyhead::KvCacheParams;
using manyhead::KvPolicy;
using manyhead::KvRestored;
using manyhead::KvType;
using manyhead::Result;
using manyhead::SequenceId;
using manyhead::Serials;

namespace {

/// `type` is that of the heads that may be converted.
KvCacheParams Params(KvType type) {
  KvCacheParams params;
  params.layers = {{3, 4, 5}, {1, 3, 33}};
  params.heads = {{{KvType::kF32, type, KvPolicy::Full()},
                   {type, KvType::kInt4, KvPolicy::Budget(40, 5)},
                   {type, type, KvPolicy::Off()}},
                  {{type, KvType::kInt8, KvPolicy::SinkRecent(2, 9)}}};
  params.page_size = 16;
  params.max_tokens = 200;
  params.capacity_bytes = *manyhead::KvCapacityBytes(params, 4, 200);
  params.isa = manyhead::Isa::kScalar;
  return params;
}

/// Goes through all that a restored sequence may be asked for.
void Use(KvCache& cache, SequenceId id) {
  volatile float sum = 0;
  for (std::int64_t layer = 0; layer < 2; ++layer)
    for (std::int64_t head = 0; head < (layer == 0 ? 3 : 1); ++head)
      for (std::int64_t s = 0; s < cache.length(id); ++s) {
        if (!cache.Holds(id, layer, head, s)) continue;
        float k[4], v[33];
        FuzzCheck(cache.Read(id, layer, head, s, k, v).ok());
        sum = sum + k[0] + v[0];
      }
  const std::int64_t length = cache.length(id);
  if (length <= 180 && Append(cache, id, Serials(0, 20)).ok())
    FuzzCheck(cache.length(id) == length + 20);
  if (const Result<SequenceId> fork = cache.Fork(id); fork.ok()) {
    FuzzCheck(cache.Truncate(*fork, length / 2).ok());
    FuzzCheck(cache.Drop(*fork, 0, length / 3).ok() || cache.Evict(*fork).ok());
    FuzzCheck(cache.FreeSequence(*fork).ok());
  }
  if (!cache.Evict(id).ok()) return;
  FuzzCheck(cache.Truncate(id, length / 2).ok());
}

void Restore(KvCache& cache, const std::string& path, bool convert_types) {
  const Result<KvRestored> restored = cache.Restore(path, {"fp", convert_types});
  if (restored.ok()) {
    for (const SequenceId id : restored->sequences) Use(cache, id);
    for (const SequenceId id : restored->sequences) FuzzCheck(cache.FreeSequence(id).ok());
  } else {
    FuzzCheckMessage(restored.status().message());
  }
  FuzzCheck(cache.usage().used_bytes == 0 && cache.sequences().empty());
}

}  // namespace

// Any bytes as a snapshot, their checksum as it is or made right: a reason, or sequences that can
// be used like others. Either way every page comes back.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static KvCache same = *KvCache::Create(Params(KvType::kF16));
  static KvCache other = *KvCache::Create(Params(KvType::kInt8));
  manyhead::testing::FuzzSnapshot(data, size, [](const std::string& path) {
    Restore(same, path, false);
    Restore(other, path, true);
  });
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  KvCache cache = *KvCache::Create(Params(KvType::kF16));
  const SequenceId a = *cache.CreateSequence(), empty = *cache.CreateSequence();
  for (int i = 0; i < 5; ++i) FuzzCheck(Append(cache, a, Serials(i * 20, 20)).ok());
  FuzzCheck(cache.Drop(a, 3, 40).ok());
  const SequenceId b = *cache.Fork(a);
  FuzzCheck(Append(cache, b, Serials(7, 10)).ok());
  const std::vector<std::vector<SequenceId>> sets = {{a, empty, b}, {empty}, {b}};
  std::vector<std::string> seeds;
  const manyhead::testing::TempDir folder;
  const std::string path = folder.File("seed");
  for (const std::vector<SequenceId>& ids : sets) {
    FuzzCheck(cache.Save(path, ids, {"fp", "user data"}).ok());
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}
