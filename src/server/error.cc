#include "server/error.h"

#include <utility>

#include "core/json.h"

namespace tensorcache::server {
namespace {

ApiError BadRequest(std::string code, std::string param, std::string message) {
  return {.status = 400,
          .type = "invalid_request_error",
          .code = std::move(code),
          .message = std::move(message),
          .param = std::move(param)};
}

std::string TypeOf(int status) {
  switch (status) {
    case 401: return "authentication_error";
    case 429: return "rate_limit_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}  // namespace

std::string ErrorBody(const ApiError& error) {
  const OrderedJson body = {{"error",
                             {{"message", error.message},
                              {"type", error.type},
                              {"param", error.param.empty() ? OrderedJson(nullptr) : OrderedJson(error.param)},
                              {"code", error.code}}}};
  return body.dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

ApiError InvalidValue(std::string param, std::string message) {
  return BadRequest("invalid_value", std::move(param), std::move(message));
}

ApiError UnsupportedParameter(std::string param, std::string message) {
  return BadRequest("unsupported_parameter", std::move(param), std::move(message));
}

ApiError UnknownParameter(std::string param, std::string message) {
  return BadRequest("unknown_parameter", std::move(param), std::move(message));
}

ApiError ContextLengthExceeded(std::string message) {
  return BadRequest("context_length_exceeded", "", std::move(message));
}

ApiError InvalidApiKey(std::string message) { return MakeError(401, "invalid_api_key", std::move(message)); }

ApiError NotFoundError(std::string code, std::string message) {
  return MakeError(404, std::move(code), std::move(message));
}

ApiError QueueFull() {
  ApiError error = MakeError(429, "queue_full", "as many requests wait as the server takes; try again in a second");
  error.retry_after = 1;
  return error;
}

ApiError ShuttingDown() {
  ApiError error = MakeError(503, "shutting_down", "the server is shutting down; try again in some seconds");
  error.retry_after = 5;
  return error;
}

ApiError ErrorOf(const Status& status) {
  return MakeError(500, status.code() == StatusCode::kDiverged ? "diverged" : "internal_error", status.message());
}

ApiError MakeError(int status, std::string code, std::string message) {
  return {.status = status, .type = TypeOf(status), .code = std::move(code), .message = std::move(message)};
}

}  // namespace tensorcache::server
