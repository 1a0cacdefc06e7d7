#include "blockmgr/eviction/lukv_solver.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// Pools adjacent violators into `stack`, which has room for every gain, and
// returns the number of blocks. Averages are compared by cross-multiplication,
// which is exact for integers and needs no division.
size_t Pool(std::span<const float> gains, GainBlock* stack) {
  size_t size = 0;
  for (const float gain : gains) {
    GainBlock block{gain, 1};
    while (size > 0 && stack[size - 1].sum * block.count <=
                           block.sum * stack[size - 1].count) {
      --size;
      block.sum += stack[size].sum;
      block.count += stack[size].count;
    }
    stack[size++] = block;
  }
  return size;
}

// Returns a key that is never 0. Keys are ordered as finite doubles are, and -0
// and +0 have the same key.
uint64_t SlopeKey(double slope) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  const auto bits = std::bit_cast<uint64_t>(slope + 0.0);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

// The blocks of all heads. Each head has one run, with its blocks in order.
struct BlockRuns {
  std::vector<uint64_t> keys;  // of the slopes
  std::vector<int32_t> counts;
  std::vector<size_t> ends;  // by run
};

// Takes the blocks of several runs, the greatest key first. Ties go to the
// lower run. The runs play a tournament, and every node of its tree remembers
// its loser. So a block costs log2(runs) comparisons.
class RunMerger {
 public:
  explicit RunMerger(const BlockRuns& runs)
      : runs_(runs), num_leaves_(std::bit_ceil(runs.ends.size())) {
    next_.push_back(0);
    next_.insert(next_.end(), runs.ends.begin(), runs.ends.end() - 1);
    // Node i has the children 2i and 2i + 1. Leaves have the highest numbers.
    losers_.resize(num_leaves_);
    std::vector<Entrant> winners(2 * num_leaves_);
    for (size_t run = 0; run < next_.size(); ++run) {
      winners[num_leaves_ + run] = Next(run);
    }
    for (size_t node = num_leaves_ - 1; node > 0; --node) {
      Entrant better = winners[2 * node];
      Entrant worse = winners[2 * node + 1];
      if (worse.key > better.key) std::swap(better, worse);
      winners[node] = better;
      losers_[node] = worse;
    }
    winner_ = winners[1];
  }

  // Calls take(run, count) for every block.
  template <typename Take>
  void Run(Take take) {
    for (size_t left = runs_.keys.size(); left > 0; --left) {
      const auto run = static_cast<size_t>(winner_.run);
      take(run, runs_.counts[next_[run]++]);
      Entrant entrant = Next(run);
      for (size_t node = num_leaves_ + run; node > 1; node /= 2) {
        // The rival comes from the sibling. If this node is the right one, the
        // rival is from a lower run and wins ties. The exchange has no branch,
        // because nobody could predict it.
        Entrant& rival = losers_[node / 2];
        const bool lost = rival.key + (node & 1) > entrant.key;
        const uint64_t mask = uint64_t{0} - static_cast<uint64_t>(lost);
        const uint64_t keys = (rival.key ^ entrant.key) & mask;
        const uint64_t runs = (rival.run ^ entrant.run) & mask;
        rival.key ^= keys;
        rival.run ^= runs;
        entrant.key ^= keys;
        entrant.run ^= runs;
      }
      winner_ = entrant;
    }
  }

 private:
  struct Entrant {
    uint64_t key = 0;  // 0 means that the run is used up
    uint64_t run = 0;
  };
  Entrant Next(size_t run) const {
    return {next_[run] < runs_.ends[run] ? runs_.keys[next_[run]] : 0, run};
  }

  const BlockRuns& runs_;
  const size_t num_leaves_;
  std::vector<size_t> next_;  // by run
  std::vector<Entrant> losers_;
  Entrant winner_;
};

}  // namespace

void PavaBlocks(std::span<const float> gains, std::vector<GainBlock>* blocks) {
  blocks->resize(gains.size());
  blocks->resize(Pool(gains, blocks->data()));
}

std::vector<float> SumUnits(std::span<const float> gains, int32_t unit) {
  BM_CHECK(unit > 0);
  const auto size = static_cast<size_t>(unit);
  std::vector<float> sums;
  sums.reserve(CeilDiv(gains.size(), size));
  for (size_t begin = 0; begin < gains.size(); begin += size) {
    const std::span<const float> in_unit =
        gains.subspan(begin, std::min(size, gains.size() - begin));
    sums.push_back(static_cast<float>(
        std::accumulate(in_unit.begin(), in_unit.end(), 0.0)));
  }
  return sums;
}

LuKvSolver::LuKvSolver(std::span<const int64_t> offsets,
                       std::span<const float> gains,
                       std::span<const int32_t> min_units)
    : min_units_(min_units.begin(), min_units.end()),
      max_total_(static_cast<int64_t>(gains.size())) {
  BM_CHECK(!min_units.empty());
  BM_CHECK(offsets.size() == min_units.size() + 1);
  BM_CHECK(offsets.front() == 0);
  BM_CHECK(offsets.back() == max_total_);
  BlockRuns runs;
  runs.keys.reserve(gains.size());  // untouched memory costs nothing
  runs.counts.reserve(gains.size());
  std::vector<GainBlock> blocks;
  for (size_t head = 0; head < min_units.size(); ++head) {
    const int64_t num_units = offsets[head + 1] - offsets[head];
    BM_CHECK(min_units[head] >= 0);
    BM_CHECK(min_units[head] <= num_units);
    BM_CHECK(num_units <= std::numeric_limits<int32_t>::max());
    min_total_ += min_units[head];
    PavaBlocks(gains.subspan(offsets[head] + min_units[head],
                             num_units - min_units[head]),
               &blocks);
    for (const GainBlock& block : blocks) {
      runs.keys.push_back(SlopeKey(block.sum / block.count));
      runs.counts.push_back(block.count);
    }
    runs.ends.push_back(runs.keys.size());
  }
  path_.reserve(runs.keys.size());
  RunMerger(runs).Run([&](size_t run, int32_t count) {
    path_.push_back({.head = static_cast<int32_t>(run), .count = count});
  });
}

std::vector<int32_t> LuKvSolver::Budgets(int64_t total) const {
  return BudgetsForAll(std::span(&total, 1));
}

std::vector<int32_t> LuKvSolver::BudgetsForAll(
    std::span<const int64_t> totals) const {
  std::vector<int32_t> all;
  all.reserve(totals.size() * min_units_.size());
  std::vector<int32_t> budgets = min_units_;  // in whole blocks
  int64_t taken = min_total_;
  auto next = path_.begin();
  int64_t previous = min_total_;
  for (const int64_t total : totals) {
    BM_CHECK(previous <= total);
    BM_CHECK(total <= max_total_);
    previous = total;
    while (next != path_.end() && taken + next->count <= total) {
      budgets[next->head] += next->count;
      taken += next->count;
      ++next;
    }
    all.insert(all.end(), budgets.begin(), budgets.end());
    if (taken < total) {
      const auto row = all.end() - static_cast<int64_t>(budgets.size());
      row[next->head] += static_cast<int32_t>(total - taken);
    }
  }
  return all;
}

}  // namespace blockmgr
