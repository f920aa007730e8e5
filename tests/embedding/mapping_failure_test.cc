#include <errno.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <new>
#include <string>

#include "manyhead/manyhead.h"
#include "tests/support/temp_dir.h"

/// A separate program: the operating system refuses one mapping, each in turn.

namespace {
std::atomic<int> g_mappings_left = -1;  // before the one that fails; negative: none fails
}

// Ours and those of the libraries below; the C library's own, such as malloc's, do not come here.
extern "C" void* mmap(void* address, std::size_t bytes, int protection, int flags, int file,
                      off_t offset) noexcept {
  if (g_mappings_left >= 0 && g_mappings_left-- == 0) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): what a system call gives
  return reinterpret_cast<void*>(
      syscall(SYS_mmap, address, bytes, protection, flags, file, offset));
}

namespace manyhead {
namespace {

using ::testing::HasSubstr;

const std::string kPath = std::string(MANYHEAD_SOURCE_DIR) + "/tools/models/bundled.gguf";
constexpr char kText[] = "2qz x7k2qz x7k2qz x7k2qz";

/// The message of call() when its n-th mapping, from 0, is refused.
template <class Call>
std::string MessageWithout(int n, Call&& call) {
  g_mappings_left = n;
  const auto result = call();
  g_mappings_left = -1;
  return result.ok() ? "" : result.status().message();
}

TEST(MappingFailure, IsAMessageThatNamesWhatWasToBeMapped) {
  const auto load = [](WeightStorage weights) {
    return [weights] { return Model::Load(kPath, {.weights = weights, .threads = 1}); };
  };
  for (const WeightStorage weights : {WeightStorage::kMapped, WeightStorage::kPacked})
    EXPECT_EQ(MessageWithout(0, load(weights)), kPath + ": cannot map: Cannot allocate memory");
  EXPECT_THAT(MessageWithout(1, load(WeightStorage::kPacked)),
              HasSubstr("bytes for packed weights; WeightStorage::kMapped needs none"));
  EXPECT_EQ(MessageWithout(1, load(WeightStorage::kMapped)), "");

  const auto create = [] {
    KvCacheParams params;
    params.layers = {{1, 8}};
    params.capacity_bytes = 1 << 20;
    params.max_tokens = 100;
    return KvCache::Create(params);
  };
  EXPECT_THAT(MessageWithout(0, create),
              HasSubstr("KvCache::Create: capacity_bytes = 1048576; the system refused address "
                        "space of"));
  EXPECT_EQ(MessageWithout(0, create).find('\n'), std::string::npos);
}

enum Outcome { kNoneFailed, kStillRight, kMessage, kNoMemory, kWrong };

/// A model loaded, two prompts, one of them long enough for oneDNN, a session saved and restored.
Outcome UseEverything(const std::string& state) {
  try {
    const auto model = Model::Load(kPath, {.threads = 2});
    if (!model.ok()) return kMessage;
    auto session = Session::Create(*model, {.context = 256, .threads = 2});
    if (!session.ok()) return kMessage;
    const auto ids = model->tokenizer().Encode("x7k2qz x7k2qz x7k");
    GenerateOptions options;
    options.max_tokens = 24;
    const auto result = session->Generate(*ids, options);
    if (!result.ok() || !session->Save(state).ok() || !session->Restore(state).ok())
      return kMessage;
    return result->text == kText ? kStillRight : kWrong;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

// In a process each: what a library below has once generated it need not map again.
TEST(MappingFailure, OfAnyMappingIsAnErrorOrMakesNoDifference) {
  const testing::TempDir dir;
  int refused = 0;
  for (int n = 0;; ++n) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(60);
      g_mappings_left = n;
      const Outcome outcome = UseEverything(dir.File("state"));
      _exit(g_mappings_left < 0 || outcome != kStillRight ? outcome : kNoneFailed);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << " without mapping " << n;
    ASSERT_NE(WEXITSTATUS(status), kWrong) << "without mapping " << n;
    if (WEXITSTATUS(status) == kNoneFailed) break;
    if (WEXITSTATUS(status) == kMessage) ++refused;
    ASSERT_LT(n, 1000);
  }
  EXPECT_GE(refused, 3) << "the file, packed weights, pages";
}

}  // namespace
}  // namespace manyhead
