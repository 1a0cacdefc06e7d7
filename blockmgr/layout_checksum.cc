#include "blockmgr/layout_checksum.h"

#include <vector>

namespace blockmgr {
namespace {

// 2^64 / golden ratio. An odd factor loses no bits.
constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;

uint64_t Begin(int32_t head_index, int32_t kept) {
  return static_cast<uint64_t>(head_index) * kMultiplier +
         static_cast<uint64_t>(kept);
}

// Mixes the bits, so that differences in two heads do not cancel out in the
// sum.
uint64_t Finish(uint64_t hash) {
  hash = (hash ^ hash >> 32) * kMultiplier;
  return hash ^ hash >> 32;
}

// A run of `count` pages changes a hash in this way:
//
//   hash * power[count] + sum of page_i * power[count - 1 - i]
//
// page_i is base + block_i * num_heads. So the sum follows from two sums that
// have 1 and block_i in the place of page_i. ones[i] and blocks[i] are these
// sums over the first i blocks.
struct Sums {
  explicit Sums(std::span<const BlockId> of) {
    power.reserve(of.size() + 1);
    ones.reserve(of.size() + 1);
    blocks.reserve(of.size() + 1);
    power.push_back(1);
    ones.push_back(0);
    blocks.push_back(0);
    for (const BlockId block : of) {
      power.push_back(power.back() * kMultiplier);
      ones.push_back(ones.back() * kMultiplier + 1);
      blocks.push_back(blocks.back() * kMultiplier +
                       static_cast<uint64_t>(Index(block)));
    }
  }

  std::vector<uint64_t> power;
  std::vector<uint64_t> ones;
  std::vector<uint64_t> blocks;
};

}  // namespace

uint64_t LayoutChecksum(const ModelLayout& model, const RegionLayout& region) {
  const Sums sums(region.blocks());
  const auto num_heads = static_cast<uint64_t>(model.num_heads);
  uint64_t checksum = 0;
  for (int32_t head = 0; head < model.pages_per_block(); ++head) {
    uint64_t hash = Begin(head, region.kept()[static_cast<size_t>(head)]);
    for (const PageRun& run : region.runs(head)) {
      const auto base = static_cast<uint64_t>(
          Index(model.page_id(run.head_index / model.num_heads, BlockId{0},
                              run.head_index % model.num_heads)));
      const auto count = static_cast<size_t>(run.count);
      const auto first = static_cast<size_t>(run.first);
      const uint64_t blocks =
          sums.blocks[first + count] - sums.blocks[first] * sums.power[count];
      hash = hash * sums.power[count] + base * sums.ones[count] +
             num_heads * blocks;
    }
    checksum += Finish(hash);
  }
  return checksum;
}

uint64_t HeadChecksum(int32_t head_index, int32_t kept,
                      std::span<const PageId> pages) {
  uint64_t hash = Begin(head_index, kept);
  for (const PageId page : pages) {
    hash = hash * kMultiplier + static_cast<uint64_t>(Index(page));
  }
  return Finish(hash);
}

}  // namespace blockmgr
