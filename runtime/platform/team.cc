#include "runtime/platform/team.h"

#include <immintrin.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/platform/clock.h"

namespace manyhead {
namespace {

/// Flush-to-zero and denormals-are-zero for its lifetime: a softmax tail of e^-95 would otherwise
/// run a hundred times slower, and the mode is each thread's own.
class FlushDenormals {
 public:
  FlushDenormals() noexcept : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040U); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  unsigned saved_;
};

/// As long as a fair team arrives apart, and a token from the next. In time, not in pauses: one
/// takes 5 to 60 ns, as the CPU has it. Waking a thread takes 50 microseconds on a virtual machine.
constexpr std::int64_t kSpinNanoseconds = 100'000;

/// True when `word` left `old` within a short spin. The CPU is offered to others at times: the
/// thread that is waited for may be one that the scheduler has put here too.
bool SpinWhile(const std::atomic<std::uint32_t>& word, std::uint32_t old) noexcept {
  constexpr int kPauses = 64;  // between two offers
  const std::int64_t end = SteadyNanoseconds() + kSpinNanoseconds;
  do {
    for (int i = 0; i < kPauses; ++i) {
      if (word.load(std::memory_order_acquire) != old) return true;
      _mm_pause();
    }
    sched_yield();
  } while (SteadyNanoseconds() < end);
  return false;
}

int AllowedCpus() noexcept {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  return sched_getaffinity(0, sizeof mask, &mask) == 0 ? std::max(1, CPU_COUNT(&mask)) : 1;
}

/// Where the threads of a team run. A scheduler may wake a thread on the CPU of the one that wakes
/// it and leave it there for a tenth of a second, beside an idle CPU: a thread that finds another
/// of its team on its CPU moves away.
class Places {
 public:
  void Clear() noexcept {
    for (auto& word : taken_) word.store(0, std::memory_order_relaxed);
  }

  /// Enters the calling thread's CPU; false when another thread of the team has it.
  bool Take() noexcept {
    const int cpu = sched_getcpu();
    if (cpu < 0 || cpu >= CPU_SETSIZE) return true;
    const std::uint64_t bit = std::uint64_t{1} << (cpu % 64);
    return (taken_[cpu / 64].fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
  }

  /// Moves the calling thread to a CPU that it may use and none of the team has, if there is one.
  /// From there the scheduler may move it as before.
  void Move() noexcept {
    cpu_set_t allowed, left;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    left = allowed;
    for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (taken_[cpu / 64].load(std::memory_order_relaxed) >> (cpu % 64) & 1) CPU_CLR(cpu, &left);
    }
    if (CPU_COUNT(&left) == 0 || sched_setaffinity(0, sizeof left, &left) != 0) return;
    sched_setaffinity(0, sizeof allowed, &allowed);
    Take();
  }

 private:
  std::atomic<std::uint64_t> taken_[CPU_SETSIZE / 64] = {};
};

/// The threads that one calling thread keeps for its teams. Between teams they spin shortly, then
/// sleep. OpenMP's own spin for milliseconds, which on a busy machine takes the CPU from the very
/// thread that is waited for: a small model then decoded ten times slower on two threads than on
/// one.
class Pool {
 public:
  Pool() = default;
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    LeaveToParent();
    body_ = nullptr;
    for (const auto& helper : helpers_) Wake(*helper);
    for (const auto& helper : helpers_) helper->thread.join();
  }

  void Run(int threads, internal::TeamBody body, void* context) noexcept {
    LeaveToParent();
    const std::int64_t start = SteadyNanoseconds();
    if (start < alone_until_) return RunAlone(body, context);
    Grow(threads - 1);
    TeamState state;
    state.may_spin = threads <= AllowedCpus();
    state_ = &state;
    body_ = body;
    context_ = context;
    const int helpers = std::min(threads - 1, static_cast<int>(helpers_.size()));
    count_ = helpers + 1;
    places_.Clear();
    places_.Take();
    running_.store(static_cast<std::uint32_t>(helpers), std::memory_order_relaxed);
    for (int i = 0; i < helpers; ++i) Wake(*helpers_[static_cast<std::size_t>(i)]);
    RunBody(0);
    WaitForHelpers(state);
    if (state.may_spin) RestAfter(start, state.slept_ns.load(std::memory_order_relaxed));
  }

  static void RunAlone(internal::TeamBody body, void* context) noexcept {
    TeamState state;
    FlushDenormals flush;
    Worker worker(state, 0, 1);
    body(context, worker);
  }

 private:
  struct Helper {
    std::atomic<std::uint32_t> jobs = 0;  ///< given to it so far
    std::thread thread;
  };

  static void Wake(Helper& helper) noexcept {
    helper.jobs.fetch_add(1, std::memory_order_release);
    helper.jobs.notify_one();
  }

  void WaitForHelpers(TeamState& state) noexcept {
    for (std::uint32_t left; (left = running_.load(std::memory_order_acquire)) != 0;) {
      if (SpinWhile(running_, left)) continue;
      const std::int64_t start = SteadyNanoseconds();
      running_.wait(left, std::memory_order_acquire);
      state.slept_ns.fetch_add(SteadyNanoseconds() - start, std::memory_order_relaxed);
    }
  }

  /// Teams whose threads slept for a quarter of their time and more, three in a row, are not worth
  /// it; one may be an accident. Beside CPUs that are all taken each barrier waits for a time slice
  /// of others, milliseconds in which one thread alone decodes many tokens of a small model.
  void RestAfter(std::int64_t start, std::int64_t slept) noexcept {
    constexpr int kBadTeams = 3;
    constexpr std::int64_t kRest = 10, kMostNanoseconds = 1'000'000'000;
    const std::int64_t now = SteadyNanoseconds();
    if (slept * 4 < (now - start) * count_) {
      bad_teams_ = 0;
      return;
    }
    if (++bad_teams_ < kBadTeams) return;
    alone_until_ = now + std::min(slept * kRest, kMostNanoseconds);
  }

  /// After a fork the child has no thread but the one that forked: the helpers, which nobody can
  /// join here, are forgotten.
  void LeaveToParent() noexcept {
    if (process_ == getpid()) return;
    process_ = getpid();
    for (auto& helper : helpers_) static_cast<void>(helper.release());
    helpers_.clear();
  }

  /// As many helpers as the system gives, at most `wanted`.
  void Grow(int wanted) noexcept {
    try {
      while (static_cast<int>(helpers_.size()) < wanted) {
        auto helper = std::make_unique<Helper>();
        helpers_.reserve(helpers_.size() + 1);
        const int index = static_cast<int>(helpers_.size()) + 1;
        helper->thread = std::thread([this, index, h = helper.get()] { Serve(*h, index); });
        helpers_.push_back(std::move(helper));
      }
    } catch (const std::exception&) {  // a smaller team does the same work
    }
  }

  void Serve(Helper& helper, int index) noexcept {
    for (std::uint32_t done = 0;; ++done) {
      if (!SpinWhile(helper.jobs, done)) helper.jobs.wait(done, std::memory_order_acquire);
      if (body_ == nullptr) return;
      if (state_->may_spin && !places_.Take()) places_.Move();
      RunBody(index);
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
  }

  void RunBody(int index) noexcept {
    FlushDenormals flush;
    Worker worker(*state_, index, count_);
    body_(context_, worker);
  }

  int bad_teams_ = 0;             ///< in a row
  std::int64_t alone_until_ = 0;  ///< no teams before it
  pid_t process_ = getpid();      ///< whose threads the helpers are
  std::vector<std::unique_ptr<Helper>> helpers_;
  std::atomic<std::uint32_t> running_ = 0;
  Places places_;
  // The present team, written before its helpers are woken.
  TeamState* state_ = nullptr;
  internal::TeamBody body_ = nullptr;
  void* context_ = nullptr;
  int count_ = 1;
};

thread_local Pool t_pool;

/// Barriers this thread still sleeps at without a spin, since one spin was in vain.
thread_local int t_naps = 0;

}  // namespace

void Worker::TeamBarrier() noexcept {
  if (waited_ == nullptr) return WaitForTeam();
  const std::int64_t start = SteadyNanoseconds();
  WaitForTeam();
  *waited_ += SteadyNanoseconds() - start;
}

/// Spins first, unless that lately was in vain: where other processes or a CPU quota keep a thread
/// of the team from running, spinning only takes its CPU away. A team larger than the machine never
/// spins.
void Worker::WaitForTeam() noexcept {
  constexpr int kNaps = 64;
  const std::uint32_t round = state_->round.load(std::memory_order_relaxed);
  if (state_->waiting.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
    state_->waiting.store(0, std::memory_order_relaxed);
    state_->round.store(round + 1, std::memory_order_release);
    state_->round.notify_all();
    return;
  }
  if (state_->may_spin && t_naps == 0) {
    if (SpinWhile(state_->round, round)) return;
    t_naps = kNaps;
  } else if (t_naps > 0) {
    --t_naps;
  }
  const std::int64_t start = SteadyNanoseconds();
  // wait() may return early only when the value has changed.
  state_->round.wait(round, std::memory_order_acquire);
  state_->slept_ns.fetch_add(SteadyNanoseconds() - start, std::memory_order_relaxed);
}

namespace internal {

void RunTeamImpl(int threads, TeamBody body, void* context) noexcept {
  if (threads <= 1) return Pool::RunAlone(body, context);
  t_pool.Run(threads, body, context);
}

}  // namespace internal
}  // namespace manyhead
