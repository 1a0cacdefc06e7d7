#include "python/core/arrays.h"

#include <algorithm>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <nanobind/stl/pair.h>
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

// Whether the dimensions from `first` on are contiguous.
bool IsContiguous(const AnyArray& array, size_t first = 0) {
  int64_t stride = 1;
  for (size_t i = array.ndim(); i-- > first;) {
    if (array.shape(i) > 1 && array.stride(i) != stride) return false;
    stride *= static_cast<int64_t>(array.shape(i));
  }
  return true;
}

void CheckShape(const char* name, const AnyArray& array,
                std::span<const int64_t> shape) {
  const std::vector<int64_t> found = ShapeOf(array);
  const bool is_possible =
      std::ranges::all_of(found, [](int64_t size) { return size >= 0; });
  if (!is_possible || !IsOfShape(found, shape)) {
    ThrowInvalid(name, ": expected the shape ", ShapeText(shape), ", got ",
                 ShapeText(found));
  }
}

void CheckAlignment(const char* name, const AnyArray& array, size_t alignment) {
  if (array.size() > 0 && alignment > 0 &&
      reinterpret_cast<uintptr_t>(array.data()) % alignment != 0) {
    ThrowInvalid(name, ": expected memory aligned to ", alignment,
                 " bytes, got another address");
  }
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
  CheckShape(name, array, shape);
  if (array.size() > 0 && !IsContiguous(array)) {
    ThrowInvalid(name, ": expected a C-contiguous array ",
                 "(numpy.ascontiguousarray makes one), got other strides");
  }
  CheckAlignment(name, array, array.itemsize());
  return array;
}

std::string DeviceText(int32_t type, int32_t device) {
  switch (type) {
    case nb::device::cpu::value:
      return "the CPU";
    case nb::device::cuda::value:
    case nb::device::cuda_managed::value:
      return device == kAnyDevice ? "a CUDA device"
                                  : absl::StrCat("CUDA device ", device);
    default:
      return absl::StrCat("device ", device, " of type ", type, " (DLPack)");
  }
}

void CheckDevice(const char* name, int32_t type, int32_t found,
                 int32_t expected) {
  const bool is_cuda = type == nb::device::cuda::value ||
                       type == nb::device::cuda_managed::value;
  if (is_cuda && (expected == kAnyDevice ? found >= 0 : found == expected)) {
    return;
  }
  ThrowInvalid(name, ": expected a tensor on ",
               DeviceText(nb::device::cuda::value, expected), ", got one on ",
               DeviceText(type, found));
}

[[noreturn]] void ThrowNoTensor(const char* name, nb::handle value) {
  throw nb::type_error(
      absl::StrCat(name,
                   ": expected a tensor on a CUDA device, by DLPack, got ",
                   TypeName(value))
          .c_str());
}

// Returns what the producer hands out. The device is asked first, because
// producers for the CPU alone refuse the argument `stream`.
nb::object CapsuleOf(const char* name, nb::handle value, int32_t device) {
  if (PyCapsule_CheckExact(value.ptr())) return nb::borrow(value);
  if (!nb::hasattr(value, "__dlpack__") ||
      !nb::hasattr(value, "__dlpack_device__") || PyType_Check(value.ptr())) {
    ThrowNoTensor(name, value);
  }
  std::pair<int32_t, int32_t> place;
  if (!nb::try_cast(value.attr("__dlpack_device__")(), place)) {
    ThrowNoTensor(name, value);
  }
  CheckDevice(name, place.first, place.second, device);
  constexpr int kNoSynchronization = -1;
  const nb::object method = value.attr("__dlpack__");
  try {
    return method(nb::arg("stream") = kNoSynchronization,
                  nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    // Producers of DLPack before 1.0 know no versions.
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return method(nb::arg("stream") = kNoSynchronization);
}

// Checks the strides of the dimensions that need not be contiguous.
void CheckOuterStrides(const char* name, const AnyArray& array, size_t end,
                       size_t alignment) {
  const auto itemsize = static_cast<int64_t>(array.itemsize());
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride, size
  int64_t extent = itemsize;
  for (size_t i = 0; i < array.ndim(); ++i) {
    const auto size = static_cast<int64_t>(array.shape(i));
    if (size <= 1) continue;
    if (i >= end) {
      extent *= size;
      continue;
    }
    const int64_t stride = array.stride(i) * itemsize;
    if (stride <= 0 || stride % static_cast<int64_t>(alignment) != 0) {
      ThrowInvalid(name, ": expected strides above 0 that are multiples of ",
                   alignment, " bytes, got ", stride, " bytes in dimension ",
                   i);
    }
    dimensions.emplace_back(stride, size);
  }
  std::ranges::sort(dimensions);
  for (const auto& [stride, size] : dimensions) {
    if (stride < extent) {
      ThrowInvalid(name, ": expected elements that do not overlap, got a ",
                   "stride of ", stride, " bytes over ", extent, " bytes");
    }
    extent += stride * (size - 1);
  }
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

AnyArray ImportTensor(const char* name, TensorArgument argument, int32_t device,
                      std::initializer_list<nb::dlpack::dtype> dtypes,
                      std::initializer_list<int64_t> shape,
                      const TensorUse& use) {
  const nb::object capsule = CapsuleOf(name, argument.value, device);
  AnyArray array;
  nb::ndarray<> writable;
  if (use.is_written && nb::try_cast(capsule, writable, false)) {
    array = AnyArray(writable);
  } else if (!nb::try_cast(capsule, array, false)) {
    ThrowNoTensor(name, argument.value);
  } else if (use.is_written) {
    ThrowInvalid(name, ": expected a tensor that may be written, got one that ",
                 "is read-only");
  }
  CheckDevice(name, array.device_type(), array.device_id(), device);
  if (std::ranges::find(dtypes, array.dtype()) == dtypes.end()) {
    const std::string expected =
        absl::StrJoin(dtypes, " or ", [](std::string* out, const auto& dtype) {
          absl::StrAppend(out, DTypeText(dtype));
        });
    throw nb::type_error(absl::StrCat(name, ": expected elements of ", expected,
                                      ", got ", DTypeText(array.dtype()))
                             .c_str());
  }
  CheckShape(name, array, {shape.begin(), shape.size()});
  const bool is_empty = array.size() == 0;
  if (!is_empty && array.data() == nullptr) {
    ThrowInvalid(name, ": expected the address of ", array.size(),
                 " elements, got null");
  }
  if (!is_empty && !IsContiguous(array, use.contiguous_from)) {
    ThrowInvalid(name, ": expected ",
                 use.contiguous_from == 0
                     ? "a C-contiguous tensor"
                     : absl::StrCat("contiguous dimensions from ",
                                    use.contiguous_from, " on"),
                 ", got other strides");
  }
  const size_t alignment =
      use.alignment == 0 ? array.itemsize() : use.alignment;
  if (!is_empty) {
    CheckOuterStrides(name, array, use.contiguous_from, alignment);
  }
  CheckAlignment(name, array, alignment);
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
