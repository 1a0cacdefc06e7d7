// GGUF files in memory, from the rules of the format and not from its reader.
#ifndef TESTS_TESTING_GGUF_WRITER_H_
#define TESTS_TESTING_GGUF_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "engine/gguf/tensor_type.h"

namespace blockmgr {

// Appends a number in little endian.
template <typename T>
requires std::is_arithmetic_v<T>
void AppendNumber(T value, std::string* bytes) {
  char text[sizeof(T)];
  std::memcpy(text, &value, sizeof(T));
  bytes->append(text, sizeof(T));
}

// Appends the length, in 8 bytes, and the text.
void AppendGgufString(absl::string_view text, std::string* bytes);

// The format's number of a value's type.
template <typename T>
constexpr uint32_t GgufValueType() {
  if constexpr (std::is_same_v<T, bool>) return 7;
  if constexpr (std::is_same_v<T, float>) return 6;
  if constexpr (std::is_same_v<T, double>) return 12;
  constexpr uint32_t kOfSize = sizeof(T) == 1   ? 0
                               : sizeof(T) == 2 ? 2
                               : sizeof(T) == 4 ? 4
                                                : 10;
  return kOfSize + (std::is_signed_v<T> ? 1 : 0);
}
inline constexpr uint32_t kGgufString = 8;
inline constexpr uint32_t kGgufArray = 9;

class GgufWriter {
 public:
  explicit GgufWriter(uint32_t version = 3) : version_(version) {}

  template <typename T>
  requires std::is_arithmetic_v<T>
  void Add(absl::string_view key, T value) {
    std::string bytes;
    AppendNumber(value, &bytes);
    AddValue(key, GgufValueType<T>(), bytes);
  }
  void Add(absl::string_view key, absl::string_view value);
  template <typename T>
  requires std::is_arithmetic_v<T>
  void Add(absl::string_view key, const std::vector<T>& values) {
    std::string bytes;
    for (const T value : values) AppendNumber(value, &bytes);
    AddArray(key, GgufValueType<T>(), values.size(), bytes);
  }
  void Add(absl::string_view key, const std::vector<std::string>& values);

  // Sets the alignment of the data. Call it before AddTensor.
  void SetAlignment(uint32_t alignment);

  // Adds a tensor behind the others.
  void AddTensor(absl::string_view name, TensorType type,
                 std::span<const int64_t> shape,
                 std::span<const std::byte> data);
  void AddTensor(absl::string_view name, TensorType type,
                 std::initializer_list<int64_t> shape,
                 std::span<const std::byte> data) {
    AddTensor(name, type, std::span(shape.begin(), shape.size()), data);
  }

  std::string Finish() const;

  // What follows writes files with mistakes too: it checks nothing.
  void AddValue(absl::string_view key, uint32_t type, absl::string_view bytes);
  void AddArray(absl::string_view key, uint32_t type, uint64_t count,
                absl::string_view bytes);
  void AddTensorInfo(absl::string_view name, std::span<const uint64_t> shape,
                     uint32_t type, uint64_t offset);
  void AddTensorInfo(absl::string_view name,
                     std::initializer_list<uint64_t> shape, uint32_t type,
                     uint64_t offset) {
    AddTensorInfo(name, std::span(shape.begin(), shape.size()), type, offset);
  }
  // Adds to the data, which begin aligned.
  void AddData(absl::string_view bytes) { absl::StrAppend(&data_, bytes); }

 private:
  void Align(std::string* bytes) const;

  uint32_t version_;
  uint32_t alignment_ = 32;
  uint64_t num_keys_ = 0;
  uint64_t num_tensors_ = 0;
  std::string keys_;
  std::string tensors_;
  std::string data_;
};

// Returns a row of about these values. REQUIRES: values.size() is a multiple of
// BlockElements(type).
std::vector<std::byte> QuantizeRow(TensorType type,
                                   std::span<const float> values);

}  // namespace blockmgr

#endif  // TESTS_TESTING_GGUF_WRITER_H_
