#include "scheduler/server/kv_event_publisher.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "tests/scheduler/server/server_harness.h"
#include "tests/testing/is_invalid.h"
#include "tests/testing/status_matchers.h"

namespace blockmgr {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Json = nlohmann::json;

struct Batch {
  std::string topic;
  int64_t number = 0;
  std::string bytes;

  Json events() const { return Json::from_msgpack(bytes)[1]; }
};

std::string BigEndian(uint64_t number) {
  std::string bytes;
  for (int shift = 56; shift >= 0; shift -= 8) {
    bytes += static_cast<char>(number >> shift & 0xFF);
  }
  return bytes;
}

// `frames`: topic, number, batch.
Batch ToBatch(std::vector<zmq::message_t> frames) {
  EXPECT_THAT(frames, SizeIs(3));
  if (frames.size() != 3) return {};
  EXPECT_EQ(frames[1].size(), 8u);
  uint64_t number = 0;
  for (const char c : frames[1].to_string()) {
    number = number << 8 | static_cast<unsigned char>(c);
  }
  return {.topic = frames[0].to_string(),
          .number = static_cast<int64_t>(number),
          .bytes = frames[2].to_string()};
}

class Subscriber {
 public:
  // Reads no more than `max_ahead` batches ahead of Next().
  Subscriber(const std::string& endpoint, const std::string& topic,
             int max_ahead = 100'000) {
    socket_.set(zmq::sockopt::linger, 0);
    socket_.set(zmq::sockopt::rcvhwm, max_ahead);
    socket_.set(zmq::sockopt::subscribe, topic);
    socket_.connect(endpoint);
  }

  // Waits up to `timeout`.
  std::optional<Batch> Next(std::chrono::milliseconds timeout) {
    socket_.set(zmq::sockopt::rcvtimeo, static_cast<int>(timeout.count()));
    std::vector<zmq::message_t> frames;
    if (!zmq::recv_multipart(socket_, std::back_inserter(frames))) return {};
    return ToBatch(std::move(frames));
  }

 private:
  zmq::context_t context_;
  zmq::socket_t socket_{context_, zmq::socket_type::sub};
};

// All batches that are kept, from `begin` on.
std::vector<Batch> Replay(const std::string& endpoint, uint64_t begin,
                          const std::string& topic = "") {
  zmq::context_t context;
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  socket.set(zmq::sockopt::rcvtimeo, 60'000);
  socket.connect(endpoint);
  std::vector<zmq::const_buffer> request = {zmq::const_buffer(),
                                            zmq::const_buffer()};
  const std::string number = BigEndian(begin);
  request[1] = zmq::buffer(number);
  if (!topic.empty()) request.push_back(zmq::buffer(topic));
  EXPECT_TRUE(zmq::send_multipart(socket, request));
  std::vector<Batch> batches;
  while (true) {
    std::vector<zmq::message_t> frames;
    const auto num_frames =
        zmq::recv_multipart(socket, std::back_inserter(frames));
    EXPECT_EQ(num_frames, 4u);
    if (num_frames != 4u) return batches;
    EXPECT_TRUE(frames[0].empty());
    frames.erase(frames.begin());
    Batch batch = ToBatch(std::move(frames));
    if (batch.number == -1) {
      EXPECT_EQ(batch.topic, "");
      EXPECT_EQ(batch.bytes, "");
      return batches;
    }
    batches.push_back(std::move(batch));
  }
}

// First tokens of the blocks that batches say are cached.
std::vector<uint32_t> Cached(const std::vector<Batch>& batches) {
  std::map<uint64_t, uint32_t> blocks;
  int64_t number = batches.empty() ? 0 : batches[0].number;
  for (const Batch& batch : batches) {
    EXPECT_EQ(batch.number, number++) << "a gap";
    for (const Json& event : batch.events()) {
      if (event["type"] == "AllBlocksCleared") blocks.clear();
      if (event["type"] == "BlockRemoved") {
        for (const uint64_t hash : event["block_hashes"]) blocks.erase(hash);
      }
      if (event["type"] == "BlockStored") {
        EXPECT_EQ(event["parent_block_hash"], nullptr);
        blocks[event["block_hashes"][0]] = event["token_ids"][0];
      }
    }
  }
  std::vector<uint32_t> tokens;
  tokens.reserve(blocks.size());
  for (const auto& [hash, token] : blocks) tokens.push_back(token);
  std::ranges::sort(tokens);
  return tokens;
}

class KvEventPublisherTest : public CachingServerTest {
 protected:
  void SetUp() override { StartEvents({}); }

  void StartEvents(KvEventOptions events,
                   SchedulerFactory factory = FakeScheduler::Make) {
    Detach();
    ServerOptions options;
    if (events.endpoint.empty()) events.endpoint = "tcp://127.0.0.1:0";
    events.replay_endpoint = "ipc://" + folder_.path() + "/replay";
    options.kv_events = events;
    Start(options, std::move(factory));
    Attach();
  }
  std::string endpoint() const { return server_->kv_events()->endpoint(); }
  std::vector<Batch> Kept(uint64_t begin = 0, const std::string& topic = "") {
    return Replay(server_->kv_events()->replay_endpoint(), begin, topic);
  }
  // Waits until what was published says this.
  [[nodiscard]] bool WaitForCached(const std::vector<uint32_t>& tokens) {
    return WaitUntil([&] { return Cached(Kept()) == tokens; });
  }
};

TEST_F(KvEventPublisherTest, TellsWhatChanges) {
  Serve(7);
  Serve(9);
  EXPECT_TRUE(WaitForCached({7, 9}));
  ResetPrefixCache();
  EXPECT_TRUE(WaitForCached({}));
  Serve(3);
  EXPECT_TRUE(WaitForCached({3}));
  const std::vector<Batch> all = Kept();
  EXPECT_EQ(all[0].number, 0);
  EXPECT_EQ(all[0].events()[0]["type"], "AllBlocksCleared");
  // A replay from some number has the same batches from there on.
  const std::vector<Batch> some = Kept(2);
  ASSERT_EQ(some.size(), all.size() - 2);
  EXPECT_EQ(some[0].number, 2);
  EXPECT_EQ(some[0].bytes, all[2].bytes);
  EXPECT_THAT(Kept(1'000'000), IsEmpty());
}

TEST_F(KvEventPublisherTest, SubscribersGetTheBatchesThatAreKept) {
  StartEvents({.topic = "kv@pod@model"});
  Subscriber subscriber(endpoint(), "kv@");
  Subscriber other(endpoint(), "other");
  // A connection takes its time.
  std::optional<Batch> first;
  for (uint32_t token = 1; !first.has_value(); ++token) {
    Serve(token);
    first = subscriber.Next(std::chrono::milliseconds(20));
  }
  EXPECT_EQ(first->topic, "kv@pod@model");
  Serve(1000);
  std::vector<Batch> told = {*first};
  // The first batch may only say that nothing is cached.
  const auto has_last = [&] {
    const std::vector<uint32_t> cached = Cached(told);
    return !cached.empty() && cached.back() == 1000;
  };
  while (!has_last()) {
    const auto next = subscriber.Next(std::chrono::minutes(1));
    ASSERT_TRUE(next.has_value());
    told.push_back(*next);
  }
  const auto kept = Kept(static_cast<uint64_t>(first->number));
  ASSERT_EQ(kept.size(), told.size());
  for (size_t i = 0; i < kept.size(); ++i) {
    EXPECT_EQ(kept[i].topic, told[i].topic);
    EXPECT_EQ(kept[i].number, told[i].number);
    EXPECT_EQ(kept[i].bytes, told[i].bytes);
  }
  EXPECT_FALSE(other.Next(std::chrono::milliseconds(0)).has_value());
}

TEST_F(KvEventPublisherTest, AnotherLayoutBeginsAnew) {
  Serve(7);
  EXPECT_TRUE(WaitForCached({7}));
  ModelLayout layout = SmallLayout();
  layout.num_blocks = 50;
  Reattach(layout);
  Serve(8);
  EXPECT_TRUE(WaitForCached({8}));
}

TEST_F(KvEventPublisherTest, CompressedPrefixesHaveATopicOfTheirOwn) {
  StartEvents({.compressed_topic = "compressed", .topic = "blocks"});
  const int page = SmallLayout().page_size;
  Serve(5, 2 * page);  // caches its first page, too
  EXPECT_TRUE(WaitForCached({5}));
  std::vector<Batch> prefixes;
  ASSERT_TRUE(WaitUntil([&] {
    prefixes = Kept(0, "compressed");
    return prefixes.size() == 2;
  }));
  EXPECT_EQ(prefixes[0].number, 0);
  EXPECT_EQ(prefixes[1].topic, "compressed");
  EXPECT_EQ(prefixes[1].number, 1);
  const Json told = prefixes[1].events();
  ASSERT_THAT(told, SizeIs(1));
  EXPECT_EQ(told[0]["type"], "CompressedPrefixStored");
  EXPECT_EQ(told[0]["length"], 2 * page);
  EXPECT_THAT(told[0]["token_ids"], SizeIs(2 * page));
  for (const Batch& batch : Kept()) EXPECT_EQ(batch.topic, "blocks");
}

// Has a cache that is full of pages, each of which is more than a reading.
class FullScheduler : public FakeScheduler {
 public:
  FullScheduler(const ModelLayout& layout, const SchedulerOptions& options)
      : FakeScheduler(layout, options),
        full_(layout.num_blocks, layout.page_size) {
    BlockChain chain;
    const EntrySerial root = full_.AcquireRoot(chain.root());
    std::vector<int32_t> page(static_cast<size_t>(layout.page_size), 1 << 29);
    for (int32_t i = 1; i < layout.num_blocks; ++i) {
      page[0] = i;
      BlockChain own;
      own.Extend(page, layout.page_size);
      bool inserted = false;
      full_.Insert(BlockId{i}, own.keys()[0], own, root, page, 0, &inserted);
    }
  }

  const PrefixCache& prefix_cache() const override { return full_; }

 private:
  PrefixCache full_;
};

// A subscriber that does not read loses batches, and costs others nothing.
TEST_F(KvEventPublisherTest, ASubscriberThatDoesNotReadHoldsUpNobody) {
  constexpr int32_t kPages = KvEventPublisher::kMaxUnreadBatches + 250;
  constexpr int32_t kLongPage = 8192;
  StartEvents({},
              [](const ModelLayout& layout, const SchedulerOptions& options)
                  -> absl::StatusOr<std::unique_ptr<Scheduler>> {
                if (layout.page_size < kLongPage) {
                  return FakeScheduler::Make(layout, options);
                }
                return std::make_unique<FullScheduler>(layout, options);
              });
  Subscriber stalled(endpoint(), "", 1);
  Subscriber reader(endpoint(), "");
  std::optional<Batch> first;
  std::optional<Batch> first_of_stalled;
  for (uint32_t token = 1; !first.has_value() || !first_of_stalled.has_value();
       ++token) {
    Serve(token);
    const std::chrono::milliseconds wait(20);
    if (!first.has_value()) first = reader.Next(wait);
    if (!first_of_stalled.has_value()) first_of_stalled = stalled.Next(wait);
  }
  ModelLayout layout = SmallLayout();
  layout.page_size = kLongPage;
  layout.num_blocks = kPages + 1;
  Reattach(layout);
  // The other is told of every page.
  int64_t newest = first->number;
  for (int32_t num_pages = 0; num_pages < kPages;) {
    const auto next = reader.Next(std::chrono::minutes(1));
    ASSERT_TRUE(next.has_value());
    ASSERT_EQ(next->number, ++newest);
    num_pages += std::ssize(next->bytes) > kLongPage ? 1 : 0;
  }
  // The stalled one is left with what was kept for it and in its socket.
  int64_t num_stalled = 1;
  std::optional<Batch> last = first_of_stalled;
  while (auto next = stalled.Next(std::chrono::milliseconds(100))) {
    last = std::move(next);
    ++num_stalled;
  }
  EXPECT_LT(num_stalled, KvEventPublisher::kMaxUnreadBatches + 200);
  EXPECT_LT(last->number, newest) << "nothing was lost";
  // The replays' memory is limited.
  int64_t num_bytes = 0;
  for (const Batch& batch : Kept()) num_bytes += std::ssize(batch.bytes);
  EXPECT_LE(num_bytes, KvEventPublisher::kMaxKeptBytes);
}

TEST_F(KvEventPublisherTest, RequestsOfReplaysThatAreNoneAreIgnored) {
  zmq::context_t context;
  zmq::socket_t socket(context, zmq::socket_type::dealer);
  socket.set(zmq::sockopt::linger, 0);
  socket.connect(server_->kv_events()->replay_endpoint());
  for (const std::string frame : {"", "1234567", "123456789"}) {
    EXPECT_TRUE(zmq::send_multipart(
        socket, std::vector{zmq::const_buffer(), zmq::buffer(frame)}));
    socket.send(zmq::buffer(frame));
  }
  Serve(7);
  EXPECT_TRUE(WaitForCached({7}));
  socket.set(zmq::sockopt::rcvtimeo, 0);
  std::vector<zmq::message_t> frames;
  EXPECT_FALSE(zmq::recv_multipart(socket, std::back_inserter(frames)));
}

// The blocks' batches would have numbers and events of another topic.
TEST_F(KvEventPublisherTest, AReplayOfATopicThatIsNotPublishedIsEmpty) {
  Serve(7);
  EXPECT_TRUE(WaitForCached({7}));
  EXPECT_THAT(Kept(0, "compressed"), IsEmpty());
  StartEvents({.compressed_topic = "compressed", .topic = "blocks"});
  Serve(7);
  EXPECT_TRUE(WaitForCached({7}));
  EXPECT_THAT(Kept(0, "other"), IsEmpty());
  EXPECT_EQ(Cached(Kept(0, "blocks")), std::vector<uint32_t>{7});
}

TEST_F(KvEventPublisherTest, EndsWithTheDaemonWhateverIsUnread) {
  Subscriber subscriber(endpoint(), "");
  Serve(1);
  const auto begin = std::chrono::steady_clock::now();
  server_->Shutdown(std::chrono::milliseconds(100));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::minutes(1));
  EXPECT_EQ(server_->kv_events(), nullptr);
}

TEST_F(KvEventPublisherTest, AnEndpointInUseIsAnError) {
  ServerOptions options;
  options.listen = "unix:" + folder_.path() + "/other.sock";
  options.kv_events.endpoint = endpoint();
  EXPECT_THAT(Server::Start(options, FakeScheduler::Make),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("kv_events_endpoint: cannot listen at tcp")));
}

// libzmq would take a path whatever is there.
TEST_F(KvEventPublisherTest, APathIsTakenFromNobody) {
  const auto error_at = [this](const std::string& path) {
    ServerOptions options;
    options.listen = "unix:" + folder_.path() + "/other.sock";
    options.kv_events.endpoint = "ipc://" + path;
    return Server::Start(options, &FakeScheduler::Make).status();
  };
  const std::string file = folder_.path() + "/file";
  std::ofstream(file) << "text";
  EXPECT_THAT(error_at(file),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("kv_events_endpoint: " + file)));
  EXPECT_TRUE(std::filesystem::is_regular_file(file));
  EXPECT_THAT(error_at(folder_.path() + "/replay"),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       HasSubstr("kv_events_endpoint: ")));
  for (const std::string& path :
       {std::string("@name"), std::string(200, 'a')}) {
    EXPECT_THAT(error_at(path), IsInvalid("kv_events_endpoint: "));
  }
}

TEST(KvEventOptionsTest, EndpointsAreLocalUnlessToldOtherwise) {
  const auto validate = [](const std::string& endpoint, bool remote) {
    return KvEventOptions{.endpoint = endpoint, .remote = remote}.Validate();
  };
  for (const char* const endpoint :
       {"tcp://127.0.0.1:5557", "tcp://[::1]:0", "ipc:///tmp/events"}) {
    EXPECT_OK(validate(endpoint, false));
  }
  for (const char* const endpoint :
       {"tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://10.0.0.1:5557"}) {
    EXPECT_THAT(validate(endpoint, false),
                IsInvalid("kv_events_endpoint: expected a loopback"));
    EXPECT_OK(validate(endpoint, true));
  }
  for (const char* const endpoint :
       {"127.0.0.1:5557", "tcp://127.0.0.1", "tcp://127.0.0.1:65536", "ipc://",
        "udp://127.0.0.1:1"}) {
    EXPECT_THAT(validate(endpoint, true),
                IsInvalid("kv_events_endpoint: expected "
                          "tcp://ADDRESS:PORT or ipc://PATH"));
  }
}

TEST(KvEventOptionsTest, OptionsThatDoNothingAreErrors) {
  EXPECT_OK(KvEventOptions{}.Validate());
  EXPECT_THAT(KvEventOptions{.replay_endpoint = "ipc://a"}.Validate(),
              IsInvalid("where kv_events_replay_endpoint is set"));
  EXPECT_THAT(KvEventOptions{.compressed_topic = "a"}.Validate(),
              IsInvalid("where kv_events_compressed_topic is set"));
  EXPECT_THAT((KvEventOptions{.endpoint = "ipc://a",
                              .replay_endpoint = "tcp://8.8.8.8:1"})
                  .Validate(),
              IsInvalid("kv_events_replay_endpoint: expected"));
  for (const char* const topic : {"", "kv"}) {
    EXPECT_THAT((KvEventOptions{.endpoint = "ipc://a",
                                .compressed_topic = "kv-compressed",
                                .topic = topic})
                    .Validate(),
                IsInvalid("kv_events_compressed_topic: expected"));
  }
}

}  // namespace
}  // namespace blockmgr
