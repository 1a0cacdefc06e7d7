// The history of queries, on the emulator, against a list of all rows.
#include "engine/reference/query_history.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "tests/kernels/cuda/emulated_runtime.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

constexpr int32_t kLayers = 3;
constexpr int32_t kShards = 2;
constexpr int32_t kWindow = 4;
constexpr int32_t kSlots = 3;

// A shard's part of a row says what it is in every layer.
using Query = std::vector<int32_t>;
Query QueryOf(int32_t slot, int32_t position, int32_t shard) {
  Query query;
  for (int32_t layer = 0; layer < kLayers; ++layer) {
    query.push_back(((slot * 1000 + position) * 10 + shard) * 10 + layer);
  }
  return query;
}

class QueryHistoryTest : public testing::Test {
 protected:
  ~QueryHistoryTest() override {
    if (queries_ != nullptr) runtime_.Free(queries_);
  }

  // Runs a step of these slots, in num_rows rows.
  void Step(const std::vector<int32_t>& slots, int32_t num_rows) {
    std::vector<QueryHistory::Row> rows;
    std::vector<int32_t> queries(
        static_cast<size_t>(kLayers * kShards * num_rows), -1);
    for (const int32_t slot : slots) {
      const int32_t position = length_[slot]++;
      for (int32_t shard = 0; shard < kShards; ++shard) {
        const Query query = QueryOf(slot, position, shard);
        for (int32_t layer = 0; layer < kLayers; ++layer) {
          queries[static_cast<size_t>(
              (int64_t{layer} * kShards + shard) * num_rows +
              std::ssize(rows))] = query[static_cast<size_t>(layer)];
        }
      }
      rows.push_back({slot, position});
    }
    ASSERT_OK(history_.Prepare(kWindow, num_rows, wants_, keep_));
    if (queries_ != nullptr) runtime_.Free(queries_);
    queries_ = *runtime_.Allocate(static_cast<int64_t>(queries.size()) * 4);
    runtime_.Upload(queries_, std::as_bytes(std::span(queries)));
    history_.Push(queries_, rows);
  }

  // Expects the last queries of a slot to have been kept, from `first` on.
  void ExpectKept(int32_t slot, int32_t first = 0) {
    history_.Take(slot, wants_, keep_);
    const int32_t length = length_[slot];
    for (int32_t p = std::max(first, length - kWindow); p < length; ++p) {
      for (int32_t shard = 0; shard < kShards; ++shard) {
        EXPECT_EQ((kept_[{slot, p, shard}]), QueryOf(slot, p, shard))
            << slot << " at " << p;
      }
    }
  }

  EmulatedRuntime runtime_ = EmulatedRuntime(1, 1 << 20);
  QueryHistory history_ = QueryHistory(
      &runtime_,
      {.num_layers = kLayers, .num_shards = kShards, .row_bytes = 4});
  char* queries_ = nullptr;
  std::map<int32_t, int32_t> length_;
  std::map<std::tuple<int32_t, int32_t, int32_t>, Query> kept_;
  const QueryHistory::Wants wants_ = [this](const QueryHistory::Row& row) {
    return row.position >= length_[row.slot] - kWindow;
  };
  const QueryHistory::Keep keep_ = [this](const QueryHistory::Row& row,
                                          int32_t shard,
                                          std::span<const std::byte> bytes) {
    Query query(bytes.size() / sizeof(int32_t));
    std::memcpy(query.data(), bytes.data(), bytes.size());
    const bool is_new =
        kept_.emplace(std::tuple(row.slot, row.position, shard), query).second;
    EXPECT_TRUE(is_new) << "a row was read twice";
  };
};

TEST_F(QueryHistoryTest, ASteadyStepReadsNothing) {
  for (int32_t step = 0; step < 20; ++step) Step({0, 1, 2}, 4);
  const int64_t waits = runtime_.counts().waits;
  EXPECT_TRUE(kept_.empty());
  ExpectKept(1);
  EXPECT_EQ(runtime_.counts().waits, waits + int64_t{kWindow} * kShards);
  // Once.
  ExpectKept(1);
  EXPECT_EQ(runtime_.counts().waits, waits + int64_t{kWindow} * kShards);
}

TEST_F(QueryHistoryTest, RowsOfAPausedSequenceAreNotLost) {
  for (int32_t step = 0; step < 6; ++step) Step({0, 1}, 2);
  for (int32_t step = 0; step < 9; ++step) Step({0}, 1);
  ExpectKept(1);
  ExpectKept(0);
}

TEST_F(QueryHistoryTest, ASlotMayGetAnotherSequence) {
  for (int32_t step = 0; step < 2; ++step) Step({0, 1}, 2);
  history_.Forget(1);
  length_[1] = 0;
  for (int32_t step = 0; step < 2; ++step) Step({1}, 1);
  ExpectKept(1);
  EXPECT_EQ(kept_.size(), size_t{2} * kShards);
}

TEST_F(QueryHistoryTest, StepsOfAnySize) {
  std::mt19937_64 random(5);
  for (int32_t step = 0; step < 300; ++step) {
    std::vector<int32_t> slots;
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      if (random() % 3 != 0) slots.push_back(slot);
    }
    if (slots.empty()) continue;
    Step(slots, static_cast<int32_t>(slots.size() + random() % 3));
    if (random() % 8 == 0) ExpectKept(static_cast<int32_t>(random() % kSlots));
  }
  for (int32_t slot = 0; slot < kSlots; ++slot) ExpectKept(slot);
}

TEST_F(QueryHistoryTest, AFlushReadsWhatIsWanted) {
  for (int32_t step = 0; step < 9; ++step) Step({0}, 1);
  history_.Flush(wants_, keep_);
  EXPECT_EQ(kept_.size(), size_t{kWindow} * kShards);
  const int64_t waits = runtime_.counts().waits;
  ExpectKept(0);
  EXPECT_EQ(runtime_.counts().waits, waits);
}

TEST_F(QueryHistoryTest, AFullDeviceIsNoFailure) {
  for (int32_t step = 0; step < 9; ++step) Step({0}, 1);
  EXPECT_EQ(history_.Prepare(kWindow, 1 << 20, wants_, keep_).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_OK(runtime_.status());
  EXPECT_EQ(kept_.size(), size_t{kWindow} * kShards);
  ExpectKept(0);
  Step({0}, 1);
  ExpectKept(0);
}

}  // namespace
}  // namespace blockmgr
