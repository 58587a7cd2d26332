// Any bytes as a safetensors file: an error, or tensors that can be read to their last byte and lie in the file once
// each.
#include "tests/fuzz/driver.h"

namespace tensorcache::fuzz {
namespace {

void Check(std::string_view bytes) {
  const auto file = SafetensorsFile::FromMemory(std::as_bytes(std::span(bytes)), "fuzz");
  if (!file.ok()) {
    TC_CHECK(file.status().code() == StatusCode::kCorrupt);
    return CheckMessage(file.status());
  }
  size_t total = 0;
  for (const std::string_view name : file->names()) {
    const auto tensor = file->Find(name);
    TC_CHECK(tensor.ok());
    int64_t size = DTypeBytes(tensor->dtype);
    for (const int64_t extent : tensor->shape) size *= extent;
    TC_CHECK(size == std::ssize(tensor->data));
    Touch(tensor->data);
    if (const auto values = file->Values<float>(name, tensor->shape); values.ok()) Touch(std::as_bytes(*values));
    total += tensor->data.size();
  }
  TC_CHECK(total < bytes.size());
  if (const auto other = file->Find("a.weight"); !other.ok()) CheckMessage(other.status());
}

}  // namespace

// '=' and a file as it is, or anything else and a header, a zero byte and the data.
void Run(std::string_view input) {
  if (input.empty()) return;
  // On its own: reads beyond its end are seen.
  // NOLINTNEXTLINE(performance-string-view-conversions)
  if (input[0] == '=') return Check(std::string(input.substr(1)));
  const auto parts = Split(input.substr(1), 2);
  Check(JoinSafetensors(parts[0], parts[1]));
}

std::vector<std::string> Seeds() {
  const std::string two = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                          R"("b":{"dtype":"I8","shape":[3],"data_offsets":[24,27]}})";
  const std::string scalar = R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                             R"("e":{"dtype":"BF16","shape":[0,4],"data_offsets":[8,8]}})";
  return {"=" + JoinSafetensors("{}      ", ""), "=" + JoinSafetensors(two, std::string(27, 'x')),
          "." + Join({two, std::string(27, 'x')}), "." + Join({scalar, std::string(8, 'x')})};
}

std::vector<std::string> Words() {
  return {R"("dtype":)", R"("shape":[)", R"("data_offsets":[)", R"("__metadata__":{)",  "F32", "BF16", "F8_E4M3",
          "BOOL",        "I64",          "9223372036854775807", "18446744073709551616", "-1",  "1.5",  "{}",
          "[]"};
}

}  // namespace tensorcache::fuzz
