#include "bench/kernel_lengths.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <numeric>

#include <absl/strings/str_format.h>

#include "bench/kernel_inputs.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr int64_t kMaxDimension = 65536;
// ReadNpy returns floats, which have all integers up to here.
constexpr float kMaxCount = 1 << 24;

int64_t Sum(std::span<const int32_t> counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

}  // namespace

std::span<const int32_t> KernelLengths::Heads(int32_t prompt,
                                              int32_t layer) const {
  const std::size_t row = std::size_t{1} * prompt * num_layers + layer;
  return std::span(counts).subspan(row * num_heads, num_heads);
}

std::vector<int32_t> KernelLengths::LayersByRaggedness() const {
  std::vector<double> raggedness(static_cast<std::size_t>(num_layers));
  std::vector<int32_t> layers;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    for (int32_t prompt = 0; prompt < num_prompts; ++prompt) {
      const std::span<const int32_t> heads = Heads(prompt, layer);
      raggedness[layer] +=
          static_cast<double>(*std::ranges::max_element(heads)) /
          static_cast<double>(Sum(heads));
    }
    layers.push_back(layer);
  }
  std::ranges::stable_sort(layers, {},
                           [&](int32_t layer) { return raggedness[layer]; });
  return layers;
}

absl::StatusOr<std::vector<int32_t>> KernelLengths::Batch(
    int32_t layer, int64_t min_entries) const {
  std::vector<int32_t> lengths;
  int64_t num_entries = 0;
  for (int32_t s = 0; num_entries < min_entries; ++s) {
    const std::span<const int32_t> heads = Heads(s % num_prompts, layer);
    lengths.insert(lengths.end(), heads.begin(), heads.end());
    num_entries += Sum(heads);
    if (std::ssize(lengths) > kMaxDeviceLists) {
      return Invalid(name, " layer ", layer, ": lists: expected at most ",
                     kMaxDeviceLists, " (sequences times heads), got more for ",
                     min_entries, " entries");
    }
  }
  return lengths;
}

absl::StatusOr<KernelLengths> ReadKernelLengths(const std::string& path) {
  BM_ASSIGN_OR_RETURN(const NpyArray array, ReadNpy(path));
  const auto fits = [](int64_t size) {
    return size >= 1 && size <= kMaxDimension;
  };
  if (array.shape.size() != 3 || !std::ranges::all_of(array.shape, fits)) {
    return Invalid(path, ": shape: expected [prompts, layers, KV heads], 1 to ",
                   kMaxDimension, " of each, got ", ShapeText(array.shape));
  }
  if (!array.has_integers) {
    return Invalid(path, ": type: expected int32 or int64, got floats");
  }
  KernelLengths lengths = {.name = std::filesystem::path(path).stem().string(),
                           .num_prompts = static_cast<int32_t>(array.shape[0]),
                           .num_layers = static_cast<int32_t>(array.shape[1]),
                           .num_heads = static_cast<int32_t>(array.shape[2]),
                           .counts = {}};
  for (std::size_t i = 0; i < array.values.size(); ++i) {
    const float count = array.values[i];
    if (count < 1 || count > kMaxCount) {
      const std::size_t row = i / lengths.num_heads;
      return Invalid(
          path, ": count: expected 1 to ", static_cast<int32_t>(kMaxCount),
          ", got ", absl::StrFormat("%.0f", count), " in prompt ",
          row / lengths.num_layers, ", layer ", row % lengths.num_layers,
          ", head ", i % lengths.num_heads);
    }
    lengths.counts.push_back(static_cast<int32_t>(count));
  }
  return lengths;
}

std::vector<int32_t> EvenLengths(std::span<const int32_t> lengths) {
  const int64_t total = Sum(lengths);
  const int64_t count = std::ssize(lengths);
  std::vector<int32_t> even;
  for (int64_t i = 0; i < count; ++i) {
    even.push_back(
        static_cast<int32_t>(total / count + (i < total % count ? 1 : 0)));
  }
  return even;
}

}  // namespace blockmgr
