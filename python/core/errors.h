// absl::Status as exceptions of the Python module blockmgr.errors.
#ifndef PYTHON_CORE_ERRORS_H_
#define PYTHON_CORE_ERRORS_H_

#include <exception>
#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <nanobind/nanobind.h>

namespace blockmgr::python {

namespace nb = nanobind;

// Becomes the exception that belongs to the code of the status. The words of
// the exception are the message of the status.
class StatusException : public std::exception {
 public:
  explicit StatusException(absl::Status status) : status_(std::move(status)) {}
  const char* what() const noexcept override { return "absl::Status"; }
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

// Raises the status unless it is OK.
inline void ThrowIfError(absl::Status status) {
  if (!status.ok()) throw StatusException(std::move(status));
}

template <typename T>
T ValueOrThrow(absl::StatusOr<T> value) {
  if (!value.ok()) throw StatusException(std::move(value).status());
  return *std::move(value);
}

// Raises InvalidArgumentError with the text of `parts`.
template <typename... Parts>
[[noreturn]] void ThrowInvalid(const Parts&... parts) {
  throw StatusException(absl::InvalidArgumentError(absl::StrCat(parts...)));
}

// Returns the exception that belongs to the status, or None if it is OK.
nb::object ErrorOf(const absl::Status& status);

// Makes StatusException known to nanobind.
void BindErrors();

}  // namespace blockmgr::python

#endif  // PYTHON_CORE_ERRORS_H_
