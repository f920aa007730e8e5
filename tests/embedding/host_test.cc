#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <immintrin.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "manyhead/manyhead.h"
#include "tests/support/temp_dir.h"

// Tests the library in a host program: threads, regions, forks, limits, files.

namespace manyhead {
namespace {

const std::string kPath = std::string(MANYHEAD_SOURCE_DIR) + "/tools/models/bundled.gguf";
constexpr char kPrompt[] = "x7k2qz x7k2qz x7k";
constexpr char kText[] = "2qz x7k2qz x7k2qz x7k2qz";

/// The text that a session of `threads` threads makes of `prompt`, or what went wrong.
std::string Generate(const Model& model, int threads, const std::string& prompt = kPrompt) {
  SessionOptions options;
  options.threads = threads;
  options.context = 256;
  auto session = Session::Create(model, options);
  if (!session.ok()) return session.status().message();
  const auto ids = model.tokenizer().Encode(prompt);
  if (!ids.ok()) return ids.status().message();
  GenerateOptions generate;
  generate.max_tokens = 24;
  const auto result = session->Generate(*ids, generate);
  return result.ok() ? result->text : result.status().message();
}

Model LoadModel(const std::string& path = kPath) {
  auto model = Model::Load(path);
  EXPECT_TRUE(model.ok()) << model.status().message();
  return *std::move(model);
}

/// Runs body() in a child process and returns how that ended: its exit code, or -signal.
template <class Body>
int InChild(Body&& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // ends a test that would wait forever
    _exit(body());
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int CountEntries(const char* folder) {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

TEST(Host, SessionsInTwoThreadsDoNotMeet) {
  const Model model = LoadModel();
  const std::string prompts[] = {kPrompt, "the small bird sang. the small"};
  const std::string alone[] = {Generate(model, 2, prompts[0]), Generate(model, 2, prompts[1])};
  EXPECT_EQ(alone[0], kText);
  std::vector<std::string> texts(8);
  {
    std::vector<std::jthread> hosts;
    for (std::size_t host = 0; host < 2; ++host)
      hosts.emplace_back([&, host] {
        for (std::size_t i = 0; i < 4; ++i)
          texts[4 * host + i] = Generate(model, 1 + static_cast<int>(i) % 3, prompts[host]);
      });
  }
  for (std::size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(texts[i], alone[i / 4]) << i;
}

TEST(Host, ThreadsOfAHostThatEndsGoWithIt) {
  const Model model = LoadModel();
  const auto host = [&] { EXPECT_EQ(Generate(model, 3), kText); };
  std::thread(host).join();
  const int before = CountEntries("/proc/self/task");
  for (int i = 0; i < 5; ++i) std::thread(host).join();
  EXPECT_EQ(CountEntries("/proc/self/task"), before);
}

TEST(Host, InsideARegionOfItsOwn) {
  const Model model = LoadModel();
  const int most = omp_get_max_threads();
  std::vector<std::string> texts(3);
#pragma omp parallel for num_threads(3)
  for (int i = 0; i < 3; ++i) texts[static_cast<std::size_t>(i)] = Generate(model, 2);
  for (const std::string& text : texts) EXPECT_EQ(text, kText);
  EXPECT_EQ(omp_get_max_threads(), most);
}

TEST(Host, MoreThreadsThanCpus) {
  const Model model = LoadModel();
  EXPECT_EQ(Generate(model, 3 * static_cast<int>(std::thread::hardware_concurrency())), kText);
}

TEST(Host, MoreThreadsThanCpusInAttention) {
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 24, kTokens = 1500;
  std::vector<float> q(kHeads * kDim), rows(kTokens * kKvHeads * kDim);
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<float>(i * 7919 % 1009) / 504.5F - 1;
  std::copy_n(rows.begin(), q.size(), q.begin());
  std::vector<std::vector<float>> outs;
  for (const int threads : {1, 8, 3 * static_cast<int>(std::thread::hardware_concurrency())}) {
    AttentionParams params;
    params.num_heads = kHeads;
    params.num_kv_heads = kKvHeads;
    params.head_dim = kDim;
    params.max_q_len = 1;
    params.max_kv_len = kTokens;
    params.threads = threads;
    auto plan = AttentionPlan::Create(params);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    std::vector<float>& out = outs.emplace_back(q.size());
    ASSERT_TRUE(plan->Run(1, kTokens, q.data(), rows.data(), rows.data(), out.data()).ok());
    EXPECT_EQ(out, outs.front()) << threads << " threads";
  }
}

// Products of many rows go through a library with threads of its own, which "1 thread" has to reach
// as well (public report ggml-org/llama.cpp#22956).
TEST(Host, OneThreadIsOne) {
  EXPECT_EQ(InChild([] {
              const auto model = Model::Load(kPath, {.threads = 1});
              if (!model.ok()) return 2;
              std::string prompt;
              while (prompt.size() < 200) prompt += "x7k2qz ";
              const std::string text = Generate(*model, 1, prompt);
              for (int i = 0; i < 5; ++i)
                if (Generate(*model, 1, prompt) != text) return 3;
              return CountEntries("/proc/self/task") == 1 ? 0 : 1;
            }),
            0);
}

TEST(Host, KeepsItsFloatingPointMode) {
  const Model model = LoadModel();
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8000U);  // flushes denormals: another mode than that of this library
  EXPECT_EQ(Generate(model, 2), kText);
  EXPECT_EQ(_mm_getcsr() & ~0x3FU, (before | 0x8000U) & ~0x3FU);  // the sticky flags do not count
  _mm_setcsr(before);
  EXPECT_EQ(Generate(model, 1), kText);
  EXPECT_EQ(_mm_getcsr() & ~0x3FU, before & ~0x3FU);
}

TEST(Host, AForkedProcessGoesOnAndSoDoesItsParent) {
  const Model model = LoadModel();
  SessionOptions options;
  options.threads = 2;
  auto session = Session::Create(model, options);
  ASSERT_TRUE(session.ok());
  const auto ids = model.tokenizer().Encode(kPrompt);
  ASSERT_TRUE(ids.ok());
  GenerateOptions generate;
  generate.max_tokens = 24;
  const auto text = [&] {
    const auto result = session->Generate(*ids, generate);
    return result.ok() ? result->text : result.status().message();
  };
  ASSERT_EQ(text(), kText);  // the parent has threads now, and oneDNN its code
  EXPECT_EQ(InChild([&] { return text() == kText && Generate(model, 3) == kText ? 0 : 1; }), 0);
  EXPECT_EQ(text(), kText);
}

TEST(Host, TheDefaultCountIsThatOfItsAffinity) {
  EXPECT_EQ(InChild([] {
              cpu_set_t allowed, one;
              CPU_ZERO(&allowed);
              CPU_ZERO(&one);
              if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 2;
              std::size_t cpu = 0;
              while (!CPU_ISSET(cpu, &allowed)) ++cpu;
              CPU_SET(cpu, &one);
              if (sched_setaffinity(0, sizeof one, &one) != 0) return 3;
              return DefaultThreads() == 1 ? 0 : 1;
            }),
            0);
}

TEST(Host, NoThreadsToBeHad) {
  const Model model = LoadModel();
  EXPECT_EQ(InChild([&] {
              // Attributes of new threads, whose stacks cannot be allocated.
              pthread_attr_t attributes;
              if (pthread_attr_init(&attributes) != 0 ||
                  pthread_attr_setstacksize(&attributes, std::size_t{1} << 46) != 0 ||
                  pthread_setattr_default_np(&attributes) != 0)
                return 2;
              return Generate(model, 4) == kText ? 0 : 1;
            }),
            0);
}

TEST(Host, AModelThatIsReplacedStaysWhatItWas) {
  const testing::TempDir dir;
  const std::string path = dir.File("model.gguf");
  std::filesystem::copy_file(kPath, path);
  for (const WeightStorage weights : {WeightStorage::kMapped, WeightStorage::kPacked}) {
    const auto model = Model::Load(path, {.weights = weights});
    ASSERT_TRUE(model.ok());
    std::filesystem::rename(dir.Write("other", "no model"), path);
    EXPECT_EQ(Generate(*model, 2), kText);
    EXPECT_EQ(Model::Load(path).status().code(), StatusCode::kIoError);
    std::filesystem::remove(path);
    EXPECT_EQ(Generate(*model, 1), kText);
    std::filesystem::copy_file(kPath, path);
  }
}

#if !defined(__SANITIZE_ADDRESS__)
// Every limit of address space, from none to enough: mappings, threads and allocations fail at
// different places, and each time the result is a message or an exception, never a signal.
TEST(Host, AddressSpaceRunsOutAnywhere) {
  const auto attempt = [](std::int64_t more_bytes) {
    return InChild([more_bytes] {
      std::int64_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const auto limit = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE) + more_bytes);
      const rlimit space = {limit, limit};
      if (setrlimit(RLIMIT_AS, &space) != 0) return 9;
      try {
        const auto model = Model::Load(kPath);
        if (!model.ok()) return 2;
        return Generate(*model, 3) == kText ? 0 : 3;
      } catch (const std::bad_alloc&) {
        return 4;
      }
    });
  };
  int refused = 0;
  for (std::int64_t kibibytes = 0; kibibytes < 6000; kibibytes += 125) {
    const int result = attempt(kibibytes << 10);
    EXPECT_GE(result, 0) << "with " << kibibytes << " KiB";
    if (result != 0) ++refused;
  }
  EXPECT_GT(refused, 10);
  EXPECT_EQ(attempt(std::int64_t{8} << 30), 0);
}
#endif

TEST(Host, DescriptorsAreGivenBack) {
  const testing::TempDir dir;
  const auto use = [&] {
    const Model model = LoadModel();
    auto session = Session::Create(model, {});
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE(session->Append(std::vector<TokenId>{1, 70, 71}).ok());
    ASSERT_TRUE(session->Save(dir.File("state")).ok());
    ASSERT_TRUE(session->Restore(dir.File("state")).ok());
    EXPECT_FALSE(session->Restore(kPath).ok());
    EXPECT_FALSE(Model::Load(dir.File("state")).ok());
  };
  use();
  const int before = CountEntries("/proc/self/fd");
  for (int i = 0; i < 3; ++i) use();
  EXPECT_EQ(CountEntries("/proc/self/fd"), before);
}

}  // namespace
}  // namespace manyhead
