// The keys of a Hugging Face config.json that no table of ours reads: which may be anything, which must not change the
// computation, and which nobody here knows.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "tensorcache/status.h"

namespace tensorcache::pretrained {

// kUnsupported names a key whose value makes the model another function than the one that is read. Keys that are not
// known are added to *unknown. `read` are the keys that the caller understands; null is as good as absent.
Status CheckOtherKeys(const Json& config, std::span<const std::string> read, std::vector<std::string>* unknown);

}  // namespace tensorcache::pretrained
