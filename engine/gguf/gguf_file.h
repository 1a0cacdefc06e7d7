// GgufFile: the metadata and the tensors of a GGUF file, version 2 or 3, in
// little endian, as the file has them.
//
// A file has
//
//   |"GGUF"|version|number of tensors|number of keys|
//   |key, type, value|..|                                    the metadata
//   |name, dimensions, type, offset of the data|..|          the tensors
//   |data of a tensor|..|                                    aligned
//
// Opening reads everything but the data, once. Values and data stay in the
// file. So the memory that an opened file takes is at most some times that of
// its names of keys and tensors, whose numbers have limits (gguf_file.cc). No
// file crashes the program. An error names the key or the tensor, what was
// expected and what the file has.
//
// Immutable, so thread-safe.
#ifndef ENGINE_GGUF_GGUF_FILE_H_
#define ENGINE_GGUF_GGUF_FILE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "engine/gguf/tensor_type.h"

namespace blockmgr {

struct GgufTensor {
  std::string name;
  TensorType type = TensorType::kF32;
  // One to four dimensions of at least 1. Elements along the first one are
  // contiguous: a matrix has the shape [in, out] and `out` rows of `in`
  // elements. shape[0] is a multiple of BlockElements(type).
  std::vector<int64_t> shape;
  // The rows, one after the other, without gaps. In the file, the data begin at
  // a multiple of the file's alignment.
  std::span<const std::byte> data;
};

class GgufFile {
 public:
  // Maps the file into memory. The file must not be made shorter while the
  // result lives. Errors begin with the path. Returns NotFound if the file
  // cannot be read.
  static absl::StatusOr<std::shared_ptr<const GgufFile>> Open(
      const std::string& path);
  // The bytes must outlive the result.
  static absl::StatusOr<std::shared_ptr<const GgufFile>> Parse(
      std::span<const std::byte> bytes);

  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  bool Has(absl::string_view key) const { return values_.contains(key); }

  // The value of a key. Each function returns NotFound if the file does not
  // have the key, and InvalidArgument if the value has another type or is out
  // of range.
  absl::StatusOr<int64_t> Integer(absl::string_view key) const;
  // Takes integers too.
  absl::StatusOr<double> Number(absl::string_view key) const;
  absl::StatusOr<bool> Boolean(absl::string_view key) const;
  absl::StatusOr<absl::string_view> String(absl::string_view key) const;

  // Returns how many values an array has, or nothing if the value is none.
  std::optional<uint64_t> ArrayLength(absl::string_view key) const;
  // The values of an array. Each function returns errors as those above do.
  // Takes bools too: 0 and 1.
  absl::StatusOr<std::vector<int64_t>> Integers(absl::string_view key) const;
  // Takes integers too.
  absl::StatusOr<std::vector<float>> Numbers(absl::string_view key) const;
  // The strings are those in the file: they live as long as its bytes.
  absl::StatusOr<std::vector<absl::string_view>> Strings(
      absl::string_view key) const;

  // In the order of the file.
  std::span<const GgufTensor> tensors() const { return tensors_; }
  // Returns null if there is no such tensor.
  const GgufTensor* Find(absl::string_view tensor) const;

  // Returns a line for people, for example "architecture 'llama', name 'SmolLM2
  // 135M', tensors: 61 F32, 1 Q8_0, 210 Q4_1, of 96576768 bytes".
  std::string Describe() const;

 private:
  class Cursor;
  class Parser;

  // A value as the file has it: a scalar or a string, or `count` of them.
  struct Value {
    uint32_t type = 0;  // gguf_file.cc: ValueType; of an array, its elements'
    bool is_array = false;
    uint64_t count = 1;
    absl::string_view bytes;
  };

  GgufFile() = default;

  // Returns the value of a key. Returns an error unless it is a scalar (or an
  // array, if `is_array`) of one of the types in the set. `expected` names them
  // in the error.
  absl::StatusOr<Value> Typed(absl::string_view key, bool is_array,
                              uint32_t types, absl::string_view expected) const;

  std::shared_ptr<const void> mapping_;  // null if the bytes are borrowed
  absl::flat_hash_map<absl::string_view, Value> values_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<absl::string_view, size_t> tensor_indices_;
};

}  // namespace blockmgr

#endif  // ENGINE_GGUF_GGUF_FILE_H_
