#include "tools/manyhead/run_together.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

namespace manyhead::cli {

int RunTogether(int threads, const TogetherWork& work) {
  std::optional<std::barrier<>> barrier;
  std::atomic<int> running{0};  // number of threads; 0 = not known yet
  std::vector<std::thread> others;
  try {
    for (int thread = 1; thread < threads; ++thread)
      others.emplace_back([&, thread] {
        running.wait(0);
        work(thread, running.load(), *barrier);
      });
  } catch (const std::system_error&) {
    // The threads that exist do the work.
  }
  const int count = static_cast<int>(others.size()) + 1;
  barrier.emplace(count);
  running.store(count);
  running.notify_all();
  work(0, count, *barrier);
  for (std::thread& other : others) other.join();
  return count;
}

}  // namespace manyhead::cli
