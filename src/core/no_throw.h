// The library throws nothing at its callers: what it, the standard library and other libraries throw becomes a Status.
#pragma once

#include <string_view>

#include "tensorcache/status.h"

namespace tensorcache {

// Of the exception that is being handled: kIoError, "not enough memory to `what`" or "cannot `what`: its message".
Status StatusOfException(std::string_view what) noexcept;

// body(), which returns a Status or a Result. `what` is what it does: "encode a text".
template <class Body>
auto NoThrow(std::string_view what, const Body& body) noexcept -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return StatusOfException(what);
  }
}

}  // namespace tensorcache
