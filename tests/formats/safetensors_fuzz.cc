#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/formats/safetensors.h"
#include "tests/support/fuzz.h"
#include "tests/support/safetensors_file.h"

using manyhead::SafetensorsIndex;
using manyhead::StoredTensor;

// Any bytes as a safetensors file: an error of one line, or a file of which everything can be read.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::uint8_t> copy(data, data + size);
  const manyhead::Result<SafetensorsIndex> index =
      manyhead::ParseSafetensors(std::as_bytes(std::span(copy)), "fuzz");
  if (!index.ok()) {
    FuzzCheckMessage(index.status().message());
    return 0;
  }
  volatile std::size_t sink = 0;
  for (const StoredTensor& tensor : index->tensors) {
    FuzzCheck(tensor.rows() >= 1 && tensor.cols() >= 1);
    for (std::int64_t i = 0; i < tensor.size_bytes; ++i)
      sink = sink + std::to_integer<std::size_t>(tensor.data[i]);
    for (const char c : tensor.name) sink = sink + static_cast<unsigned char>(c);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  using manyhead::testing::SafetensorsFile;
  return {SafetensorsFile("{}", ""),
          SafetensorsFile(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                          R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]}})",
                          std::string(20, '\1')),
          SafetensorsFile(R"({"__metadata__":{"format":"pt"},)"
                          R"("m":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]}})",
                          "\1")};
}
