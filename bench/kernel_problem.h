// What `blockmgr-bench kernels` times: ragged lists of KV pages, as a file that
// another implementation can read, to be timed on exactly the same problem.
//
// The file is little-endian, without padding:
//
//   char    magic[8]       "BMKVPRB1"
//   uint32  version        1
//   uint32  element_type   0: bf16
//   int32   num_sequences, num_heads (KV heads), group_size (query heads per
//           KV head), head_dim, page_size (tokens), num_pages (of the pool)
//   uint64  seed           of the elements
//   int64   num_page_ids
//   int32   lengths[num_sequences][num_heads]   live tokens of each list
//   int32   page_ids[num_page_ids]   list after list, ceil(length / page_size)
//           ids in [0, num_pages) each, no page twice
//
// Elements are not in the file. The pool is [num_pages][K, V][page_size]
// [head_dim], the queries are [num_sequences][num_heads *
// group_size][head_dim]. Element i of the pool is Element(seed, i), element i
// of the queries Element(seed + 1, i), where
//
//   Element(s, i) = bf16((SplitMix64(s * 2^40 + i) >> 48) / 32768.0 - 1)
//
// and sums wrap at 2^64. Scores are scaled by 1 / sqrt(head_dim).
#ifndef BENCH_KERNEL_PROBLEM_H_
#define BENCH_KERNEL_PROBLEM_H_

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

// How lengths differ between lists of the same total.
enum class LengthDistribution : uint8_t {
  kUniform,
  kRagged,   // lognormal, max / mean about 4: what Ada-KV budgets look like
  kOneHuge,  // one list has half of all tokens
};
absl::StatusOr<LengthDistribution> ParseDistribution(absl::string_view name);

struct KernelProblemShape {
  int32_t num_heads = 8;
  int32_t group_size = 4;
  int32_t head_dim = 128;
  int32_t page_size = 16;
  int32_t mean_length = 4096;  // tokens per list, rounded to what fits
  int64_t kv_bytes = int64_t{256} << 20;  // live K and V
  LengthDistribution distribution = LengthDistribution::kUniform;
  uint64_t seed = 1;
};

struct KernelProblem {
  int32_t num_sequences = 0;
  int32_t num_heads = 0;
  int32_t group_size = 0;
  int32_t head_dim = 0;
  int32_t page_size = 0;
  int32_t num_pages = 0;
  uint64_t seed = 0;
  std::vector<int32_t> lengths;   // [num_sequences, num_heads]
  std::vector<int32_t> page_ids;  // list after list, shuffled over the pool

  int64_t num_entries() const;  // live tokens of all lists
  int64_t row_bytes() const { return int64_t{2} * head_dim; }
  // Live K and V.
  int64_t kv_bytes() const { return 2 * row_bytes() * num_entries(); }
  // Ranges and sums of every field. InvalidArgument names the field, what was
  // expected and what came.
  absl::Status Validate() const;
  friend bool operator==(const KernelProblem&, const KernelProblem&) = default;
};

// The same problem for the same shape, everywhere. At least one token a list.
absl::StatusOr<KernelProblem> MakeKernelProblem(
    const KernelProblemShape& shape);

absl::Status WriteKernelProblem(const std::string& path,
                                const KernelProblem& problem);
// What it returns is valid. InvalidArgument and NotFound name the file.
absl::StatusOr<KernelProblem> ReadKernelProblem(const std::string& path);

}  // namespace blockmgr

#endif  // BENCH_KERNEL_PROBLEM_H_
