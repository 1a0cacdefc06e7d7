// Every taking of blocks in scripted scenarios of a BlockManager fails once:
// just before it, a hostage takes all available blocks but one too few. The
// call must say so, and leave the state as it was.

#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"

namespace blockmgr::sim {
namespace {

// A manager of small pages whose N-th taking of blocks fails.
class Taker {
 public:
  explicit Taker(int32_t fail_at) : fail_at_(fail_at) {}

  BlockManager& manager() { return manager_; }
  int32_t num_takings() const { return num_takings_; }

  static std::vector<int32_t> Tokens(int32_t topic, int32_t num_tokens) {
    std::vector<int32_t> tokens(num_tokens);
    std::iota(tokens.begin(), tokens.end(), 1000 * topic);
    return tokens;
  }
  static BlockChain Chain(const std::vector<int32_t>& tokens) {
    BlockChain chain;
    chain.Extend(tokens, kPageSize);
    return chain;
  }

  SequenceSlot Open(const std::vector<int32_t>& tokens) {
    const BlockChain chain = Chain(tokens);
    const SequenceSlot slot = manager_.Open(
        chain,
        manager_.Match(chain, tokens, static_cast<int32_t>(tokens.size()) - 1));
    manager_.CheckInvariants();
    return slot;
  }
  // Reserves tokens for several sequences at once.
  void Reserve(const std::vector<TokenDemand>& demands) {
    int32_t needed = 0;
    for (const TokenDemand& demand : demands) {
      needed += manager_.sequence(demand.slot)
                    .BlocksFor(demand.num_tokens, kPageSize);
    }
    std::vector<int64_t> offsets;
    std::vector<BlockId> blocks;
    const auto reserve = [&] {
      return manager_.Reserve(demands, &offsets, &blocks);
    };
    const auto untouched = [&] { return offsets.empty() && blocks.empty(); };
    Take(needed, reserve, untouched);
  }
  void Commit(SequenceSlot slot, const std::vector<int32_t>& tokens,
              int32_t num_tokens) {
    manager_.Commit(slot, num_tokens, tokens, Chain(tokens));
    manager_.CheckInvariants();
  }
  // Opens, reserves and settles all of them.
  SequenceSlot Compute(const std::vector<int32_t>& tokens) {
    const SequenceSlot slot = Open(tokens);
    const int32_t rest = static_cast<int32_t>(tokens.size()) -
                         manager_.sequence(slot).num_settled;
    Reserve({{slot, rest}});
    Commit(slot, tokens, rest);
    return slot;
  }
  // Orders an eviction into num_fresh fresh blocks and own ones for the rest.
  void Order(SequenceSlot slot, int32_t cut, int32_t num_blocks,
             int32_t num_fresh) {
    std::vector<BlockId> destinations;
    const auto order = [&] {
      return manager_.ReserveEviction(
          slot, cut, int64_t{num_blocks} * manager_.layout().pages_per_block(),
          num_fresh, &destinations);
    };
    const auto untouched = [&] { return destinations.empty(); };
    Take(num_fresh, order, untouched);
  }
  // Every head keeps `kept` entries.
  void CommitOrder(SequenceSlot slot, int32_t kept) {
    manager_.CommitEviction(
        slot, std::vector<int32_t>(manager_.layout().pages_per_block(), kept));
    manager_.CheckInvariants();
  }
  void Dispatch() { manager_.Dispatch(StepId{next_step_++}); }
  void Acknowledge() {
    manager_.Acknowledge(StepId{next_acknowledged_++});
    manager_.CheckInvariants();
  }

 private:
  static constexpr int32_t kPageSize = 4;

  void Take(int32_t needed, const std::function<bool()>& take,
            const std::function<bool()>& untouched) {
    ASSERT_LE(needed, manager_.num_available());
    if (needed > 0 && num_takings_++ == fail_at_) {
      const int32_t ransom = manager_.num_available() - needed + 1;
      const SequenceSlot hostage = manager_.Open(BlockChain(), {});
      const TokenDemand demand{hostage, ransom * kPageSize};
      std::vector<int64_t> offsets;
      std::vector<BlockId> blocks;
      ASSERT_TRUE(manager_.Reserve(std::span(&demand, 1), &offsets, &blocks));
      const uint64_t before = manager_.StateHash();
      EXPECT_FALSE(take());
      EXPECT_TRUE(untouched());
      EXPECT_EQ(manager_.StateHash(), before);
      manager_.CheckInvariants();
      manager_.Abort(hostage, demand.num_tokens);
      manager_.Close(hostage);
    }
    EXPECT_TRUE(take());
    manager_.CheckInvariants();
  }

  const int32_t fail_at_;
  int32_t num_takings_ = 0;
  uint64_t next_step_ = 1;
  uint64_t next_acknowledged_ = 1;
  BlockManager manager_{{.num_layers = 2,
                         .num_heads = 2,
                         .num_q_heads = 2,
                         .head_dim = 8,
                         .page_size = kPageSize,
                         .dtype = DType::kFloat32,
                         .num_blocks = 21},
                        6,
                        true};
};

// Runs the scenario until no taking is left to fail.
void Sweep(const std::function<void(Taker*)>& scenario) {
  int32_t num_takings = 1;
  for (int32_t fail_at = 0; fail_at < num_takings; ++fail_at) {
    SCOPED_TRACE(fail_at);
    Taker taker(fail_at);
    scenario(&taker);
    num_takings = taker.num_takings();
    ASSERT_GT(num_takings, 0);
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(ManagerFaultTest, OneSequence) {
  Sweep([](Taker* taker) {
    const auto tokens = Taker::Tokens(1, 30);
    const SequenceSlot slot = taker->Open(tokens);
    for (const int32_t chunk : {7, 1, 9, 13}) {
      taker->Reserve({{slot, chunk}});
      taker->Commit(slot, tokens, chunk);
    }
    taker->manager().Close(slot);
  });
}

TEST(ManagerFaultTest, SeveralInOneCall) {
  Sweep([](Taker* taker) {
    const SequenceSlot a = taker->Open(Taker::Tokens(1, 20));
    const SequenceSlot b = taker->Open(Taker::Tokens(2, 20));
    const SequenceSlot c = taker->Open(Taker::Tokens(3, 20));
    taker->Reserve({{a, 9}, {b, 5}, {c, 12}});
    taker->Reserve({{a, 1}, {b, 9}, {c, 1}});
    taker->manager().Close(b);
    taker->Reserve({{a, 10}, {c, 7}});
  });
}

TEST(ManagerFaultTest, AfterAbort) {
  Sweep([](Taker* taker) {
    const SequenceSlot a = taker->Open(Taker::Tokens(1, 20));
    taker->Reserve({{a, 9}});
    taker->manager().Abort(a, 7);
    taker->Reserve({{a, 18}});
  });
}

TEST(ManagerFaultTest, SharedPrefix) {
  Sweep([](Taker* taker) {
    taker->Compute(Taker::Tokens(1, 16));
    taker->Compute(Taker::Tokens(1, 27));
    taker->manager().Close(taker->Compute(Taker::Tokens(1, 31)));
    taker->Compute(Taker::Tokens(1, 31));
  });
}

TEST(ManagerFaultTest, ReclaimsToTake) {
  Sweep([](Taker* taker) {
    for (const int32_t topic : {1, 2, 3, 1, 4, 2}) {
      taker->manager().Close(taker->Compute(Taker::Tokens(topic, 40)));
    }
  });
}

TEST(ManagerFaultTest, FencedBlocks) {
  Sweep([](Taker* taker) {
    const SequenceSlot a = taker->Compute(Taker::Tokens(1, 22));
    taker->Dispatch();
    taker->manager().Close(a);
    const SequenceSlot b = taker->Open(Taker::Tokens(2, 24));
    taker->Reserve({{b, 24}});
    taker->Acknowledge();
    taker->Reserve({{b, 20}});
  });
}

TEST(ManagerFaultTest, EvictionIntoFreshBlocks) {
  Sweep([](Taker* taker) {
    const auto tokens = Taker::Tokens(1, 30);
    const SequenceSlot a = taker->Compute(tokens);
    taker->Order(a, 28, 3, 3);
    taker->CommitOrder(a, 10);
    taker->Reserve({{a, 20}});
  });
}

TEST(ManagerFaultTest, EvictionInPlaceAndFresh) {
  Sweep([](Taker* taker) {
    const auto tokens = Taker::Tokens(1, 30);
    const SequenceSlot a = taker->Compute(tokens);
    taker->Order(a, 24, 4, 2);
    taker->CommitOrder(a, 15);
    taker->Order(a, 28, 3, 1);
    taker->CommitOrder(a, 12);
  });
}

TEST(ManagerFaultTest, EvictionOfWhatOthersShare) {
  Sweep([](Taker* taker) {
    const auto tokens = Taker::Tokens(1, 24);
    const SequenceSlot a = taker->Compute(tokens);
    const SequenceSlot b = taker->Compute(Taker::Tokens(1, 28));
    taker->Order(b, 24, 2, 2);
    taker->CommitOrder(b, 7);
    taker->Order(a, 20, 1, 1);
    taker->manager().AbortEviction(a);
    taker->manager().Close(a);
    taker->manager().Close(b);
  });
}

TEST(ManagerFaultTest, EvictionThatReclaims) {
  Sweep([](Taker* taker) {
    for (const int32_t topic : {1, 2}) {
      taker->manager().Close(taker->Compute(Taker::Tokens(topic, 24)));
    }
    const SequenceSlot a = taker->Compute(Taker::Tokens(3, 28));
    taker->Order(a, 24, 4, 4);
    taker->manager().Close(a);
    taker->Compute(Taker::Tokens(4, 60));
  });
}

}  // namespace
}  // namespace blockmgr::sim
