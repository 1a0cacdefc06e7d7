// KernelLengths: how many entries the heads of a real model keep of real
// prompts, read from a file.
//
// The file is NumPy's, int32 or int64, [prompts, layers, KV heads]. If `kept`
// is such an array in Python, numpy.save("kept.npy", kept) writes the file.
#ifndef BENCH_KERNEL_LENGTHS_H_
#define BENCH_KERNEL_LENGTHS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <absl/status/statusor.h>
#include <absl/strings/string_view.h>

namespace blockmgr {

// The name of a problem of such lengths, plus this suffix, is the name of the
// problem with the same total in lists of equal lengths.
inline constexpr absl::string_view kEvenSuffix = ", uniform";

struct KernelLengths {
  std::string name;  // of the file, without its folder and its extension
  int32_t num_prompts = 0;
  int32_t num_layers = 0;
  int32_t num_heads = 0;
  std::vector<int32_t> counts;  // [num_prompts, num_layers, num_heads]

  // Returns what the heads of a layer keep of a prompt, [num_heads].
  std::span<const int32_t> Heads(int32_t prompt, int32_t layer) const;
  // Returns the layers in the order of their raggedness, the most ragged layer
  // last. The raggedness of a layer is the mean over prompts of (largest head's
  // count / mean head's count).
  std::vector<int32_t> LayersByRaggedness() const;
  // Returns the lengths of the lists of one layer, [sequences, num_heads]: the
  // prompts are its sequences in turn, until there are `min_entries` entries.
  // Returns InvalidArgument if these are more than kMaxDeviceLists lists.
  absl::StatusOr<std::vector<int32_t>> Batch(int32_t layer,
                                             int64_t min_entries) const;
};

// InvalidArgument and NotFound name the file, the field, what was expected and
// what came.
absl::StatusOr<KernelLengths> ReadKernelLengths(const std::string& path);

// Returns as many lengths with the same total, which differ by one at most.
std::vector<int32_t> EvenLengths(std::span<const int32_t> lengths);

}  // namespace blockmgr

#endif  // BENCH_KERNEL_LENGTHS_H_
