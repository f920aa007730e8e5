#pragma once

#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "manyhead/export.h"

namespace MANYHEAD_API manyhead {

/// The kinds of errors.
enum class StatusCode : std::uint8_t {
  kOk,               ///< no error
  kInvalidArgument,  ///< an argument, shape or option from the caller is out of range
  kUnsupported,      ///< valid, but this CPU, build or combination cannot serve it
  kOutOfPages,       ///< the KV cache's byte cap or page pool is exhausted; nothing was changed
  kIoError,          ///< a file could not be read or written, or its contents are wrong
};

/// Returns the lower-case name of `code`, e.g. "out of pages".
const char* StatusCodeName(StatusCode code) noexcept;

/// Success, or a code and one line that names the thing and both values, e.g.
/// "AttentionPlan: num_heads = 7 is not a multiple of num_kv_heads = 2".
class [[nodiscard]] Status {
 public:
  /// Makes a status of success.
  Status() = default;
  /// Makes an error; kOk with a message is success.
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  /// Returns true where there is no error.
  bool ok() const noexcept { return code_ == StatusCode::kOk; }
  /// The code; kOk for success.
  StatusCode code() const noexcept { return code_; }
  /// The message, one line; empty for success.
  const std::string& message() const noexcept { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

/// A value, or the Status that says why there is none.
template <class T>
class [[nodiscard]] Result {
 public:
  /// Holds a value.
  Result(T value) : value_(std::move(value)) {}  // NOLINT(google-explicit-constructor)
  /// Holds the reason why there is no value; `status` must be an error.
  Result(Status status) : status_(std::move(status)) {}  // NOLINT(google-explicit-constructor)

  /// Returns true where there is a value.
  bool ok() const noexcept { return value_.has_value(); }
  /// The error; success where there is a value.
  const Status& status() const noexcept { return status_; }

  /// The value; only valid when ok().
  T& operator*() & noexcept { return *value_; }
  /// The value; only valid when ok().
  const T& operator*() const& noexcept { return *value_; }
  /// The value; only valid when ok().
  T&& operator*() && noexcept { return std::move(*value_); }
  /// The value; only valid when ok().
  T* operator->() noexcept { return &*value_; }
  /// The value; only valid when ok().
  const T* operator->() const noexcept { return &*value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace manyhead
