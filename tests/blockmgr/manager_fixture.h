// A small BlockManager and what tests do with it again and again.
#ifndef TESTS_BLOCKMGR_MANAGER_FIXTURE_H_
#define TESTS_BLOCKMGR_MANAGER_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"
#include "tests/testing/block_tables.h"

namespace blockmgr {

// Two layers of two heads, four tokens per page.
inline ModelLayout TwoByTwo(int32_t num_blocks = 10, int32_t window = 0,
                            std::vector<int32_t> group_windows = {}) {
  return {.num_layers = 2,
          .num_heads = 2,
          .num_q_heads = 2,
          .head_dim = 8,
          .page_size = 4,
          .dtype = DType::kFloat32,
          .num_blocks = num_blocks,
          .window = window,
          .group_windows = std::move(group_windows)};
}

// A BlockManager with blocks 1 to 9, unless Make is called.
class ManagerTest : public ::testing::Test {
 protected:
  explicit ManagerTest(int32_t num_host_blocks = 0) {
    Make(TwoByTwo(), num_host_blocks, true, 4);
  }
  void Make(const ModelLayout& layout, int32_t num_host_blocks = 0,
            bool caching = true, int32_t max_sequences = 6) {
    manager_.emplace(layout, max_sequences, caching, num_host_blocks);
  }

  // Prompt number `kind`: no two kinds share a block.
  static std::vector<int32_t> Prompt(int32_t kind, int32_t num_tokens) {
    std::vector<int32_t> tokens(num_tokens);
    std::iota(tokens.begin(), tokens.end(), 1000 * kind);
    return tokens;
  }
  static BlockChain Chain(const std::vector<int32_t>& tokens,
                          const ContentScope& scope = {}) {
    BlockChain chain(scope);
    chain.Extend(tokens, 4);
    return chain;
  }
  PrefixMatch Match(const std::vector<int32_t>& tokens) const {
    return manager_->Match(Chain(tokens), tokens,
                           static_cast<int32_t>(tokens.size()));
  }
  bool Reserve(SequenceSlot slot, int32_t num_tokens,
               std::vector<BlockId>* blocks = nullptr) {
    std::vector<int64_t> offsets;
    std::vector<BlockId> ignored;
    const TokenDemand demand{slot, num_tokens};
    return manager_->Reserve(std::span(&demand, 1), &offsets,
                             blocks == nullptr ? &ignored : blocks);
  }
  bool Reserve(SequenceSlot slot, int32_t num_tokens,
               std::vector<CopyOnWrite>* copies) {
    std::vector<int64_t> offsets;
    std::vector<BlockId> blocks;
    const TokenDemand demand{slot, num_tokens};
    return manager_->Reserve(std::span(&demand, 1), &offsets, &blocks, copies);
  }
  void Commit(SequenceSlot slot, const std::vector<int32_t>& tokens,
              int32_t num_tokens) {
    manager_->Commit(slot, num_tokens, tokens, Chain(tokens));
    manager_->CheckInvariants();
  }
  // A sequence that has computed the whole prompt but what the cache had.
  SequenceSlot Compute(const std::vector<int32_t>& tokens) {
    const SequenceSlot slot = manager_->Open(Chain(tokens), Match(tokens));
    const int32_t rest = static_cast<int32_t>(tokens.size()) -
                         manager_->sequence(slot).num_settled;
    EXPECT_TRUE(Reserve(slot, rest));
    Commit(slot, tokens, rest);
    return slot;
  }
  const SequenceCache& At(SequenceSlot slot) const {
    return manager_->sequence(slot);
  }
  void Dispatch(uint64_t step) { manager_->Dispatch(StepId{step}); }
  void Acknowledge(uint64_t step) {
    manager_->Acknowledge(StepId{step});
    manager_->CheckInvariants();
  }

  std::optional<BlockManager> manager_;
};

// What tests of layer groups with windows do besides.
class WindowsTest : public ManagerTest {
 protected:
  // One that has computed all tokens, `chunk` by `chunk`.
  SequenceSlot Compute(const std::vector<int32_t>& tokens, int32_t chunk) {
    const SequenceSlot slot = manager_->Open(Chain(tokens), Match(tokens));
    while (true) {
      const int32_t rest = static_cast<int32_t>(tokens.size()) -
                           manager_->sequence(slot).num_settled;
      if (rest == 0) return slot;
      EXPECT_TRUE(Reserve(slot, std::min(chunk, rest)));
      Commit(slot, tokens, std::min(chunk, rest));
    }
  }
  // Keeps all but half of [0, cut) and publishes the region.
  EvictionReceipt Compress(SequenceSlot slot, int32_t cut,
                           const std::vector<int32_t>& tokens) {
    std::vector<BlockId> destinations;
    EXPECT_TRUE(manager_->ReserveEviction(
        slot, {.cut = cut, .page_total = 8, .num_fresh = 2}, &destinations));
    const BlockChain chain = Chain(tokens);
    const RegionPublication publication{
        .name = {.plan = "p", .history = "h", .length = cut + 4},
        .chain = &chain,
        .tokens = tokens};
    return manager_->CommitEviction(slot, 0, std::vector<int32_t>(4, 8),
                                    &publication);
  }
  PrefixMatch MatchRegion(const std::vector<int32_t>& tokens) const {
    const auto limit = [](int32_t) { return 100; };
    const RegionQuery query{
        .plan = "p", .any_history = true, .max_tokens_over = limit};
    return manager_->Match(Chain(tokens), tokens, 0, &query);
  }
  int32_t NumHeld(SequenceSlot slot, int32_t group) const {
    const std::vector<BlockId>& tail =
        BlocksByPage(manager_->sequence(slot).groups[group]);
    return static_cast<int32_t>(
        std::ranges::count_if(tail, [](BlockId b) { return b != kNullBlock; }));
  }
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_MANAGER_FIXTURE_H_
