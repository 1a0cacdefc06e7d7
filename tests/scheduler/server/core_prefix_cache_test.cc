// What readers of the prefix cache are told, over the lives of engines.

#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "blockmgr/region_content.h"
#include "tests/scheduler/server/core_harness.h"

namespace blockmgr {
namespace {

using ::testing::IsEmpty;

class PrefixCacheCoreTest : public CoreTest {
 protected:
  absl::StatusOr<PrefixCacheReading> TryRead(const PrefixCacheCursor& cursor,
                                             int32_t max_blocks = 100,
                                             int32_t max_tokens = 1600) {
    absl::StatusOr<PrefixCacheReading> result = absl::UnknownError("no reply");
    Run(ReadPrefixCache{cursor, max_blocks, max_tokens,
                        [&result](absl::StatusOr<PrefixCacheReading> reading) {
                          result = std::move(reading);
                        }});
    return result;
  }
  // From where the last reading ended.
  PrefixCacheDelta Read() {
    absl::StatusOr<PrefixCacheReading> reading = TryRead(cursor_);
    EXPECT_OK(reading);
    if (!reading.ok()) return {};
    cursor_ = reading->cursor;
    page_size_ = reading->page_size;
    EXPECT_EQ(cursor_.epoch, 77u);
    return std::move(reading->delta);
  }
  // A page of `token` is cached when it has run.
  void Serve(const std::shared_ptr<RecordingEngine>& engine, int32_t token) {
    if (tokens_ == nullptr) tokens_ = OpenStream("a");
    Request request;
    request.id = std::to_string(token);
    request.prompt.assign(16, token);
    request.max_tokens = 1;
    EXPECT_OK(Submit("a", std::move(request)));
    Answer(engine, engine->plans.size() - 1);
  }
  uint64_t version() const { return core_.prefix_cache_version(); }

  PrefixCacheCursor cursor_;
  int32_t page_size_ = -1;
  std::shared_ptr<RecordingTokens> tokens_;
};

TEST_F(PrefixCacheCoreTest, WithoutAnEngineThereIsNothing) {
  const PrefixCacheDelta delta = Read();
  EXPECT_TRUE(delta.reset);
  EXPECT_TRUE(delta.current);
  EXPECT_THAT(delta.blocks, IsEmpty());
  EXPECT_EQ(page_size_, 0);
  EXPECT_EQ(cursor_.cache, 0u);
}

TEST_F(PrefixCacheCoreTest, ReadersGoOnWhereTheyWere) {
  const auto engine = AttachAndOpen();
  Serve(engine, 3);
  PrefixCacheDelta delta = Read();
  EXPECT_TRUE(delta.reset);
  EXPECT_TRUE(delta.current);
  EXPECT_EQ(page_size_, 16);
  ASSERT_EQ(delta.blocks.size(), 1u);
  EXPECT_EQ(delta.tokens, std::vector<int32_t>(16, 3));
  Serve(engine, 4);
  delta = Read();
  EXPECT_FALSE(delta.reset);
  ASSERT_EQ(delta.blocks.size(), 1u);
  EXPECT_EQ(delta.tokens, std::vector<int32_t>(16, 4));
  const EntrySerial serial = delta.blocks[0].serial;
  Run(ResetPrefixCache{[](const absl::StatusOr<CacheReset>&) {}});
  delta = Read();
  EXPECT_FALSE(delta.reset);
  EXPECT_TRUE(delta.current);
  EXPECT_EQ(delta.removed.size(), 3u) << "two blocks and their scope";
  EXPECT_THAT(delta.removed, testing::Contains(serial));
}

TEST_F(PrefixCacheCoreTest, TheNextEngineOfTheLayoutHasTheSameCache) {
  auto engine = AttachAndOpen();
  Serve(engine, 3);
  Read();
  Run(EngineLost{engine});
  EXPECT_FALSE(Read().reset);
  engine = AttachAndOpen();
  Serve(engine, 4);
  const PrefixCacheDelta delta = Read();
  EXPECT_FALSE(delta.reset);
  EXPECT_EQ(delta.blocks.size(), 1u);
}

// What another cache calls by the same numbers is something else.
TEST_F(PrefixCacheCoreTest, AnotherLayoutBeginsAnew) {
  auto engine = AttachAndOpen();
  Serve(engine, 3);
  Read();
  Run(EngineLost{engine});
  ModelLayout layout = SmallLayout();
  layout.num_blocks += 1;
  engine = AttachAndOpen(layout);
  Serve(engine, 4);
  const PrefixCacheDelta delta = Read();
  EXPECT_TRUE(delta.reset);
  EXPECT_TRUE(delta.current);
  ASSERT_EQ(delta.blocks.size(), 1u);
  EXPECT_EQ(delta.tokens, std::vector<int32_t>(16, 4));
}

TEST_F(PrefixCacheCoreTest, CursorsOfAnotherDaemonBeginAnew) {
  Serve(AttachAndOpen(), 3);
  Read();
  PrefixCacheCursor other = cursor_;
  other.epoch = 78;
  ASSERT_OK_AND_ASSIGN(const PrefixCacheReading reading, TryRead(other));
  EXPECT_TRUE(reading.delta.reset);
  EXPECT_EQ(reading.delta.blocks.size(), 1u);
  EXPECT_EQ(reading.cursor.epoch, 77u);
}

TEST_F(PrefixCacheCoreTest, ReadsNoMoreThanAsked) {
  const auto engine = AttachAndOpen();
  for (int32_t token = 1; token <= 5; ++token) Serve(engine, token);
  // Entry 0 is the null block's.
  for (const auto& [max_blocks, max_tokens, told] :
       {std::tuple(3, 1600, 2u), std::tuple(100, 3 * 16 + 15, 2u),
        std::tuple(2, 1, 0u), std::tuple(6, 6 * 16, 5u)}) {
    ASSERT_OK_AND_ASSIGN(const PrefixCacheReading reading,
                         TryRead({}, max_blocks, max_tokens));
    EXPECT_FALSE(reading.delta.current);
    EXPECT_EQ(reading.delta.blocks.size(), told);
    EXPECT_EQ(reading.cursor.position.entry, static_cast<int32_t>(told) + 1);
  }
}

TEST_F(PrefixCacheCoreTest, TheVersionTellsWhetherToAsk) {
  std::vector<uint64_t> versions = {version()};
  const auto has_changed = [&] {
    versions.push_back(version());
    return versions.back() != versions[versions.size() - 2];
  };
  Read();
  EXPECT_FALSE(has_changed());
  const auto engine = AttachAndOpen();
  EXPECT_TRUE(has_changed());
  Read();
  Stats(false);
  EXPECT_FALSE(has_changed());
  Serve(engine, 3);
  EXPECT_TRUE(has_changed());
  Serve(engine, 3);  // the cache has it
  EXPECT_FALSE(has_changed());
  Run(CloseAll{absl::UnavailableError("bye")});
  EXPECT_TRUE(has_changed());
}

TEST_F(PrefixCacheCoreTest, NobodyReadsOnceAllIsClosed) {
  AttachAndOpen();
  Run(Drain{[](const absl::Status&) {}});
  EXPECT_OK(TryRead({}).status());
  Run(CloseAll{absl::UnavailableError("bye")});
  EXPECT_EQ(TryRead({}).status().code(), absl::StatusCode::kUnavailable);
}

// The core thread, and one that sends it to a reader: which of the two is the
// last to let go of a part is decided anew with each.
TEST(PrefixCacheReadingTest, TwoThreadsMayLetGoOfTheContentOfARegion) {
  constexpr int32_t kParts = 50;
  const BlockChain chain;
  for (int round = 0; round < 200; ++round) {
    std::vector<std::shared_ptr<const RegionContent>> contents;
    std::vector<int32_t> tokens;
    for (int32_t part = 0; part < kParts; ++part) {
      tokens.resize(tokens.size() + 3, part);
      contents.push_back(RegionContent::Make(
          contents.empty() ? nullptr : contents.back(), tokens, "", chain));
    }
    std::shared_ptr<const RegionContent> last = contents.back();
    std::thread reader([&contents] {
      while (!contents.empty()) {
        EXPECT_EQ(contents.back()->before == nullptr, contents.size() == 1);
        contents.pop_back();
      }
    });
    last.reset();
    reader.join();
  }
}

}  // namespace
}  // namespace blockmgr
