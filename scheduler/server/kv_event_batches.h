// KvEventBatches: turns readings of the prefix cache into the events that
// gateways for vLLM understand (proto/smg/grpc/common.proto).
//
// The stream begins with a batch that tells the subscriber to forget what it
// knew. Then every block is stored, parents before their children, and after
// that every change is told. Batches with events have consecutive numbers.
//
// Left out are compressed prefixes and the blocks behind them, for which there
// is no event, and blocks of tenants, of which the messages know nothing.
#ifndef SCHEDULER_SERVER_KV_EVENT_BATCHES_H_
#define SCHEDULER_SERVER_KV_EVENT_BATCHES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <absl/container/flat_hash_map.h>

#include "blockmgr/block_hash.h"
#include "blockmgr/prefix_cache_delta.h"
#include "proto/smg/grpc/common.pb.h"
#include "scheduler/server/prefix_cache_watches.h"
#include "scheduler/server/token_rate.h"

namespace blockmgr {

class KvEventBatches final : public PrefixCacheTeller {
 public:
  // `rate` must outlive this object.
  KvEventBatches(const smg::grpc::common::SubscribeKvEventsRequest& request,
                 TokenRate* rate, int32_t max_num_seqs);

  void Take(PrefixCacheReading reading) override;
  const google::protobuf::Message* Next(int64_t max_bytes) override;
  bool tells_load() const override { return true; }
  const google::protobuf::Message* TakeLoad(const CoreStats& stats) override;

 private:
  using Scope = std::shared_ptr<const ContentScope>;
  struct Block {
    EntrySerial parent = kNoSerial;
    std::vector<int32_t> tokens;
    std::string media;
  };

  // The scope of a block with this parent, if the block can be told; or null.
  Scope ScopeAfter(EntrySerial parent) const;
  // These fill the batch, and return an upper bound of the bytes.
  int64_t AddRemoved(int64_t max_bytes);
  int64_t AddStored(int64_t max_bytes);
  smg::grpc::common::KvCacheEvent* AddEvent();
  // Sets what every batch has.
  void FinishBatch(bool load_only);

  // Constant.
  TokenRate* const rate_;
  const int32_t max_num_seqs_;
  const bool may_begin_with_load_;

  uint64_t next_number_;
  bool has_begun_ = false;  // a batch with events was sent
  uint64_t num_events_ = 0;
  uint64_t num_samples_ = 0;
  smg::grpc::common::EngineLoad load_;
  double load_seconds_ = 0;  // when it was taken

  // Blocks that the subscriber knows.
  absl::flat_hash_map<EntrySerial, Scope> told_;
  // What is left to be told. Blocks are not told before the cache has been read
  // to its end once, as parents may come later than their children until then.
  bool forgets_ = false;
  bool collects_ = true;
  std::vector<EntrySerial> removed_;
  std::map<EntrySerial, Block> stored_;
  absl::flat_hash_map<EntrySerial, Scope> scopes_;  // of stored_
  int32_t page_size_ = 0;
  smg::grpc::common::KvEventBatch batch_;
};

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_KV_EVENT_BATCHES_H_
