#include "core/check.h"

#include <cstdio>
#include <cstdlib>

namespace tensorcache::internal {

void CheckFailed(const char* file, int line, const char* text) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, text);
  std::abort();
}

}  // namespace tensorcache::internal
