#include "runtime/architecture/config_reader.h"

#include <cmath>
#include <utility>

#include "runtime/platform/errors.h"

namespace manyhead {

std::int64_t ConfigReader::Int(std::string_view key, std::int64_t low, std::int64_t high,
                               std::int64_t fallback) {
  const std::optional<std::int64_t> value = Take(metadata_.GetInt(Name(key)), key, fallback < 0);
  return value ? InRange(key, *value, low, high) : fallback;
}

double ConfigReader::Float(std::string_view key, double low, double fallback) {
  const std::optional<double> value =
      Take(metadata_.GetFloat(Name(key)), key, /*required=*/fallback < 0);
  if (!value) return fallback;
  if (!std::isfinite(*value) || *value <= low) Fail(key, *value, "above", low);
  return *value;
}

double ConfigReader::FloatOrOff(std::string_view key, double off, double fallback) {
  const std::optional<double> value = Take(metadata_.GetFloat(Name(key)), key, false);
  if (!value) return fallback;
  if (!std::isfinite(*value) || *value < 0) Fail(key, *value, "of at least", 0);
  return *value == 0 ? off : *value;
}

bool ConfigReader::Bool(std::string_view key, bool fallback) {
  return Take(metadata_.GetBool(Name(key)), key, false).value_or(fallback);
}

std::vector<float> ConfigReader::Floats(std::string_view key) {
  return Take(metadata_.GetFloats(Name(key)), key, false).value_or(std::vector<float>());
}

std::vector<std::int64_t> ConfigReader::PerLayer(std::string_view key, std::int64_t layers,
                                                 std::int64_t low, std::int64_t high,
                                                 std::int64_t fallback) {
  // Before it is widened: an array may be as long as the file.
  if (const std::int64_t count = metadata_.Count(Name(key)); count > 1 && count != layers)
    Fail(Name(key) + " has " + std::to_string(count) +
         " values for block_count = " + std::to_string(layers));
  if (!ok()) return {};
  const auto values = Take(metadata_.GetInts(Name(key)), key, fallback < 0);
  if (!ok()) return {};
  if (!values) return std::vector<std::int64_t>(static_cast<std::size_t>(layers), fallback);
  for (std::int64_t value : *values) InRange(key, value, low, high);
  if (values->size() == 1)
    return std::vector<std::int64_t>(static_cast<std::size_t>(layers), values->front());
  if (static_cast<std::int64_t>(values->size()) != layers)
    Fail(Name(key) + " has " + std::to_string(values->size()) +
         " values for block_count = " + std::to_string(layers));
  return *values;
}

std::string ConfigReader::String(const std::string& full_key) {
  const auto value = Take(metadata_.GetString(full_key), full_key, false);
  return value ? std::string(*value) : std::string();
}

std::string ConfigReader::Name(std::string_view key) const {
  return prefix_.empty() ? std::string(key) : std::string(prefix_).append(".").append(key);
}

void ConfigReader::Fail(std::string message) {
  if (ok()) status_ = Status(StatusCode::kIoError, std::move(message));
}

void ConfigReader::Fail(std::string_view key, double value, const char* relation, double bound) {
  Fail(Concat(Name(key), " = ", value, "; expected a finite number ", relation, " ", bound));
}

void ConfigReader::Fail(const Status& status) {
  if (ok()) status_ = status;
}

std::int64_t ConfigReader::InRange(std::string_view key, std::int64_t value, std::int64_t low,
                                   std::int64_t high) {
  if (value < low || value > high)
    Fail(Name(key) + " = " + std::to_string(value) + "; expected " + std::to_string(low) + " to " +
         std::to_string(high));
  return value;
}

}  // namespace manyhead
