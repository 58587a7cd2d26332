// Window KV: the last W keys and values, and nothing else. It is what every default of Method and Layer describes.
#include "methods/method.h"

namespace tensorcache::methods {
namespace {

class Window : public Method {
 public:
  std::string_view name() const override { return "window"; }
  std::string_view title() const override { return "Window KV"; }
  std::string_view summary() const override { return "the last `window` keys and values"; }
};

}  // namespace

const Method& WindowMethod() {
  static const Window method;
  return method;
}

}  // namespace tensorcache::methods
