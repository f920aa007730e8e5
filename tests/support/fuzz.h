#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

// The functions that a fuzz target defines. fuzz_main.cc replays it in every build, so that it
// stays correct; tools/fuzz.sh builds it with libFuzzer.

/// Aborts if `data` brings out a fault.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// Small valid inputs that cover the format.
std::vector<std::string> FuzzSeeds();

/// Ends the process, saying where, unless `condition` holds.
inline void FuzzCheck(bool condition, const char* file = __builtin_FILE(),
                      int line = __builtin_LINE()) {  // clang 14 has no std::source_location
  if (condition) return;
  std::fprintf(stderr, "%s:%d: a check failed\n", file, line);
  std::abort();
}

/// A reason is one line that says something, and does nothing to a terminal.
inline void FuzzCheckMessage(const std::string& message, const char* file = __builtin_FILE(),
                             int line = __builtin_LINE()) {
  bool good = !message.empty();
  for (const char c : message) good = good && static_cast<unsigned char>(c) >= 0x20 && c != 0x7F;
  if (!good) std::fprintf(stderr, "message: '%s'\n", message.c_str());
  FuzzCheck(good, file, line);
}
