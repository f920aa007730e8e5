#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "manyhead/types.h"

namespace manyhead::cli {

/// Decimal numbers as a whole: no spaces, no octal or hexadecimal, no overflow; "nan" and "inf" are
/// no numbers.
std::optional<std::int64_t> ParseInt(std::string_view text);
std::optional<std::uint64_t> ParseUnsigned(std::string_view text);
std::optional<double> ParseReal(std::string_view text);

/// The same, or with k or m behind it that number times 1024 or 1024 * 1024: "32k".
std::optional<std::int64_t> ParseSize(std::string_view text);

/// How keys and values are stored.
struct KvTypes {
  KvType k = KvType::kF16;
  KvType v = KvType::kF16;
};

/// "int8", for both, or "f16/int8" for keys and values.
std::optional<KvTypes> ParseKvTypes(std::string_view text);
/// As ParseKvTypes reads it, in its shortest form.
std::string FormatKvTypes(KvTypes types);

/// Bytes, or a share of something; one of them is above 0.
struct ByteBudget {
  std::int64_t bytes = 0;
  double fraction = 0;
};

/// "40%", or bytes: "12M", "12582912", K, M and G being powers of 1024.
std::optional<ByteBudget> ParseByteBudget(std::string_view text);

/// Token ids: a JSON list or numbers separated by white space and commas.
/// Errors   kInvalidArgument naming the first thing that is no token id.
Result<std::vector<TokenId>> ParseIds(std::string_view text);

}  // namespace manyhead::cli
