// The Python class Session.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "arguments.h"
#include "model.h"
#include "tensorcache/session.h"

namespace tensorcache::python {

// A session for any Python thread: calls take turns, and wait for theirs without the GIL.
class SessionObject {
 public:
  SessionObject(nb::object model, Session session, SessionOptions options)
      : model_(std::move(model)), options_(options), session_(std::move(session)) {}

  const nb::object& model() const { return model_; }
  const ModelObject& model_object() const { return *nb::inst_ptr<ModelObject>(model_); }
  const SessionOptions& options() const { return options_; }

  // call(Session&), which may change the session. With the GIL, which it does without meanwhile.
  template <class F>
  auto Change(F call) {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    ++version_;
    return call(session_);
  }
  // The same for what changes nothing.
  template <class F>
  auto Look(F call) const {
    const nb::gil_scoped_release release;
    const std::lock_guard lock(mutex_);
    return call(session_);
  }

  // The logits as a numpy array that belongs to Python: the same one until the session goes on.
  nb::object Logits();

  // Takes tokens in pieces, between which Ctrl-C is looked for: feed(session, piece).
  template <class F>
  void Feed(std::span<const int32_t> tokens, F feed) {
    // Enough for all cores, and read in a second or so.
    constexpr size_t kPiece = 2048;
    const bool whole = !Look([&](const Session& session) { return AllFit(session, tokens); });
    const size_t piece = whole ? tokens.size() : kPiece;  // an error, for which nothing is done
    size_t at = 0;
    do {
      const std::span<const int32_t> next = tokens.subspan(at, std::min(piece, tokens.size() - at));
      Change([&](Session& session) { Check(feed(session, at, next)); });
      at += next.size();
      CheckSignals();
    } while (at < tokens.size());
  }

 private:
  friend class LockedSessions;

  // Whether the session can read all of them.
  static bool AllFit(const Session& session, std::span<const int32_t> tokens);

  nb::object model_;  // the ModelObject
  SessionOptions options_;
  mutable std::mutex mutex_;
  Session session_;
  uint64_t version_ = 0;         // of the session
  nb::object logits_;            // of version logits_version_; only with the GIL
  uint64_t logits_version_ = 0;  // only with the GIL
};

// Sessions that a call works on together, which no other call does meanwhile. All of them are locked in one order, so that
// no two calls wait for each other. Without the GIL; the objects must outlive it.
class LockedSessions {
 public:
  LockedSessions(const std::vector<SessionObject*>& objects, bool change);
  ~LockedSessions();
  LockedSessions(const LockedSessions&) = delete;
  LockedSessions& operator=(const LockedSessions&) = delete;

  // As many as objects, in their order.
  const std::vector<Session*>& sessions() const { return sessions_; }

 private:
  std::vector<SessionObject*> locked_;  // each once
  std::vector<Session*> sessions_;
};

}  // namespace tensorcache::python
