#include "scheduler/prefix_hints.h"

#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "scheduler/prefill_front.h"

namespace blockmgr {
namespace {

class PrefixHintsTest : public testing::Test {
 protected:
  // Pages of one token.
  RequestState* Make(const std::vector<int32_t>& tokens) {
    states_.push_back(std::make_unique<RequestState>());
    states_.back()->tokens = tokens;
    states_.back()->chain.Extend(tokens, 1);
    return states_.back().get();
  }
  void Add(RequestState* request, int32_t num_blocks) {
    hints_.Add(request, num_blocks, 100);
    hints_.CheckInvariants();
  }

  std::vector<std::unique_ptr<RequestState>> states_;
  PrefixHints hints_;
};

TEST_F(PrefixHintsTest, ThoseThatMissThePublishedBlockAreStale) {
  RequestState* a = Make({1, 2, 3});
  RequestState* b = Make({1, 2, 4});
  RequestState* other = Make({1, 5});
  Add(a, 1);
  Add(b, 1);
  Add(other, 1);
  EXPECT_EQ(hints_.PopStale(), nullptr);
  hints_.OnPublished(a->chain.keys()[0]);
  EXPECT_EQ(hints_.PopStale(), nullptr);
  hints_.OnPublished(a->chain.keys()[1]);
  hints_.CheckInvariants();
  EXPECT_EQ(hints_.PopStale(), b);
  EXPECT_EQ(hints_.PopStale(), a);
  EXPECT_EQ(hints_.PopStale(), nullptr);
  EXPECT_EQ(hints_.size(), 1);
  Add(a, 2);
  hints_.OnPublished(a->chain.keys()[2]);
  EXPECT_EQ(hints_.PopStale(), a);
}

TEST_F(PrefixHintsTest, RemovedOnesDoNotComeBack) {
  std::vector<RequestState*> requests;
  for (int32_t i = 0; i < 4; ++i) {
    requests.push_back(Make({7, 8, i}));
    Add(requests.back(), 0);
  }
  hints_.Remove(requests[1]);
  hints_.Remove(requests[1]);
  hints_.CheckInvariants();
  hints_.OnPublished(requests[0]->chain.keys()[0]);
  hints_.Remove(requests[3]);
  hints_.CheckInvariants();
  EXPECT_EQ(hints_.PopStale(), requests[2]);
  EXPECT_EQ(hints_.PopStale(), requests[0]);
  EXPECT_EQ(hints_.PopStale(), nullptr);
  EXPECT_EQ(hints_.size(), 0);
}

TEST_F(PrefixHintsTest, NothingIsExpectedBeyondTheLongestHit) {
  RequestState* a = Make({1, 2, 3});
  hints_.Add(a, 2, 2);
  RequestState* b = Make({1, 2, 3});
  hints_.Add(b, 3, 100);
  EXPECT_EQ(hints_.size(), 0);
  EXPECT_EQ(a->hint.num_blocks, 2);
}

TEST(PrefillFrontTest, NamesWhoComputesABlockNext) {
  RequestState a;
  RequestState b;
  const std::vector<int32_t> tokens = {1, 2, 3};
  a.chain.Extend(tokens, 1);
  const BlockKey first = a.chain.keys()[0];
  const BlockKey second = a.chain.keys()[1];
  PrefillFront front;
  front.Set(&a, first);
  EXPECT_EQ(front.Find(first), &a);
  EXPECT_EQ(front.Find(second), nullptr);
  front.Set(&a, second);
  EXPECT_EQ(front.Find(first), nullptr);
  EXPECT_EQ(front.Find(second), &a);
  // The second to compute it is not registered, nor does it take a's entry.
  front.Set(&b, second);
  front.Clear(&b);
  EXPECT_EQ(front.Find(second), &a);
  front.Clear(&a);
  front.Clear(&a);
  EXPECT_EQ(front.size(), 0u);
}

TEST(CommonBlocksTest, CountsEqualNamesFromTheBeginning) {
  for (int32_t num_common = 0; num_common <= 9; ++num_common) {
    RequestState a;
    RequestState b;
    std::vector<int32_t> tokens_a;
    std::vector<int32_t> tokens_b;
    for (int32_t i = 0; i < 9; ++i) {
      tokens_a.push_back(i);
      tokens_b.push_back(i == num_common ? 99 : i);
    }
    a.chain.Extend(tokens_a, 1);
    b.chain.Extend(tokens_b, 1);
    for (int32_t begin = 0; begin <= num_common; ++begin) {
      EXPECT_EQ(CountCommonBlocks(a.chain.keys(), b.chain.keys(), begin),
                num_common - begin);
    }
    const auto shorter = b.chain.keys().first(4);
    EXPECT_EQ(CountCommonBlocks(a.chain.keys(), shorter, 0),
              std::min(4, num_common));
    EXPECT_EQ(CountCommonBlocks(a.chain.keys(), shorter, 9), 0);
  }
}

}  // namespace
}  // namespace blockmgr
