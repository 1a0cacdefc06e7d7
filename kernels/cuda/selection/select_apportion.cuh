// Divides a scope's units of budget among its heads by largest remainder, as
// Apportion of eviction/apportion.h does, in the same integers.
#ifndef KERNELS_CUDA_SELECTION_SELECT_APPORTION_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_APPORTION_CUH_

#include <cstdint>

#include "kernels/cuda/block_prefix.cuh"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// A quota times the sum of weights does not fit 64 bits.
__extension__ typedef __int128 Int128;

SIMT_DEVICE int64_t Smaller(int64_t a, int64_t b) { return a < b ? a : b; }
SIMT_DEVICE int64_t Larger(int64_t a, int64_t b) { return a > b ? a : b; }

SIMT_DEVICE Int128 WarpSum128(Int128 value) {
  for (uint32_t mask = simt::kWarpThreads / 2; mask > 0; mask /= 2) {
    const auto low = static_cast<uint64_t>(value);
    const auto high = static_cast<uint64_t>(value >> 64);
    const uint64_t other_low = simt::ShuffleXor(low, mask);
    const uint64_t other_high = simt::ShuffleXor(high, mask);
    const unsigned __int128 other =
        static_cast<unsigned __int128>(other_high) << 64 | other_low;
    value += static_cast<Int128>(other);
  }
  return value;
}

// The shared memory of a block that works on a scope: the sums of its warps,
// the counts of one digit, and the result of a search in them.
inline constexpr uint32_t kFractionBins = 256;
inline constexpr uint32_t kFractionBinsAt =
    sizeof(Int128) * kSelectThreads / simt::kWarpThreads;
inline constexpr uint32_t kFractionPickAt = kFractionBinsAt + 4 * kFractionBins;
inline constexpr uint32_t kScopeSharedBytes = kFractionPickAt + 16;
static_assert(kFractionBinsAt >= kPrefixSharedBytes);
static_assert(kSelectThreads == kPrefixThreads);
static_assert(kFractionBins == kSelectThreads, "one bin per thread");

// The threads that work on a scope: the first warp of a block, whose sums need
// no barrier. If there are more heads than a warp has lanes, the whole block.
// Thread t has the heads t, t + num_threads(), ..
class ScopeThreads {
 public:
  SIMT_DEVICE explicit ScopeThreads(int32_t num_heads)
      : is_block_(num_heads > static_cast<int32_t>(simt::kWarpThreads)) {}

  SIMT_DEVICE bool is_block() const { return is_block_; }
  SIMT_DEVICE uint32_t num_threads() const {
    return is_block_ ? kSelectThreads : simt::kWarpThreads;
  }
  // Other threads have nothing to do and must not call the functions below.
  SIMT_DEVICE bool HasThisThread() const {
    return is_block_ || simt::Warp() == 0;
  }

  // Returns the sum of the values of all lower threads. Sets *total to the sum
  // of all threads.
  SIMT_DEVICE int64_t Prefix(int64_t value, int64_t* total) const {
    if (is_block_) return BlockPrefix(value, 0, total);
    const int64_t through = WarpPrefix(value);
    *total = simt::Shuffle(through, simt::kWarpThreads - 1);
    return through - value;
  }

  SIMT_DEVICE int64_t Sum(int64_t value) const {
    if (!is_block_) return WarpSum(value);
    int64_t total;
    BlockPrefix(value, 0, &total);
    return total;
  }

  SIMT_DEVICE Int128 Sum(Int128 value) const {
    value = WarpSum128(value);
    if (!is_block_) return value;
    constexpr uint32_t kWarps = kSelectThreads / simt::kWarpThreads;
    const auto sums = simt::Shared<Int128>(0, kWarps);
    if (simt::Lane() == 0) sums.Store(simt::Warp(), value);
    simt::SyncBlock();
    Int128 total = 0;
    for (uint32_t warp = 0; warp < kWarps; ++warp) total += sums.Load(warp);
    simt::SyncBlock();
    return total;
  }

 private:
  bool is_block_;
};

// Largest remainder under bounds. The claims are those of the scope's heads.
// Every thread reads and writes its own heads only.
class ScopeApportion {
 public:
  SIMT_DEVICE ScopeApportion(const ScopeThreads& threads, SelectHead* heads,
                             uint32_t num_heads)
      : threads_(threads), heads_(heads), num_heads_(num_heads) {}

  // Writes the units to heads[].units.
  SIMT_DEVICE void Run(int64_t total) {
    int64_t sum_max = 0;
    ForEachHead([&](SelectHead& head) {
      sum_max += head.max;
      head.units = 0;
      head.open = 1;
    });
    rest_ = Smaller(total, threads_.Sum(sum_max));
    do {
      SumWeights();
    } while (SettleAtBounds());
    const int64_t left = FloorQuotas();
    if (left == 0) return;
    if (threads_.is_block()) {
      RoundUpByDigits(static_cast<uint32_t>(left));
    } else {
      RoundUpByRank(static_cast<uint32_t>(left));
    }
  }

 private:
  template <typename Use>
  SIMT_DEVICE void ForEachHead(const Use& use) const {
    for (uint32_t i = simt::ThreadIndex(); i < num_heads_;
         i += threads_.num_threads()) {
      use(heads_[i]);
    }
  }
  template <typename Use>
  SIMT_DEVICE void ForEachOpen(const Use& use) const {
    ForEachHead([&](SelectHead& head) {
      if (head.open != 0) use(head);
    });
  }

  SIMT_DEVICE int64_t Weight(const SelectHead& head) const {
    return equal_weights_ ? 1 : head.claim_weight;
  }

  SIMT_DEVICE void SumWeights() {
    int64_t weights = 0;
    int64_t open = 0;
    ForEachOpen([&](const SelectHead& head) {
      weights += head.claim_weight;
      ++open;
    });
    weights = threads_.Sum(weights);
    open = threads_.Sum(open);
    equal_weights_ = weights == 0;
    sum_weights_ = equal_weights_ ? open : weights;
  }

  SIMT_DEVICE bool SettleAtBounds() {
    Int128 excess = 0;
    ForEachOpen([&](const SelectHead& head) {
      const Int128 quota = static_cast<Int128>(Weight(head)) * rest_;
      const Int128 low = static_cast<Int128>(head.min) * sum_weights_;
      const Int128 high = static_cast<Int128>(head.max) * sum_weights_;
      if (quota < low) excess += low - quota;
      if (quota > high) excess += high - quota;
    });
    excess = threads_.Sum(excess);
    int64_t settled = 0;
    int64_t num_settled = 0;
    ForEachOpen([&](SelectHead& head) {
      const Int128 quota = static_cast<Int128>(Weight(head)) * rest_;
      const bool at_min =
          excess >= 0 && quota < static_cast<Int128>(head.min) * sum_weights_;
      const bool at_max =
          excess <= 0 && quota > static_cast<Int128>(head.max) * sum_weights_;
      if (!at_min && !at_max) return;
      head.units = at_min ? head.min : head.max;
      head.open = 0;
      settled += head.units;
      ++num_settled;
    });
    rest_ -= threads_.Sum(settled);
    return threads_.Sum(num_settled) != 0;
  }

  // Returns floor(weight * rest / sum): estimates it in floating point, then
  // corrects it exactly.
  SIMT_DEVICE int64_t FloorQuota(int64_t weight, uint64_t* fraction) const {
    const Int128 quota = static_cast<Int128>(weight) * rest_;
    auto units = static_cast<int64_t>(static_cast<double>(weight) *
                                      static_cast<double>(rest_) /
                                      static_cast<double>(sum_weights_));
    while (static_cast<Int128>(units) * sum_weights_ > quota) --units;
    while (static_cast<Int128>(units + 1) * sum_weights_ <= quota) ++units;
    *fraction = static_cast<uint64_t>(quota - static_cast<Int128>(units) *
                                                  sum_weights_);
    return units;
  }

  // Returns the units that are left, fewer than there are open heads.
  SIMT_DEVICE int64_t FloorQuotas() {
    int64_t given = 0;
    ForEachOpen([&](SelectHead& head) {
      head.units = FloorQuota(Weight(head), &head.fraction);
      given += head.units;
    });
    return rest_ - threads_.Sum(given);
  }

  // Gives one more unit to the heads with the largest fractions. Ties go to the
  // lower head. One head per lane.
  SIMT_DEVICE void RoundUpByRank(uint32_t left) {
    const uint32_t lane = simt::Lane();
    const bool open = lane < num_heads_ && heads_[lane].open != 0;
    const uint64_t fraction = open ? heads_[lane].fraction : 0;
    const uint32_t open_lanes = simt::Ballot(open);
    uint32_t rank = 0;
    for (uint32_t other = 0; other < num_heads_; ++other) {
      const uint64_t theirs = simt::Shuffle(fraction, other);
      const bool lower = other < lane;
      const bool first = theirs > fraction || (theirs == fraction && lower);
      rank += (open_lanes >> other & 1u) != 0 && first ? 1 : 0;
    }
    if (open && rank < left) ++heads_[lane].units;
  }

  // Does this for any number of heads: a radix select of the fractions, eight
  // bits at a time, then ties in the order of heads. A block calls it.
  SIMT_DEVICE void RoundUpByDigits(uint32_t left) {
    const auto bins = simt::Shared<uint32_t>(kFractionBinsAt, kFractionBins);
    const auto pick = simt::Shared<uint32_t>(kFractionPickAt, 2);
    uint64_t threshold = 0;  // its highest digits, of those in `known`
    uint64_t known = 0;
    uint32_t wanted = left;  // of those equal to it so far
    for (uint32_t shift = 64; shift > 0;) {
      shift -= 8;
      // Fractions are below the sum of weights. The digit is 0 in all heads.
      if (static_cast<uint64_t>(sum_weights_) >> shift == 0) continue;
      bins.Store(simt::ThreadIndex(), 0);
      simt::SyncBlock();
      ForEachOpen([&](const SelectHead& head) {
        if ((head.fraction & known) != threshold) return;
        const auto digit = static_cast<uint32_t>(head.fraction >> shift);
        bins.AtomicAdd(digit & (kFractionBins - 1), 1u);
      });
      simt::SyncBlock();
      const uint32_t bin = kFractionBins - 1 - simt::ThreadIndex();
      const uint32_t count = bins.Load(bin);
      uint32_t total;
      const uint32_t before = BlockPrefix(count, 0, &total);
      if (before < wanted && before + count >= wanted) {
        pick.Store(0, bin);
        pick.Store(1, wanted - before);
      }
      simt::SyncBlock();
      threshold |= uint64_t{pick.Load(0)} << shift;
      known |= uint64_t{kFractionBins - 1} << shift;
      wanted = pick.Load(1);
    }
    uint32_t equals = 0;  // of earlier turns
    for (uint32_t first = 0; first < num_heads_; first += kSelectThreads) {
      const uint32_t i = first + simt::ThreadIndex();
      const bool open = i < num_heads_ && heads_[i].open != 0;
      const bool above = open && heads_[i].fraction > threshold;
      const bool equal = open && heads_[i].fraction == threshold;
      uint32_t total;
      const uint32_t before = BlockPrefix(equal ? 1u : 0u, 0, &total);
      if (above || (equal && equals + before < wanted)) ++heads_[i].units;
      equals += total;
    }
  }

  ScopeThreads threads_;
  SelectHead* heads_;
  uint32_t num_heads_;
  int64_t rest_ = 0;
  int64_t sum_weights_ = 0;
  bool equal_weights_ = false;
};

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_APPORTION_CUH_
