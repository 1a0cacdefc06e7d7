#include "blockmgr/block_pool.h"

#include <algorithm>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/heap_bytes.h"

namespace blockmgr {

BlockPool::BlockPool(int32_t num_blocks) {
  BM_CHECK(num_blocks >= 2);
  refs_.assign(num_blocks, 0);
  fences_.assign(num_blocks, 0);
  fenced_.resize(num_blocks);
  free_.reserve(num_blocks);
  // The lowest id is on top of the stack, so that a fresh pool hands out 1, 2,
  // 3, ...
  for (int32_t i = num_blocks - 1; i >= 1; --i) free_.push_back(BlockId{i});
}

bool BlockPool::Allocate(std::span<BlockId> blocks) {
  if (blocks.size() > free_.size()) return false;
  for (BlockId& block : blocks) {
    block = free_.back();
    free_.pop_back();
    BM_CHECK(refs_[Index(block)] == 0);
    refs_[Index(block)] = 1;
  }
  return true;
}

void BlockPool::AddRef(BlockId block) {
  BM_CHECK(refs_[Index(block)] > 0);
  ++refs_[Index(block)];
}

void BlockPool::Release(BlockId block) {
  fences_[Index(block)] = dispatched_;
  ReleaseUntouched(block);
}

void BlockPool::GiveBack(BlockId block) {
  uint64_t& fence = fences_[Index(block)];
  if (fence <= acknowledged_) {
    free_.push_back(block);
    return;
  }
  if (num_fenced_ > 0) {
    // The fence is at least the fence of the ring's last block, so that the
    // ring stays in the order of fences. A longer wait is always safe.
    const int32_t last =
        (fenced_head_ + num_fenced_ - 1) % static_cast<int32_t>(fenced_.size());
    fence = std::max(fence, fenced_[last].step);
  }
  const int32_t tail =
      (fenced_head_ + num_fenced_) % static_cast<int32_t>(fenced_.size());
  fenced_[tail] = {block, fence};
  ++num_fenced_;
}

void BlockPool::Dispatch(StepId step) {
  BM_CHECK(Index(step) > dispatched_);
  dispatched_ = Index(step);
}

void BlockPool::Acknowledge(StepId step) {
  BM_CHECK(Index(step) > acknowledged_);
  BM_CHECK(Index(step) <= dispatched_);
  acknowledged_ = Index(step);
  while (num_fenced_ > 0 && fenced_[fenced_head_].step <= acknowledged_) {
    free_.push_back(fenced_[fenced_head_].block);
    fenced_head_ = (fenced_head_ + 1) % static_cast<int32_t>(fenced_.size());
    --num_fenced_;
  }
}

void BlockPool::ForgetSteps() {
  if (has_steps_in_flight()) Acknowledge(StepId{dispatched_});
}

int64_t BlockPool::metadata_bytes() const {
  return HeapBytes(refs_) + HeapBytes(fences_) + HeapBytes(free_) +
         HeapBytes(fenced_);
}

uint64_t BlockPool::StateHash() const {
  // A sum does not depend on the order of the free list.
  uint64_t hash = SplitMix64(dispatched_) + 3 * SplitMix64(acknowledged_);
  for (size_t i = 0; i < refs_.size(); ++i) {
    // A fence that has passed is not part of the state.
    const uint64_t fence = fences_[i] <= acknowledged_ ? 0 : fences_[i];
    hash += SplitMix64(SplitMix64(i ^ (fence << 32)) ^
                       static_cast<uint64_t>(refs_[i]));
  }
  for (const BlockId block : free_) {
    hash +=
        SplitMix64(0xF4EE0000000000ull + static_cast<uint64_t>(Index(block)));
  }
  return hash;
}

void BlockPool::CheckInvariants() const {
  enum class Seen : uint8_t { kNo, kFree, kFenced };
  std::vector<Seen> seen(refs_.size(), Seen::kNo);
  for (const BlockId block : free_) {
    BM_CHECK(block != kNullBlock);
    BM_CHECK(seen[Index(block)] == Seen::kNo);
    BM_CHECK(refs_[Index(block)] == 0);
    BM_CHECK(IsPastFence(block));
    seen[Index(block)] = Seen::kFree;
  }
  uint64_t previous = acknowledged_;
  for (int32_t i = 0; i < num_fenced_; ++i) {
    const Fenced& fenced = fenced_[(fenced_head_ + i) % fenced_.size()];
    BM_CHECK(seen[Index(fenced.block)] == Seen::kNo);
    BM_CHECK(refs_[Index(fenced.block)] == 0);
    BM_CHECK(fenced.step > acknowledged_);
    BM_CHECK(fenced.step >= previous);
    BM_CHECK(fenced.step <= dispatched_);
    previous = fenced.step;
    seen[Index(fenced.block)] = Seen::kFenced;
  }
  BM_CHECK(refs_[Index(kNullBlock)] == 0);
  for (size_t i = 1; i < refs_.size(); ++i) {
    BM_CHECK(refs_[i] >= 0);
    BM_CHECK((refs_[i] == 0) == (seen[i] != Seen::kNo));
  }
}

}  // namespace blockmgr
