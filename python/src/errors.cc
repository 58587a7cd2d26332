#include "errors.h"

#include "core/check.h"

namespace tensorcache::python {
namespace {

namespace nb = nanobind;

const char* ClassName(StatusCode code) {
  switch (code) {
    case StatusCode::kInvalidArgument: return "InvalidArgumentError";
    case StatusCode::kNotFound: return "NotFoundError";
    case StatusCode::kCorrupt: return "CorruptError";
    case StatusCode::kIoError: return "IoError";
    case StatusCode::kDiverged: return "DivergedError";
    case StatusCode::kUnsupported: return "UnsupportedError";
    case StatusCode::kOk: break;
  }
  internal::CheckFailed(__FILE__, __LINE__, "an error without a class");
}

void Translate(const std::exception_ptr& thrown, void* /*payload*/) {
  try {
    std::rethrow_exception(thrown);
  } catch (const StatusError& error) {
    const nb::object type = nb::module_::import_("tensorcache.errors").attr(ClassName(error.status().code()));
    // File names in messages may be any bytes.
    PyObject* text = PyUnicode_DecodeUTF8(error.what(), static_cast<Py_ssize_t>(error.status().message().size()),
                                          "backslashreplace");
    PyErr_SetObject(type.ptr(), text);
    Py_XDECREF(text);
  }
}

}  // namespace

void RegisterErrors() { nb::register_exception_translator(Translate); }

}  // namespace tensorcache::python
