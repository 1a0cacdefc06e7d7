#include "scheduler/server/prefix_cache_watches.h"

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/server/server_harness.h"

namespace blockmgr {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A router's side of one stream.
class Router {
 public:
  explicit Router(const std::string& address)
      : stub_(v1::AdminService::NewStub(Connect(address))) {}
  ~Router() { Close(); }

  void Open() {
    context_ = std::make_unique<grpc::ClientContext>();
    v1::WatchPrefixCacheRequest request;
    *request.mutable_position() = position_;
    is_current_ = false;
    stream_ = stub_->WatchPrefixCache(context_.get(), request);
  }
  grpc::Status Close() {
    if (stream_ == nullptr) return grpc::Status();
    context_->TryCancel();
    return Finish();
  }
  // What is left in the stream is lost.
  grpc::Status Finish() {
    v1::PrefixCacheUpdate update;
    while (stream_->Read(&update)) {
    }
    grpc::Status status = stream_->Finish();
    stream_.reset();
    return status;
  }
  // Reads an update and applies it.
  bool Read() {
    v1::PrefixCacheUpdate update;
    if (!stream_->Read(&update)) return false;
    if (update.reset()) {
      ++num_resets_;
      blocks_.clear();
      regions_.clear();
    }
    for (const uint64_t id : update.removed()) {
      blocks_.erase(id);
      regions_.erase(id);
    }
    for (const v1::CachedBlock& block : update.blocks()) {
      blocks_[block.id()] = block.token_ids(0);
    }
    for (const v1::CachedRegion& piece : update.regions()) {
      if (piece.first_token() == 0) regions_[piece.id()] = 0;
      EXPECT_EQ(piece.first_token(), regions_[piece.id()]);
      regions_[piece.id()] += piece.token_ids_size();
      EXPECT_EQ(piece.last(), regions_[piece.id()] == piece.length());
    }
    if (update.has_position()) position_ = update.position();
    has_all_of_reading_ = update.has_position();
    is_current_ = update.current();
    return true;
  }
  // Until it knows all, and that is so many blocks.
  void ReadUntil(size_t num_blocks) {
    while (!is_current_ || blocks_.size() != num_blocks) ASSERT_TRUE(Read());
  }
  // Until it knows one block, which begins with `token`.
  void ReadUntilOnly(uint32_t token) {
    while (tokens() != std::vector<uint32_t>{token}) ASSERT_TRUE(Read());
  }
  // Until it has read a part of a reading.
  void ReadInPart() {
    do {
      ASSERT_TRUE(Read());
    } while (has_all_of_reading_);
  }
  // First tokens of the blocks it knows.
  std::vector<uint32_t> tokens() const {
    std::vector<uint32_t> tokens;
    for (const auto& [id, token] : blocks_) tokens.push_back(token);
    return tokens;
  }
  int num_resets() const { return num_resets_; }
  // Tokens of the regions it knows, as far as it was told.
  std::vector<int32_t> region_tokens() const {
    std::vector<int32_t> tokens;
    for (const auto& [id, num_tokens] : regions_) tokens.push_back(num_tokens);
    return tokens;
  }

 private:
  std::unique_ptr<v1::AdminService::Stub> stub_;
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<grpc::ClientReader<v1::PrefixCacheUpdate>> stream_;
  std::map<uint64_t, uint32_t> blocks_;
  std::map<uint64_t, int32_t> regions_;
  v1::PrefixCachePosition position_;
  bool has_all_of_reading_ = false;  // by the last update
  bool is_current_ = false;
  int num_resets_ = 0;
};

class PrefixCacheWatchesTest : public CachingServerTest {
 protected:
  void SetUp() override {
    ServerTest::SetUp();
    Attach();
  }
  // Pages of so many tokens that one is 40 KB on the wire: those of a cache do
  // not fit into what gRPC takes from a stream that nobody reads.
  static ModelLayout LongPages() {
    ModelLayout layout = SmallLayout();
    layout.page_size = 8192;
    return layout;
  }
  // Caches `count` long pages from kLargeToken + first on.
  void ServeLongPages(uint32_t first, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) {
      Serve(kLargeToken + first + i, LongPages().page_size);
    }
  }

  static constexpr uint32_t kLargeToken = 1u << 29;  // five bytes
};

TEST_F(PrefixCacheWatchesTest, TellsWhatIsThereAndThenWhatChanges) {
  Serve(1);
  Router router(address());
  router.Open();
  router.ReadUntil(1);
  EXPECT_THAT(router.tokens(), ElementsAre(1));
  Serve(2);
  Serve(3);
  router.ReadUntil(3);
  EXPECT_THAT(router.tokens(), ElementsAre(1, 2, 3));
  ResetPrefixCache();
  router.ReadUntil(0);
  EXPECT_EQ(router.num_resets(), 1) << "at the beginning";
}

TEST_F(PrefixCacheWatchesTest, ARouterThatComesBackGoesOnWhereItWas) {
  Serve(1);
  Router router(address());
  router.Open();
  router.ReadUntil(1);
  EXPECT_EQ(router.Close().error_code(), grpc::CANCELLED);
  Serve(2);
  router.Open();
  router.ReadUntil(2);
  EXPECT_THAT(router.tokens(), ElementsAre(1, 2));
  EXPECT_EQ(router.num_resets(), 1);
  // More than the log has.
  router.Close();
  for (int i = 0; i < SmallLayout().num_blocks; ++i) {
    Serve(3);
    ResetPrefixCache();
  }
  Serve(4);
  router.Open();
  router.ReadUntil(1);
  EXPECT_THAT(router.tokens(), ElementsAre(4));
  EXPECT_EQ(router.num_resets(), 2);
}

TEST_F(PrefixCacheWatchesTest, AnotherLayoutBeginsAnewInTheSameStream) {
  Serve(1);
  Router router(address());
  router.Open();
  router.ReadUntil(1);
  ModelLayout layout = SmallLayout();
  layout.num_blocks = 50;
  Reattach(layout);
  Serve(2);
  router.ReadUntilOnly(2);
  EXPECT_GE(router.num_resets(), 2);
}

TEST_F(PrefixCacheWatchesTest, RoutersBeyondTheLimitAreRefused) {
  std::vector<std::unique_ptr<Router>> routers;
  for (int i = 0; i < PrefixCacheWatches::kMaxStreams; ++i) {
    routers.push_back(std::make_unique<Router>(address()));
    routers.back()->Open();
    ASSERT_TRUE(routers.back()->Read());
  }
  Router late(address());
  late.Open();
  EXPECT_THAT(late.Finish(), GrpcError(grpc::RESOURCE_EXHAUSTED,
                                       "fewer than 64 open streams"));
  // All are told.
  Serve(1);
  for (const auto& router : routers) router->ReadUntil(1);
  routers.pop_back();
  EXPECT_TRUE(WaitUntil([&] {
    late.Open();
    const bool is_open = late.Read();
    if (!is_open) late.Finish();
    return is_open;
  }));
  late.ReadUntil(1);
}

// Routers that never read wait for themselves only.
TEST_F(PrefixCacheWatchesTest, RoutersThatDoNotReadHoldUpNobody) {
  constexpr uint32_t kPages = 40;
  Reattach(LongPages());
  ServeLongPages(0, kPages);
  std::vector<std::unique_ptr<Router>> stalled;
  for (int i = 0; i < 20; ++i) {
    stalled.push_back(std::make_unique<Router>(address()));
    stalled.back()->Open();
  }
  Router router(address());
  router.Open();
  for (int round = 0; round < 3; ++round) {
    router.ReadUntil(kPages);
    ResetPrefixCache();
    router.ReadUntil(0);
    ServeLongPages(100, kPages);
  }
  ResetPrefixCache();
  ServeLongPages(7, 1);
  // They catch up when they read.
  int num_lapsed = 0;
  for (const auto& late : stalled) {
    late->ReadUntilOnly(kLargeToken + 7);
    num_lapsed += late->num_resets() > 1 ? 1 : 0;
  }
  EXPECT_GT(num_lapsed, 0) << "nobody had been held up";
}

TEST_F(PrefixCacheWatchesTest, EndWithTheDaemon) {
  Router idle(address());
  idle.Open();
  idle.ReadUntil(0);
  Router stalled(address());
  stalled.Open();
  Router gone(address());
  gone.Open();
  ASSERT_TRUE(gone.Read());
  gone.Close();
  server_->Shutdown(std::chrono::seconds(20));
  EXPECT_THAT(idle.Finish(), GrpcError(grpc::UNAVAILABLE, "shutting down"));
  EXPECT_EQ(stalled.Finish().error_code(), grpc::UNAVAILABLE);
}

TEST_F(PrefixCacheWatchesTest, TheEndOfTheDaemonWaitsForNoRouter) {
  Reattach(LongPages());
  ServeLongPages(0, 40);
  Router stalled(address());
  stalled.Open();
  // It has been told something that does not fit.
  Router router(address());
  router.Open();
  router.ReadUntil(40);
  server_->Shutdown(std::chrono::milliseconds(100));
  const grpc::Status status = stalled.Finish();
  EXPECT_THAT(status.error_code(),
              testing::AnyOf(grpc::UNAVAILABLE, grpc::CANCELLED));
}

// A region of a prompt so long that it takes more than one message, and a
// router that goes after the first.
TEST_F(PrefixCacheWatchesTest, ARouterMayBreakOffWithinAReading) {
  constexpr int32_t kTokens = 320'000;
  Serve(1);
  Router router(address());
  router.Open();
  router.ReadUntil(1);
  Serve(kLargeToken, kTokens);
  router.ReadInPart();
  EXPECT_THAT(router.region_tokens(), ElementsAre(testing::Lt(kTokens)));
  router.Close();
  // It is told again.
  router.Open();
  router.ReadUntil(3);
  EXPECT_THAT(router.tokens(), ElementsAre(1, kLargeToken, kLargeToken));
  EXPECT_THAT(router.region_tokens(), ElementsAre(kTokens));
  // It is told that it has gone.
  Serve(kLargeToken + 1, kTokens);
  router.Close();
  router.Open();
  router.ReadInPart();
  router.Close();
  ResetPrefixCache();
  Serve(2);
  router.Open();
  router.ReadUntil(1);
  EXPECT_THAT(router.tokens(), ElementsAre(2));
  EXPECT_THAT(router.region_tokens(), IsEmpty());
  EXPECT_EQ(router.num_resets(), 1);
}

}  // namespace
}  // namespace blockmgr
