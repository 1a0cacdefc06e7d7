#include "python/core/errors.h"

#include <string>

#include <nanobind/stl/string.h>

namespace blockmgr::python {
namespace {

const char* NameOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return "InvalidArgumentError";
    case absl::StatusCode::kNotFound:
      return "NotFoundError";
    case absl::StatusCode::kAlreadyExists:
      return "AlreadyExistsError";
    case absl::StatusCode::kResourceExhausted:
      return "ResourceExhaustedError";
    case absl::StatusCode::kFailedPrecondition:
      return "FailedPreconditionError";
    case absl::StatusCode::kAborted:
      return "AbortedError";
    case absl::StatusCode::kUnavailable:
      return "UnavailableError";
    case absl::StatusCode::kInternal:
      return "InternalError";
    default:
      return "Error";
  }
}

nb::object TypeOf(absl::StatusCode code) {
  return nb::module_::import_("blockmgr.errors").attr(NameOf(code));
}

}  // namespace

nb::object ErrorOf(const absl::Status& status) {
  if (status.ok()) return nb::none();
  return TypeOf(status.code())(std::string(status.message()));
}

void BindErrors() {
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* /*payload*/) {
        try {
          std::rethrow_exception(thrown);
        } catch (const StatusException& error) {
          const absl::Status& status = error.status();
          PyErr_SetString(TypeOf(status.code()).ptr(),
                          std::string(status.message()).c_str());
        }
      });
}

}  // namespace blockmgr::python
