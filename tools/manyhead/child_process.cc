#include "tools/manyhead/child_process.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "tools/manyhead/descriptor_io.h"
#include "tools/manyhead/interrupt.h"

namespace manyhead::cli {
namespace {

constexpr int kPollMilliseconds = 100;

Status SystemError(const char* action) {
  return Status(StatusCode::kIoError,
                std::string("cannot ").append(action).append(": ").append(std::strerror(errno)));
}

/// Returns the answer of the child: {"value": ...} or {"code": ..., "message": ...}.
std::string Answer(const std::function<Result<Json>()>& job) {
  Json answer;
  try {
    Result<Json> value = job();
    if (value.ok()) {
      answer["value"] = *std::move(value);
    } else {
      answer = {{"code", static_cast<int>(value.status().code())},
                {"message", value.status().message()}};
    }
  } catch (const std::exception& error) {
    answer = {{"code", static_cast<int>(StatusCode::kIoError)},
              {"message", std::string("out of memory: ") + error.what()}};
  }
  return answer.dump();
}

[[noreturn]] void RunChild(const std::function<Result<Json>()>& job, int out) {
  WriteAll(out, Answer(job));  // where that fails, the parent sees no answer and reports it
  _exit(0);                    // not exit: the parent's atexit handlers must not run in the child
}

/// Reads all bytes from `in`; passes Ctrl-C on to `child`, which may belong to another terminal.
std::string ReadAll(int in, pid_t child) {
  std::string text;
  std::array<char, 4096> block{};
  bool told = false;
  while (true) {
    if (Interrupted().load() && !told) {
      kill(child, SIGINT);
      told = true;
    }
    pollfd wait = {.fd = in, .events = POLLIN, .revents = 0};
    if (const int ready = poll(&wait, 1, kPollMilliseconds); ready <= 0) continue;
    const std::ptrdiff_t count = ReadSome(in, block);
    if (count <= 0) return text;
    text.append(block.data(), static_cast<std::size_t>(count));
  }
}

Status EndedEarly(int state) {
  std::string message = "the measuring process ended early";
  if (WIFSIGNALED(state)) message += ", by signal " + std::to_string(WTERMSIG(state));
  return Status(StatusCode::kIoError, message);
}

}  // namespace

Result<std::optional<ChildProcessResult>> RunInChildProcess(
    const std::function<Result<Json>()>& job) {
  std::array<int, 2> pipe_ends{};
  if (pipe(pipe_ends.data()) != 0) return SystemError("make a pipe");
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    // The child ends with its parent, for whatever reason the parent ends.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    close(pipe_ends[0]);
    RunChild(job, pipe_ends[1]);
  }
  close(pipe_ends[1]);
  if (child < 0) {
    close(pipe_ends[0]);
    return SystemError("start a process");
  }
  const std::string text = ReadAll(pipe_ends[0], child);
  close(pipe_ends[0]);
  int state = 0;
  rusage used = {};
  while (wait4(child, &state, 0, &used) < 0 && errno == EINTR) continue;
  if (Interrupted().load()) return std::optional<ChildProcessResult>();
  const Json answer = ParseJson(text).value_or(Json());
  if (!answer.is_object()) return EndedEarly(state);
  if (!answer.contains("value"))
    return Status(static_cast<StatusCode>(answer["code"].get<int>()),
                  answer["message"].get<std::string>());
  return std::optional<ChildProcessResult>(
      ChildProcessResult{answer["value"], static_cast<std::int64_t>(used.ru_maxrss) * 1024});
}

}  // namespace manyhead::cli
