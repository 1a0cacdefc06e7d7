// NaiveHost: the host tier of NaiveModel.
#ifndef TESTS_BLOCKMGR_NAIVE_HOST_H_
#define TESTS_BLOCKMGR_NAIVE_HOST_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "blockmgr/block_manager.h"
#include "tests/blockmgr/naive_books.h"

namespace blockmgr {

class NaiveHost {
 public:
  // A sequence that has left.
  struct Swap {
    NaiveSequence sequence;  // with its blocks, when it left
    std::map<NaivePiece, HostBlockId> pieces;

    std::vector<HostBlockId> Blocks() const;
  };

  NaiveHost(int32_t num_blocks, NaiveBooks* books)
      : num_blocks_(num_blocks), books_(*books) {}

  int32_t CountFree() const;
  // Returns the swaps that are not on their way back, by id.
  std::vector<SwapId> Swaps() const;
  const Swap& at(SwapId id) const { return swaps_.at(id); }
  void Check(const HostTier& host) const;

  // The copies are what the product says; they are made at once.
  void SwapOut(const NaiveSequence& sequence, SwapId id,
               std::span<const BlockTransfer> transfers);
  // The next step reads it.
  void SwapIn(SwapId id) { leaving_.push_back(id); }
  void Dispatch();
  void Drop(SwapId id);
  // Drops the swaps that hold one, and returns them.
  std::vector<SwapId> LoseBlocks(const std::set<HostBlockId>& lost);
  void Clear();

 private:
  const int32_t num_blocks_;
  NaiveBooks& books_;
  std::map<SwapId, Swap> swaps_;
  std::vector<SwapId> leaving_;               // read by the next step
  std::map<HostBlockId, uint64_t> released_;  // newest step then
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_NAIVE_HOST_H_
