#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/status.h"
#include "runtime/formats/checkpoint.h"

namespace manyhead {

/// Bounds above any real model, which keep sizes computed from a file far from overflow.
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxDim = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxHeadDim = 1024;  ///< limit of the attention kernels
inline constexpr std::int64_t kMaxContext = std::int64_t{1} << 31;

/// Reads the keys of one model's metadata and remembers the first thing that is wrong.
class ConfigReader {
 public:
  /// Keys are looked up behind `prefix` and a dot; an empty prefix leaves them as they are.
  ConfigReader(const Metadata& metadata, std::string_view prefix)
      : metadata_(metadata), prefix_(prefix) {}

  const Status& status() const { return status_; }
  bool ok() const { return status_.ok(); }

  /// Returns true where the key is there; null counts as absent.
  bool Has(std::string_view key) const { return metadata_.Count(Name(key)) > 0; }

  /// Returns the integer at `key` within [low, high]; `fallback` when absent, unless it is
  /// negative.
  std::int64_t Int(std::string_view key, std::int64_t low, std::int64_t high,
                   std::int64_t fallback);

  /// Returns the finite number at `key`, above `low`; `fallback` when absent, unless it is
  /// negative.
  double Float(std::string_view key, double low, double fallback);

  /// Returns the finite number at `key`. The number 0 says that the feature is off and gives `off`;
  /// an absent key gives `fallback`.
  double FloatOrOff(std::string_view key, double off, double fallback);

  bool Bool(std::string_view key, bool fallback);

  /// Returns the numbers at `key`; none when absent.
  std::vector<float> Floats(std::string_view key);

  /// Returns one integer for each layer: the file holds an array of them or one number for all.
  std::vector<std::int64_t> PerLayer(std::string_view key, std::int64_t layers, std::int64_t low,
                                     std::int64_t high, std::int64_t fallback);

  /// Returns the string at `full_key`, which stands without a prefix; empty when absent.
  std::string String(const std::string& full_key);

  std::string Name(std::string_view key) const;

  void Fail(std::string message);
  void Fail(std::string_view key, double value, const char* relation, double bound);
  void Fail(const Status& status);
  std::int64_t InRange(std::string_view key, std::int64_t value, std::int64_t low,
                       std::int64_t high);

 private:
  template <class T>
  std::optional<T> Take(Result<std::optional<T>> result, std::string_view key, bool required) {
    if (!result.ok()) {
      Fail(result.status());
      return std::nullopt;
    }
    if (!*result && required) Fail(Name(key) + " is missing");
    return *std::move(result);
  }

  const Metadata& metadata_;
  std::string prefix_;
  Status status_;
};

}  // namespace manyhead
