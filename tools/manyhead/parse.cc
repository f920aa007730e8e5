#include "tools/manyhead/parse.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <string>

namespace manyhead::cli {
namespace {

template <class T>
std::optional<T> ParseNumber(std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

/// Returns an excerpt for a message of text that may be long or binary.
std::string Excerpt(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, 20)) out += c >= ' ' && c <= '~' ? c : '?';
  return text.size() > 20 ? out + "..." : out;
}

}  // namespace

std::optional<std::int64_t> ParseInt(std::string_view text) {
  return ParseNumber<std::int64_t>(text);
}

std::optional<std::uint64_t> ParseUnsigned(std::string_view text) {
  return ParseNumber<std::uint64_t>(text);
}

std::optional<double> ParseReal(std::string_view text) {
  const std::optional<double> value = ParseNumber<double>(text);
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<ByteBudget> ParseByteBudget(std::string_view text) {
  if (text.ends_with('%')) {
    const std::optional<double> percent = ParseReal(text.substr(0, text.size() - 1));
    constexpr double kMostPercent = 200;  // the share that f32 takes
    if (!percent || !(*percent > 0) || *percent > kMostPercent) return std::nullopt;
    return ByteBudget{.fraction = *percent / 100};
  }
  const std::optional<std::int64_t> bytes = ParseSize(text);
  if (!bytes || *bytes < 1) return std::nullopt;
  return ByteBudget{.bytes = *bytes};
}

std::optional<std::int64_t> ParseSize(std::string_view text) {
  constexpr std::string_view kUnits = "kKmMgG";
  const std::size_t unit = text.empty() ? kUnits.npos : kUnits.find(text.back());
  if (unit == kUnits.npos) return ParseInt(text);
  text.remove_suffix(1);
  std::optional<std::int64_t> value = ParseInt(text);
  const std::int64_t scale = std::int64_t{1024} << (10 * static_cast<int>(unit / 2));
  if (value && __builtin_mul_overflow(*value, scale, &*value)) return std::nullopt;
  return value;
}

std::optional<double> ParseRate(std::string_view text) {
  constexpr std::string_view kUnits = "kKMGT";
  constexpr double kScales[] = {1e3, 1e3, 1e6, 1e9, 1e12};
  const std::size_t unit = text.empty() ? kUnits.npos : kUnits.find(text.back());
  if (unit != kUnits.npos) text.remove_suffix(1);
  std::optional<double> value = ParseReal(text);
  if (value && unit != kUnits.npos) *value *= kScales[unit];
  return value && *value > 0 && std::isfinite(*value) ? value : std::nullopt;
}

std::optional<KvTypes> ParseKvTypes(std::string_view text) {
  const std::size_t slash = text.find('/');
  const std::optional<KvType> k = ParseKvType(text.substr(0, slash));
  const std::optional<KvType> v =
      slash == std::string_view::npos ? k : ParseKvType(text.substr(slash + 1));
  if (!k || !v) return std::nullopt;
  return KvTypes{*k, *v};
}

std::string FormatKvTypes(KvTypes types) {
  std::string text = KvTypeName(types.k);
  if (types.v != types.k) text.append("/").append(KvTypeName(types.v));
  return text;
}

Result<std::vector<TokenId>> ParseIds(std::string_view text) {
  constexpr std::string_view kSeparators = " \t\r\n,";
  text = Trim(text);
  if (text.starts_with('[')) {
    if (!text.ends_with(']'))
      return Status(StatusCode::kInvalidArgument, "token ids: the list has no closing ']'");
    text = text.substr(1, text.size() - 2);
  }
  std::vector<TokenId> ids;
  while (true) {
    const std::size_t begin = text.find_first_not_of(kSeparators);
    if (begin == std::string_view::npos) return ids;
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find_first_of(kSeparators));
    text.remove_prefix(word.size());
    const std::optional<std::int64_t> id = ParseInt(word);
    if (!id || *id < 0 || *id > std::numeric_limits<TokenId>::max())
      return Status(StatusCode::kInvalidArgument,
                    "token ids: '" + Excerpt(word) + "' is no token id");
    ids.push_back(static_cast<TokenId>(*id));
  }
}

}  // namespace manyhead::cli
