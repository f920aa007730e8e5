#pragma once

#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "manyhead/export.h"

namespace MANYHEAD_API manyhead {

enum class StatusCode : std::uint8_t {
  kOk,
  kInvalidArgument,  ///< an argument, shape or option of the caller is out of range
  kUnsupported,      ///< valid, but this CPU, build or combination cannot serve it
  kOutOfPages,       ///< the KV cache's byte cap or page pool is exhausted; nothing was changed
  kIoError,          ///< a file could not be read or written, or its contents are wrong
};

/// The lower-case name of `code`, e.g. "out of pages".
const char* StatusCodeName(StatusCode code) noexcept;

/// Success, or a code and one line that names the thing and both values, e.g.
/// "AttentionPlan: num_heads = 7 is not a multiple of num_kv_heads = 2".
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  StatusCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return value_.has_value(); }
  const Status& status() const noexcept { return status_; }

  /// Only when ok().
  T& operator*() & noexcept { return *value_; }
  const T& operator*() const& noexcept { return *value_; }
  T&& operator*() && noexcept { return std::move(*value_); }
  T* operator->() noexcept { return &*value_; }
  const T* operator->() const noexcept { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace manyhead
