#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "runtime/formats/gguf.h"
#include "tests/support/fuzz.h"
#include "tests/support/fuzz_bytes.h"
#include "tests/support/memory_file.h"

namespace manyhead::testing {

/// A valid GGUF file that a fuzzer changes a few numbers of, wherever they stand: its inputs are
/// the changes, a few bytes each.
class GgufEdits {
 public:
  explicit GgufEdits(std::string bytes) : bytes_(std::move(bytes)) { FindPlaces(); }

  /// The file with up to 16 numbers overwritten.
  std::string Apply(FuzzBytes& choices) const {
    std::string bytes = bytes_;
    for (int i = 0; i < 16 && !choices.empty(); ++i) Edit(choices, &bytes);
    return bytes;
  }

 private:
  /// Type, length and first value of every key; dimensions, type, offset and first weight of every
  /// tensor.
  void FindPlaces() {
    const MemoryFile memory;
    FuzzCheck(memory.Set(bytes_));
    const Result<GgufFile> file = GgufFile::Open(memory.path());
    FuzzCheck(file.ok());
    constexpr std::size_t kHeader = 24;
    places_ = {8, 16};
    std::size_t at = kHeader;
    const std::vector<GgufFile::KeyBytes> keys = file->key_bytes();
    for (const GgufFile::KeyBytes& key : keys) {
      const std::size_t type = at + 8 + key.key.size();
      at += key.bytes.size();
      for (const std::size_t offset : {0U, 4U, 8U, 12U, 16U, 20U})  // for strings and arrays too
        if (type + offset < at) places_.push_back(type + offset);
    }
    for (const StoredTensor& tensor : file->tensors()) {
      at += 8 + tensor.name.size();
      places_.push_back(at);
      for (int i = 0; i < tensor.num_dims; ++i)
        places_.push_back(at + 4 + 8 * static_cast<std::size_t>(i));
      at += 4 + 8 * static_cast<std::size_t>(tensor.num_dims);
      places_.insert(places_.end(), {at, at + 4});
      at += 12;
      places_.push_back(kHeader + static_cast<std::size_t>(tensor.data - keys[0].bytes.data()));
    }
  }

  /// Writes a critical number, or any, at one of the places, or anywhere.
  void Edit(FuzzBytes& choices, std::string* bytes) const {
    constexpr std::uint32_t kInfinity = 0x7F800000, kNan = 0x7FC00000, kOne = 0x3F800000;  // f32
    constexpr std::uint32_t kSign = 0x80000000, kLeast = 0x00800000, kMost = 0x7F7FFFFF;
    constexpr std::uint64_t kNumbers[] = {0,          1,          2,          3,
                                          5,          6,          7,          8,
                                          31,         0xFF,       256,        257,
                                          1024,       0xFFFF,     1U << 24,   1U << 31,
                                          0x7FFFFFFF, 0xFFFFFFFF, 1ULL << 32, 1ULL << 62,
                                          1ULL << 63, ~0ULL,      kInfinity,  kSign | kInfinity,
                                          kNan,       kSign,      kOne,       kSign | kOne,
                                          kLeast,     kMost};
    constexpr std::size_t kWidths[] = {1, 4, 4, 8};
    const auto choice = choices.Take<std::uint16_t>();
    const std::size_t place = choice < 0xF000 ? places_[choice % places_.size()]
                                              : choices.Take<std::uint32_t>() % bytes->size();
    const auto form = choices.Take<std::uint8_t>();
    const std::size_t width = std::min(kWidths[form % 4], bytes->size() - place);
    const std::size_t which = form / 4;
    std::uint64_t number = 0;
    if (which < std::size(kNumbers)) {
      number = kNumbers[which];
    } else if (width > 1 && which % 2 == 1) {
      number = choices.Take<std::uint32_t>();
    } else {
      number = choices.Take<std::uint8_t>();
    }
    std::memcpy(bytes->data() + place, &number, width);
  }

  std::string bytes_;
  std::vector<std::size_t> places_;
};

}  // namespace manyhead::testing
