#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

// What a fuzz target defines. fuzz_main.cc replays it in every build, so that it stays correct;
// tools/fuzz.sh builds it with libFuzzer.

/// Aborts if `data` brings out a fault.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

/// Small valid inputs that cover the format.
std::vector<std::string> FuzzSeeds();
