// The keys of a selection's entries, as the kernels load them.
#ifndef KERNELS_CUDA_SELECTION_SELECT_KEYS_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_KEYS_CUH_

#include <cstdint>

#include "kernels/cuda/order_key.cuh"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// Returns the number of candidates of a head. Entries after them are not read.
SIMT_DEVICE int32_t CountEntries(const SelectHead& head) {
  return head.num_sinks + head.num_past + head.num_recent;
}

// The entries first, first + stride, .. below `end` of a head: the keys of
// their scores, or in critical's second stage (kSecond) the keys of their
// products. A load has no branch of its own, because each load would then wait
// for the load before it. Entries that do not exist load another entry.
// REQUIRES: the head has entries.
template <bool kSecond>
struct KeyBatch {
  // All are loaded before the first is used, so that the thread waits for
  // memory once. The second stage has two or three loads per entry.
  static constexpr int32_t kSize = kSecond ? 4 : 8;

  uint32_t keys[kSize];
  bool exist[kSize];
  bool taken[kSize];  // by the first stage, in the second

  // A batch without entries.
  SIMT_DEVICE KeyBatch() : keys{}, exist{}, taken{} {}

  // `offset` is p.offsets[head].
  SIMT_DEVICE KeyBatch(const SelectProblem& p, int32_t head, int64_t offset,
                       int32_t first, int32_t stride, int32_t end) {
    const bool products = kSecond && p.products != nullptr;
    const bool positions = !products && p.scores == nullptr;
    const void* const words = products ? static_cast<const void*>(p.products)
                              : positions
                                  ? static_cast<const void*>(p.positions)
                                  : p.scores;
    int32_t entries[kSize];
    SIMT_UNROLL
    for (int32_t k = 0; k < kSize; ++k) {
      const int32_t i = first + k * stride;
      exist[k] = i < end;
      entries[k] = exist[k] ? i : end > 0 ? end - 1 : 0;
      keys[k] = static_cast<const uint32_t*>(words)[offset + entries[k]];
      taken[k] = false;
    }
    if constexpr (kSecond) FindTaken(p, SurvivorWord(offset, head), entries);
    if (kSecond && !products) {
      Multiply(p, offset, positions, entries);
    } else if (!positions) {  // which are in order as they are, and exact
      SIMT_UNROLL
      for (int32_t k = 0; k < kSize; ++k) {
        keys[k] = OrderKey(simt::BitsToFloat(keys[k]));
      }
    }
  }

 private:
  SIMT_DEVICE void FindTaken(const SelectProblem& p, int64_t first_word,
                             const int32_t (&entries)[kSize]) {
    SIMT_UNROLL
    for (int32_t k = 0; k < kSize; ++k) {
      const uint32_t word = p.survivors[first_word + entries[k] / 32];
      taken[k] = exist[k] && (word >> (entries[k] % 32) & 1u) != 0;
    }
  }

  // Turns scores or positions into (score + eps) norm.
  SIMT_DEVICE void Multiply(const SelectProblem& p, int64_t offset,
                            bool positions, const int32_t (&entries)[kSize]) {
    SIMT_UNROLL
    for (int32_t k = 0; k < kSize; ++k) {
      const float score =
          positions ? static_cast<float>(static_cast<int32_t>(keys[k]))
                    : simt::BitsToFloat(keys[k]);
      keys[k] = OrderKey((score + p.eps) * p.value_norms[offset + entries[k]]);
    }
  }
};

// Calls use(key) for the entries of a head in [begin, end) that belong to this
// thread of kThreads and are not taken.
template <bool kSecond, uint32_t kThreads, typename Use>
SIMT_DEVICE void ForEachKey(const SelectProblem& p, int32_t head,
                            const SelectHead& state, int32_t begin, int32_t end,
                            const Use& use) {
  constexpr auto kStride = static_cast<int32_t>(kThreads);
  using Batch = KeyBatch<kSecond>;
  for (int32_t first = begin + static_cast<int32_t>(simt::ThreadIndex());
       first < end; first += Batch::kSize * kStride) {
    const Batch batch(p, head, state.offset, first, kStride, end);
    SIMT_UNROLL
    for (int32_t k = 0; k < Batch::kSize; ++k) {
      if (batch.exist[k] && !batch.taken[k]) use(batch.keys[k]);
    }
  }
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_KEYS_CUH_
