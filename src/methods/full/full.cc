// Full KV: every key and value is kept and seen. Exact, and the only method whose state grows with the text.
#include "methods/method.h"

namespace tensorcache::methods {
namespace {

class Full : public Method {
 public:
  std::string_view name() const override { return "full"; }
  std::string_view title() const override { return "Full KV"; }
  std::string_view summary() const override { return "every key and value: the state grows with the text"; }

  Status Validate(const CacheConfig& /*cache*/, int64_t /*layers*/) const override { return OkStatus(); }
  Status ValidateCarriedState(const CacheConfig& /*cache*/, int64_t /*block*/) const override {
    return InvalidArgument("train.carry_state needs a state of bounded size; cache.method full has none");
  }
  bool KeepsEverything() const override { return true; }
  double VisiblePairs(const CacheConfig& /*cache*/, double tokens) const override { return tokens * (tokens + 1) / 2; }
};

}  // namespace

const Method& FullMethod() {
  static const Full method;
  return method;
}

}  // namespace tensorcache::methods
