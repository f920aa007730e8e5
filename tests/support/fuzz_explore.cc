// Beside libFuzzer's main: NAME --write-seeds FOLDER writes a target's seeds as files to start
// from.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/fuzz.h"

/// libFuzzer calls this first.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  if (*argc != 3 || std::strcmp((*argv)[1], "--write-seeds") != 0) return 0;
  const std::vector<std::string> seeds = FuzzSeeds();
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    std::ofstream file((*argv)[2] + ("/seed" + std::to_string(i)), std::ios::binary);
    if (!(file << seeds[i]).flush()) std::exit(1);
  }
  std::exit(0);
}
