#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/platform/clock.h"
#include "runtime/platform/cpu_mask.h"
#include "runtime/platform/team_backend.h"

namespace manyhead::internal {
namespace {

/// Tracks the CPUs on which the threads of a team run. A scheduler may wake a thread on the CPU of
/// the waking thread and leave it there for a tenth of a second, although another CPU is idle: a
/// thread that finds another thread of its team on its CPU moves away.
class Places {
 public:
  /// Allocates bits for CPUs numbered below `cpus`, unless they exist; only while no team runs.
  /// Without memory no CPU counts as taken.
  void Reserve(int cpus) noexcept {
    const int words = (cpus + 63) / 64;
    if (words <= words_) return;
    taken_.reset(new (std::nothrow) std::atomic<std::uint64_t>[static_cast<std::size_t>(words)]);
    words_ = taken_ == nullptr ? 0 : words;
  }

  void Clear() noexcept {
    for (int i = 0; i < words_; ++i) taken_[i].store(0, std::memory_order_relaxed);
  }

  /// Marks the calling thread's CPU as taken; returns false when another thread of the team has it.
  bool Take() noexcept {
    const int cpu = sched_getcpu();
    if (cpu < 0 || cpu / 64 >= words_) return true;
    const std::uint64_t bit = std::uint64_t{1} << (cpu % 64);
    return (taken_[cpu / 64].fetch_or(bit, std::memory_order_relaxed) & bit) == 0;
  }

  /// Moves the calling thread to a CPU that it may use and that no thread of the team has, if there
  /// is one. From there the scheduler may move it as before. The thread supplies the masks: when
  /// they have been read before, they allocate nothing.
  void Move(CpuMask& allowed, CpuMask& left) noexcept {
    if (!allowed.Read() || !left.Read()) return;
    for (int cpu = 0; cpu < 64 * words_; ++cpu) {
      if (taken_[cpu / 64].load(std::memory_order_relaxed) >> (cpu % 64) & 1) left.Remove(cpu);
    }
    if (left.Count() == 0 || !left.Apply()) return;
    allowed.Apply();
    Take();
  }

 private:
  std::unique_ptr<std::atomic<std::uint64_t>[]> taken_;
  int words_ = 0;
};

/// The threads that one calling thread keeps for its teams. Between teams they spin for a short
/// time, then sleep. OpenMP's own threads spin for milliseconds, which on a busy machine takes the
/// CPU from the very thread that they wait for: a small model then decoded ten times slower on two
/// threads than on one.
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

  void Run(int threads, TeamBody body, void* context) noexcept {
    if (runs_) return RunWithin(threads, body, context);
    LeaveToParent();
    const std::int64_t start = SteadyNanoseconds();
    if (backoff_.WorksAlone(start)) return RunAlone(body, context);
    Grow(threads - 1);
    TeamState state;
    state.may_spin = threads <= (allowed_.Read() ? allowed_.Count() : 1);
    state_ = &state;
    body_ = body;
    context_ = context;
    const int helpers = std::min(threads - 1, static_cast<int>(helpers_.size()));
    count_ = helpers + 1;
    runs_ = true;
    places_.Reserve(allowed_.size());
    places_.Clear();
    places_.Take();
    running_.store(static_cast<std::uint32_t>(helpers), std::memory_order_relaxed);
    for (int i = 0; i < helpers; ++i) Wake(*helpers_[static_cast<std::size_t>(i)]);
    RunWorker(state, 0, count_, body, context);
    WaitForHelpers(state);
    runs_ = false;
    backoff_.Note(state, start, count_);
  }

 private:
  struct Helper {
    std::atomic<std::uint32_t> jobs = 0;  ///< number of jobs given to it so far
    std::thread thread;
  };

  /// Runs a team inside the calling thread's part of a team: its helpers are busy, so a second pool
  /// runs it.
  void RunWithin(int threads, TeamBody body, void* context) noexcept {
    if (within_ == nullptr) within_.reset(new (std::nothrow) Pool);
    if (within_ == nullptr) return RunAlone(body, context);
    within_->Run(threads, body, context);
  }

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

  /// Drops the helpers in a child process: after a fork only the thread that forked exists there,
  /// and the helpers cannot be joined.
  void LeaveToParent() noexcept {
    if (process_ == getpid()) return;
    process_ = getpid();
    for (auto& helper : helpers_) static_cast<void>(helper.release());
    helpers_.clear();
  }

  /// Starts helpers up to `wanted`, or as many as the system gives.
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
    CpuMask allowed, left;
    allowed.Read();
    left.Read();
    for (std::uint32_t done = 0;; ++done) {
      if (!SpinWhile(helper.jobs, done)) helper.jobs.wait(done, std::memory_order_acquire);
      if (body_ == nullptr) return;
      if (state_->may_spin && !places_.Take()) places_.Move(allowed, left);
      RunWorker(*state_, index, count_, body_, context_);
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
  }

  bool runs_ = false;             ///< a team runs; the calling thread is part of it
  std::unique_ptr<Pool> within_;  ///< pool for teams inside a team
  TeamBackoff backoff_;
  CpuMask allowed_;           ///< mask of the calling thread; kept to reuse its memory
  pid_t process_ = getpid();  ///< process that the helpers belong to
  std::vector<std::unique_ptr<Helper>> helpers_;
  std::atomic<std::uint32_t> running_ = 0;
  Places places_;
  // The following describe the current team and are written before its helpers are woken.
  TeamState* state_ = nullptr;
  TeamBody body_ = nullptr;
  void* context_ = nullptr;
  int count_ = 1;
};

thread_local Pool t_pool;

class Own final : public TeamBackend {
 public:
  void Run(int threads, TeamBody body, void* context) noexcept override {
    t_pool.Run(threads, body, context);
  }
};

}  // namespace

TeamBackend& OwnTeam() noexcept {
  static constinit Own own;
  return own;
}

}  // namespace manyhead::internal
