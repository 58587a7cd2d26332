// What c10d's ProcessGroupGloo.hpp needs of Gloo to compile. LibTorch holds Gloo inside and installs that header, but
// not the Gloo headers it includes; those of another Gloo version would define inline functions and vtables that the
// linker could take instead of LibTorch's own. So these files declare and define nothing: ProcessGroupGloo and its
// Options hold Gloo's objects by pointer alone, and whoever would need more gets a compile or link error.
#pragma once

#include <chrono>

namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);  // NOLINT(readability-identifier-naming)
};

}  // namespace gloo
