// KvEventBatches: turns readings of the prefix cache into the events that
// gateways for vLLM understand (proto/smg/grpc/common.proto).
//
// The stream begins with a batch that tells the subscriber to forget what it
// knew. The next batches store every cached block, parents before their
// children. Later batches tell every change. Batches with events have
// consecutive numbers. The events, and the hashes of blocks, are those of
// KvEventIndex, as on ZeroMQ.
//
// The stream does not tell of compressed prefixes and of blocks behind them,
// because there is no event for them. It does not tell of blocks of tenants,
// because the messages have no field for a tenant.
#ifndef SCHEDULER_SERVER_KV_EVENT_BATCHES_H_
#define SCHEDULER_SERVER_KV_EVENT_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include <absl/container/flat_hash_set.h>

#include "proto/smg/grpc/common.pb.h"
#include "scheduler/server/call_limit.h"
#include "scheduler/server/kv_event_index.h"
#include "scheduler/server/prefix_cache_watches.h"
#include "scheduler/server/token_rate.h"

namespace blockmgr {

class KvEventBatches final : public PrefixCacheTeller {
 public:
  // `rate` must outlive this object. `place` is held for as long as it lives.
  KvEventBatches(const smg::grpc::common::SubscribeKvEventsRequest& request,
                 TokenRate* rate, int32_t max_num_seqs,
                 CallLimit::Place place = nullptr);

  void Take(PrefixCacheReading reading) override;
  const google::protobuf::Message* Next(int64_t max_bytes) override;
  bool tells_load() const override { return true; }
  const google::protobuf::Message* TakeLoad(const CoreStats& stats,
                                            double age) override;

 private:
  // Removes blocks of tenants from the event.
  void LeaveOutTenants(KvEvent* event);
  // Add the blocks of `event` from block_ on to the batch, about max_bytes but
  // at least one block. Return an upper bound of the bytes added.
  int64_t AddRemoved(const KvEvent& event, int64_t max_bytes);
  int64_t AddStored(const KvEvent& event, int64_t max_bytes);
  smg::grpc::common::KvCacheEvent* AddEvent();
  // Sets the fields that every batch has.
  void FinishBatch(bool load_only);

  // Constant.
  const CallLimit::Place place_;
  TokenRate* const rate_;
  const int32_t max_num_seqs_;
  const bool may_begin_with_load_;

  uint64_t next_number_;
  bool has_begun_ = false;  // a batch with events was sent
  uint64_t num_events_ = 0;
  uint64_t num_samples_ = 0;
  smg::grpc::common::EngineLoad load_;
  double load_seconds_ = 0;  // the time at which load_ was taken

  // The most memory of a stream is its own index of all cached blocks.
  KvEventIndex index_{/*tells_prefixes=*/false};
  absl::flat_hash_set<uint64_t> of_tenants_;  // hashes of blocks left out
  // The events of the last reading. The next batch begins with block block_ of
  // event event_. Everything before it has been told.
  std::vector<KvEvent> events_;
  size_t event_ = 0;
  size_t block_ = 0;
  int32_t page_size_ = 0;
  smg::grpc::common::KvEventBatch batch_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_KV_EVENT_BATCHES_H_
