// Reads golden vectors: cases of eviction with the results of an independent
// float64 reference (tests/golden).
//
// Plain text, one item per line; `end` closes a case, # opens a comment:
//   case NAME
//   m METHOD
//   i KEY INT
//   d KEY DOUBLE
//   in NAME SEED BITS SCALE NDIM dims.. FNV64   an input, made from a seed
//   tab NAME n values..                         an input, literally
//   b n budgets..
//   kept HEAD n positions..                     ascending
//   sc HEAD n scores..
// Lines of any other kind are kept as they are.
#ifndef BENCH_EVICT_GOLDEN_H_
#define BENCH_EVICT_GOLDEN_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <absl/status/statusor.h>

namespace blockmgr {

// Values x[i] = (a + b + c) * 2^-bits - 1.5, times scale, of three fields of
// `bits` bits of splitmix64(seed << 32 | i): exact in float32 with 21 bits, in
// bfloat16 and float16 with 5.
struct GoldenInput {
  uint64_t seed = 0;
  int bits = 0;
  double scale = 0;
  std::vector<int64_t> dims;
  uint64_t fnv1a64 = 0;  // of the float32 bytes

  // Row-major values; an error if their hash is wrong. O(values).
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
  // The words of other lines, by their first: margin, kvpress, solve, ...
  std::map<std::string, std::vector<std::vector<std::string>>> others;
};

// Errors name the file, the line, what was expected and what came.
absl::StatusOr<std::vector<GoldenCase>> ReadGoldenFile(const std::string& path);

}  // namespace blockmgr

#endif  // BENCH_EVICT_GOLDEN_H_
