// Arrays between Python and C++.
//
// An argument that is an array may be anything that nanobind can look into: a
// numpy array, or a tensor of another library by DLPack. In<T> checks its type,
// shape, order and device, and names the argument in the error. ImportTensor
// does the same for an argument in the memory of a CUDA device. What comes back
// is a numpy array: a read-only view (ConstArray) or an array of its own
// (OwnArray).
#ifndef PYTHON_CORE_ARRAYS_H_
#define PYTHON_CORE_ARRAYS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "python/core/argument.h"
#include "python/core/errors.h"

namespace blockmgr::python {

namespace nb = nanobind;

// An argument that In<T> will look into.
struct ArrayArgument : Argument {
  static constexpr auto kType =
      nb::detail::const_name("numpy.typing.ArrayLike");
};
// An argument that CopyInts will look into.
struct IntsArgument : Argument {
  static constexpr auto kType = ArrayArgument::kType;
};
// An argument that ImportTensor will look into.
struct TensorArgument : Argument {
  static constexpr auto kType = nb::detail::const_name("blockmgr.cuda.Tensor");
};

using AnyArray = nb::ndarray<nb::ro>;

// Returns the array of an argument. Raises TypeError if there is none, or if
// the elements are of another type than `dtype`, and InvalidArgumentError if
// the array is on a device, is not C-contiguous, or has another shape. A
// dimension of -1 may have any size.
AnyArray ImportArray(const char* name, nb::handle value,
                     nb::dlpack::dtype dtype, std::span<const int64_t> shape);

// The use of a tensor, and the conditions on its memory.
struct TensorUse {
  bool is_written = false;
  // The dimensions from this one on must be contiguous. The elements of the
  // others may have any strides that do not overlap.
  size_t contiguous_from = 0;
  // Bytes, for the address and for the strides of the dimensions before
  // contiguous_from. 0 means the size of an element.
  size_t alignment = 0;
};

// Stands for any CUDA device.
inline constexpr int32_t kAnyDevice = -1;

// Returns a tensor in the memory of a CUDA device, which comes by DLPack. The
// producer is asked not to synchronize streams: work on the tensor is for the
// stream that the caller names. Raises TypeError and InvalidArgumentError as
// ImportArray does, and what the producer raises. A dimension of -1 may have
// any size.
AnyArray ImportTensor(const char* name, TensorArgument argument, int32_t device,
                      std::initializer_list<nb::dlpack::dtype> dtypes,
                      std::initializer_list<int64_t> shape,
                      const TensorUse& use = {});

// An array that was passed in, for as long as this object lives.
template <typename T>
class In {
 public:
  In() = default;
  In(const char* name, ArrayArgument argument,
     std::initializer_list<int64_t> shape)
      : array_(ImportArray(name, argument.value, nb::dtype<T>(),
                           {shape.begin(), shape.size()})),
        values_(static_cast<const T*>(array_.data()), array_.size()) {}

  std::span<const T> values() const { return values_; }
  std::vector<T> Copy() const { return {values_.begin(), values_.end()}; }
  int64_t dimension(size_t i) const {
    return static_cast<int64_t>(array_.shape(i));
  }

 private:
  AnyArray array_;
  std::span<const T> values_;
};

// Returns the elements of an array of integers of one dimension, or of another
// sequence of integers. Raises InvalidArgumentError, which names the index, if
// one is outside [low, high], and TypeError if one is no integer.
std::vector<int64_t> CopyInt64s(const char* name, nb::handle value, int64_t low,
                                int64_t high);

// As CopyInt64s, for integers that fit into T, or ids made of them.
template <typename T>
std::vector<T> CopyInts(const char* name, IntsArgument argument,
                        int64_t low = std::numeric_limits<int32_t>::min(),
                        int64_t high = std::numeric_limits<int32_t>::max()) {
  std::vector<T> values;
  for (const int64_t value : CopyInt64s(name, argument.value, low, high)) {
    values.push_back(static_cast<T>(value));
  }
  return values;
}

// The integer inside an id, or the number itself.
template <typename T>
struct ScalarTraits {
  using Type = T;
};
template <typename T>
requires std::is_enum_v<T>
struct ScalarTraits<T> {
  using Type = std::underlying_type_t<T>;
};
template <typename T>
using Scalar = typename ScalarTraits<std::remove_const_t<T>>::Type;

template <typename T, int kDimensions = 1>
using ConstArray =
    nb::ndarray<nb::numpy, const Scalar<T>, nb::ndim<kDimensions>>;
template <typename T, int kDimensions = 1>
using OwnArray = nb::ndarray<nb::numpy, Scalar<T>, nb::ndim<kDimensions>>;

// Returns a read-only view of memory that `owner` keeps. Strides count
// elements; without strides the array is C-contiguous.
template <typename T, size_t kDimensions>
ConstArray<T, static_cast<int>(kDimensions)> ViewOf(
    const T* data, const std::array<size_t, kDimensions>& shape,
    nb::handle owner, const int64_t* strides = nullptr) {
  static constexpr Scalar<T> kNothing{};
  const void* memory =
      data == nullptr ? &kNothing : static_cast<const void*>(data);
  return {memory, kDimensions, shape.data(), owner, strides};
}

template <typename T>
ConstArray<T> ViewOf(std::span<T> values, nb::handle owner) {
  return ViewOf<std::remove_const_t<T>, 1>(values.data(), {values.size()},
                                           owner);
}

template <typename T>
ConstArray<T> ViewOf(const std::vector<T>& values, nb::handle owner) {
  return ViewOf(std::span(values), owner);
}

// An object of Python as `self` of a property whose array it will own.
template <typename T>
using Self = nb::pointer_and_handle<T>;

template <typename T, typename Member>
T ClassOf(Member T::*member);

// The getter of a property: a view of a member that is a vector.
template <auto kMember>
auto ViewMember(Self<decltype(ClassOf(kMember))> self) {
  return ViewOf(self.p->*kMember, self.h);
}

// Returns an array that takes over the elements. REQUIRES: the shape has as
// many.
template <size_t kDimensions, typename T>
OwnArray<T, static_cast<int>(kDimensions)> Own(
    std::vector<T> values, const std::array<size_t, kDimensions>& shape) {
  auto* held = new std::vector<T>(std::move(values));
  held->reserve(1);  // data() is null otherwise
  const nb::capsule owner(held, [](void* memory) noexcept {
    delete static_cast<std::vector<T>*>(memory);
  });
  return {static_cast<void*>(held->data()), kDimensions, shape.data(), owner};
}

template <typename T>
OwnArray<T> Own(std::vector<T> values) {
  const size_t size = values.size();
  return Own<1>(std::move(values), {size});
}

}  // namespace blockmgr::python

#endif  // PYTHON_CORE_ARRAYS_H_
