#include "runtime/cache/snapshot_format.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>

#include "runtime/cache/kv_head.h"
#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

constexpr std::string_view kMagic = "MHKVSNAP";
constexpr std::uint32_t kVersion = 1, kVersionWithMargins = 2;
constexpr const char* kCutOff = "its header says that the metadata ends before";
// Attention adds to a score as long as its page lives: the sum must not overflow.
constexpr std::int64_t kMaxScore = std::int64_t{1} << 62;

class ByteWriter {
 public:
  template <class T>
  void Number(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i)
      bytes_.push_back(static_cast<std::byte>(static_cast<std::uint64_t>(value) >> (8 * i)));
  }
  void I64(std::int64_t value) { Number(value); }
  void Size(std::size_t size) { I64(static_cast<std::int64_t>(size)); }
  void Bytes(std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text));
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte>& bytes() noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

/// Reads numbers from bytes; beyond their end all numbers are 0, and complete() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

  template <class T>
  T Number() noexcept {
    std::uint64_t value = 0;
    const std::span<const std::byte> part = Take(sizeof(T));
    for (std::size_t i = 0; i < part.size(); ++i)
      value |= std::to_integer<std::uint64_t>(part[i]) << (8 * i);
    return static_cast<T>(value);
  }
  std::int64_t I64() noexcept { return Number<std::int64_t>(); }
  std::string_view Bytes(std::int64_t count) noexcept {
    const std::span<const std::byte> part = Take(static_cast<std::size_t>(count));
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  std::int64_t left() const noexcept { return static_cast<std::int64_t>(bytes_.size()); }
  bool complete() const noexcept { return complete_; }

 private:
  std::span<const std::byte> Take(std::size_t count) noexcept {
    complete_ &= count <= bytes_.size();
    if (!complete_) return {};
    const std::span<const std::byte> part = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return part;
  }

  std::span<const std::byte> bytes_;
  bool complete_ = true;
};

template <class... Parts>
Status Damaged(const Parts&... parts) {
  return MakeError(StatusCode::kIoError, parts...);
}

template <class... Parts>
Status Foreign(const Parts&... parts) {
  return MakeError(StatusCode::kInvalidArgument, parts...);
}

/// Quotes text of any bytes and any length for a message.
std::string Quoted(std::string_view text) {
  constexpr std::size_t kMost = 120;
  std::string quoted = "\"";
  for (const char c : text.substr(0, kMost)) quoted += c >= ' ' && c <= '~' ? c : '?';
  return quoted + (text.size() > kMost ? "...\"" : "\"");
}

/// Checks the metadata against the cache that restores it, and reads it.
class Decoder {
 public:
  Decoder(std::span<const std::byte> metadata, const SnapshotExtent& extent,
          const KvCacheParams& params, bool convert_types)
      : reader_(metadata),
        has_margins_(extent.version >= kVersionWithMargins),
        page_bytes_left_(extent.pages_end() - extent.pages_begin()),
        params_(params),
        convert_types_(convert_types) {}

  Status ReadAll(const std::string& fingerprint);
  Snapshot& snapshot() noexcept { return snapshot_; }

 private:
  /// Reads the number of following items of at least `bytes` each.
  Result<std::int64_t> Count(const char* name, std::int64_t bytes);
  Result<std::string> ReadText(const char* name);
  Status ReadShapes();
  Status ReadHead(std::int64_t layer, std::int64_t index, const KvLayerShape& shape);
  Status ReadSequence(std::size_t sequence);
  Status ReadTable(std::size_t head, std::int64_t length, SnapshotTable& table);
  Status ReadGaps(std::int64_t length, SnapshotTable& table);
  Status ReadPages(std::size_t head, std::int64_t length, SnapshotTable& table);
  Status CheckAllUsed() const;

  ByteReader reader_;
  bool has_margins_;
  std::int64_t page_bytes_left_;
  const KvCacheParams& params_;
  bool convert_types_;
  Snapshot snapshot_;
  std::vector<KvHead> heads_;  ///< heads of the file
  /// [head][stored page]: position of the page in a sequence; -1: not found yet.
  std::vector<std::vector<std::int64_t>> page_places_;
};

Result<std::int64_t> Decoder::Count(const char* name, std::int64_t bytes) {
  const std::int64_t count = reader_.I64();
  if (reader_.complete() && count >= 0 && count <= reader_.left() / bytes) return count;
  return Damaged("number of ", name, " = ", count, "; only ", reader_.left(), " bytes follow");
}

Result<std::string> Decoder::ReadText(const char* name) {
  const Result<std::int64_t> size = Count(name, 1);
  if (!size.ok()) return size.status();
  return std::string(reader_.Bytes(*size));
}

Status Decoder::ReadHead(std::int64_t layer, std::int64_t index, const KvLayerShape& shape) {
  KvHeadParams head;
  const KvHeadParams& wanted =
      params_.heads[static_cast<std::size_t>(layer)][static_cast<std::size_t>(index)];
  const auto k_type = reader_.Number<std::uint8_t>(), v_type = reader_.Number<std::uint8_t>();
  const auto kind = reader_.Number<std::uint8_t>(), zero = reader_.Number<std::uint8_t>();
  head.policy.sink = reader_.I64();
  head.policy.recent = reader_.I64();
  head.policy.budget = reader_.I64();
  if (has_margins_) head.policy.margin = reader_.I64();
  const std::int64_t pages = reader_.I64();
  const std::string where = Concat("layers[", layer, "], KV head ", index, ": ");
  constexpr int kTypes = 4, kKinds = 4;  // the last value of each
  if (!reader_.complete()) return Damaged(where, kCutOff);
  if (k_type > kTypes || v_type > kTypes || kind > kKinds || zero != 0)
    return Damaged(where, "types ", int{k_type}, " and ", int{v_type}, ", policy ", int{kind},
                   ", then ", int{zero}, "; expected 0..4 of each, then 0");
  head.k_type = static_cast<KvType>(k_type);
  head.v_type = static_cast<KvType>(v_type);
  head.policy.kind = static_cast<KvPolicyKind>(kind);
  if (head.policy != wanted.policy)
    return Foreign(where, "policy = ", FormatKvPolicy(head.policy), "; the cache's is ",
                   FormatKvPolicy(wanted.policy));
  if (!convert_types_ && (head.k_type != wanted.k_type || head.v_type != wanted.v_type))
    return Foreign(where, "k_type, v_type = ", KvTypeName(head.k_type), ", ",
                   KvTypeName(head.v_type), "; the cache's are ", KvTypeName(wanted.k_type), ", ",
                   KvTypeName(wanted.v_type));
  heads_.push_back(MakeKvHead(shape, head, params_.page_size));
  snapshot_.params.heads.back().push_back(head);
  const std::int64_t bytes = heads_.back().layout.page_bytes;
  if (pages < 0 || pages > page_bytes_left_ / bytes)
    return Damaged(where, "number of stored pages = ", pages, "; only ", page_bytes_left_,
                   " bytes are left for pages of ", bytes);
  page_bytes_left_ -= pages * bytes;
  snapshot_.head_pages.push_back(pages);
  page_places_.emplace_back(static_cast<std::size_t>(pages), -1);
  return Status();
}

Status Decoder::ReadShapes() {
  snapshot_.params.page_size = reader_.I64();
  if (snapshot_.params.page_size != params_.page_size)
    return Foreign("page_size = ", snapshot_.params.page_size, "; the cache's is ",
                   params_.page_size);
  const Result<std::int64_t> layers = Count("layers", 3 * 8);
  if (!layers.ok()) return layers.status();
  if (*layers != static_cast<std::int64_t>(params_.layers.size()))
    return Foreign("has ", *layers, " layers; the cache has ", params_.layers.size());
  for (std::size_t l = 0; l < params_.layers.size(); ++l) {
    const KvLayerShape& wanted = params_.layers[l];
    const auto check = [&](const char* name, std::int64_t expected) {
      const std::int64_t value = reader_.I64();
      if (value == expected) return Status();
      return Foreign("layers[", l, "].", name, " = ", value, "; the cache's is ", expected);
    };
    Status status = check("num_kv_heads", wanted.num_kv_heads);
    if (status.ok()) status = check("head_dim", wanted.head_dim);
    if (status.ok()) status = check("head_dim_v", wanted.head_dim_v);
    if (!status.ok()) return status;
  }
  snapshot_.params.layers = params_.layers;
  for (std::size_t l = 0; l < params_.layers.size(); ++l) {
    snapshot_.params.heads.emplace_back();
    for (std::int64_t h = 0; h < params_.layers[l].num_kv_heads; ++h)
      if (Status status = ReadHead(static_cast<std::int64_t>(l), h, params_.layers[l]);
          !status.ok())
        return status;
  }
  return Status();
}

Status Decoder::ReadGaps(std::int64_t length, SnapshotTable& table) {
  const Result<std::int64_t> gaps = Count("gaps", 2 * 8);
  if (!gaps.ok()) return gaps.status();
  table.gaps.reserve(static_cast<std::size_t>(*gaps));
  std::int64_t after = -1;  // adjacent gaps would be one
  for (std::int64_t i = 0; i < *gaps; ++i) {
    const std::int64_t begin = reader_.I64(), end = reader_.I64();
    if (begin <= after || end <= begin || end > length)
      return Damaged("gap ", begin, "..", end, "; expected a range in ", after + 1, "..", length);
    table.gaps.push_back({begin, end});
    after = end;
  }
  return Status();
}

Status Decoder::ReadPages(std::size_t head, std::int64_t length, SnapshotTable& table) {
  const KvHead& info = heads_[head];
  const std::int64_t count = info.PagesFor(length), page_size = info.layout.page_size;
  if (count > reader_.left() / 8)
    return Damaged("a table of ", count, " pages; only ", reader_.left(), " bytes follow");
  std::size_t gap = 0;
  for (std::int64_t p = 0; p < count; ++p) {
    const std::int64_t page = reader_.I64(), score = info.scored() ? reader_.I64() : 0;
    const std::int64_t first = p * page_size, last = std::min(length, first + page_size);
    while (gap < table.gaps.size() && table.gaps[gap].end <= first) ++gap;
    const bool empty =
        gap < table.gaps.size() && table.gaps[gap].begin <= first && table.gaps[gap].end >= last;
    if (page < -1 || page >= snapshot_.head_pages[head] || (page < 0) != empty)
      return Damaged("page ", p, " of a table = ", page, "; expected ",
                     empty ? "-1, since it lies in gaps" : "the number of a stored page below ",
                     empty ? std::string() : std::to_string(snapshot_.head_pages[head]));
    if (score < 0 || score > kMaxScore)
      return Damaged("score = ", score, "; expected 0..", kMaxScore);
    if (page >= 0) {
      std::int64_t& place = page_places_[head][static_cast<std::size_t>(page)];
      if (place >= 0 && place != p)
        return Damaged("stored page ", page, " is page ", place, " of a table and page ", p);
      place = p;
    }
    table.pages.push_back(page);
    if (info.scored()) table.scores.push_back(score);
  }
  return Status();
}

Status Decoder::ReadTable(std::size_t head, std::int64_t length, SnapshotTable& table) {
  if (heads_[head].off()) length = 0;
  if (Status status = ReadGaps(length, table); !status.ok()) return status;
  return ReadPages(head, length, table);
}

Status Decoder::ReadSequence(std::size_t sequence) {
  SnapshotSequence& one = snapshot_.sequences.emplace_back();
  one.length = reader_.I64();
  one.first_query = reader_.I64();
  if (one.length < 0 || one.first_query < 0 || one.first_query > one.length)
    return Damaged("sequence ", sequence, ": length = ", one.length,
                   ", first_query = ", one.first_query);
  if (one.length > params_.max_tokens)
    return MakeError(StatusCode::kOutOfPages, "sequence ", sequence, " has ", one.length,
                     " tokens; max_tokens = ", params_.max_tokens);
  one.heads.resize(heads_.size());
  for (std::size_t head = 0; head < heads_.size(); ++head)
    if (Status status = ReadTable(head, one.length, one.heads[head]); !status.ok())
      return Damaged("sequence ", sequence, ", head ", head, " of all: ", status.message());
  return Status();
}

Status Decoder::CheckAllUsed() const {
  for (std::size_t head = 0; head < heads_.size(); ++head)
    for (std::size_t page = 0; page < page_places_[head].size(); ++page)
      if (page_places_[head][page] < 0)
        return Damaged("stored page ", page, " of head ", head, " of all is in no table");
  return Status();
}

Status Decoder::ReadAll(const std::string& fingerprint) {
  Result<std::string> text = ReadText("fingerprint bytes");
  if (!text.ok()) return text.status();
  if (*text != fingerprint)
    return Foreign("fingerprint = ", Quoted(*text), "; expected ", Quoted(fingerprint));
  snapshot_.fingerprint = *std::move(text);
  text = ReadText("user data bytes");
  if (!text.ok()) return text.status();
  snapshot_.user_data = *std::move(text);
  if (Status status = ReadShapes(); !status.ok()) return status;
  if (page_bytes_left_ > 0)
    return Damaged(page_bytes_left_, " bytes are left after the last page; expected 0");
  // Each head of a sequence states at least its number of gaps.
  const Result<std::int64_t> sequences =
      Count("sequences", 8 * (2 + static_cast<std::int64_t>(heads_.size())));
  if (!sequences.ok()) return sequences.status();
  for (std::int64_t i = 0; i < *sequences; ++i)
    if (Status status = ReadSequence(static_cast<std::size_t>(i)); !status.ok()) return status;
  if (!reader_.complete()) return Damaged("the last sequence: ", kCutOff);
  if (reader_.left() > 0)
    return Damaged(reader_.left(), " bytes are left after the last sequence; expected 0");
  return CheckAllUsed();
}

void EncodeTable(ByteWriter& writer, const SnapshotTable& table) {
  writer.Size(table.gaps.size());
  for (const kernels::KvSpan& gap : table.gaps) {
    writer.I64(gap.begin);
    writer.I64(gap.end);
  }
  for (std::size_t p = 0; p < table.pages.size(); ++p) {
    writer.I64(table.pages[p]);
    if (!table.scores.empty()) writer.I64(table.scores[p]);
  }
}

bool HasMargins(const Snapshot& snapshot) {
  for (const auto& layer : snapshot.params.heads)
    for (const KvHeadParams& head : layer)
      if (head.policy.margin != 0) return true;
  return false;
}

void EncodeMetadata(ByteWriter& writer, const Snapshot& snapshot) {
  const bool has_margins = HasMargins(snapshot);
  for (const std::string& text : {snapshot.fingerprint, snapshot.user_data}) {
    writer.Size(text.size());
    writer.Bytes(text);
  }
  writer.I64(snapshot.params.page_size);
  writer.Size(snapshot.params.layers.size());
  for (const KvLayerShape& shape : snapshot.params.layers)
    for (const std::int64_t n : {shape.num_kv_heads, shape.head_dim, shape.head_dim_v})
      writer.I64(n);
  std::size_t index = 0;
  for (const auto& layer : snapshot.params.heads)
    for (const KvHeadParams& head : layer) {
      for (const std::uint8_t n :
           {static_cast<std::uint8_t>(head.k_type), static_cast<std::uint8_t>(head.v_type),
            static_cast<std::uint8_t>(head.policy.kind), std::uint8_t{0}})
        writer.Number(n);
      for (const std::int64_t n : {head.policy.sink, head.policy.recent, head.policy.budget})
        writer.I64(n);
      if (has_margins) writer.I64(head.policy.margin);
      writer.I64(snapshot.head_pages[index++]);
    }
  writer.Size(snapshot.sequences.size());
  for (const SnapshotSequence& sequence : snapshot.sequences) {
    writer.I64(sequence.length);
    writer.I64(sequence.first_query);
    for (const SnapshotTable& table : sequence.heads) EncodeTable(writer, table);
  }
}

std::int64_t PageBytes(const Snapshot& snapshot) {
  std::int64_t bytes = 0;
  std::size_t index = 0;
  for (std::size_t l = 0; l < snapshot.params.layers.size(); ++l)
    for (const KvHeadParams& head : snapshot.params.heads[l])
      bytes +=
          snapshot.head_pages[index++] *
          MakeKvHead(snapshot.params.layers[l], head, snapshot.params.page_size).layout.page_bytes;
  return bytes;
}

}  // namespace

std::vector<std::byte> EncodeSnapshot(const Snapshot& snapshot) {
  ByteWriter metadata;
  EncodeMetadata(metadata, snapshot);
  SnapshotExtent extent;
  extent.version = HasMargins(snapshot) ? kVersionWithMargins : kVersion;
  extent.metadata_bytes = static_cast<std::int64_t>(metadata.bytes().size());
  extent.file_bytes = extent.pages_begin() + PageBytes(snapshot) + kSnapshotChecksumBytes;
  ByteWriter writer;
  writer.Bytes(kMagic);
  writer.Number(extent.version);
  writer.Number(std::uint32_t{0});
  writer.I64(extent.file_bytes);
  writer.I64(extent.metadata_bytes);
  writer.bytes().insert(writer.bytes().end(), metadata.bytes().begin(), metadata.bytes().end());
  writer.bytes().resize(static_cast<std::size_t>(extent.pages_begin()));
  return std::move(writer.bytes());
}

Result<SnapshotExtent> DecodeSnapshotHeader(std::span<const std::byte> header,
                                            std::int64_t file_bytes) {
  ByteReader reader(header);
  if (reader.Bytes(static_cast<std::int64_t>(kMagic.size())) != kMagic)
    return Damaged("is not a snapshot: it does not begin with ", kMagic);
  const auto version = reader.Number<std::uint32_t>(), zero = reader.Number<std::uint32_t>();
  if ((version != kVersion && version != kVersionWithMargins) || zero != 0)
    return MakeError(StatusCode::kUnsupported, "version = ", version, ".", zero, "; expected ",
                     kVersion, ".0 or ", kVersionWithMargins, ".0");
  SnapshotExtent extent;
  extent.version = version;
  extent.file_bytes = reader.I64();
  extent.metadata_bytes = reader.I64();
  if (extent.file_bytes != file_bytes)
    return Damaged("has ", file_bytes, " bytes; its header says ", extent.file_bytes);
  const std::int64_t most = file_bytes - kSnapshotHeaderBytes - kSnapshotChecksumBytes;
  if (extent.metadata_bytes < 0 || extent.metadata_bytes > most ||
      extent.pages_begin() > extent.pages_end())
    return Damaged("header: ", extent.metadata_bytes, " bytes of metadata; the file has room for ",
                   most);
  return extent;
}

Result<Snapshot> DecodeSnapshot(std::span<const std::byte> metadata, const SnapshotExtent& extent,
                                const KvCacheParams& params, const std::string& fingerprint,
                                bool convert_types) {
  Decoder decoder(metadata, extent, params, convert_types);
  if (Status status = decoder.ReadAll(fingerprint); !status.ok()) return status;
  return std::move(decoder.snapshot());
}

}  // namespace manyhead
