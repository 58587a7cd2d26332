#include "arguments.h"

#include <fmt/format.h>

#include <limits>

namespace tensorcache::python {
namespace {

int32_t Narrow(int64_t token, size_t index) {
  if (token < 0 || token > std::numeric_limits<int32_t>::max()) {
    throw StatusError(InvalidArgument(fmt::format("token {} (number {}) is outside any vocabulary", token, index)));
  }
  return static_cast<int32_t>(token);
}

std::vector<int32_t> FromSequence(nb::handle source) {
  if (PyUnicode_Check(source.ptr()) || PyBytes_Check(source.ptr())) {
    throw nb::type_error("tokens are integers, not text: encode it with a Tokenizer first");
  }
  const nb::object items =
      nb::steal(PySequence_Fast(source.ptr(), "tokens are integers: a list of them, or an array of one dimension"));
  if (!items.is_valid()) throw nb::python_error();
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(items.ptr());
  std::vector<int32_t> tokens;
  tokens.reserve(static_cast<size_t>(n));
  for (Py_ssize_t i = 0; i < n && i < PySequence_Fast_GET_SIZE(items.ptr()); ++i) {
    const nb::object index = nb::steal(PyNumber_Index(PySequence_Fast_GET_ITEM(items.ptr(), i)));
    if (!index.is_valid()) throw nb::python_error();
    int overflow = 0;
    const int64_t token = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
    tokens.push_back(Narrow(overflow != 0 ? -1 : token, static_cast<size_t>(i)));
  }
  return tokens;
}

}  // namespace

Tokens::Tokens(nb::handle source) {
  if (nb::try_cast(source, array_, /*convert=*/false)) {
    view_ = {array_.data(), array_.size()};
    return;
  }
  nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu> wide;
  if (nb::try_cast(source, wide, /*convert=*/false)) {
    own_.reserve(wide.size());
    for (size_t i = 0; i < wide.size(); ++i) own_.push_back(Narrow(wide.data()[i], i));
  } else {
    own_ = FromSequence(source);
  }
  view_ = own_;
}

nb::object FromJson(const OrderedJson& json) {
  const std::string text = JsonText(json);
  return nb::module_::import_("json").attr("loads")(nb::str(text.data(), text.size()));
}

Json ToJsonValue(nb::handle object, std::string_view what) {
  const nb::object text = nb::module_::import_("json").attr("dumps")(object);
  return Unwrap(ParseJson(nb::cast<std::string_view>(text), what));
}

}  // namespace tensorcache::python
