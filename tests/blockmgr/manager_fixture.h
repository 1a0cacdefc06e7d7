// A small BlockManager and what tests do with it again and again.
#ifndef TESTS_BLOCKMGR_MANAGER_FIXTURE_H_
#define TESTS_BLOCKMGR_MANAGER_FIXTURE_H_

#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"

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

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_MANAGER_FIXTURE_H_
