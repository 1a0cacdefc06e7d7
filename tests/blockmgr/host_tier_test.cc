#include "blockmgr/host_tier.h"

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <absl/container/flat_hash_set.h>
#include <absl/strings/str_cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SwapId Add(HostTier* host, int32_t num_blocks, int32_t num_tokens = 8) {
  SwappedSequence sequence;
  sequence.num_tokens = num_tokens;
  return host->Add(std::move(sequence), num_blocks);
}

TEST(HostTierTest, WithoutBlocksNobodyIsSwappedOut) {
  HostTier host(0);
  EXPECT_EQ(Add(&host, 1), kNoSwap);
  EXPECT_EQ(host.num_free(), 0);
  host.Dispatch(StepId{1});
  host.Acknowledge(StepId{1});
  host.LoseEngine();
  host.CheckInvariants();
  absl::flat_hash_set<const RegionContent*> contents;
  absl::flat_hash_set<const RegionRecord*> records;
  EXPECT_EQ(host.metadata_bytes(&contents, &records), 0);
}

TEST(HostTierTest, TakesAllOrNothing) {
  HostTier host(5);
  const SwapId swap = Add(&host, 3);
  ASSERT_NE(swap, kNoSwap);
  EXPECT_THAT(host.at(swap).blocks,
              ElementsAre(HostBlockId{0}, HostBlockId{1}, HostBlockId{2}));
  const uint64_t hash = host.StateHash();
  EXPECT_EQ(Add(&host, 3), kNoSwap);
  EXPECT_EQ(host.StateHash(), hash);
  EXPECT_NE(Add(&host, 2), kNoSwap);
  EXPECT_EQ(host.num_free(), 0);
  EXPECT_EQ(host.num_used(), 5);
  EXPECT_EQ(host.num_sequences(), 2);
  host.CheckInvariants();
}

TEST(HostTierTest, FindsHolders) {
  HostTier host(6);
  const SwapId a = Add(&host, 2);
  const SwapId b = Add(&host, 2);
  const std::vector<HostBlockId> last = {HostBlockId{3}, HostBlockId{5}};
  EXPECT_THAT(host.FindHolders(last), ElementsAre(b));
  const std::vector<HostBlockId> both = {HostBlockId{2}, HostBlockId{1}};
  EXPECT_THAT(host.FindHolders(both), ElementsAre(a, b));
  EXPECT_THAT(host.FindHolders({}), IsEmpty());
}

TEST(HostTierTest, ALostEngineLosesEverything) {
  HostTier host(3);
  Add(&host, 2);
  host.Dispatch(StepId{1});
  host.LoseEngine();
  EXPECT_EQ(host.num_free(), 3);
  EXPECT_EQ(host.num_sequences(), 0);
  host.CheckInvariants();
  EXPECT_NE(Add(&host, 3), kNoSwap);
}

TEST(HostTierDeathTest, NobodyIsDroppedTwice) {
  HostTier host(3);
  const SwapId swap = Add(&host, 2);
  host.Drop(swap);
  EXPECT_DEATH(host.Drop(swap), "");
  EXPECT_DEATH(host.at(swap), "");
}

// Random calls next to sets: who holds what, and until which step.
TEST(HostTierTest, CountsLikeSets) {
  const uint64_t num_cases = CountCases(60);
  for (uint64_t seed = 0; seed < num_cases; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    const auto below = [&random](size_t n) {
      return static_cast<int64_t>(random() % n);
    };
    const auto num_blocks = static_cast<int32_t>(below(12));
    HostTier host(num_blocks);
    std::map<SwapId, std::set<HostBlockId>> held;
    std::map<HostBlockId, uint64_t> fences;
    std::set<SwapId> leaving;
    uint64_t dispatched = 0;
    uint64_t acknowledged = 0;
    const auto release = [&](SwapId swap) {
      for (const HostBlockId block : held.at(swap)) fences[block] = dispatched;
      held.erase(swap);
    };
    for (int32_t i = 0; i < 200; ++i) {
      const int64_t kind = below(6);
      if (kind <= 1) {
        const auto count = static_cast<int32_t>(1 + below(4));
        const int32_t num_free = host.num_free();
        const SwapId swap = Add(&host, count);
        ASSERT_EQ(swap != kNoSwap, count <= num_free);
        if (swap == kNoSwap) continue;
        std::set<HostBlockId>& own = held[swap];
        for (const HostBlockId block : host.at(swap).blocks) {
          ASSERT_TRUE(own.insert(block).second);
          ASSERT_LE(fences[block], acknowledged);
          for (const auto& [other, blocks] : held) {
            ASSERT_TRUE(other == swap || !blocks.contains(block));
          }
        }
        ASSERT_THAT(own, SizeIs(count));
      } else if (kind <= 3 && !held.empty()) {
        const auto swap = std::next(held.begin(), below(held.size()))->first;
        if (leaving.contains(swap)) continue;
        if (kind == 2) {
          host.Drop(swap);
          release(swap);
        } else {
          host.DropAfterNextStep(swap);
          leaving.insert(swap);
        }
      } else if (kind == 4) {
        host.Dispatch(StepId{++dispatched});
        for (const SwapId swap : leaving) release(swap);
        leaving.clear();
      } else if (kind == 5 && acknowledged < dispatched) {
        host.Acknowledge(StepId{++acknowledged});
      }
      host.CheckInvariants();
      int32_t num_used = 0;
      for (const auto& [swap, blocks] : held) {
        num_used += static_cast<int32_t>(blocks.size());
      }
      ASSERT_EQ(host.num_used(), num_used);
      ASSERT_EQ(host.num_sequences(), static_cast<int32_t>(held.size()));
      ASSERT_EQ(host.num_free() + host.num_fenced() + num_used, num_blocks);
    }
  }
}

}  // namespace
}  // namespace blockmgr
