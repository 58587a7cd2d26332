#include "core/no_throw.h"

#include <fmt/format.h>

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "core/text.h"

namespace tensorcache {
namespace {

// What it throws itself is std::bad_alloc alone.
Status Describe(std::string_view what) {
  const auto no_memory = [&] { return fmt::format("not enough memory to {}; free some or ask for less", what); };
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return IoError(no_memory());
  } catch (const std::length_error&) {  // more than any memory has
    return IoError(no_memory());
  } catch (const std::exception& error) {
    return IoError(fmt::format("cannot {}: {}", what, FirstLine(error.what())));
  } catch (...) {
    return IoError(fmt::format("cannot {}: an exception without a message", what));
  }
}

}  // namespace

Status StatusOfException(std::string_view what) noexcept {
  try {
    return Describe(what);
  } catch (...) {
    return IoError("out of memory");  // so short that std::string keeps it in itself
  }
}

}  // namespace tensorcache
