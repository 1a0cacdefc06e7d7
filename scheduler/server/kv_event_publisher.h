// KvEventPublisher: tells the prefix cache's changes to subscribers on ZeroMQ,
// in the format of vLLM's KV events.
//
// Every batch (kv_event_packing.h) is a message of three frames:
//
//   topic | number of the batch, 8 bytes, big-endian, from 0 | batch
//
// Compressed prefixes have a topic of their own, with numbers of its own,
// because consumers drop a batch with an event that they do not know. The
// latest batches are kept. A peer of the replay socket (a ROUTER) sends
//
//   "" | number, 8 bytes, big-endian [| topic; the blocks' if there is none]
//
// and gets the kept batches from that number on, each as "" | topic | number |
// batch, and at the end "" | "" | -1 | "". For a topic that is not published,
// it gets the end only.
//
// The publisher reads the cache as a router's stream does: at most one reading
// a millisecond, or every 20 ms if it knows all. Sockets never block. A
// subscriber that does not read loses batches, after kMaxUnreadBatches, and
// sees that from their numbers. So nobody waits for subscribers, and the memory
// that they cost is limited: that of the kept batches, and, for a subscriber
// that does not read, that of its unread batches.
//
// Threads: Start and the destructor by one thread. The CoreThread must outlive
// the publisher.
#ifndef SCHEDULER_SERVER_KV_EVENT_PUBLISHER_H_
#define SCHEDULER_SERVER_KV_EVENT_PUBLISHER_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "scheduler/server/core_thread.h"

namespace blockmgr {

struct KvEventOptions {
  // Each of these may be empty. Then nothing is published, there is no replay
  // socket, or compressed prefixes are not published.
  std::string endpoint = {};
  std::string replay_endpoint = {};
  std::string compressed_topic = {};
  std::string topic = {};
  bool remote = false;  // other machines may reach the endpoints

  // InvalidArgument, with the name of the flag's field (kv_events_topic ..).
  absl::Status Validate() const;
};

class KvEventPublisher {
 public:
  // The most batches that a subscriber may leave unread, and the approximate
  // size of a batch.
  static constexpr int kMaxUnreadBatches = 512;
  static constexpr int64_t kMaxBatchBytes = int64_t{64} << 10;
  // The most batches of a topic, and their bytes, that are kept for replays.
  static constexpr int64_t kMaxKeptBatches = 4096;
  static constexpr int64_t kMaxKeptBytes = int64_t{32} << 20;

  // InvalidArgument if the options are not valid, Unavailable if an endpoint
  // cannot be listened at. REQUIRES: options.endpoint is not empty.
  static absl::StatusOr<std::unique_ptr<KvEventPublisher>> Start(
      const KvEventOptions& options, CoreThread* core);
  ~KvEventPublisher();
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;

  // The endpoints that peers connect to, with the port that was found for port
  // 0. The second is empty if there is no replay socket.
  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

 private:
  class Topic;
  class Sockets;
  explicit KvEventPublisher(CoreThread* core);

  void Run();

  CoreThread* const core_;
  std::string endpoint_;
  std::string replay_endpoint_;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<Sockets> sockets_;  // used by thread_ while it runs
  std::thread thread_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_KV_EVENT_PUBLISHER_H_
