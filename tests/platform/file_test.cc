#include "runtime/platform/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/output_file.h"
#include "tests/support/read_bytes.h"
#include "tests/support/temp_dir.h"

namespace manyhead {
namespace {

using ::manyhead::testing::ReadBytes;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

mode_t Mode(const std::string& path) {
  struct stat info = {};
  EXPECT_EQ(stat(path.c_str(), &info), 0) << path;
  return info.st_mode & 0777;
}

Status WriteWhole(const std::string& path, std::string_view text) {
  Result<AtomicFile> file = AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  if (Status status = file->Write(Bytes(text)); !status.ok()) return status;
  return file->Commit();
}

class AtomicFileTest : public ::testing::Test {
 protected:
  AtomicFileTest() : old_mask_(umask(022)) {}
  ~AtomicFileTest() override { umask(old_mask_); }

  testing::TempDir folder_;
  std::string path_ = folder_.File("out");

 private:
  mode_t old_mask_;
};

TEST_F(AtomicFileTest, AppearsWholeAndLeavesNothingBeside) {
  ASSERT_TRUE(WriteWhole(path_, "old").ok());
  {
    Result<AtomicFile> file = AtomicFile::Create(path_);
    ASSERT_TRUE(file.ok()) << file.status().message();
    ASSERT_TRUE(file->Write(Bytes("new and longer")).ok());
    EXPECT_EQ(ReadBytes(path_), "old");
    AtomicFile moved = *std::move(file);
    ASSERT_TRUE(moved.Commit().ok());
    EXPECT_EQ(ReadBytes(path_), "new and longer");
  }
  {
    Result<AtomicFile> given_up = AtomicFile::Create(path_);
    ASSERT_TRUE(given_up.ok());
    ASSERT_TRUE(given_up->Write(Bytes("never seen")).ok());
  }
  EXPECT_EQ(ReadBytes(path_), "new and longer");
  EXPECT_THAT(Names(folder_.path()), ElementsAre("out"));
}

TEST_F(AtomicFileTest, HasThePermissionsOfTheFileItReplaces) {
  ASSERT_TRUE(WriteWhole(path_, "a").ok());
  EXPECT_EQ(Mode(path_), 0644U);
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  ASSERT_TRUE(WriteWhole(path_, "b").ok());
  EXPECT_EQ(Mode(path_), 0640U);
  umask(077);
  ASSERT_TRUE(WriteWhole(folder_.File("private"), "c").ok());
  EXPECT_EQ(Mode(folder_.File("private")), 0600U);
}

TEST_F(AtomicFileTest, RefusesWhatIsNoFile) {
  const Result<AtomicFile> in_nothing = AtomicFile::Create(folder_.File("no/out"));
  ASSERT_FALSE(in_nothing.ok());
  EXPECT_THAT(in_nothing.status().message(), HasSubstr("no/out: cannot create: No such file"));
  const Result<AtomicFile> over_folder = AtomicFile::Create(folder_.path());
  ASSERT_FALSE(over_folder.ok());
  EXPECT_THAT(over_folder.status().message(), HasSubstr("is a directory"));
}

TEST_F(AtomicFileTest, FollowsSymbolicLinksAndLeavesThem) {
  std::filesystem::create_directory(folder_.File("there"));
  std::filesystem::create_symlink("there/target", folder_.File("second"));
  std::filesystem::create_symlink("second", path_);
  for (const char* text : {"made", "replaced"}) {
    ASSERT_TRUE(WriteOutputFile(path_, text).ok());
    EXPECT_EQ(ReadBytes(folder_.File("there/target")), text);
    EXPECT_TRUE(std::filesystem::is_symlink(path_));
    EXPECT_THAT(Names(folder_.path()), ElementsAre("out", "second", "there"));
  }
  std::filesystem::create_symlink("loop", folder_.File("loop"));
  EXPECT_THAT(CheckOutputFile(folder_.File("loop")).message(), HasSubstr("loop: "));
  std::filesystem::create_symlink("/dev/null", folder_.File("device"));
  EXPECT_THAT(CheckOutputFile(folder_.File("device")).message(), HasSubstr("is a device"));
}

TEST_F(AtomicFileTest, TakesEveryNameThatTheFileSystemTakes) {
  constexpr std::size_t kMost = 255;
  for (const std::size_t length : {kMost - 9, kMost - 8, kMost}) {
    const std::string path = folder_.File(std::string(length, 'n'));
    EXPECT_TRUE(WriteOutputFile(path, "text").ok()) << length;
    EXPECT_EQ(ReadBytes(path), "text") << length;
  }
  EXPECT_FALSE(CheckOutputFile(folder_.File(std::string(kMost + 1, 'n'))).ok());
}

TEST_F(AtomicFileTest, TheLimitOfFileSizesIsAnErrorAndRaisesNoSignal) {
  ASSERT_TRUE(WriteOutputFile(path_, "old").ok());
  rlimit old_limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit limit = {.rlim_cur = 100, .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const Status status = WriteOutputFile(path_, std::string(1000, 'x'));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  EXPECT_THAT(status.message(), HasSubstr("File too large"));
  EXPECT_EQ(ReadBytes(path_), "old");
  EXPECT_THAT(Names(folder_.path()), ElementsAre("out"));
}

}  // namespace
}  // namespace manyhead
