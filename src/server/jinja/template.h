// Chat templates: Jinja, as far as the templates of models use it. docs/serving.md lists what is there. A template can do nothing
// but make text of what it is given, and ends with an error where it takes too long or makes too much.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "server/jinja/value.h"
#include "tensorcache/status.h"

namespace tensorcache::server::jinja {

struct Statement;

struct TemplateLimits {
  int64_t steps = 1'000'000;  // a step makes a value, or moves a kilobyte; about a microsecond
};

// Immutable and thread-safe.
class Template {
 public:
  // kInvalidArgument, with the line, for what is no template, or is beyond the subset.
  static Result<Template> Parse(std::string_view source);
  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  // kInvalidArgument if it fails; what raise_exception was given is the message then.
  Result<Text> Render(const Dict& variables, const TemplateLimits& limits = {}) const;

 private:
  struct Impl;
  explicit Template(std::unique_ptr<const Impl> impl);

  std::unique_ptr<const Impl> impl_;
};

}  // namespace tensorcache::server::jinja
