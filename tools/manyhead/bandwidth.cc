#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <cstring>

#include "tools/manyhead/machine.h"
#include "tools/manyhead/run_together.h"
#include "tools/manyhead/throughput.h"

namespace manyhead::cli {
namespace {

constexpr std::int64_t kMaxBuffer = std::int64_t{1} << 30;
constexpr std::int64_t kMinBuffer = std::int64_t{1} << 26;
constexpr std::int64_t kMeasureNanoseconds = 300'000'000;
constexpr int kMaxPasses = 20;

/// Returns four times the size of the last cache, so that at most a quarter of a pass can come from
/// it.
std::int64_t BufferBytes() {
  std::int64_t largest = 0;
  for (const CpuCache& cache : CpuCaches()) largest = std::max(largest, cache.size_bytes);
  const std::int64_t available = AvailableMemoryBytes();
  std::int64_t bytes = std::clamp(4 * largest, kMinBuffer, kMaxBuffer);
  if (available > 0) bytes = std::min(bytes, std::max(available / 4, kMinBuffer));
  return bytes & ~std::int64_t{4095};
}

/// A buffer whose pages are filled by the threads that will read them.
class Buffer {
 public:
  explicit Buffer(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    void* const data =
        mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return;
    data_ = static_cast<std::uint64_t*>(data);
    madvise(data, bytes_, MADV_HUGEPAGE);
  }
  ~Buffer() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  std::uint64_t* data() const { return data_; }

 private:
  std::size_t bytes_;
  std::uint64_t* data_ = nullptr;
};

/// Reads with several sums, since with a single one each load would wait for the previous addition.
std::uint64_t ReadAll(const std::uint64_t* data, std::int64_t count) {
  constexpr std::int64_t kSums = 32;
  std::array<std::uint64_t, kSums> sums{};
  for (std::int64_t i = 0; i + kSums <= count; i += kSums)
    for (std::int64_t k = 0; k < kSums; ++k) sums[k] += data[i + k];
  std::uint64_t total = 0;
  for (const std::uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace

Bandwidth MeasureReadBandwidth(int threads) {
  Bandwidth result{0, BufferBytes(), std::max(1, threads)};
  const Buffer buffer(result.buffer_bytes);
  if (buffer.data() == nullptr) return result;
  std::atomic<std::uint64_t> sink{0};  // keeps the reads from being optimised away
  std::atomic<bool> done{false};
  std::int64_t best = 0;
  const auto read = [&](int thread, int threads_there, std::barrier<>& barrier) {
    const std::int64_t share =
        result.buffer_bytes / static_cast<std::int64_t>(sizeof(std::uint64_t)) / threads_there;
    std::uint64_t* const part = buffer.data() + thread * share;
    std::memset(part, 1, static_cast<std::size_t>(share) * sizeof(std::uint64_t));
    barrier.arrive_and_wait();
    const std::int64_t begin = SteadyNanoseconds();
    for (int pass = 0; pass < kMaxPasses && !done.load(); ++pass) {
      const std::int64_t start = SteadyNanoseconds();
      sink += ReadAll(part, share);
      barrier.arrive_and_wait();
      const std::int64_t now = SteadyNanoseconds();
      if (thread == 0) {
        best = best == 0 ? now - start : std::min(best, now - start);
        done.store(now - begin > kMeasureNanoseconds);
      }
      barrier.arrive_and_wait();
    }
  };
  result.threads = RunTogether(result.threads, read);
  if (best > 0)
    result.bytes_per_second =
        static_cast<double>(result.buffer_bytes) * 1e9 / static_cast<double>(best);
  return result;
}

}  // namespace manyhead::cli
