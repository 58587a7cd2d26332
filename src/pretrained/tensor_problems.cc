#include "pretrained/tensor_problems.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "core/text.h"

namespace tensorcache::pretrained {
namespace {

constexpr size_t kNamed = 3;

// "3 tensors are missing: 'a', 'b', 'c'"
void Tell(const std::vector<std::string>& things, std::string_view what, std::string* text) {
  if (things.empty()) return;
  *text += fmt::format("{}{} tensor{} {} {}: ", text->empty() ? "" : "; ", things.size(), things.size() == 1 ? "" : "s",
                       things.size() == 1 ? "is" : "are", what);
  *text += fmt::format("{}", fmt::join(things.begin(), things.begin() + std::min(things.size(), kNamed), ", "));
  if (things.size() > kNamed) *text += ", ...";
}

std::vector<std::string> QuotedAll(const std::vector<std::string>& names) {
  std::vector<std::string> quoted;
  for (const std::string& name : names) quoted.push_back(Quoted(name));
  return quoted;
}

}  // namespace

bool TensorProblems::Check(std::string_view name, const TensorRef& tensor, std::span<const int64_t> shape) {
  if (!std::ranges::equal(tensor.shape, shape)) {
    misshapen_.push_back(fmt::format("{} is {} instead of {}", Quoted(name), tensor.shape, shape));
    return false;
  }
  if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 && tensor.dtype != DType::kBF16) {
    types_.push_back(fmt::format("{} is {}", Quoted(name), DTypeName(tensor.dtype)));
    return false;
  }
  return true;
}

Status TensorProblems::Finish(const std::string& source) const {
  std::string text;
  Tell(QuotedAll(missing_), "missing", &text);
  Tell(misshapen_, "of another shape than config.json says", &text);
  Tell(QuotedAll(surplus_), "not known", &text);
  const bool only_types = text.empty();
  Tell(types_, "neither F32 nor F16 nor BF16", &text);
  if (text.empty()) return OkStatus();
  return Status(only_types ? StatusCode::kUnsupported : StatusCode::kInvalidArgument,
                fmt::format("{}: {}", source, text));
}

}  // namespace tensorcache::pretrained
