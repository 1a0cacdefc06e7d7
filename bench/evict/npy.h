// NumPy's .npy files, the exchange format of researchers' tensors.
//
// Read: float16, float32, float64, int32 and int64, either byte order, C order,
// header versions 1 to 3; all become float32. Written: version 1.0, little
// endian. A file that says more than it holds is refused before anything is
// allocated for it.
#ifndef BENCH_EVICT_NPY_H_
#define BENCH_EVICT_NPY_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

namespace blockmgr {

struct NpyArray {
  std::vector<int64_t> shape;
  std::vector<float> values;  // row-major
};

// "[2, 3, 4]", for messages.
std::string ShapeText(std::span<const int64_t> shape);

// Errors name the file, what was expected and what came.
absl::StatusOr<NpyArray> ReadNpy(const std::string& path);

// As float32. REQUIRES: as many values as the shape says.
absl::Status WriteNpy(const std::string& path, const NpyArray& array);
// As int32: positions and budgets. REQUIRES: the same.
absl::Status WriteNpyInts(const std::string& path,
                          std::span<const int64_t> shape,
                          std::span<const int32_t> values);

}  // namespace blockmgr

#endif  // BENCH_EVICT_NPY_H_
