#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <source_location>
#include <string>
#include <vector>

// What a fuzz target defines. fuzz_main.cc replays it in every build, so that it stays correct;
// tools/fuzz.sh builds it with libFuzzer.

/// Aborts if `data` brings out a fault.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// Small valid inputs that cover the format.
std::vector<std::string> FuzzSeeds();

/// Ends the process, saying where, unless `condition` holds.
inline void FuzzCheck(bool condition,
                      std::source_location where = std::source_location::current()) {
  if (condition) return;
  std::fprintf(stderr, "%s:%u: a check failed\n", where.file_name(),
               static_cast<unsigned>(where.line()));
  std::abort();
}

/// A reason is one line that says something.
inline void FuzzCheckMessage(const std::string& message,
                             std::source_location where = std::source_location::current()) {
  if (message.empty() || message.find('\n') != std::string::npos)
    std::fprintf(stderr, "message: '%s'\n", message.c_str());
  FuzzCheck(!message.empty() && message.find('\n') == std::string::npos, where);
}
