#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "manyhead/session.h"
#include "tools/python/src/binding.h"

namespace manyhead::python {

using Ids = DenseArray<const TokenId, 1>;

inline std::span<const TokenId> Span(const Ids& ids) { return {ids.data(), ids.shape(0)}; }

class TextStream;

/// A session that Python threads share: their calls wait for each other. Calls on a closed session,
/// while a generation is under way, or from within another call of the same thread raise
/// ValueError.
class SharedSession {
 public:
  SharedSession(const Model& model, const SessionOptions& options, const Ablation& ablation);

  /// Returns what `function(session)` does, called alone and without Python's lock. The token that
  /// a generation drew last is appended before.
  template <class Function>
  auto Call(Function&& function) {
    const Lock lock(*this);
    Session& session = Idle();
    Check(WithoutGil([&] { return AppendPending(session); }));
    return WithoutGil([&] { return function(session); });
  }
  /// The same for what reads alone, also while a generation is under way.
  template <class Function>
  auto Look(Function&& function) {
    const Lock lock(*this);
    return function(std::as_const(Open()));
  }

  /// Appends ids by `append(session, part)`, looking for signals between the parts. After an error
  /// or an exception of a signal's handler the session holds what it held before. `capture`, if
  /// there is one, is set meanwhile.
  template <class Append>
  void Feed(std::span<const TokenId> ids, Append&& append,
            const CaptureOptions* capture = nullptr) {
    const Status status = Call([&](Session& session) {
      const CaptureScope scope(session, capture);
      if (!scope.status.ok()) return scope.status;
      const std::int64_t before = session.length();
      const Status fed = FeedParts(session, ids, append);
      if (fed.ok() && !interrupted_) return fed;
      const Status undone = session.Truncate(before);
      return fed.ok() ? undone : fed;
    });
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    Check(status);
  }

  /// Releases the session's memory. A generation under way ends as cancelled.
  void Close();
  bool closed() const noexcept { return closed_; }
  /// The token that was drawn last and is not evaluated yet.
  std::optional<TokenId> pending() const noexcept { return pending_; }
  const Model& model() const noexcept { return model_; }

 private:
  friend class TextStream;
  /// Holds the session for this thread; waits for others without Python's lock.
  class Lock {
   public:
    explicit Lock(SharedSession& shared);
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    ~Lock();

   private:
    SharedSession& shared_;
  };

  /// A capture that is set while the scope lives.
  struct CaptureScope {
    CaptureScope(Session& of, const CaptureOptions* capture)
        : session(of), set(capture != nullptr) {
      if (set) status = session.SetCapture(capture);
    }
    CaptureScope(const CaptureScope&) = delete;
    CaptureScope& operator=(const CaptureScope&) = delete;
    ~CaptureScope() {
      if (set) static_cast<void>(session.SetCapture(nullptr));  // which cannot fail
    }

    Session& session;
    bool set;
    Status status;
  };

  template <class Append>
  Status FeedParts(Session& session, std::span<const TokenId> ids, Append&& append) {
    constexpr std::size_t kStep = 512;
    interrupted_ = false;
    do {
      const auto step = ids.first(std::min(ids.size(), kStep));
      if (Status status = append(session, step); !status.ok()) return status;
      ids = ids.subspan(step.size());
      const nb::gil_scoped_acquire acquire;
      interrupted_ = PyErr_CheckSignals() != 0;
    } while (!ids.empty() && !interrupted_);
    return Status();
  }

  Session& Open();
  Session& Idle();
  Status AppendPending(Session& session);

  Model model_;
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
  std::optional<Session> session_;
  TextStream* streaming_ = nullptr;  // the stream whose generation is under way
  std::optional<TokenId> pending_;
  std::atomic<bool> closed_ = false;
  bool interrupted_ = false;  // a signal ended the last Feed
};

}  // namespace manyhead::python
