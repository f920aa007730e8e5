#include "tools/manyhead/descriptor_io.h"

#include <poll.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace manyhead::cli {
namespace {

/// Returns true where the call that set `error` should be repeated; waits for `events` first where
/// the descriptor was not ready.
bool MayRetry(int error, int descriptor, short events) {
  if (error == EINTR) return true;
  if (error != EAGAIN && error != EWOULDBLOCK) return false;
  pollfd wait = {.fd = descriptor, .events = events, .revents = 0};
  return poll(&wait, 1, -1) >= 0 || errno == EINTR;
}

ssize_t WriteToStderr(void*, const char* bytes, std::size_t count) {
  return WriteAll(STDERR_FILENO, {bytes, count}) == 0 ? static_cast<ssize_t>(count) : 0;
}

}  // namespace

int WriteAll(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (const int error = errno; !MayRetry(error, descriptor, POLLOUT)) {
      return error;
    }
  }
  return 0;
}

std::ptrdiff_t ReadSome(int descriptor, std::span<char> block) {
  while (true) {
    const ssize_t count = ::read(descriptor, block.data(), block.size());
    if (count >= 0) return count;
    if (const int error = errno; !MayRetry(error, descriptor, POLLIN)) {
      errno = error;
      return -1;
    }
  }
}

void MakeStderrWait() {
  std::FILE* const stream = fopencookie(
      nullptr, "w", {.read = nullptr, .write = &WriteToStderr, .seek = nullptr, .close = nullptr});
  if (stream == nullptr) return;
  std::setvbuf(stream, nullptr, _IONBF, 0);
  stderr = stream;
}

}  // namespace manyhead::cli
