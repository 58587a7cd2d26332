// What a request is answered with when it is not met: OpenAI's shape, {"error": {"message", "type", "param", "code"}}. The
// codes are a promise to clients; docs/serving.md lists them.
#pragma once

#include <optional>
#include <string>

#include "tensorcache/status.h"

namespace tensorcache::server {

struct ApiError {
  int status = 500;  // of HTTP
  std::string type;
  std::string code;
  std::string message;
  std::string param;    // the field that is wrong; empty: none
  int retry_after = 0;  // seconds after which it may work; 0: not said
};

// What functions return that may find fault with a request; nothing: it is fine.
using MaybeError = std::optional<ApiError>;

// The body of the answer.
std::string ErrorBody(const ApiError& error);

// 400 invalid_value.
ApiError InvalidValue(std::string param, std::string message);
// 400 unsupported_parameter: a field of OpenAI's that this server knows and does not do.
ApiError UnsupportedParameter(std::string param, std::string message);
// 400 unknown_parameter.
ApiError UnknownParameter(std::string param, std::string message);
// 400 context_length_exceeded: learned positions end.
ApiError ContextLengthExceeded(std::string message);
// 401.
ApiError InvalidApiKey(std::string message);
// 404, with a code such as model_not_found.
ApiError NotFoundError(std::string code, std::string message);
// 429 queue_full.
ApiError QueueFull();
// 503 shutting_down.
ApiError ShuttingDown();
// Of an error of the library on the server's side: 500 diverged or internal_error.
ApiError ErrorOf(const Status& status);
// Any other.
ApiError MakeError(int status, std::string code, std::string message);

}  // namespace tensorcache::server
