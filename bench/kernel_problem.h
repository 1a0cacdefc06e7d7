// The problem that `blockmgr-bench kernels` times: ragged lists of KV pages, as
// a file. Another implementation can read the file, to be timed on exactly the
// same problem.
//
// The file is little-endian, without padding:
//
//   char    magic[8]       "BMKVPRB1"
//   uint32  version        2
//   uint32  element_type   0: bf16, 1: fp16
//   int32   num_sequences, num_heads (KV heads), group_size (query heads per
//           KV head), head_dim, page_size (tokens), num_pages (of the pool)
//   uint64  seed           of the elements
//   int64   num_page_ids, num_tail_blocks
//   int32   lengths[num_sequences][num_heads]   live tokens of each list's
//           region
//   int32   tail_lengths[num_sequences]   live tokens after it, in every list
//           of the sequence
//   int32   page_ids[num_page_ids]   list after list, ceil(length / page_size)
//           ids in [0, num_pages) each
//   int32   tail_blocks[num_tail_blocks]   sequence after sequence,
//           ceil(tail_length / page_size) each. Block b has a page for every
//           head: that of head h is b * num_heads + h. With tails num_pages is
//           a multiple of num_heads.
//
// No page is named twice, by its id or with its block. Version 1 had neither
// fp16 nor tails.
//
// Elements are not in the file. The pool is [num_pages][K, V][page_size]
// [head_dim], the queries are [num_sequences][num_heads *
// group_size][head_dim]. Element i of the pool is Element(seed, i), element i
// of the queries Element(seed + 1, i), where
//
//   Element(s, i) = round((SplitMix64(s * 2^40 + i) >> 48) / 32768.0 - 1)
//
// to the nearest of the element type, to even, and sums wrap at 2^64. Scores
// are scaled by 1 / sqrt(head_dim).
#ifndef BENCH_KERNEL_PROBLEM_H_
#define BENCH_KERNEL_PROBLEM_H_

#include <cstdint>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

#include "kernels/cuda/attention_lists.h"

namespace blockmgr {

// LengthDistribution says how lengths differ between lists of the same total.
enum class LengthDistribution : uint8_t {
  kUniform,
  // Lognormal, what Ada-KV budgets look like. The longest list is four times
  // the mean, where there are more than some ten.
  kRagged,
  kOneHuge,  // one list has half of all tokens
};
absl::StatusOr<LengthDistribution> ParseDistribution(absl::string_view name);

// "bf16" or "fp16".
absl::string_view ElementName(ElementType type);
absl::StatusOr<ElementType> ParseElementType(absl::string_view name);

struct KernelProblemShape {
  int32_t num_heads = 8;
  int32_t group_size = 4;
  int32_t head_dim = 128;
  int32_t page_size = 16;
  int32_t mean_length = 4096;  // tokens per list, rounded to what fits
  int64_t kv_bytes = int64_t{256} << 20;  // live K and V of the regions
  int32_t tail_tokens = 0;                // of every sequence, after them
  ElementType element_type = ElementType::kBFloat16;
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
  ElementType element_type = ElementType::kBFloat16;
  uint64_t seed = 0;
  std::vector<int32_t> lengths;       // of regions, [num_sequences, num_heads]
  std::vector<int32_t> tail_lengths;  // [num_sequences]
  std::vector<int32_t> page_ids;      // list after list, shuffled over the pool
  std::vector<int32_t> tail_blocks;   // sequence after sequence

  int64_t CountEntries() const;  // live tokens of all lists, with their tails
  int64_t tail_tokens() const;   // of all sequences
  int64_t row_bytes() const { return int64_t{2} * head_dim; }
  // The longest list's tokens in those of an average one, with their tails.
  double max_over_mean() const;
  // Live K and V.
  int64_t kv_bytes() const { return 2 * row_bytes() * CountEntries(); }
  // Ranges and sums of every field. InvalidArgument names the field, what was
  // expected and what came.
  absl::Status Validate() const;
  friend bool operator==(const KernelProblem&, const KernelProblem&) = default;
};

// Makes the problem of a shape. Equal shapes give equal problems on every
// machine. Every list has at least one token.
absl::StatusOr<KernelProblem> MakeKernelProblem(
    const KernelProblemShape& shape);
// Makes the problem of regions of these lengths, [sequences, num_heads]. The
// mean_length, the kv_bytes and the distribution of the shape are not read.
absl::StatusOr<KernelProblem> MakeProblemOfLengths(
    const KernelProblemShape& shape, std::vector<int32_t> lengths);

absl::Status WriteKernelProblem(const std::string& path,
                                const KernelProblem& problem);
// The result is valid. InvalidArgument and NotFound name the file.
absl::StatusOr<KernelProblem> ReadKernelProblem(const std::string& path);

}  // namespace blockmgr

#endif  // BENCH_KERNEL_PROBLEM_H_
