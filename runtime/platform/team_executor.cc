#include "runtime/platform/team_executor.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <new>

#include "runtime/platform/clock.h"

namespace manyhead::internal {
namespace {

/// The point where the workers of one call of an executor meet. Such objects are never freed, but
/// used again: an executor that breaks its contract and calls a task after its function returned
/// finds the object closed or joins the region that runs there now, and does no harm.
class Rendezvous {
 public:
  /// Lets `asked` workers join, of whom the first waits `timeout_ns` for the others.
  void Open(int asked, std::int64_t timeout_ns, bool may_spin, TeamBody body,
            void* context) noexcept {
    asked_.store(asked, std::memory_order_relaxed);
    timeout_ns_ = timeout_ns;
    body_ = body;
    context_ = context;
    state_.may_spin = may_spin;
    state_.slept_ns.store(0, std::memory_order_relaxed);
    for (auto& half : state_.ranges)
      for (auto& counter : half) counter.next.store(0, std::memory_order_relaxed);
    for (auto& word : claimed_) word.store(0, std::memory_order_relaxed);
    left_.store(0, std::memory_order_relaxed);
    const std::uint64_t generation = word_.load(std::memory_order_relaxed) >> kGenerationShift;
    word_.store((generation + 1) << kGenerationShift, std::memory_order_release);
  }

  /// Joins as worker `number`, waits until all have come or the time is over, and runs the body;
  /// returns at once where it is too late, or where `number` is out of range or has already joined.
  void Join(int number) noexcept {
    const std::int64_t ticket = TakeTicket(number);
    if (ticket < 0) return;
    const int count = WaitForOthers(static_cast<int>(ticket));
    // Where all numbers came they are kept, otherwise the workers that came are numbered from 0.
    const bool all = count == asked_.load(std::memory_order_relaxed);
    RunWorker(state_, all ? number : static_cast<int>(ticket), count, body_, context_);
    left_.fetch_add(1, std::memory_order_release);
    left_.notify_all();
  }

  /// Ends joining, waits until the workers that joined have finished, and returns their number.
  int Close() noexcept {
    const std::uint64_t word = word_.fetch_or(kClosed, std::memory_order_acq_rel);
    const auto joined = static_cast<std::uint32_t>(word & kCountMask);
    for (std::uint32_t left; (left = left_.load(std::memory_order_acquire)) != joined;)
      if (!SpinWhile(left_, left)) left_.wait(left, std::memory_order_acquire);
    return static_cast<int>(joined);
  }

  const TeamState& state() const noexcept { return state_; }

  Rendezvous* next = nullptr;  ///< next element in the list of unused objects

 private:
  static constexpr int kGenerationShift = 32;
  static constexpr std::uint64_t kCountMask = 0xFFFF, kClosed = 0x10000;

  /// Returns how many workers joined before; -1 when the worker cannot join.
  std::int64_t TakeTicket(int number) noexcept {
    std::uint64_t word = word_.load(std::memory_order_acquire);
    for (bool claimed = false;;) {
      if ((word & kClosed) != 0 || number < 0 || number >= asked_.load(std::memory_order_relaxed))
        return -1;
      if (!claimed) {
        const std::uint64_t bit = std::uint64_t{1} << (number % 64);
        if ((claimed_[number / 64].fetch_or(bit, std::memory_order_relaxed) & bit) != 0) return -1;
        claimed = true;
      }
      const std::uint64_t generation = word >> kGenerationShift;
      if (word_.compare_exchange_weak(word, word + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
        return static_cast<std::int64_t>(word & kCountMask);
      // The object serves another region by now.
      if (word >> kGenerationShift != generation) claimed = false;
    }
  }

  /// Waits as the worker that joined after `ticket` others, and returns how many came in time.
  int WaitForOthers(int ticket) noexcept {
    constexpr int kPauses = 64;
    constexpr timespec kNap = {0, 50'000};
    const std::int64_t start = SteadyNanoseconds();
    bool close = ticket + 1 == asked_.load(std::memory_order_relaxed);
    while (!close) {
      for (int i = 0; i < kPauses; ++i) {
        if ((word_.load(std::memory_order_acquire) & kClosed) != 0) break;
        _mm_pause();
      }
      if ((word_.load(std::memory_order_acquire) & kClosed) != 0) break;
      const std::int64_t waited = SteadyNanoseconds() - start;
      close = waited >= timeout_ns_;
      if (waited < kSpinNanoseconds) {
        sched_yield();
      } else if (!close) {
        nanosleep(&kNap, nullptr);
      }
    }
    if (close) word_.fetch_or(kClosed, std::memory_order_acq_rel);
    return static_cast<int>(word_.load(std::memory_order_acquire) & kCountMask);
  }

  std::atomic<std::uint64_t> word_ =
      kClosed;  ///< number of the region, whether it is closed, and how many workers came
  std::atomic<std::uint32_t> left_ = 0;  ///< workers that have finished
  std::atomic<int> asked_ = 0;
  /// One bit for each number that came.
  std::atomic<std::uint64_t> claimed_[kMaxThreads / 64] = {};
  // The following are read by the workers that joined.
  std::int64_t timeout_ns_ = 0;
  TeamBody body_ = nullptr;
  void* context_ = nullptr;
  TeamState state_;
};

std::atomic<Rendezvous*> g_unused_rendezvous = nullptr;

void ReleaseRendezvous(Rendezvous* place) noexcept {
  place->next = g_unused_rendezvous.load(std::memory_order_relaxed);
  while (
      !g_unused_rendezvous.compare_exchange_weak(place->next, place, std::memory_order_release)) {
  }
}

/// Returns an unused object; null when there is no memory for one.
Rendezvous* AcquireRendezvous() noexcept {
  Rendezvous* place = g_unused_rendezvous.exchange(nullptr, std::memory_order_acquire);
  if (place == nullptr) return new (std::nothrow) Rendezvous;
  for (Rendezvous* rest = place->next; rest != nullptr;) {
    Rendezvous* const next = rest->next;
    ReleaseRendezvous(rest);
    rest = next;
  }
  place->next = nullptr;
  return place;
}

/// The state that one calling thread keeps about the executor.
struct Caller {
  ~Caller() {
    if (place != nullptr) ReleaseRendezvous(place);
  }

  /// Returns how many workers to ask for, where `threads` are wanted.
  int Workers(int threads, std::int64_t now) const noexcept {
    return now < limited_until ? std::min(threads, limit) : threads;
  }

  /// Records a call. An executor that gave fewer workers than it was asked for three times in a row
  /// is asked for no more than the largest of these numbers for one second, since in each such call
  /// the workers that came wait in vain.
  void Note(int asked, int came, std::int64_t now) noexcept {
    constexpr int kShortCalls = 3;
    constexpr std::int64_t kLimitedNanoseconds = 1'000'000'000;
    if (came >= asked) {
      short_calls = most = 0;
      return;
    }
    most = std::max(most, came);
    if (++short_calls < kShortCalls) return;
    limit = std::max(1, most);
    limited_until = now + kLimitedNanoseconds;
    short_calls = most = 0;
  }

  std::uint64_t generation = 0;  ///< number of the executor that the counters belong to
  int short_calls = 0, most = 0;
  int limit = 1;
  std::int64_t limited_until = 0;
  TeamBackoff backoff;
  Rendezvous* place = nullptr;
};

thread_local Caller t_caller;
/// True while this thread runs a worker or waits for an executor: a region inside has one worker.
thread_local bool t_is_inside = false;

void JoinAsWorker(void* place, int number) noexcept {
  const bool was_inside = t_is_inside;
  t_is_inside = true;
  static_cast<Rendezvous*>(place)->Join(number);
  t_is_inside = was_inside;
}

std::atomic<std::uint64_t> g_generations = 0;

}  // namespace

void ExecutorTeam::Reset(const ThreadsOptions& options, int cpus) noexcept {
  options_ = options;
  cpus_ = cpus;
  generation_ = g_generations.fetch_add(1, std::memory_order_relaxed) + 1;
  for (auto* counter : {&calls_, &short_calls_, &failed_calls_, &alone_}) counter->store(0);
}

ExecutorUse ExecutorTeam::use() const noexcept {
  return {calls_.load(), short_calls_.load(), failed_calls_.load(), alone_.load()};
}

void ExecutorTeam::Run(int threads, TeamBody body, void* context) noexcept {
  if (t_caller.generation != generation_) {
    Rendezvous* const place = t_caller.place;
    t_caller.place = nullptr;
    t_caller = Caller{};
    t_caller.generation = generation_;
    t_caller.place = place;
  }
  const std::int64_t start = SteadyNanoseconds();
  if (options_.max_workers > 0) threads = std::min(threads, options_.max_workers);
  const int workers = t_caller.Workers(std::min(threads, kMaxThreads), start);
  const bool asks = workers > 1 && !t_is_inside && !t_caller.backoff.WorksAlone(start);
  if (asks && t_caller.place == nullptr) t_caller.place = AcquireRendezvous();
  if (!asks || t_caller.place == nullptr || Ask(workers, start, body, context) == 0) {
    alone_.fetch_add(1, std::memory_order_relaxed);
    RunAlone(body, context);
  }
}

int ExecutorTeam::Ask(int workers, std::int64_t start, TeamBody body, void* context) noexcept {
  Rendezvous& place = *t_caller.place;
  place.Open(workers, 1000 * options_.join_timeout_us, workers <= cpus_, body, context);
  calls_.fetch_add(1, std::memory_order_relaxed);
  bool failed = false;
  t_is_inside = true;
  try {
    options_.run(options_.context, workers, JoinAsWorker, &place);
  } catch (...) {  // the workers that came finish the region
    failed = true;
  }
  t_is_inside = false;
  const int came = place.Close();
  if (failed || came == 0) failed_calls_.fetch_add(1, std::memory_order_relaxed);
  if (came < workers) short_calls_.fetch_add(1, std::memory_order_relaxed);
  t_caller.Note(workers, came, SteadyNanoseconds());
  if (came > 0) t_caller.backoff.Note(place.state(), start, came);
  return came;
}

}  // namespace manyhead::internal
