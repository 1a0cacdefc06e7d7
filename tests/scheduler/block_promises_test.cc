// What requests are told before they run: how large a chunk and how many blocks
// at the peak. What a step has promised is tested with admission.
#include "scheduler/block_promises.h"

#include <cstdint>

#include <gtest/gtest.h>

namespace blockmgr {
namespace {

SchedulerOptions Chunks(int32_t batch, int32_t threshold, int32_t drafts) {
  SchedulerOptions options;
  options.max_num_batched_tokens = batch;
  options.long_prefill_token_threshold = threshold;
  options.num_speculative_tokens = drafts;
  return options;
}

TEST(BlockPromisesTest, AChunkIsNoLargerThanStepAndThreshold) {
  struct Case {
    int32_t batch, threshold, expected;
  };
  for (const Case& c : {Case{64, 0, 64}, Case{64, 16, 16}, Case{64, 100, 64}}) {
    EXPECT_EQ(MaxChunk(Chunks(c.batch, c.threshold, 0)), c.expected);
  }
}

TEST(BlockPromisesTest, AChunkOfARequestHasRoomForDrafts) {
  struct Case {
    int32_t num_left, drafts, expected;
  };
  for (const Case& c : {Case{100, 0, 32}, Case{7, 0, 7}, Case{0, 0, 1},
                        Case{2, 3, 4}, Case{2, 90, 64}}) {
    RequestState request;
    request.max_chunk = 32;
    EXPECT_EQ(MaxChunk(Chunks(64, 0, c.drafts), request, c.num_left),
              c.expected);
  }
}

TEST(BlockPromisesTest, TheNextCompressionIsBehindTheMatch) {
  RequestState request;
  for (const int32_t length : {8, 16, 24}) {
    request.eviction.compressions.emplace_back().length = length;
  }
  struct Case {
    int32_t length, expected;
  };
  for (const Case& c : {Case{0, 0}, Case{8, 1}, Case{16, 2}, Case{24, 3}}) {
    PrefixMatch match;
    match.source_length = c.length;
    EXPECT_EQ(NextCompression(request, request.eviction, match), c.expected);
  }
  // The host tier says it itself.
  request.num_swapped_compressions = 2;
  PrefixMatch swapped;
  swapped.swap = SwapId{1};
  EXPECT_EQ(NextCompression(request, request.eviction, swapped), 2);
}

}  // namespace
}  // namespace blockmgr
