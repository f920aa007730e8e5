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

/// How keys and values are stored.
struct KvTypes {
  KvType k = KvType::kF16;
  KvType v = KvType::kF16;
};

/// "int8", for both, or "f16/int8" for keys and values.
std::optional<KvTypes> ParseKvTypes(std::string_view text);
/// As ParseKvTypes reads it, in its shortest form.
std::string FormatKvTypes(KvTypes types);

/// Token ids: a JSON list or numbers separated by white space and commas.
/// Errors   kInvalidArgument naming the first thing that is no token id.
Result<std::vector<TokenId>> ParseIds(std::string_view text);

}  // namespace manyhead::cli
