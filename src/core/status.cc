#include "tensorcache/status.h"

#include "core/check.h"

namespace tensorcache {

std::string_view StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kCorrupt: return "corrupt";
    case StatusCode::kIoError: return "i/o error";
    case StatusCode::kDiverged: return "diverged";
    case StatusCode::kUnsupported: return "unsupported";
  }
  return "unknown";
}

namespace internal {

void DieOnBadResultAccess(const Status& status) { CheckFailed("Result::value()", 0, status.message().c_str()); }

}  // namespace internal
}  // namespace tensorcache
