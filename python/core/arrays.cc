#include "python/core/arrays.h"

#include <string>

#include <absl/strings/str_cat.h>
#include <nanobind/stl/string.h>

namespace blockmgr::python {
namespace {

std::string TypeName(nb::handle value) {
  return nb::cast<std::string>(nb::str(value.type().attr("__name__")));
}

std::string DTypeText(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const char* name = "another type";
  if (dtype.code == static_cast<uint8_t>(Code::Int)) name = "int";
  if (dtype.code == static_cast<uint8_t>(Code::UInt)) name = "uint";
  if (dtype.code == static_cast<uint8_t>(Code::Float)) name = "float";
  if (dtype.code == static_cast<uint8_t>(Code::Bfloat)) name = "bfloat";
  if (dtype.code == static_cast<uint8_t>(Code::Complex)) name = "complex";
  if (dtype.code == static_cast<uint8_t>(Code::Bool)) return "bool";
  return absl::StrCat(name, dtype.bits);
}

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (const int64_t size : shape) {
    absl::StrAppend(&text, text.size() == 1 ? "" : ", ");
    size < 0 ? absl::StrAppend(&text, ":") : absl::StrAppend(&text, size);
  }
  return text + "]";
}

std::vector<int64_t> ShapeOf(const AnyArray& array) {
  std::vector<int64_t> shape;
  for (size_t i = 0; i < array.ndim(); ++i) {
    shape.push_back(static_cast<int64_t>(array.shape(i)));
  }
  return shape;
}

bool IsOfShape(std::span<const int64_t> found,
               std::span<const int64_t> expected) {
  if (found.size() != expected.size()) return false;
  for (size_t i = 0; i < found.size(); ++i) {
    if (expected[i] >= 0 && expected[i] != found[i]) return false;
  }
  return true;
}

bool IsContiguous(const AnyArray& array) {
  int64_t stride = 1;
  for (size_t i = array.ndim(); i-- > 0;) {
    if (array.shape(i) > 1 && array.stride(i) != stride) return false;
    stride *= static_cast<int64_t>(array.shape(i));
  }
  return true;
}

// Checks everything but the type of the elements.
AnyArray ImportAny(const char* name, nb::handle value,
                   const std::string& expected,
                   std::span<const int64_t> shape) {
  AnyArray array;
  if (!nb::ndarray_check(value) || !nb::try_cast(value, array, false)) {
    throw nb::type_error(absl::StrCat(name, ": expected an array of ", expected,
                                      " in this machine's byte order, got ",
                                      TypeName(value))
                             .c_str());
  }
  if (array.device_type() != nb::device::cpu::value) {
    ThrowInvalid(name, ": expected an array in the memory of the CPU, got one ",
                 "of device type ", array.device_type(), " (DLPack)");
  }
  const std::vector<int64_t> found = ShapeOf(array);
  if (!IsOfShape(found, shape)) {
    ThrowInvalid(name, ": expected the shape ", ShapeText(shape), ", got ",
                 ShapeText(found));
  }
  if (array.size() > 0 && !IsContiguous(array)) {
    ThrowInvalid(name, ": expected a C-contiguous array ",
                 "(numpy.ascontiguousarray makes one), got other strides");
  }
  const size_t alignment = array.itemsize();
  if (array.size() > 0 && alignment > 0 &&
      reinterpret_cast<uintptr_t>(array.data()) % alignment != 0) {
    ThrowInvalid(name, ": expected memory aligned to ", alignment,
                 " bytes, got another address");
  }
  return array;
}

template <typename T>
void AppendInts(const AnyArray& array, std::vector<int64_t>* values) {
  const std::span<const T> elements(static_cast<const T*>(array.data()),
                                    array.size());
  values->assign(elements.begin(), elements.end());
}

// Returns false if the elements are no integers of a known size.
bool AppendIntsOf(const AnyArray& array, std::vector<int64_t>* values) {
  const nb::dlpack::dtype dtype = array.dtype();
  if (dtype == nb::dtype<int32_t>()) {
    AppendInts<int32_t>(array, values);
  } else if (dtype == nb::dtype<int64_t>()) {
    AppendInts<int64_t>(array, values);
  } else if (dtype == nb::dtype<uint32_t>()) {
    AppendInts<uint32_t>(array, values);
  } else if (dtype == nb::dtype<int16_t>()) {
    AppendInts<int16_t>(array, values);
  } else if (dtype == nb::dtype<uint16_t>()) {
    AppendInts<uint16_t>(array, values);
  } else if (dtype == nb::dtype<uint8_t>()) {
    AppendInts<uint8_t>(array, values);
  } else {
    return false;
  }
  return true;
}

}  // namespace

AnyArray ImportArray(const char* name, nb::handle value,
                     nb::dlpack::dtype dtype, std::span<const int64_t> shape) {
  const std::string expected = DTypeText(dtype);
  AnyArray array = ImportAny(name, value, expected, shape);
  if (array.dtype() != dtype) {
    throw nb::type_error(absl::StrCat(name, ": expected elements of ", expected,
                                      ", got ", DTypeText(array.dtype()))
                             .c_str());
  }
  return array;
}

std::vector<int64_t> CopyInt64s(const char* name, nb::handle value, int64_t low,
                                int64_t high) {
  std::vector<int64_t> values;
  if (nb::ndarray_check(value)) {
    constexpr std::array<int64_t, 1> kShape = {-1};
    const AnyArray array = ImportAny(name, value, "integers", kShape);
    if (!AppendIntsOf(array, &values)) {
      throw nb::type_error(absl::StrCat(name, ": expected integers, got ",
                                        DTypeText(array.dtype()))
                               .c_str());
    }
  } else {
    if (!nb::isinstance<nb::sequence>(value) ||
        nb::isinstance<nb::str>(value)) {
      throw nb::type_error(absl::StrCat(name, ": expected a sequence of ",
                                        "integers, got ", TypeName(value))
                               .c_str());
    }
    for (const nb::handle item : nb::borrow<nb::sequence>(value)) {
      int64_t number = 0;
      if (!nb::try_cast(item, number, true)) {
        throw nb::type_error(absl::StrCat(name, "[", values.size(),
                                          "]: expected an integer, got ",
                                          nb::repr(item).c_str())
                                 .c_str());
      }
      values.push_back(number);
    }
  }
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < low || values[i] > high) {
      ThrowInvalid(name, "[", i, "]: expected ", low, " to ", high, ", got ",
                   values[i]);
    }
  }
  return values;
}

}  // namespace blockmgr::python
