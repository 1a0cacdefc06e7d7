// The chunks of heads that blocks read, and the searches that several blocks do
// together.
//
// Every block counts a digit of its chunk of one head in shared memory. Unless
// the block is the only block of the search, it adds the counts to the search's
// histogram with integer atomics, whose order does not show. The last block of
// the search picks the bin and clears the histogram.
#ifndef KERNELS_CUDA_SELECTION_SELECT_CHUNKS_CUH_
#define KERNELS_CUDA_SELECTION_SELECT_CHUNKS_CUH_

#include <cstdint>

#include "kernels/cuda/list_splits.cuh"
#include "kernels/cuda/selection/select.h"
#include "kernels/cuda/selection/select_keys.cuh"
#include "kernels/cuda/selection/select_radix.cuh"
#include "kernels/cuda/simt.h"

namespace blockmgr {
inline namespace SIMT_SPACE {

// C. Finds the chunk of a block of a flat grid.
SIMT_DEVICE ListSplit FindChunk(const SelectProblem& p) {
  return FindSplit(p.chunks.offsets, p.num_heads,
                   static_cast<int32_t>(simt::BlockX()));
}

// The entries of a block's chunk, and keys of each thread. A pass can load the
// first keys while the pass before it ends, because no kernel writes them. The
// keys of critical's second stage (kSecond) depend on the first stage.
template <bool kSecond>
struct EntryChunk : ListSplit {
  using Batch = KeyBatch<kSecond>;
  static constexpr auto kStride = static_cast<int32_t>(kSelectThreads);

  int64_t offset;
  int32_t size;   // of the head
  int32_t begin;  // of the head's entries
  int32_t end;
  Batch batch;

  SIMT_DEVICE EntryChunk(const SelectProblem& p, const ListSplit& chunk)
      : ListSplit(chunk),
        offset(p.offsets[list]),
        size(static_cast<int32_t>(p.offsets[list + 1] - offset)),
        begin(split * p.chunk_entries),
        end(begin + p.chunk_entries < size ? begin + p.chunk_entries : size) {}

  // Loads the first keys.
  SIMT_DEVICE void Load(const SelectProblem& p) {
    if (begin >= end) return;  // an empty head's
    batch = Batch(p, list, offset, begin + Mine(), kStride, end);
  }

  // Calls use(key, entry) for the entries of this thread that are not taken.
  // The first keys must be loaded.
  template <typename Use>
  SIMT_DEVICE void ForEach(const SelectProblem& p, const Use& use) {
    constexpr int32_t kTurn = Batch::kSize * kStride;
    for (int32_t first = begin;;) {
      SIMT_UNROLL
      for (int32_t k = 0; k < Batch::kSize; ++k) {
        if (!batch.exist[k] || batch.taken[k]) continue;
        use(batch.keys[k], first + k * kStride + Mine());
      }
      first += kTurn;
      if (first >= end) return;
      batch = Batch(p, list, offset, first + Mine(), kStride, end);
    }
  }

 private:
  SIMT_DEVICE static int32_t Mine() {
    return static_cast<int32_t>(simt::ThreadIndex());
  }
};

// A search that many blocks do together.
struct SharedSearch {
  RadixSearch* search;
  uint32_t* histogram;
  uint32_t* counter;
  uint32_t num_blocks;

  // `group` is a scope, or num_scopes + a head.
  SIMT_DEVICE SharedSearch(const SelectProblem& p, int64_t group,
                           uint32_t num_sharing)
      : search(p.searches + group),
        histogram(p.histograms + group * kRadixBins),
        counter(p.counters + group),
        num_blocks(num_sharing) {}
};

// Returns the search of a head, in which its chunks' blocks take part.
SIMT_DEVICE SharedSearch SearchOfHead(const SelectProblem& p, int32_t head) {
  const int32_t* const chunks = p.chunks.offsets + head;
  return SharedSearch(p, int64_t{p.num_scopes} + head,
                      static_cast<uint32_t>(chunks[1] - chunks[0]));
}

// The bins of a histogram that belong to a thread. Their number is a
// compile-time constant, so that a thread has several accesses under way at a
// time.
template <uint32_t kBins>
struct ThreadBins {
  static constexpr uint32_t kTurns = kBins / kSelectThreads;
  static_assert(kTurns * kSelectThreads == kBins);
  uint32_t counts[kTurns];

  SIMT_DEVICE void Load() {
    SIMT_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      counts[turn] =
          RadixBins().Load(turn * kSelectThreads + simt::ThreadIndex());
    }
  }
  // Contains a barrier.
  SIMT_DEVICE void Store() const {
    SIMT_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      RadixBins().Store(turn * kSelectThreads + simt::ThreadIndex(),
                        counts[turn]);
    }
    simt::SyncBlock();
  }
  SIMT_DEVICE void AddTo(uint32_t* histogram) const {
    SIMT_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      if (counts[turn] == 0) continue;
      simt::AtomicAdd(histogram + turn * kSelectThreads + simt::ThreadIndex(),
                      counts[turn]);
    }
  }
  // The histogram keeps its counts.
  SIMT_DEVICE void ReadFrom(const uint32_t* histogram) {
    SIMT_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      counts[turn] = histogram[turn * kSelectThreads + simt::ThreadIndex()];
    }
  }
  // An exchange, not a load: it reads where the atomics of other blocks wrote,
  // and sets the bins back to zero for the next pass.
  SIMT_DEVICE void TakeFrom(uint32_t* histogram) {
    SIMT_UNROLL
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      counts[turn] = simt::AtomicExchange(
          histogram + turn * kSelectThreads + simt::ThreadIndex(), 0u);
    }
  }
};

// Adds a block's bins to the histogram of a search, unless the block is the
// search's only block or `adds` is false. Returns whether it is the last block.
// All threads of a block call it.
template <uint32_t kBins>
SIMT_DEVICE bool AddBins(const SharedSearch& shared, bool adds,
                         ThreadBins<kBins>* bins) {
  if (adds && shared.num_blocks > 1) {
    bins->Load();
    bins->AddTo(shared.histogram);
  }
  return simt::LastBlockDone(shared.counter, shared.num_blocks);
}

// Picks the bin of a digit, in the last block of a search, and clears the
// histogram. All threads of the block call it.
template <int kDigit>
SIMT_DEVICE void PickSharedBin(const SharedSearch& shared,
                               ThreadBins<RadixDigit<kDigit>::kBins>* bins) {
  RadixSearch search = *shared.search;
  if (shared.num_blocks > 1) {
    bins->TakeFrom(shared.histogram);
    bins->Store();
  }
  if (search.mode != RadixSearch::kSearch) return;
  Narrow<kDigit>(PickBin<kDigit, kSelectThreads>(search.wanted), &search);
  if (simt::ThreadIndex() == 0) *shared.search = search;
}

}  // namespace SIMT_SPACE
}  // namespace blockmgr

#endif  // KERNELS_CUDA_SELECTION_SELECT_CHUNKS_CUH_
