// Runs a fuzz target without libFuzzer.
//
//   NAME                   its seeds and 20,000 damaged variants, the same ones each time
//   NAME --variants N      the same with N variants
//   NAME FILE... FOLDER... the files, e.g. the crash that a fuzzer has found

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/support/fuzz.h"

namespace {

void Run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

/// `seed` with up to four changes of the kinds that break length fields.
std::string Damaged(std::string input, std::mt19937* random) {
  constexpr std::uint64_t kNumbers[] = {0, 1, 0xFF, 0xFFFF, 1U << 31, ~0U, 1ULL << 63, ~0ULL};
  for (std::uint32_t changes = 1 + (*random)() % 4; changes > 0 && !input.empty(); --changes) {
    const std::size_t place = (*random)() % input.size();
    switch ((*random)() % 4) {
      case 0:
        input[place] = static_cast<char>(input[place] ^ 1 << (*random)() % 8);
        break;
      case 1: {
        const std::uint64_t number = kNumbers[(*random)() % std::size(kNumbers)];
        std::memcpy(input.data() + place, &number, std::min(input.size() - place, sizeof number));
        break;
      }
      case 2:
        input.erase(place, 1 + (*random)() % 16);
        break;
      default:
        input.insert(place, input.substr((*random)() % input.size(), 1 + (*random)() % 32));
    }
  }
  return input;
}

/// The file, or all files of the folder.
bool RunFiles(const std::filesystem::path& path) {
  std::vector<std::filesystem::path> files = {path};
  if (std::filesystem::is_directory(path))
    files.assign(std::filesystem::directory_iterator(path), {});
  for (const std::filesystem::path& name : files) {
    std::ifstream file(name, std::ios::binary);
    if (!file) {
      std::fprintf(stderr, "%s: cannot open\n", name.c_str());
      return false;
    }
    Run(std::string(std::istreambuf_iterator<char>(file), {}));
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> seeds = FuzzSeeds();
  const bool chosen = argc == 3 && std::strcmp(argv[1], "--variants") == 0;
  if (argc > 1 && !chosen) {
    for (int i = 1; i < argc; ++i) {
      if (!RunFiles(argv[i])) return 1;
    }
    return 0;
  }
  for (const std::string& seed : seeds) Run(seed);
  const long variants = chosen ? std::strtol(argv[2], nullptr, 10) : 20000;
  std::mt19937 random(1);
  for (long i = 0; i < variants; ++i)
    Run(Damaged(seeds[static_cast<std::size_t>(i) % seeds.size()], &random));
  std::printf("%zu seeds and %ld variants: no fault\n", seeds.size(), variants);
}
