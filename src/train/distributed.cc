#include "train/distributed.h"

#include <fmt/format.h>

#include <deque>
#include <exception>
#include <utility>

#include "core/check.h"
#include "core/text.h"
#include "train/process_group.h"

namespace tensorcache::train {
namespace {

// Large enough that the start of an exchange costs nothing beside it, small enough that copying one bucket overlaps with
// sending the one before.
constexpr int64_t kBucketBytes = int64_t{25} << 20;
constexpr size_t kBucketsUnderWay = 2;

using Tensors = std::span<const at::Tensor>;

bool SameKind(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.device() == b.device();
}

// Cuts the list into runs of one dtype and device of at most kBucketBytes, or of one tensor.
std::vector<Tensors> Buckets(Tensors tensors) {
  std::vector<Tensors> buckets;
  size_t begin = 0;
  int64_t bytes = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t more = static_cast<int64_t>(tensors[i].nbytes());
    if (i > begin && (bytes + more > kBucketBytes || !SameKind(tensors[begin], tensors[i]))) {
      buckets.push_back(tensors.subspan(begin, i - begin));
      begin = i;
      bytes = 0;
    }
    bytes += more;
  }
  if (begin < tensors.size()) buckets.push_back(tensors.subspan(begin));
  return buckets;
}

// One bucket as a vector: a view of the tensor if it is a single contiguous one, else a copy.
struct Flat {
  explicit Flat(Tensors bucket) : tensors(bucket), in_place(bucket.size() == 1 && bucket[0].is_contiguous()) {
    if (in_place) {
      values = bucket[0].view({-1});
      return;
    }
    std::vector<at::Tensor> parts;
    parts.reserve(bucket.size());
    for (const at::Tensor& tensor : bucket) parts.push_back(tensor.reshape({-1}));
    values = at::cat(parts);
  }

  void CopyBack() const {
    if (in_place) return;
    int64_t offset = 0;
    for (const at::Tensor& tensor : tensors) {
      tensor.copy_(values.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
      offset += tensor.numel();
    }
  }

  Tensors tensors;
  bool in_place;
  at::Tensor values;
};

// What the text of a c10d error most likely means.
std::string Explain(std::string_view text, double timeout_seconds) {
  const auto has = [&](std::string_view part) { return text.find(part) != std::string_view::npos; };
  if (has("imed out") || has("imeout")) {
    return fmt::format("no answer from another process for {:g} s, it may hang or be much slower than this one",
                       timeout_seconds);
  }
  if (has("onnection closed") || has("onnection reset") || has("roken pipe") || has("not connected") ||
      has("remote process")) {
    return "lost contact with another process";
  }
  return "the exchange with the other processes failed";
}

}  // namespace

std::string FirstSentence(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : error.what();
  // Gloo and c10d begin with "[file:line] ".
  if (const size_t end = text.find("] "); !text.empty() && text[0] == '[' && end != std::string::npos) {
    if (text.substr(0, end).find(".cc:") != std::string::npos) text.erase(0, end + 2);
  }
  text.resize(FirstLine(text).size());
  text = text.substr(0, text.find(". "));  // what follows is advice that fits Python
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
  return text;
}

Result<std::unique_ptr<World>> World::Join(const WorldOptions& options, at::Device device) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return InvalidArgument(fmt::format("rank {} of {} processes: ranks count from 0 to the number of processes - 1",
                                       options.rank, options.size));
  }
  if (options.size == 1) return std::unique_ptr<World>(new World(options, device, nullptr));
  if (options.master_port < 1 || options.master_port > 65535 || options.master_address.empty()) {
    return InvalidArgument(
        fmt::format("'{}:{}' is no address where rank 0 could listen; set MASTER_ADDR and MASTER_PORT",
                    options.master_address, options.master_port));
  }
  if (!(options.timeout_seconds > 0 && options.timeout_seconds <= 86400)) {
    return InvalidArgument(fmt::format("a timeout of {:g} s between processes; it must be positive and at most a day",
                                       options.timeout_seconds));
  }
  TC_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> group, JoinProcessGroup(options, device));
  return std::unique_ptr<World>(new World(options, device, std::move(group)));
}

World::World(const WorldOptions& options, at::Device device, std::unique_ptr<ProcessGroup> group)
    : options_(options), device_(device), group_(std::move(group)) {}

World::~World() {
  try {
    if (!failure_.ok()) group_->Abort();
    group_.reset();
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // The connections are lost, and whoever destroys the world knows that already.
  }
}

Status World::AllReduceSum(const std::vector<at::Tensor>& tensors) {
  return Exchange(tensors, "gradient exchange", [this](const at::Tensor& flat) { return group_->StartSum(flat); });
}

Status World::AllReduceSum(std::span<double> values) {
  if (size() == 1 || values.empty()) return OkStatus();
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor on_host = at::from_blob(values.data(), {count}, at::kDouble);
  const at::Tensor on_device = on_host.to(device_);  // the same memory on a CPU
  TC_RETURN_IF_ERROR(
      Exchange({on_device}, "exchange of figures", [this](const at::Tensor& flat) { return group_->StartSum(flat); }));
  if (!on_device.is_cpu()) on_host.copy_(on_device);
  return OkStatus();
}

template <class Start>
Status World::Exchange(const std::vector<at::Tensor>& tensors, std::string_view what, Start start) {
  if (size() == 1) return OkStatus();
  if (!failure_.ok()) return failure_;
  for (const at::Tensor& tensor : tensors) TC_CHECK(tensor.defined() && tensor.layout() == at::kStrided);

  const at::NoGradGuard no_grad;
  std::deque<std::pair<Flat, ProcessGroup::Wait>> under_way;
  const auto finish_oldest = [&] {
    // Off the list first: a wait that throws is over.
    auto [flat, wait] = std::move(under_way.front());
    under_way.pop_front();
    wait();
    flat.CopyBack();
  };
  Status status;
  try {
    for (const Tensors bucket : Buckets(tensors)) {
      if (under_way.size() == kBucketsUnderWay) finish_oldest();
      Flat flat(bucket);
      if (flat.values.numel() == 0) continue;
      ProcessGroup::Wait wait = start(flat.values);
      under_way.emplace_back(std::move(flat), std::move(wait));
    }
    while (!under_way.empty()) finish_oldest();
  } catch (const std::exception& error) {
    status = Failed(what, error);
  }
  // After an error: nothing may still write to the caller's tensors when this returns.
  for (auto& [flat, wait] : under_way) {
    try {
      wait();
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
      // The first error is the one that tells what happened.
    }
  }
  return status;
}

Status World::Failed(std::string_view what, const std::exception& error) {
  const std::string text = FirstSentence(error);
  failure_ =
      IoError(fmt::format("rank {} of {}: {} during the {} ({}); see the other processes' messages, then restart "
                          "all of them with --resume",
                          rank(), size(), Explain(text, options_.timeout_seconds), what, text));
  return failure_;
}

}  // namespace tensorcache::train
