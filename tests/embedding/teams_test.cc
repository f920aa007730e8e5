#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "manyhead/c_api.h"
#include "manyhead/manyhead.h"
#include "tools/examples/pool_executor.h"

// Results have the same bits whoever's threads do the work.

namespace manyhead {
namespace {

const std::string kPath = std::string(MANYHEAD_SOURCE_DIR) + "/tools/models/bundled.gguf";

constexpr int kCounts[] = {1, 2, 3, 7};

/// A team for its lifetime; OpenMP's may have as many threads as are asked for here.
class UsedTeam {
 public:
  explicit UsedTeam(Team team) : saved_threads_(omp_get_max_threads()) {
    omp_set_num_threads(7);
    ThreadsOptions options;
    options.team = team;
    if (team == Team::kExecutor) options = pool_.Options();
    const Status status = SetThreads(options);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  ~UsedTeam() {
    EXPECT_TRUE(SetThreads({}).ok());
    omp_set_num_threads(saved_threads_);
  }
  UsedTeam(const UsedTeam&) = delete;
  UsedTeam& operator=(const UsedTeam&) = delete;

 private:
  examples::PoolExecutor pool_{6};
  int saved_threads_;
};

/// Logits after a prompt and after each of some decoded tokens, of a model that is loaded and run
/// by `threads` threads.
std::vector<float> Logits(int threads) {
  std::vector<float> logits;
  const auto model = Model::Load(kPath, {.threads = threads});
  if (!model.ok()) return logits;
  SessionOptions options;
  options.context = 256;
  options.threads = threads;
  auto session = Session::Create(*model, options);
  if (!session.ok()) return logits;
  std::vector<TokenId> ids;
  for (int i = 0; i < 40; ++i) ids.push_back(static_cast<TokenId>(3 + i * 37 % 250));
  for (int step = 0; step < 6; ++step) {
    const auto row = session->Append(ids);
    if (!row.ok()) return {};
    logits.insert(logits.end(), row->begin(), row->end());
    ids = {static_cast<TokenId>(70 + step)};
  }
  return logits;
}

/// One query over 1500 tokens, which several workers share, and a prompt of 40.
std::vector<float> Attention(int threads, std::int64_t q_len) {
  constexpr std::int64_t kHeads = 4, kKvHeads = 2, kDim = 24, kTokens = 1500;
  std::vector<float> q(static_cast<std::size_t>(q_len * kHeads * kDim)),
      rows(kTokens * kKvHeads * kDim), out(q.size());
  for (std::size_t i = 0; i < rows.size(); ++i)
    rows[i] = static_cast<float>(i * 7919 % 1009) / 504.5F - 1;
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = rows[i];
  AttentionParams params;
  params.num_heads = kHeads;
  params.num_kv_heads = kKvHeads;
  params.head_dim = kDim;
  params.max_q_len = q_len;
  params.max_kv_len = kTokens;
  params.threads = threads;
  auto plan = AttentionPlan::Create(params);
  if (!plan.ok() || !plan->Run(q_len, kTokens, q.data(), rows.data(), rows.data(), out.data()).ok())
    return {};
  return out;
}

TEST(Teams, GiveTheSameBits) {
  std::vector<float> logits, decode, prefill;
  for (const Team team : {Team::kOwn, Team::kOpenMp, Team::kExecutor}) {
    const UsedTeam used(team);
    for (const int threads : kCounts) {
      const std::string what = std::string(TeamName(team)) + ", " + std::to_string(threads);
      const std::vector<float> present = Logits(threads);
      if (logits.empty()) {
        logits = present;
        decode = Attention(1, 1);
        prefill = Attention(1, 40);
      }
      ASSERT_GT(logits.size(), 6U * 250) << what;
      EXPECT_TRUE(present == logits) << what;
      EXPECT_TRUE(Attention(threads, 1) == decode) << what;
      EXPECT_TRUE(Attention(threads, 40) == prefill) << what;
    }
  }
}

/// Runs body() in a process of its own with MANYHEAD_TEAM = `name`, in which no team was asked for
/// before, and returns its exit code.
int InEnvironment(const char* name, const char* test) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("MANYHEAD_TEAM", name, 1);
    const std::string filter = std::string("--gtest_filter=TeamsChild.DISABLED_") + test;
    execl("/proc/self/exe", "embedding_test", filter.c_str(), "--gtest_also_run_disabled_tests",
          "--gtest_brief=1", static_cast<char*>(nullptr));
    _exit(127);
  }
  int status = 0;
  if (child < 0 || waitpid(child, &status, 0) != child) return -1000;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Run by the test below in processes of their own.
TEST(TeamsChild, DISABLED_Unknown) {
  const auto refuses = [](const Status& status) {
    return status.code() == StatusCode::kInvalidArgument &&
           status.message() == "MANYHEAD_TEAM = " + std::string(getenv("MANYHEAD_TEAM")) +
                                   "; expected own or openmp (an executor is set by SetThreads)";
  };
  EXPECT_TRUE(refuses(SelectTeam().status()));
  EXPECT_TRUE(refuses(Model::Load(kPath).status()));
  AttentionParams attention;
  attention.num_heads = attention.num_kv_heads = 1;
  attention.head_dim = 8;
  attention.max_q_len = attention.max_kv_len = 4;
  EXPECT_TRUE(refuses(AttentionPlan::Create(attention).status()));
  const std::vector<float> weight(64, 0.1F);
  const ProjectionWeights w = F32Weights(weight);
  MultiHeadAttentionParams params;
  params.d_model = 8;
  params.attention = attention;
  EXPECT_TRUE(refuses(MultiHeadAttention::Create(params, {w, w, w, w}).status()));
  EXPECT_STREQ(mh_team_name(), "?");
  // A program's choice is one, and what it made goes on; the next session is refused again.
  ASSERT_TRUE(SetThreads({.team = Team::kOwn}).ok());
  const auto model = Model::Load(kPath);
  ASSERT_TRUE(model.ok()) << model.status().message();
  ASSERT_TRUE(Session::Create(*model, {}).ok());
  ASSERT_TRUE(SetThreads({}).ok());
  EXPECT_TRUE(refuses(Session::Create(*model, {}).status()));
}

TEST(TeamsChild, DISABLED_Known) {
  const auto team = SelectTeam();
  ASSERT_TRUE(team.ok());
  EXPECT_STREQ(TeamName(*team), getenv("MANYHEAD_TEAM"));
  EXPECT_STREQ(mh_team_name(), getenv("MANYHEAD_TEAM"));
  const std::vector<float> named = Logits(2);
  ASSERT_TRUE(SetThreads({.team = Team::kOwn}).ok());
  EXPECT_FALSE(named.empty());
  EXPECT_TRUE(named == Logits(3));
}

TEST(Teams, AreNamedByTheEnvironment) {
  for (const char* name : {"own", "openmp"}) EXPECT_EQ(InEnvironment(name, "Known"), 0) << name;
  for (const char* name : {"tbb", "OpenMP", "executor", "own ", "0"})
    EXPECT_EQ(InEnvironment(name, "Unknown"), 0) << name;
}

TEST(Teams, NamesAreReadAsTheyAreWritten) {
  for (const Team team : {Team::kOwn, Team::kOpenMp, Team::kExecutor})
    EXPECT_EQ(ParseTeam(TeamName(team)), team);
  EXPECT_FALSE(ParseTeam("").has_value());
  EXPECT_FALSE(ParseTeam("omp").has_value());
  EXPECT_STREQ(TeamName(static_cast<Team>(9)), "?");
}

}  // namespace
}  // namespace manyhead
