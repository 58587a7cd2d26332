// Python objects as the library takes them, and its results as Python objects.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/config.h"
#include "core/json.h"
#include "errors.h"
#include "tensorcache/sampling.h"

namespace tensorcache::python {

namespace nb = nanobind;

// Numbers of tokens: an int32 array (numpy, torch, ...) is used where it is, anything else that has integers is copied.
class Tokens {
 public:
  explicit Tokens(nb::handle source);
  std::span<const int32_t> view() const { return view_; }

 private:
  std::vector<int32_t> own_;
  nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> array_;  // keeps the owner alive
  std::span<const int32_t> view_;
};

// A numpy array that is made before it is filled, so that results are written to where they stay.
template <class T>
class NewArray {
 public:
  explicit NewArray(std::vector<size_t> shape) : shape_(std::move(shape)) {
    for (const size_t n : shape_) size_ *= n;
    data_ = new T[size_];
    owner_ = nb::capsule(data_, [](void* data) noexcept { delete[] static_cast<T*>(data); });
  }
  std::span<T> view() const { return {data_, size_}; }
  nb::object array() const { return nb::cast(nb::ndarray<nb::numpy, T>(data_, shape_.size(), shape_.data(), owner_)); }
  nb::object read_only() const {
    return nb::cast(nb::ndarray<nb::numpy, const T>(data_, shape_.size(), shape_.data(), owner_));
  }

 private:
  std::vector<size_t> shape_;
  size_t size_ = 1;
  T* data_ = nullptr;
  nb::capsule owner_;
};

inline nb::object TokenArray(std::span<const int32_t> tokens) {
  const NewArray<int32_t> made({tokens.size()});
  std::copy(tokens.begin(), tokens.end(), made.view().begin());
  return made.array();
}

// Dictionaries as JSON, and back.
nb::object FromJson(const OrderedJson& json);
Json ToJsonValue(nb::handle object, std::string_view what);

// Reads a dictionary over `config`.
template <class T>
void ReadConfig(nb::handle dictionary, std::string_view what, T* config) {
  Check(ParseConfig(ToJsonValue(dictionary, what), config));
}

template <class T>
T ParseName(const char* argument, std::string_view text) {
  std::string names;
  for (const auto& [value, name] : EnumNames(T{})) {
    if (name == text) return value;
    names += (names.empty() ? "'" : ", '") + std::string(name) + "'";
  }
  throw StatusError(
      InvalidArgument(std::string(argument) + " is '" + std::string(text) + "'; it can be one of " + names));
}

// Between pieces of long work: Ctrl-C ends it. Needs the GIL.
inline void CheckSignals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

}  // namespace tensorcache::python
