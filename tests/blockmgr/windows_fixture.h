// What tests of layer groups with windows do again and again.
#ifndef TESTS_BLOCKMGR_WINDOWS_FIXTURE_H_
#define TESTS_BLOCKMGR_WINDOWS_FIXTURE_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"

namespace blockmgr {

// A BlockManager of a model with layers that have a window.
class WindowsTest : public ::testing::Test {
 protected:
  // Two layers of two heads, four tokens per page.
  static ModelLayout WithWindows(int32_t num_blocks, int32_t window,
                                 std::vector<int32_t> group_windows) {
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

  static std::vector<int32_t> Prompt(int32_t kind, int32_t num_tokens) {
    std::vector<int32_t> tokens(num_tokens);
    for (int32_t i = 0; i < num_tokens; ++i) tokens[i] = 1000 * kind + i;
    return tokens;
  }

  static BlockChain Chain(const std::vector<int32_t>& tokens) {
    BlockChain chain(ContentScope{});
    chain.Extend(tokens, 4);
    return chain;
  }

  void Make(const ModelLayout& layout, int32_t num_host_blocks = 0,
            bool caching = true) {
    manager_.emplace(layout, 6, caching, num_host_blocks);
  }
  PrefixMatch Match(const std::vector<int32_t>& tokens) const {
    return manager_->Match(Chain(tokens), tokens,
                           static_cast<int32_t>(tokens.size()));
  }
  bool Reserve(SequenceSlot slot, int32_t num_tokens,
               std::vector<CopyOnWrite>* copies = nullptr) {
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
    return manager_->CommitEviction(slot, std::vector<int32_t>(4, 8),
                                    &publication);
  }
  PrefixMatch MatchRegion(const std::vector<int32_t>& tokens) const {
    const auto limit = [](int32_t) { return 100; };
    const RegionQuery query{
        .plan = "p", .any_history = true, .max_tokens_over = limit};
    return manager_->Match(Chain(tokens), tokens, 0, &query);
  }
  int32_t NumHeld(SequenceSlot slot, int32_t group) const {
    const std::vector<BlockId>& tail = manager_->window_tail(slot, group);
    return static_cast<int32_t>(
        std::ranges::count_if(tail, [](BlockId b) { return b != kNullBlock; }));
  }

  std::optional<BlockManager> manager_;
};

}  // namespace blockmgr

#endif  // TESTS_BLOCKMGR_WINDOWS_FIXTURE_H_
