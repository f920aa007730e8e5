#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "manyhead/types.h"

namespace manyhead::cli {

/// Parse a whole text as a decimal number: no spaces, no octal or hexadecimal, no overflow; "nan"
/// and "inf" are no numbers.
std::optional<std::int64_t> ParseInt(std::string_view text);
std::optional<std::uint64_t> ParseUnsigned(std::string_view text);
std::optional<double> ParseReal(std::string_view text);

/// Parses a whole number, or one with k, m or g (in either case) behind it, which multiply it by
/// 1024 once, twice or three times: "32k".
std::optional<std::int64_t> ParseSize(std::string_view text);

/// Parses a rate above 0, decimal as rates are printed: "80G" is 80e9; also k, M and T, and
/// fractions.
std::optional<double> ParseRate(std::string_view text);

/// The types of keys and values.
struct KvTypes {
  KvType k = KvType::kF16;
  KvType v = KvType::kF16;
};

/// Parses "int8", for both, or "f16/int8" for keys and values.
std::optional<KvTypes> ParseKvTypes(std::string_view text);
/// Returns the shortest form that ParseKvTypes reads.
std::string FormatKvTypes(KvTypes types);

/// A number of bytes, or a share of a total; one of the two is above 0.
struct ByteBudget {
  std::int64_t bytes = 0;
  double fraction = 0;
};

/// Parses "40%", or bytes as ParseSize reads them: "12M", "12582912".
std::optional<ByteBudget> ParseByteBudget(std::string_view text);

/// Parses token ids: a JSON list or numbers separated by white space and commas.
/// Errors   kInvalidArgument naming the first part that is no token id.
Result<std::vector<TokenId>> ParseIds(std::string_view text);

}  // namespace manyhead::cli
