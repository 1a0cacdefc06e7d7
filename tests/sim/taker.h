// Taker: a BlockManager one of whose calls fails. A run without a fault notes
// what every call takes; in a run with one, a hostage takes all but one too few
// just before. The call must say so and leave the state as it was; with one
// block more it succeeds, and takes the last one.
#ifndef TESTS_SIM_TAKER_H_
#define TESTS_SIM_TAKER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "blockmgr/block_manager.h"

namespace blockmgr::sim {

// Four tokens per page, two layers. Retention: all tokens are wished to stay.
struct TakerWorld {
  int32_t num_usable = 20;
  int32_t num_host_blocks = 0;
  int32_t num_heads = 2;
  int32_t num_shards = 1;
  int32_t window = 0;
  std::vector<int32_t> group_windows = {};
  bool prefix_caching = true;
  bool retention = false;
};

// A call that may be refused.
struct Taking {
  std::string kind;
  int32_t num_blocks = 0;  // taken: 0: it cannot fail
  bool reclaims = false;
};

class Taker {
 public:
  static constexpr int32_t kPageSize = 4;

  // Without a fault.
  explicit Taker(const TakerWorld& world) : Taker(world, {}, -1) {}
  // The taking of this number, of those that a run without a fault has noted,
  // fails.
  Taker(const TakerWorld& world, std::vector<Taking> known, int32_t fail_at);

  BlockManager& manager() { return manager_; }
  const std::vector<Taking>& takings() const { return takings_; }

  static std::vector<int32_t> Tokens(int32_t topic, int32_t num_tokens);
  BlockChain Chain(const std::vector<int32_t>& tokens) const;

  // On what the cache has of the tokens but the last: full blocks, or a part of
  // one as well, or a region.
  SequenceSlot Open(const std::vector<int32_t>& tokens);
  SequenceSlot OpenOnPart(const std::vector<int32_t>& tokens);
  SequenceSlot OpenOnRegion(const std::vector<int32_t>& tokens);
  SequenceSlot Fork(SequenceSlot slot);
  SequenceSlot ForkAt(SequenceSlot slot, int32_t num_tokens);
  // Reserves tokens for several sequences at once.
  void Reserve(const std::vector<TokenDemand>& demands);
  void Commit(SequenceSlot slot, const std::vector<int32_t>& tokens,
              int32_t num_tokens);
  // Opens, reserves and settles all of them.
  SequenceSlot Compute(const std::vector<int32_t>& tokens);
  // Reserves and settles as many more; in a step of its own, if none is in
  // flight.
  void GoOn(SequenceSlot slot, const std::vector<int32_t>& tokens,
            int32_t num_tokens);
  void Close(SequenceSlot slot);
  // Orders an eviction into num_fresh fresh blocks and own ones for the rest.
  void Order(SequenceSlot slot, int32_t cut, int32_t num_blocks,
             int32_t num_fresh, int32_t group = 0);
  // The sequence has so many own blocks below the cut: an order in place for
  // one more is refused, one for all of them is not; it is aborted.
  void ExpectOwn(SequenceSlot slot, int32_t cut, int32_t num_own);
  // Every head keeps `kept` entries. With tokens the region is published.
  void CommitOrder(SequenceSlot slot, int32_t kept,
                   const std::vector<int32_t>& tokens = {});
  // Of a layer group with a window.
  void CommitWindowOrder(SequenceSlot slot, int32_t group, int32_t kept);
  void Dispatch() { manager_.Dispatch(StepId{next_step_++}); }
  void Acknowledge();
  // Swaps the sequence out, and closes it.
  SwapId SwapOut(SequenceSlot slot);
  // A window has lost a page: it cannot be swapped out.
  void ExpectNoSwapOut(SequenceSlot slot);
  // The first num_tokens of what was swapped out come back.
  SequenceSlot SwapIn(SwapId swap, const std::vector<int32_t>& tokens,
                      int32_t num_tokens, int32_t length = 0);
  void Lose(std::vector<BlockId> blocks);
  void LoseHost(std::vector<HostBlockId> blocks);

 private:
  using Call = std::function<bool()>;

  // Counts the next call; whether it is the one to fail.
  bool IsDue(std::string kind, int32_t num_blocks);
  void Refuse(const Call& call, const Call& untouched);
  // Tries a call that takes blocks of the pool; notes how many.
  void Take(const Call& take, const Call& untouched);
  std::string KindOf(const std::string& call) const;
  // Hostages take blocks until so many are left, and give them back.
  void LeaveAvailable(int32_t num_blocks);
  void LeaveHostFree(int32_t num_blocks);
  void FreeHostages();
  PrefixMatch MatchFor(const std::vector<int32_t>& tokens) const;

  const TakerWorld world_;
  const std::vector<Taking> known_;
  const int32_t fail_at_;
  std::vector<Taking> takings_;
  std::vector<bool> has_part_;  // by slot: its last block is to be copied
  SequenceSlot hostage_ = kNoSequenceSlot;
  std::vector<SwapId> host_hostages_;
  uint64_t next_step_ = 1;
  uint64_t next_acknowledged_ = 1;
  BlockManager manager_;
};

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_TAKER_H_
