// Reads and writes NumPy's .npy files.
//
// Read: float16, float32, float64, int32 and int64, either byte order, C and
// Fortran order, header versions 1 to 3. All values become float32, in
// row-major order. Written: version 1.0, little endian, C order. A file whose
// header promises more bytes than the file has is refused before memory is
// allocated for it.
#ifndef BLOCKMGR_BASE_NPY_H_
#define BLOCKMGR_BASE_NPY_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

struct NpyArray {
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major
  // Whether the file had integers. Readers set it, writers ignore it.
  bool has_integers = false;
};

// Returns a shape as "[2, 3, 4]", for messages.
std::string ShapeText(std::span<const int64_t> shape);

// Returns whether the bytes begin as a .npy file does.
bool IsNpy(absl::string_view bytes);

// Decodes the content of a .npy file. Errors name what was expected and what
// came.
absl::StatusOr<NpyArray> DecodeNpy(absl::string_view bytes);

// Reads a .npy file piece by piece, so that its content is never held twice in
// memory. Errors also name the file.
absl::StatusOr<NpyArray> ReadNpy(const std::string& path);

// Writes the values as float32. REQUIRES: as many values as the shape says.
absl::Status WriteNpy(const std::string& path, const NpyArray& array);
// Returns the content of a .npy file with positions or budgets as int32.
// REQUIRES: as many values as the shape says.
std::string EncodeNpyInts(std::span<const int64_t> shape,
                          std::span<const int32_t> values);
// Writes the content of EncodeNpyInts.
absl::Status WriteNpyInts(const std::string& path,
                          std::span<const int64_t> shape,
                          std::span<const int32_t> values);

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_NPY_H_
