#include "server/session_store.h"

#include <fmt/format.h>

#include <utility>

#include "core/text.h"
#include "server/access.h"
#include "server/reply.h"

namespace tensorcache::server {

OrderedJson SessionJson(const SessionInfo& info) {
  return {{"id", info.id},
          {"object", "session"},
          {"created", info.created},
          {"position", info.position},
          {"state_bytes", info.state_bytes}};
}

ApiError NoRoomForState() {
  return MakeError(503, "store_unavailable", "there is no room for the session's new state; it is as it was before");
}

SessionUse::~SessionUse() {
  const std::lock_guard lock(store_.mutex_);
  const auto found = store_.entries_.find(id_);
  if (found != store_.entries_.end()) found->second.busy = false;
}

bool SessionUse::Replace(Snapshot snapshot) {
  const std::lock_guard lock(store_.mutex_);
  const auto found = store_.entries_.find(id_);
  if (found == store_.entries_.end()) return true;  // deleted meanwhile: nobody misses it
  SessionInfo& info = found->second.info;
  const int64_t bytes = snapshot->state_bytes().total();
  if (bytes > info.state_bytes && !store_.MakeRoom(bytes - info.state_bytes)) return false;
  store_.bytes_ += bytes - info.state_bytes;
  info.state_bytes = bytes;
  info.position = snapshot->position();
  found->second.snapshot = snapshot_ = std::move(snapshot);
  store_.Measure();
  return true;
}

SessionInfo SessionUse::info() const {
  const std::lock_guard lock(store_.mutex_);
  const auto found = store_.entries_.find(id_);
  return found == store_.entries_.end() ? SessionInfo{.id = id_} : found->second.info;
}

MaybeError SessionStore::Create(size_t owner, Snapshot snapshot, SessionInfo* info) {
  *info = {.id = "sess_" + RandomId(),
           .created = UnixTime(),
           .position = snapshot->position(),
           .state_bytes = snapshot->state_bytes().total()};
  const std::lock_guard lock(mutex_);
  if (!MakeRoom(info->state_bytes)) {
    ApiError error =
        MakeError(503, "store_unavailable", "the sessions that are in use take all of the memory for states");
    error.retry_after = 1;
    return error;
  }
  used_.push_front(info->id);
  entries_[info->id] = {.owner = owner, .info = *info, .snapshot = std::move(snapshot), .place = used_.begin()};
  bytes_ += info->state_bytes;
  Measure();
  return std::nullopt;
}

MaybeError SessionStore::Find(size_t owner, const std::string& id, Entry** entry) {
  const auto found = entries_.find(id);
  // Another key's is no different from none.
  if (found == entries_.end() || found->second.owner != owner) {
    return NotFoundError("session_not_found", fmt::format("there is no session {}", Quoted(id)));
  }
  *entry = &found->second;
  used_.splice(used_.begin(), used_, found->second.place);
  return std::nullopt;
}

MaybeError SessionStore::Look(size_t owner, const std::string& id, SessionInfo* info, Snapshot* snapshot) {
  const std::lock_guard lock(mutex_);
  Entry* entry = nullptr;
  if (auto error = Find(owner, id, &entry)) return error;
  *info = entry->info;
  *snapshot = entry->snapshot;
  return std::nullopt;
}

MaybeError SessionStore::Use(size_t owner, const std::string& id, std::shared_ptr<SessionUse>* use) {
  const std::lock_guard lock(mutex_);
  Entry* entry = nullptr;
  if (auto error = Find(owner, id, &entry)) return error;
  if (entry->busy) {
    return MakeError(409, "session_busy",
                     fmt::format("session {} is being read or written; wait, or fork it", Quoted(id)));
  }
  *use = std::shared_ptr<SessionUse>(new SessionUse(*this, id, entry->snapshot));
  entry->busy = true;
  return std::nullopt;
}

MaybeError SessionStore::Delete(size_t owner, const std::string& id) {
  const std::lock_guard lock(mutex_);
  Entry* entry = nullptr;
  if (auto error = Find(owner, id, &entry)) return error;
  Remove(entries_.find(id));
  Measure();
  return std::nullopt;
}

bool SessionStore::MakeRoom(int64_t bytes) {
  for (auto id = used_.rbegin(); bytes_ + bytes > max_bytes_ && id != used_.rend();) {
    const auto entry = entries_.find(*id++);
    if (entry->second.busy) continue;
    Remove(entry);
    ++metrics_->sessions_evicted;
    id = used_.rbegin();  // the list has changed
  }
  return bytes_ + bytes <= max_bytes_;
}

void SessionStore::Remove(std::map<std::string, Entry>::iterator entry) {
  bytes_ -= entry->second.info.state_bytes;
  used_.erase(entry->second.place);
  entries_.erase(entry);
}

void SessionStore::Measure() {
  metrics_->sessions = std::ssize(entries_);
  metrics_->session_bytes = bytes_;
}

}  // namespace tensorcache::server
