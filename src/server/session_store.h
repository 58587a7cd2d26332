// The sessions that clients have made: texts that the model has read, to go on from. Each belongs to the key that made it.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "core/json.h"
#include "server/engine.h"
#include "server/error.h"
#include "server/metrics.h"

namespace tensorcache::server {

struct SessionInfo {
  std::string id;
  int64_t created = 0;      // seconds since 1970
  int64_t position = 0;     // tokens read
  int64_t state_bytes = 0;  // of its state
};

// {"id", "object": "session", ...}
OrderedJson SessionJson(const SessionInfo& info);
// Where SessionUse::Replace says so.
ApiError NoRoomForState();

class SessionStore;

// The only use of a session, for as long as this lives. It must not outlive the store.
class SessionUse {
 public:
  ~SessionUse();
  SessionUse(const SessionUse&) = delete;
  SessionUse& operator=(const SessionUse&) = delete;

  const Snapshot& snapshot() const { return snapshot_; }
  // The session's new state. False: there is no room for it, and the session is as it was.
  bool Replace(Snapshot snapshot);
  // Of the state as it is now.
  SessionInfo info() const;

 private:
  friend class SessionStore;
  SessionUse(SessionStore& store, std::string id, Snapshot snapshot)
      : store_(store), id_(std::move(id)), snapshot_(std::move(snapshot)) {}

  SessionStore& store_;
  const std::string id_;
  Snapshot snapshot_;
};

// Thread-safe. Keeps states within `max_bytes`: where there is no room for a new one, those that were not used for the longest time go.
class SessionStore {
 public:
  // `metrics` must outlive the store.
  SessionStore(int64_t max_bytes, Metrics* metrics) : max_bytes_(max_bytes), metrics_(metrics) {}

  MaybeError Create(size_t owner, Snapshot snapshot, SessionInfo* info);
  MaybeError Look(size_t owner, const std::string& id, SessionInfo* info, Snapshot* snapshot);
  // 409 session_busy if somebody else uses it.
  MaybeError Use(size_t owner, const std::string& id, std::shared_ptr<SessionUse>* use);
  MaybeError Delete(size_t owner, const std::string& id);

 private:
  friend class SessionUse;
  struct Entry {
    size_t owner = 0;
    bool busy = false;
    SessionInfo info;
    Snapshot snapshot;
    std::list<std::string>::iterator place;  // in used_
  };

  // All with the mutex held.
  MaybeError Find(size_t owner, const std::string& id, Entry** entry);
  // Makes room for so many bytes more; false if the sessions in use leave none.
  bool MakeRoom(int64_t bytes);
  void Remove(std::map<std::string, Entry>::iterator entry);
  void Measure();

  const int64_t max_bytes_;
  Metrics* const metrics_;
  std::mutex mutex_;
  std::map<std::string, Entry> entries_;  // by id
  std::list<std::string> used_;           // ids, the last one used first
  int64_t bytes_ = 0;
};

}  // namespace tensorcache::server
