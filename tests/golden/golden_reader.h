// Reads golden vectors: cases of eviction with the results of an independent
// float64 reference.
//
// Plain text, one item per line, `end` closes a case:
//   case NAME            m METHOD              i KEY INT       d KEY DOUBLE
//   in NAME SEED BITS SCALE NDIM dims.. FNV64  an input, regenerated from a
//   seed tab NAME n v..       literal input         b n budgets.. kept HEAD n
//   idx..    kept positions, ascending sc HEAD n values..   scores
#ifndef TESTS_GOLDEN_GOLDEN_READER_H_
#define TESTS_GOLDEN_GOLDEN_READER_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

namespace blockmgr {

struct GoldenInput {
  uint64_t seed = 0;
  int bits = 0;
  double scale = 0;
  std::vector<int64_t> dims;
  uint64_t fnv1a64 = 0;  // of the float32 bytes

  // Row-major values; an error if their hash is wrong.
  absl::StatusOr<std::vector<float>> Generate() const;
};

struct GoldenCase {
  std::string name;
  std::string method;
  std::map<std::string, int64_t> integers;
  std::map<std::string, double> numbers;
  std::map<std::string, GoldenInput> inputs;
  std::map<std::string, std::vector<float>> tables;
  std::vector<int32_t> budgets;
  std::map<int32_t, std::vector<int32_t>> kept;
  std::map<int32_t, std::vector<double>> scores;
};

absl::StatusOr<std::vector<GoldenCase>> ReadGoldenFile(const std::string& path);

}  // namespace blockmgr

#endif  // TESTS_GOLDEN_GOLDEN_READER_H_
