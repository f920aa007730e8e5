#include "tools/manyhead/npz.h"

#include <array>
#include <bit>
#include <utility>

namespace manyhead::cli {
namespace {

constexpr std::uint64_t kMost32 = 0xFFFFFFFF;
constexpr std::uint16_t kZip64Version = 45;  // 4.5 reads 64-bit records

/// tables[k][b] is the CRC of byte b followed by k zeros, so that eight bytes take eight look-ups.
using CrcTables = std::array<std::array<std::uint32_t, 256>, 8>;

constexpr CrcTables MakeCrcTables() {
  CrcTables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k)
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  return tables;
}

constexpr CrcTables kCrcTables = MakeCrcTables();

/// Bytes of a record in little-endian order.
class Record {
 public:
  template <class T>
  Record& Add(T value) {
    for (std::size_t i = 0; i < sizeof value; ++i)
      bytes_ += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xFF);
    return *this;
  }
  Record& Text(std::string_view text) {
    bytes_ += text;
    return *this;
  }
  const std::string& bytes() const noexcept { return bytes_; }

 private:
  std::string bytes_;
};

std::uint16_t U16(std::uint64_t value) { return static_cast<std::uint16_t>(value); }
std::uint32_t U32(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint64_t U64(std::uint64_t value) { return value; }

/// The header of an NPY file, padded to a multiple of 64 bytes.
std::string NpyHeader(std::string_view type, const std::vector<std::int64_t>& shape) {
  std::string text = "{'descr': '" + std::string(type) + "', 'fortran_order': False, 'shape': (";
  for (const std::int64_t size : shape) text += std::to_string(size) + ", ";
  text += "), }";
  constexpr std::size_t kPrefix = 10;
  text.append((64 - (kPrefix + text.size() + 1) % 64) % 64, ' ');
  text += '\n';
  return Record().Text("\x93NUMPY").Text({"\1\0", 2}).Add(U16(text.size())).Text(text).bytes();
}

/// Time and date of an entry: 1980-01-01, so that the same arrays give the same file.
constexpr std::uint16_t kTime = 0, kDate = 0x21;

}  // namespace

std::uint32_t Crc32(std::uint32_t crc, std::string_view bytes) noexcept {
  crc = ~crc;
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    std::uint32_t next = 0;
    for (std::size_t k = 0; k < 8; ++k) {
      const std::uint32_t mixed = byte(i + k) ^ (k < 4 ? crc >> (8 * k) & 0xFF : 0U);
      next ^= kCrcTables[7 - k][mixed];
    }
    crc = next;
  }
  for (; i < bytes.size(); ++i) crc = (crc >> 8) ^ kCrcTables[0][(crc ^ byte(i)) & 0xFF];
  return ~crc;
}

Status NpzWriter::Put(std::string_view bytes) {
  written_ += bytes.size();
  return sink_(bytes);
}

Status NpzWriter::AddBytes(const std::string& name, std::string_view type,
                           const std::vector<std::int64_t>& shape, std::string_view values) {
  const std::string header = NpyHeader(type, shape);
  const std::uint64_t size = header.size() + values.size();
  if (size >= kMost32)
    return {StatusCode::kInvalidArgument, "the array " + name + " has " +
                                              std::to_string(values.size()) +
                                              " bytes; expected less than 4 GiB"};
  Entry entry{name + ".npy", Crc32(Crc32(0, header), values), U32(size), written_};
  Record local;
  local.Add(U32(0x04034B50)).Add(U16(20)).Add(U16(0)).Add(U16(0)).Add(kTime).Add(kDate);
  local.Add(entry.crc).Add(entry.size).Add(entry.size).Add(U16(entry.name.size())).Add(U16(0));
  local.Text(entry.name);
  entries_.push_back(std::move(entry));
  for (const std::string_view part :
       {std::string_view(local.bytes()), std::string_view(header), values})
    if (Status status = Put(part); !status.ok()) return status;
  return {};
}

Status NpzWriter::Add(const std::string& name, const std::vector<std::int64_t>& shape,
                      std::span<const float> values) {
  static_assert(std::endian::native == std::endian::little);
  return AddBytes(name, "<f4", shape,
                  {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

Status NpzWriter::Add(const std::string& name, const std::vector<std::int64_t>& shape,
                      std::span<const std::int64_t> values) {
  return AddBytes(name, "<i8", shape,
                  {reinterpret_cast<const char*>(values.data()), values.size_bytes()});
}

Status NpzWriter::Finish() {
  const std::uint64_t begin = written_, count = entries_.size();
  Record directory;
  for (const Entry& entry : entries_) {
    const bool far = entry.offset >= kMost32;
    directory.Add(U32(0x02014B50)).Add(kZip64Version).Add(U16(far ? kZip64Version : 20));
    directory.Add(U16(0)).Add(U16(0)).Add(kTime).Add(kDate).Add(entry.crc);
    directory.Add(entry.size).Add(entry.size).Add(U16(entry.name.size())).Add(U16(far ? 12 : 0));
    directory.Add(U16(0)).Add(U16(0)).Add(U16(0)).Add(U32(0));
    directory.Add(U32(far ? kMost32 : entry.offset)).Text(entry.name);
    if (far) directory.Add(U16(1)).Add(U16(8)).Add(U64(entry.offset));
  }
  const std::uint64_t size = directory.bytes().size(), end = begin + size;
  if (begin >= kMost32 || count >= 0xFFFF) {
    directory.Add(U32(0x06064B50)).Add(U64(44)).Add(kZip64Version).Add(kZip64Version);
    directory.Add(U32(0)).Add(U32(0)).Add(count).Add(count).Add(size).Add(begin);
    directory.Add(U32(0x07064B50)).Add(U32(0)).Add(end).Add(U32(1));
  }
  const std::uint64_t shown = count < 0xFFFF ? count : 0xFFFF;
  directory.Add(U32(0x06054B50)).Add(U16(0)).Add(U16(0)).Add(U16(shown)).Add(U16(shown));
  directory.Add(U32(size)).Add(U32(begin < kMost32 ? begin : kMost32)).Add(U16(0));
  return Put(directory.bytes());
}

}  // namespace manyhead::cli
