// Errors that a caller can act on: bad files, flags, shapes, requests. Bugs are CHECKs (src/core/check.h), not Statuses.
//
// The library never prints, exits or throws on bad input; every function that can meet it returns a Status or a
// Result<T>. Messages are one line: what was wrong with what, and what to do.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace tensorcache {

enum class StatusCode {
  kOk,
  kInvalidArgument,  // a value, shape or option that cannot work
  kNotFound,         // a file, key or tensor that is not there
  kCorrupt,          // a file whose content contradicts its format
  kIoError,          // the machine failed: disk full, permission, short read
  kDiverged,         // a computation left the finite numbers
  kUnsupported,      // valid, but not something this build or machine does
};

std::string_view StatusCodeName(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

inline Status OkStatus() { return Status(); }
inline Status InvalidArgument(std::string message) { return {StatusCode::kInvalidArgument, std::move(message)}; }
inline Status NotFound(std::string message) { return {StatusCode::kNotFound, std::move(message)}; }
inline Status Corrupt(std::string message) { return {StatusCode::kCorrupt, std::move(message)}; }
inline Status IoError(std::string message) { return {StatusCode::kIoError, std::move(message)}; }
inline Status Diverged(std::string message) { return {StatusCode::kDiverged, std::move(message)}; }
inline Status Unsupported(std::string message) { return {StatusCode::kUnsupported, std::move(message)}; }

// A T, or the Status that says why there is none. Reading the value of an error is a bug and aborts.
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    if (status_.ok()) status_ = {StatusCode::kInvalidArgument, "Result built from an OK status without a value"};
  }

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & { return Checked(*this); }
  const T& value() const& { return Checked(*this); }
  T&& value() && { return std::move(Checked(*this)); }
  T& operator*() & { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  template <class Self>
  static auto& Checked(Self& self);

  std::optional<T> value_;
  Status status_;
};

namespace internal {
[[noreturn]] void DieOnBadResultAccess(const Status& status);
}  // namespace internal

template <class T>
template <class Self>
auto& Result<T>::Checked(Self& self) {
  if (!self.value_.has_value()) internal::DieOnBadResultAccess(self.status_);
  return *self.value_;
}

}  // namespace tensorcache

// Returns the error of `expr` (a Status) from the enclosing function, if there is one.
#define TC_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                               \
    if (::tensorcache::Status tc_status = (expr); !tc_status.ok()) return tc_status; \
  } while (false)

#define TC_CONCAT_INNER(a, b) a##b
#define TC_CONCAT(a, b) TC_CONCAT_INNER(a, b)

// TC_ASSIGN_OR_RETURN(auto x, F()): x = the value of F(), or return its error from the enclosing function.
#define TC_ASSIGN_OR_RETURN(lhs, expr) TC_ASSIGN_OR_RETURN_IMPL(TC_CONCAT(tc_result_, __LINE__), lhs, expr)
#define TC_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                             \
  if (!result.ok()) return result.status();         \
  lhs = std::move(result).value()
