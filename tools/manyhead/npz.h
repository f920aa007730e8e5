#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/output_file.h"
#include "manyhead/status.h"

namespace manyhead::cli {

/// Writes arrays into an NPZ file, which numpy.load reads: a ZIP archive whose entries are NPY
/// files, stored without compression. Archives beyond 4 GiB get the 64-bit records of ZIP.
///
/// Source   the formats ZIP (PKWARE APPNOTE 6.3.10) and NPY 1.0 (NumPy Enhancement Proposal 1)
class NpzWriter {
 public:
  explicit NpzWriter(OutputSink sink) : sink_(std::move(sink)) {}

  /// Adds a row-major array.
  /// Errors   kInvalidArgument for an array of 4 GiB or more, which one entry does not hold; those
  ///          of the sink.
  Status Add(const std::string& name, const std::vector<std::int64_t>& shape,
             std::span<const float> values);
  Status Add(const std::string& name, const std::vector<std::int64_t>& shape,
             std::span<const std::int64_t> values);
  /// Ends the archive.
  Status Finish();

 private:
  struct Entry {
    std::string name;
    std::uint32_t crc = 0, size = 0;
    std::uint64_t offset = 0;
  };

  Status AddBytes(const std::string& name, std::string_view type,
                  const std::vector<std::int64_t>& shape, std::string_view values);
  Status Put(std::string_view bytes);

  OutputSink sink_;
  std::uint64_t written_ = 0;
  std::vector<Entry> entries_;
};

/// Returns the CRC-32 of ZIP of bytes that follow others, whose CRC is `crc`; 0 at the beginning.
std::uint32_t Crc32(std::uint32_t crc, std::string_view bytes) noexcept;

}  // namespace manyhead::cli
