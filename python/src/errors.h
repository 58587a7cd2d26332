// Statuses as Python exceptions: each code has a class in tensorcache/errors.py, and the message stays as it is.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <utility>

#include "tensorcache/status.h"

namespace tensorcache::python {

class StatusError : public std::exception {
 public:
  explicit StatusError(Status status) : status_(std::move(status)) {}
  const char* what() const noexcept override { return status_.message().c_str(); }
  const Status& status() const { return status_; }

 private:
  Status status_;
};

// These may be called without the GIL.
inline void Check(Status status) {
  if (!status.ok()) throw StatusError(std::move(status));
}

template <class T>
T Unwrap(Result<T> result) {
  if (!result.ok()) throw StatusError(result.status());
  return std::move(result).value();
}

void RegisterErrors();

}  // namespace tensorcache::python
