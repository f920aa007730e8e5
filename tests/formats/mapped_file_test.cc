#include "runtime/platform/mapped_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <string_view>
#include <utility>

#include "tests/support/temp_dir.h"

namespace manyhead {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

void ExpectError(const std::string& path, const char* reason) {
  const Result<MappedFile> file = MappedFile::Open(path);
  ASSERT_FALSE(file.ok()) << path;
  EXPECT_EQ(file.status().code(), StatusCode::kIoError);
  EXPECT_THAT(file.status().message(), AllOf(HasSubstr(path), HasSubstr(reason)));
}

TEST(MappedFile, ShowsTheBytesOfTheFile) {
  const testing::TempDir dir;
  Result<MappedFile> file = MappedFile::Open(dir.Write("data", "some bytes"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  file->AdviseSequential();
  file->AdviseWillNeed();
  ASSERT_EQ(file->bytes().size(), 10U);
  EXPECT_EQ(std::memcmp(file->bytes().data(), "some bytes", 10), 0);
}

TEST(MappedFile, MovingKeepsTheAddressAndAnOpenMappingOutlivesTheName) {
  const testing::TempDir dir;
  Result<MappedFile> file = MappedFile::Open(dir.Write("data", "first"));
  Result<MappedFile> other = MappedFile::Open(dir.Write("other", "second"));
  ASSERT_TRUE(file.ok() && other.ok());
  const std::byte* address = file->bytes().data();
  *other = std::move(*file);
  const MappedFile moved = std::move(*other);
  EXPECT_EQ(moved.bytes().data(), address);
  unlink(dir.File("data").c_str());
  EXPECT_EQ(static_cast<char>(moved.bytes()[0]), 'f');
}

TEST(MappedFile, RefusesWhatIsNoRegularFileWithTheReason) {
  const testing::TempDir dir;
  ExpectError(dir.File("missing"), "No such file");
  ExpectError(dir.path(), "a directory; expected a regular file");
  ExpectError(dir.Write("empty", ""), "is empty");
  ExpectError("/dev/null", "a device; expected a regular file");
  ASSERT_EQ(mkfifo(dir.File("fifo").c_str(), 0600), 0);
  ExpectError(dir.File("fifo"), "a FIFO; expected a regular file");
  ExpectError(std::string(5000, 'x'), "too long");
  EXPECT_THAT(MappedFile::Open(std::string("a\0b", 3)).status().message(), HasSubstr("NUL"));
}

TEST(MappedFile, NamesMissingPermission) {
  if (geteuid() == 0) GTEST_SKIP() << "root may read every file";
  const testing::TempDir dir;
  const std::string path = dir.Write("secret", "bytes");
  chmod(path.c_str(), 0);
  ExpectError(path, "Permission denied");
}

}  // namespace
}  // namespace manyhead
