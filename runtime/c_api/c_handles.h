#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "manyhead/attention.h"
#include "manyhead/c_api.h"
#include "manyhead/heads.h"
#include "manyhead/kv_cache.h"
#include "manyhead/model.h"
#include "manyhead/session.h"
#include "manyhead/status.h"

// NOLINTBEGIN(readability-identifier-naming): the names follow the conventions of C.

struct mh_model {
  manyhead::Model model;
  mh_message message{};
};

struct mh_session {
  manyhead::HeadProfile profile{};  ///< profile that the session writes to
  bool profiles = false;
  manyhead::Model model;
  manyhead::Session session;
  manyhead::GenerateResult generated{};
  std::atomic<bool> cancel = false;
  mh_message message{};
};

struct mh_cache {
  manyhead::KvCache cache;
  mh_message message{};
};

struct mh_plan {
  manyhead::AttentionPlan plan;
  std::string explanation{};
  /// Sequences of a run; kept, so that runs allocate nothing.
  std::vector<manyhead::SequenceId> sequences{};
  mh_message message{};
};

// NOLINTEND(readability-identifier-naming)

namespace manyhead::c_api {

/// Copies as much of `text` as fits, and a NUL; a null message is ignored.
inline void SetMessage(mh_message* message, std::string_view text) noexcept {
  if (message == nullptr) return;
  const std::size_t count = std::min(text.size(), sizeof message->text - 1);
  std::memcpy(message->text, text.data(), count);
  message->text[count] = '\0';
}

inline mh_status CodeOf(const Status& status) noexcept {
  static_assert(static_cast<int>(StatusCode::kIoError) == MH_IO_ERROR &&
                static_cast<int>(StatusCode::kOutOfPages) == MH_OUT_OF_PAGES);
  return static_cast<mh_status>(status.code());
}

/// The result of a call's body: a Status, or a code that only C has, with its text.
struct Outcome {
  Outcome(const Status& status)  // NOLINT(google-explicit-constructor)
      : code(CodeOf(status)), text(status.message()) {}
  Outcome(mh_status status, std::string message) : code(status), text(std::move(message)) {}

  mh_status code;
  std::string text;
};

inline Outcome Invalid(std::string text) { return {MH_INVALID_ARGUMENT, std::move(text)}; }

/// Runs `body`, which returns an Outcome, and converts every exception to a code.
template <class Body>
mh_status Guard(mh_message* message, Body&& body) noexcept {
  try {
    const Outcome outcome = body();
    SetMessage(message, outcome.text);
    return outcome.code;
  } catch (const std::bad_alloc&) {
    SetMessage(message, "out of memory");
    return MH_OUT_OF_MEMORY;
    // A container was asked for a size that no memory could hold.
  } catch (const std::length_error&) {
    SetMessage(message, "out of memory");
    return MH_OUT_OF_MEMORY;
  } catch (const std::exception& error) {
    SetMessage(message, error.what());
  } catch (...) {
    SetMessage(message, "an exception of unknown type");
  }
  return MH_INTERNAL_ERROR;
}

/// Guards a call with a handle, which may be null.
template <class Handle, class Body>
mh_status Call(Handle* handle, Body&& body) noexcept {
  if (handle == nullptr) return MH_INVALID_ARGUMENT;
  return Guard(&handle->message, std::forward<Body>(body));
}

/// Guards a call that creates a handle: `body` gets its destination, which is set to null before.
template <class Handle, class Body>
mh_status CreateHandle(Handle** place, mh_message* message, Body&& body) noexcept {
  if (place != nullptr) *place = nullptr;
  return Guard(message, [&]() -> Outcome {
    if (place == nullptr) return Invalid("the place for the handle is NULL");
    return body(*place);
  });
}

template <class Handle>
void FreeHandle(Handle** place) noexcept {
  if (place == nullptr) return;
  delete std::exchange(*place, nullptr);
}

/// Checks that a struct of options has the size that this library knows, which an initialised one
/// has.
template <class Options>
std::optional<Outcome> CheckSize(const Options& options, const char* name) {
  if (options.struct_size == sizeof options) return std::nullopt;
  return Invalid(std::string(name) + ": struct_size = " + std::to_string(options.struct_size) +
                 "; expected " + std::to_string(sizeof options) + ", as " + name + "_init sets it");
}

/// Checks that an array is not null where it has elements, and no larger than any array can be.
template <class T>
std::optional<Outcome> CheckArray(const T* data, std::size_t count, const char* what) {
  constexpr std::size_t kMost = std::numeric_limits<std::ptrdiff_t>::max() / sizeof(T);
  if (count > 0 && data == nullptr)
    return Invalid(std::string(what) + " is NULL; expected " + std::to_string(count) + " elements");
  if (count > kMost)
    return Invalid(std::string(what) + " has " + std::to_string(count) +
                   " elements; expected at most " + std::to_string(kMost));
  return std::nullopt;
}

inline std::optional<Outcome> CheckPointer(const void* pointer, const char* what) {
  if (pointer != nullptr) return std::nullopt;
  return Invalid(std::string(what) + " is NULL");
}

inline std::optional<Outcome> ReadKvType(mh_kv_type type, const char* what, KvType& result) {
  const int number = static_cast<int>(type);
  if (number < MH_KV_F32 || number > MH_KV_INT4)
    return Invalid(std::string(what) + " = " + std::to_string(number) + "; expected " +
                   std::to_string(MH_KV_F32) + " to " + std::to_string(MH_KV_INT4));
  result = static_cast<KvType>(number);
  return std::nullopt;
}

inline std::optional<Outcome> ReadIsa(const char* name, std::optional<Isa>& result) {
  if (name == nullptr) return std::nullopt;
  result = ParseIsa(name);
  if (result.has_value()) return std::nullopt;
  return Invalid("isa = '" + std::string(name) + "'; expected scalar, avx2, avx512 or amx");
}

/// Copies the `count` elements of `data` to a caller's array; `what` names the array in messages
/// about its size.
template <class T>
Outcome CopyOut(const T* data, std::size_t count, T* place, std::size_t capacity,
                std::size_t* needed, const char* what) {
  *needed = count;
  if (count > capacity)
    return {MH_BUFFER_TOO_SMALL, std::string(what) + ": capacity = " + std::to_string(capacity) +
                                     "; needed " + std::to_string(count)};
  if (count > 0) std::memcpy(place, data, count * sizeof(T));
  return Status();
}

}  // namespace manyhead::c_api
