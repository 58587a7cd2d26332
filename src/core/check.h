// TC_CHECK(condition): a broken promise inside the program (a bug), never bad input. Active in every build type.
#pragma once

namespace tensorcache::internal {

// Writes file, line and text to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* text);

}  // namespace tensorcache::internal

#define TC_CHECK(condition)                                                                  \
  do {                                                                                       \
    if (!(condition)) [[unlikely]]                                                           \
      ::tensorcache::internal::CheckFailed(__FILE__, __LINE__, "CHECK failed: " #condition); \
  } while (false)
