#include "runtime/model/fingerprint.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iomanip>
#include <span>
#include <sstream>

#include "runtime/model/weights.h"
#include "runtime/platform/checksum.h"
#include "runtime/platform/printable.h"

namespace manyhead {
namespace {

void AddNumber(Checksum& sum, std::int64_t number) {
  sum.Add(std::as_bytes(std::span(&number, 1)));
}

void AddText(Checksum& sum, std::string_view text) {
  AddNumber(sum, static_cast<std::int64_t>(text.size()));
  sum.Add(text);
}

/// Adds a sample of the tensor: reading gigabytes would take longer than a snapshot saves, and a
/// fine-tuned model differs from its origin nearly everywhere.
void AddSample(Checksum& sum, const StoredTensor& tensor) {
  constexpr std::int64_t kSamples = 4, kSampleBytes = 64;
  for (std::int64_t i = 0; i < kSamples; ++i) {
    const std::int64_t last = std::max<std::int64_t>(0, tensor.size_bytes - kSampleBytes);
    const std::int64_t begin = last / (kSamples - 1) * i;
    const std::int64_t count = std::min(kSampleBytes, tensor.size_bytes - begin);
    sum.Add(std::span(tensor.data + begin, static_cast<std::size_t>(count)));
  }
}

}  // namespace

std::string FingerprintOf(const Model::Impl& model) {
  Checksum sum;
  for (const Metadata::Entry& entry : model.file->config().entries()) {
    AddText(sum, entry.key);
    AddNumber(sum, entry.type);
    AddText(sum, entry.value);
  }
  for (const StoredTensor& tensor : model.file->tensors()) {
    AddText(sum, tensor.name);
    AddNumber(sum, static_cast<std::int64_t>(tensor.type));
    for (const std::int64_t n : tensor.shape) AddNumber(sum, n);
    AddSample(sum, tensor);
  }
  // A model whose matrices got another type while it was loaded is another model.
  for (std::size_t i = 0; i < model.tensors.size() && model.rewritten.bytes() > 0; ++i)
    AddNumber(sum, static_cast<std::int64_t>(model.tensors[i].type));
  std::ostringstream text;
  text << model.config.architecture << " " << Printable(model.config.name, 40) << " " << std::hex
       << std::setw(16) << std::setfill('0') << sum.value();
  return text.str();
}

}  // namespace manyhead
