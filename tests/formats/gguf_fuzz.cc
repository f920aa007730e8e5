#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/formats/gguf.h"
#include "tests/support/fuzz.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/memory_file.h"

using manyhead::GgufFile;
using manyhead::StoredTensor;

// Any bytes as a GGUF file: an error of one line, or a file of which everything can be read.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const manyhead::testing::MemoryFile memory;
  if (!memory.Set({reinterpret_cast<const char*>(data), size})) std::abort();
  const manyhead::Result<GgufFile> file = GgufFile::Open(memory.path());
  if (!file.ok()) {
    FuzzCheckMessage(file.status().message());
    return 0;
  }
  volatile std::size_t sink = 0;
  for (const GgufFile::KeyInfo& info : file->keys()) {
    sink = info.value.size() + file->GetBool(info.key).ok() + file->GetInt(info.key).ok() +
           file->GetFloat(info.key).ok() + file->GetInts(info.key).ok() +
           file->GetFloats(info.key).ok();
    if (const auto text = file->GetString(info.key); text.ok())
      for (char c : **text) sink = sink + static_cast<unsigned char>(c);
    if (const auto texts = file->GetStrings(info.key); texts.ok())
      for (std::string_view text : **texts) sink = sink + text.size();
  }
  for (const StoredTensor& tensor : file->tensors()) {
    if (file->FindTensor(tensor.name) != &tensor) std::abort();
    if (tensor.rows() < 1 || tensor.cols() < 1) std::abort();
    for (std::int64_t i = 0; i < tensor.size_bytes; ++i)
      sink = sink + std::to_integer<std::size_t>(tensor.data[i]);
  }
  return 0;
}

std::vector<std::string> FuzzSeeds() {
  using manyhead::WeightType;
  using manyhead::testing::GgufWriter;
  GgufWriter keys;
  keys.Add("general.architecture", "llama").Add("general.alignment", std::uint32_t{32});
  keys.Add("a", std::uint8_t{1}).Add("b", std::int64_t{-1}).Add("c", 0.5F).Add("d", 0.25);
  keys.Add("e", true).Add("f", std::vector<std::string>{"x", "", "yz"});
  keys.Add("g", std::vector<float>{1, 2}).Add("h", std::vector<std::uint64_t>{~0ULL});
  keys.Add("i", std::vector<bool>{true, false});
  GgufWriter tensors;
  tensors.version = 2;
  tensors.AddTensor("first", WeightType::kF32, {3, 2}, std::vector<float>(6, 1.0F));
  tensors.AddTensor("second", WeightType::kQ8_0, {32}, std::string(34, '\1'));
  tensors.AddTensor("third", WeightType::kF16, {1, 1, 1, 1}, std::string(2, '\2'));
  return {keys.Bytes(), tensors.Bytes(), GgufWriter().Bytes()};
}
