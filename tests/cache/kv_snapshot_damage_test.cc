#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "runtime/cache/snapshot_file.h"
#include "tests/cache/cache_testing.h"
#include "tests/support/snapshot_file.h"
#include "tests/support/temp_dir.h"

/// Files that are no snapshot of this cache: each is refused with a reason, and nothing changes.

namespace manyhead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Resign;
using ::testing::StartsWith;
using testing::TempDir;

class KvSnapshotDamage : public ::testing::Test {
 protected:
  KvSnapshotDamage() : cache_(*KvCache::Create(Params())), id_(*cache_.CreateSequence()) {
    EXPECT_TRUE(Append(cache_, id_, Serials(0, 40)).ok());
    EXPECT_TRUE(cache_.Drop(id_, 3, 5).ok());
    EXPECT_TRUE(cache_.Save(path_, {&id_, 1}, {"fp", "ud"}).ok());
    std::ifstream in(path_, std::ios::binary);
    file_.assign(std::istreambuf_iterator<char>(in), {});
    EXPECT_TRUE(cache_.FreeSequence(id_).ok());
    id_ = *cache_.CreateSequence();
    EXPECT_TRUE(Append(cache_, id_, Serials(100, 20)).ok());
    before_ = cache_.usage();
  }

  static KvCacheParams Params() {
    KvCacheParams params;
    params.layers = {{2, 4, 5}};
    params.heads = {{{KvType::kF32, KvType::kF16, KvPolicy::Full()},
                     {KvType::kInt8, KvType::kInt4, KvPolicy::Budget(64, 10)}}};
    params.page_size = 16;
    params.max_tokens = 60;
    params.capacity_bytes = *KvCapacityBytes(params, 3, 60);
    return params;
  }

  /// Returns the error of restoring `bytes`; the cache must be unchanged, and work.
  Status Refused(const std::string& bytes, const KvRestoreOptions& options = {"fp"}) {
    folder_.Write("s", bytes);
    const Status status = cache_.Restore(path_, options).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(status.message(), StartsWith(path_ + ": "));
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    EXPECT_EQ(cache_.usage().used_bytes, before_.used_bytes);
    EXPECT_EQ(cache_.usage().table_bytes, before_.table_bytes);
    EXPECT_EQ(cache_.sequences(), std::vector{id_});
    float k[4] = {}, expected[4];
    for (int d = 0; d < 4; ++d) expected[d] = KElement(119, 0, 0, d);
    EXPECT_TRUE(cache_.Read(id_, 0, 0, 19, k, nullptr).ok());
    EXPECT_THAT(k, ::testing::ElementsAreArray(expected));
    return status;
  }

  template <class T>
  std::string With(std::size_t offset, T value) const {
    std::string bytes = file_;
    std::memcpy(bytes.data() + offset, &value, sizeof value);
    return bytes;
  }
  std::string Signed(std::string bytes) const {
    Resign(bytes);
    return bytes;
  }

  TempDir folder_;
  std::string path_ = folder_.File("s");
  KvCache cache_;
  SequenceId id_;
  std::string file_;
  KvUsage before_;
};

TEST_F(KvSnapshotDamage, TheFileItselfIsRestored) {
  folder_.Write("s", file_);
  ASSERT_TRUE(cache_.Restore(path_, {"fp"}).ok());
  folder_.Write("s", Signed(file_));
  ASSERT_TRUE(cache_.Restore(path_, {"fp"}).ok());
}

TEST_F(KvSnapshotDamage, EveryBitIsCovered) {
  for (std::size_t i = 0; i < file_.size(); ++i) {
    SCOPED_TRACE(i);
    std::string bytes = file_;
    bytes[i] = static_cast<char>(bytes[i] ^ 1 << i % 8);
    ASSERT_FALSE(Refused(bytes).ok());
    if (HasFailure()) return;
  }
}

TEST_F(KvSnapshotDamage, NoBeginningIsTakenForTheWhole) {
  for (std::size_t size = 0; size < file_.size(); size += size < 400 ? 1 : 37)
    EXPECT_THAT(Refused(file_.substr(0, size)).message(),
                HasSubstr("has " + std::to_string(size) + " bytes; "));
  EXPECT_FALSE(Refused(file_.substr(0, file_.size() - 1)).ok());
  EXPECT_THAT(Refused(file_ + "x").message(),
              HasSubstr("its header says " + std::to_string(file_.size())));
  EXPECT_THAT(Refused(std::string(1000, 'x')).message(),
              HasSubstr("is not a snapshot: it does not begin with MHKVSNAP"));
  EXPECT_THAT(Refused(With(file_.size() - 9, char{77})).message(),
              HasSubstr("is damaged: its checksum"));
}

TEST_F(KvSnapshotDamage, FilesThatCannotBeRead) {
  EXPECT_THAT(cache_.Restore(folder_.File("none")).status().message(),
              HasSubstr("cannot open: No such file"));
  EXPECT_THAT(cache_.Restore(folder_.path()).status().message(),
              HasSubstr("is a directory; expected a regular file"));
  EXPECT_THAT(cache_.Restore("/dev/zero").status().message(), HasSubstr("is a device"));
}

TEST_F(KvSnapshotDamage, SnapshotsOfOthersAreRefused) {
  struct Case {
    const char* message;
    StatusCode code;
    std::string bytes;
  };
  const StatusCode kForeign = StatusCode::kInvalidArgument;
  const Case cases[] = {
      {"version = 3.0; expected 1.0 or 2.0", StatusCode::kUnsupported, With(8, 3)},
      {"fingerprint = \"zp\"; expected \"fp\"", kForeign, Signed(With(40, 'z'))},
      {"fingerprint = \"?p\"; expected \"fp\"", kForeign, Signed(With(40, '\x1b'))},
      {"page_size = 32; the cache's is 16", kForeign, Signed(With<std::int64_t>(52, 32))},
      {"has 2 layers; the cache has 1", kForeign, Signed(With<std::int64_t>(60, 2))},
      {"layers[0].num_kv_heads = 3; the cache's is 2", kForeign, Signed(With<std::int64_t>(68, 3))},
      {"layers[0].head_dim = 8; the cache's is 4", kForeign, Signed(With<std::int64_t>(76, 8))},
      {"layers[0].head_dim_v = -5; the cache's is 5", kForeign, Signed(With<std::int64_t>(84, -5))},
      {"layers[0], KV head 0: k_type, v_type = bf16, f16; the cache's are f32, f16", kForeign,
       Signed(With(92, char{2}))},
      {"layers[0], KV head 0: policy = off; the cache's is full", kForeign,
       Signed(With(94, char{4}))},
      {"layers[0], KV head 1: policy = budget(65)+recent(10); the cache's is "
       "budget(64)+recent(10)",
       kForeign, Signed(With<std::int64_t>(148, 65))},
      {"sequence 0 has 61 tokens; max_tokens = 60", StatusCode::kOutOfPages,
       Signed(With<std::int64_t>(172, 61))},
  };
  for (const Case& one : cases) {
    const Status status = Refused(one.bytes);
    EXPECT_EQ(status.code(), one.code) << one.message;
    EXPECT_THAT(status.message(), HasSubstr(one.message));
  }
  EXPECT_THAT(Refused(file_, {"other"}).message(),
              HasSubstr("fingerprint = \"fp\"; expected \"other\""));
}

// Whoever writes the checksum too can say anything: what contradicts itself is still refused.
TEST_F(KvSnapshotDamage, ContradictionsAreRefused) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 62;
  const struct {
    std::size_t offset;
    std::int64_t value;
    const char* message;
  } cases[] = {
      {24, kHuge, "bytes of metadata; the file has room for"},
      {24, -1, "-1 bytes of metadata"},
      {24, 100, "layers[0], KV head 1: its header says that the metadata ends before"},
      {32, kHuge, "number of fingerprint bytes = 4611686018427387904; only "},
      {32, -1, "number of fingerprint bytes = -1"},
      {42, kHuge, "number of user data bytes = 4611686018427387904; only "},
      {60, kHuge, "number of layers = 4611686018427387904; only "},
      {92, 9, "types 9 and 0, policy 0, then 0; expected 0..4 of each"},
      {120, kHuge, "number of stored pages = 4611686018427387904; only "},
      {120, -3, "number of stored pages = -3"},
      {120, 2, "bytes are left after the last page; expected 0"},
      {120, 4, "only "},
      {164, kHuge, "number of sequences = 4611686018427387904; only "},
      {164, -1, "number of sequences = -1"},
      {164, 0, "bytes are left after the last sequence; expected 0"},
      {172, -1, "sequence 0: length = -1, first_query = 0"},
      {172, 50, "sequence 0, head 0 of all: "},
      {172, 4, "gap 3..5; expected a range in 0..4"},
      {180, 41, "length = 40, first_query = 41"},
      {180, -1, "first_query = -1"},
      {188, kHuge, "number of gaps = 4611686018427387904; only "},
      {196, -1, "gap -1..5; expected a range in 0..40"},
      {204, 3, "gap 3..3; expected a range in 0..40"},
      {204, 41, "gap 3..41; expected a range in 0..40"},
      {212, 3, "page 0 of a table = 3; expected the number of a stored page below 3"},
      {212, -1, "page 0 of a table = -1; expected the number"},
      {212, -2, "page 0 of a table = -2"},
      {212, 1, "stored page 1 is page 0 of a table and page 1"},
      {268, -1, "score = -1; expected 0..4611686018427387904"},
      {284, kHuge + 1, "score = 4611686018427387905; expected 0.."},
  };
  for (const auto& one : cases) {
    SCOPED_TRACE(::testing::Message() << one.offset << " = " << one.value);
    EXPECT_THAT(Refused(Signed(With(one.offset, one.value))).message(), HasSubstr(one.message));
  }
  // A gap that is the whole of a page which is there all the same.
  std::string bytes = With<std::int64_t>(196, 0);
  const std::int64_t end = 16;
  std::memcpy(bytes.data() + 204, &end, sizeof end);
  EXPECT_THAT(Refused(Signed(bytes)).message(),
              HasSubstr("page 0 of a table = 0; expected -1, since it lies in gaps"));
}

// Another process may write to the file, or cut it short, between the two times it is read.
TEST_F(KvSnapshotDamage, ChangesWhileItIsReadAreNoticed) {
  folder_.Write("s", file_);
  const KvCacheParams& params = cache_.params();
  std::vector<std::byte> page(64);
  const auto read_all = [&](SnapshotFile& file) {
    const std::int64_t bytes = static_cast<std::int64_t>(file_.size()) - 8 - 320;
    for (std::int64_t i = 0; i < bytes / 64; ++i)
      if (Status status = file.ReadPage(page); !status.ok()) return status;
    return file.CheckUnchanged();
  };
  ASSERT_EQ(file_.size() % 64, 8U);
  Result<SnapshotFile> same = SnapshotFile::Open(path_, params, "fp", false);
  ASSERT_TRUE(same.ok()) << same.status().message();
  EXPECT_TRUE(read_all(*same).ok());
  EXPECT_FALSE(read_all(*same).ok()) << "beyond the end";

  Result<SnapshotFile> changed = SnapshotFile::Open(path_, params, "fp", false);
  {
    std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(file_.size()) - 30);
    file.put('!');
  }
  EXPECT_THAT(read_all(*changed).message(), HasSubstr("changed while it was read"));

  folder_.Write("s", file_);
  Result<SnapshotFile> cut = SnapshotFile::Open(path_, params, "fp", false);
  std::filesystem::resize_file(path_, file_.size() / 2);
  EXPECT_THAT(read_all(*cut).message(),
              AllOf(HasSubstr("ends after " + std::to_string(file_.size() / 2)),
                    HasSubstr("of " + std::to_string(file_.size()) + " bytes")));
}

}  // namespace
}  // namespace manyhead
