#include "scheduler/server/kv_event_publisher.h"

#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <deque>
#include <future>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <zmq.hpp>
#include <zmq_addon.hpp>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "scheduler/server/kv_event_index.h"
#include "scheduler/server/kv_event_packing.h"
#include "scheduler/server/listen_address.h"
#include "scheduler/server/rate_limited_warning.h"

namespace blockmgr {
namespace {

// The limits of one reading, which takes the core thread some 25 us.
constexpr int32_t kMaxReadBlocks = 512;
constexpr int32_t kMaxReadTokens = 8192;
// The pause between two readings: while changes are left, and after the last
// change.
constexpr std::chrono::milliseconds kTurn{1};
constexpr std::chrono::milliseconds kIdleTurn{20};
// Requests of replays and subscriptions are short.
constexpr int64_t kMaxRequestBytes = 1024;
// Replays in one turn.
constexpr int kMaxReplays = 8;
constexpr int64_t kEndOfReplay = -1;

constexpr char kEndpointForm[] = "tcp://ADDRESS:PORT or ipc://PATH";

absl::Status ValidateEndpoint(absl::string_view field,
                              const std::string& endpoint, bool remote) {
  absl::string_view rest = endpoint;
  if (absl::ConsumePrefix(&rest, "ipc://") && !rest.empty()) {
    return absl::OkStatus();
  }
  const std::string expected = absl::StrCat(field, ": expected ", kEndpointForm,
                                            ", got \"", endpoint, "\"");
  if (!absl::ConsumePrefix(&rest, "tcp://")) {
    return absl::InvalidArgumentError(expected);
  }
  BM_ASSIGN_OR_RETURN(const HostPort address,
                      ParseHostPort(field, kEndpointForm, std::string(rest)));
  if (remote || IsLoopback(address.host)) return absl::OkStatus();
  return Invalid(
      field, ": expected a loopback address (127.0.0.1, ::1) or ipc://PATH, ",
      "because KV events have prompts in them and are not encrypted (",
      "kv_events_remote allows others), got \"", address.host, "\"");
}

// Returns the number as peers expect it.
std::array<char, 8> BigEndian(int64_t number) {
  static_assert(std::endian::native == std::endian::little);
  auto bytes = std::bit_cast<std::array<char, 8>>(number);
  std::ranges::reverse(bytes);
  return bytes;
}

// Returns the number of a frame of 8 bytes.
uint64_t FromBigEndian(const zmq::message_t& frame) {
  uint64_t number = 0;
  for (size_t i = 0; i < frame.size(); ++i) {
    number = number << 8 | frame.data<unsigned char>()[i];
  }
  return number;
}

double SecondsSince1970() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

zmq::message_t Frame(absl::string_view bytes) {
  return zmq::message_t(bytes.data(), bytes.size());
}

// Removes a stale socket at the path of an ipc:// endpoint. libzmq itself would
// remove any file there, and also the socket of a daemon that runs.
absl::Status ClearPath(absl::string_view field, const std::string& endpoint) {
  absl::string_view path = endpoint;
  if (!absl::ConsumePrefix(&path, "ipc://")) return absl::OkStatus();
  if (absl::StartsWith(path, "@") ||
      path.size() >= sizeof(sockaddr_un::sun_path)) {
    return Invalid(field, ": expected the path of a file, of at most ",
                   sizeof(sockaddr_un::sun_path) - 1, " bytes, got ", endpoint);
  }
  const absl::Status cleared =
      RemoveStaleSocket({.target = endpoint, .path = std::string(path)});
  return absl::Status(
      cleared.code(),
      absl::StrCat(field, ": ",
                   absl::StripPrefix(cleared.message(), "listen: ")));
}

// Listens, and returns the endpoint that peers connect to.
absl::StatusOr<std::string> Bind(absl::string_view field,
                                 const std::string& endpoint,
                                 zmq::socket_t* socket) {
  BM_RETURN_IF_ERROR(ClearPath(field, endpoint));
  // The daemon's user and group may connect, as at the daemon's own socket.
  const mode_t mask = umask(0117);
  socket->set(zmq::sockopt::ipv6, absl::StrContains(endpoint, '[') ? 1 : 0);
  try {
    socket->bind(endpoint);
  } catch (const zmq::error_t& error) {
    umask(mask);
    return absl::UnavailableError(
        absl::StrCat(field, ": cannot listen at ", endpoint, ": ", error.what(),
                     ": expected a free port of an address of ",
                     "this machine, or a path that can be made"));
  }
  umask(mask);
  return socket->get(zmq::sockopt::last_endpoint);
}

}  // namespace

// Topic holds the number of the next batch and the latest batches for replays.
// Senders share the bytes of a message and count its users.
class KvEventPublisher::Topic {
 public:
  explicit Topic(std::string name) : name_(std::move(name)) {}

  const std::string& name() const { return name_; }

  void Publish(const std::string& batch, zmq::socket_t* socket) {
    zmq::message_t kept = Frame(batch);
    Send(name_, next_, &kept, socket);
    kept_bytes_ += std::ssize(batch);
    kept_.push_back(std::move(kept));
    ++next_;
    while (kept_bytes_ > kMaxKeptBytes || std::ssize(kept_) > kMaxKeptBatches) {
      kept_bytes_ -= static_cast<int64_t>(kept_.front().size());
      kept_.pop_front();
    }
  }

  // Sends the kept batches from number `begin` on to `peer`. EndReplay follows.
  void Replay(uint64_t begin, const zmq::message_t& peer,
              zmq::socket_t* socket) {
    const int64_t first = next_ - std::ssize(kept_);
    for (int64_t i = 0; i < std::ssize(kept_); ++i) {
      const int64_t number = first + i;
      if (static_cast<uint64_t>(number) < begin) continue;
      SendPeer(peer, socket);
      Send(name_, number, &kept_[static_cast<size_t>(i)], socket);
    }
  }
  static void EndReplay(const zmq::message_t& peer, zmq::socket_t* socket) {
    SendPeer(peer, socket);
    zmq::message_t nothing;
    Send("", kEndOfReplay, &nothing, socket);
  }

 private:
  static void SendPeer(const zmq::message_t& peer, zmq::socket_t* socket) {
    (void)socket->send(zmq::message_t(peer.data(), peer.size()),
                       zmq::send_flags::sndmore | zmq::send_flags::dontwait);
    (void)socket->send(zmq::message_t(),
                       zmq::send_flags::sndmore | zmq::send_flags::dontwait);
  }
  // A socket never waits. It drops messages for which a peer has no room.
  static void Send(const std::string& topic, int64_t number,
                   zmq::message_t* batch, zmq::socket_t* socket) {
    constexpr auto kMore = zmq::send_flags::sndmore | zmq::send_flags::dontwait;
    const std::array<char, 8> bytes = BigEndian(number);
    zmq::message_t shared;
    shared.copy(*batch);
    (void)socket->send(Frame(topic), kMore);
    (void)socket->send(zmq::message_t(bytes.data(), bytes.size()), kMore);
    (void)socket->send(std::move(shared), zmq::send_flags::dontwait);
  }

  const std::string name_;
  int64_t next_ = 0;
  std::deque<zmq::message_t> kept_;
  int64_t kept_bytes_ = 0;
};

// Start uses the sockets before the thread begins. Then only the thread uses
// them.
class KvEventPublisher::Sockets {
 public:
  explicit Sockets(const KvEventOptions& options)
      : blocks_(options.topic),
        prefixes_(options.compressed_topic),
        index_(/*tells_prefixes=*/!options.compressed_topic.empty()) {
    for (zmq::socket_t* const socket : {&publisher_, &replays_}) {
      socket->set(zmq::sockopt::linger, 0);
      socket->set(zmq::sockopt::maxmsgsize, kMaxRequestBytes);
      // Keepalive frees the memory of peers whose machines are gone.
      socket->set(zmq::sockopt::tcp_keepalive, 1);
    }
    publisher_.set(zmq::sockopt::sndhwm, kMaxUnreadBatches);
    // The queue has room for a whole replay, and for a second one that is asked
    // for before the first is read.
    replays_.set(zmq::sockopt::sndhwm, static_cast<int>(2 * kMaxKeptBatches));
    replays_.set(zmq::sockopt::rcvhwm, kMaxReplays);
  }

  zmq::socket_t* publisher() { return &publisher_; }
  zmq::socket_t* replays() { return &replays_; }

  // Publishes the events that follow from a reading.
  void Publish(const PrefixCacheReading& reading) {
    const KvEventLists events = index_.Apply(reading);
    const double seconds = SecondsSince1970();
    for (const std::string& batch : PackKvEvents(
             events.blocks, reading.page_size, seconds, kMaxBatchBytes)) {
      blocks_.Publish(batch, &publisher_);
    }
    if (prefixes_.name().empty()) return;
    for (const std::string& batch : PackKvEvents(
             events.prefixes, reading.page_size, seconds, kMaxBatchBytes)) {
      prefixes_.Publish(batch, &publisher_);
    }
  }

  // Waits for `duration`, and answers requests that come before its end.
  void AnswerReplays(std::chrono::milliseconds duration) {
    zmq::pollitem_t item = {replays_.handle(), 0, ZMQ_POLLIN, 0};
    zmq::poll(&item, 1, duration);
    for (int i = 0; i < kMaxReplays; ++i) {
      std::vector<zmq::message_t> frames;
      if (!zmq::recv_multipart(replays_, std::back_inserter(frames),
                               zmq::recv_flags::dontwait)) {
        return;
      }
      Answer(frames);
    }
  }

 private:
  void Answer(const std::vector<zmq::message_t>& frames) {
    const bool has_topic = frames.size() == 4;
    if ((frames.size() != 3 && !has_topic) || !frames[1].empty() ||
        frames[2].size() != 8) {
      warning_.Warn(absl::StrCat(
          "expected an empty frame and a frame of 8 bytes in a request of a ",
          "replay, got ", frames.size() - 1, " frames"));
      return;
    }
    // A topic that is not published keeps no batches.
    for (Topic* const topic : {&blocks_, &prefixes_}) {
      const bool is_asked = has_topic
                                ? frames[3].to_string_view() == topic->name()
                                : topic == &blocks_;
      if (is_asked) {
        topic->Replay(FromBigEndian(frames[2]), frames[0], &replays_);
        break;
      }
    }
    Topic::EndReplay(frames[0], &replays_);
  }

  zmq::context_t context_;
  zmq::socket_t publisher_{context_, zmq::socket_type::pub};
  zmq::socket_t replays_{context_, zmq::socket_type::router};
  Topic blocks_;
  Topic prefixes_;
  KvEventIndex index_;
  RateLimitedWarning warning_;
};

absl::Status KvEventOptions::Validate() const {
  if (endpoint.empty()) {
    if (replay_endpoint.empty() && compressed_topic.empty()) {
      return absl::OkStatus();
    }
    return Invalid("kv_events_endpoint: expected ", kEndpointForm, " where ",
                   replay_endpoint.empty() ? "kv_events_compressed_topic"
                                           : "kv_events_replay_endpoint",
                   " is set, got none");
  }
  BM_RETURN_IF_ERROR(ValidateEndpoint("kv_events_endpoint", endpoint, remote));
  if (!replay_endpoint.empty()) {
    BM_RETURN_IF_ERROR(
        ValidateEndpoint("kv_events_replay_endpoint", replay_endpoint, remote));
  }
  if (!compressed_topic.empty() && absl::StartsWith(compressed_topic, topic)) {
    return Invalid(
        "kv_events_compressed_topic: expected a text that does not begin with ",
        "kv_events_topic (\"", topic, "\"), because its subscribers would get ",
        "both, got \"", compressed_topic, "\"");
  }
  return absl::OkStatus();
}

KvEventPublisher::KvEventPublisher(CoreThread* core) : core_(core) {}

absl::StatusOr<std::unique_ptr<KvEventPublisher>> KvEventPublisher::Start(
    const KvEventOptions& options, CoreThread* core) {
  BM_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<KvEventPublisher> publisher(new KvEventPublisher(core));
  publisher->sockets_ = std::make_unique<Sockets>(options);
  BM_ASSIGN_OR_RETURN(publisher->endpoint_,
                      Bind("kv_events_endpoint", options.endpoint,
                           publisher->sockets_->publisher()));
  if (!options.replay_endpoint.empty()) {
    BM_ASSIGN_OR_RETURN(
        publisher->replay_endpoint_,
        Bind("kv_events_replay_endpoint", options.replay_endpoint,
             publisher->sockets_->replays()));
  }
  publisher->thread_ = std::thread([p = publisher.get()] { p->Run(); });
  return publisher;
}

KvEventPublisher::~KvEventPublisher() {
  stopping_.store(true);
  if (thread_.joinable()) thread_.join();
}

void KvEventPublisher::Run() {
  using Reading = absl::StatusOr<PrefixCacheReading>;
  PrefixCacheCursor cursor;
  // The version that the cache had before the last reading.
  uint64_t version = 0;
  bool is_current = false;
  std::chrono::milliseconds pause = kTurn;
  while (!stopping_.load()) {
    sockets_->AnswerReplays(pause);
    const uint64_t now = core_->prefix_cache_version();
    if (is_current && now == version) continue;
    const auto promise = std::make_shared<std::promise<Reading>>();
    core_->Post(ReadPrefixCache{
        cursor, kMaxReadBlocks, kMaxReadTokens,
        [promise](Reading read) { promise->set_value(std::move(read)); }});
    const Reading reading = promise->get_future().get();
    // An error means that the command queue was full, or that the daemon ends.
    is_current = reading.ok() && reading->delta.current;
    pause = is_current || !reading.ok() ? kIdleTurn : kTurn;
    if (!reading.ok()) continue;
    version = now;
    cursor = reading->cursor;
    sockets_->Publish(*reading);
  }
}

}  // namespace blockmgr
