#include "scheduler/server/kv_event_batches.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include <absl/strings/escaping.h>

#include "blockmgr/base/check.h"
#include "wire/vllm_wire.h"

namespace blockmgr {
namespace {

namespace common = ::smg::grpc::common;

// The most bytes on the wire: of an id, of a token, and of the tags and numbers
// of a message.
constexpr int64_t kHashBytes = 10;
constexpr int64_t kMostTokenBytes = 5;
constexpr int64_t kEventBytes = 60;

constexpr char kMedium[] = "GPU";

double NowSeconds() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t ToId(uint64_t hash) { return static_cast<int64_t>(hash); }

// Returns an upper bound of the bytes.
int64_t AddMedia(const std::vector<MediaItem>& media, common::KvBlock* block) {
  int64_t bytes = 0;
  for (const MediaItem& item : media) {
    common::KvMultimodalKey* const key =
        block->add_extra_keys()->mutable_multimodal();
    key->set_identifier(absl::BytesToHexString(item.hash));
    key->set_offset(item.begin);
    bytes += kEventBytes + 2 * std::ssize(item.hash);
  }
  return bytes;
}

}  // namespace

KvEventBatches::KvEventBatches(const common::SubscribeKvEventsRequest& request,
                               TokenRate* rate, int32_t max_num_seqs,
                               CallLimit::Place place)
    : place_(std::move(place)),
      rate_(rate),
      max_num_seqs_(max_num_seqs),
      may_begin_with_load_(request.load_records_before_first_batch()),
      next_number_(std::max<uint64_t>(request.start_sequence_number(), 1)) {}

void KvEventBatches::Take(PrefixCacheReading reading) {
  page_size_ = reading.page_size;
  events_ = index_.Apply(reading).blocks;
  event_ = 0;
  block_ = 0;
  for (KvEvent& event : events_) LeaveOutTenants(&event);
  std::erase_if(events_, [](const KvEvent& event) {
    return event.kind != KvEvent::Kind::kCleared && event.hashes.empty();
  });
}

const google::protobuf::Message* KvEventBatches::Next(int64_t max_bytes) {
  batch_.Clear();
  int64_t bytes = 0;
  while (event_ < events_.size() && bytes < max_bytes) {
    const KvEvent& event = events_[event_];
    if (event.kind == KvEvent::Kind::kCleared) {
      // kCleared is always the first event, and alone in its batch.
      batch_.mutable_snapshot()->set_count(1);
      AddEvent()->mutable_cleared();
      ++event_;
      break;
    }
    bytes += event.kind == KvEvent::Kind::kRemoved
                 ? AddRemoved(event, max_bytes - bytes)
                 : AddStored(event, max_bytes - bytes);
    if (block_ < event.hashes.size()) break;
    ++event_;
    block_ = 0;
  }
  if (batch_.events().empty()) {
    // The memory is freed until the cache changes again.
    events_ = {};
    event_ = 0;
    return nullptr;
  }
  has_begun_ = true;
  batch_.set_sequence_number(next_number_++);
  FinishBatch(/*load_only=*/false);
  return &batch_;
}

const google::protobuf::Message* KvEventBatches::TakeLoad(
    const CoreStats& stats, double age) {
  load_.Clear();
  ToProto(
      LoadStats{.core = stats,
                .max_num_seqs = max_num_seqs_,
                .tokens_per_second = rate_->Look(
                    stats.scheduler.num_output_tokens, stats.clock_seconds)},
      &load_);
  load_seconds_ = NowSeconds() - age;
  if (!has_begun_ && !may_begin_with_load_) return nullptr;
  batch_.Clear();
  batch_.set_sequence_number(has_begun_ ? next_number_ - 1 : 0);
  FinishBatch(/*load_only=*/true);
  return &batch_;
}

void KvEventBatches::LeaveOutTenants(KvEvent* event) {
  // The list of blocks has no events of compressed prefixes.
  BM_CHECK(event->kind != KvEvent::Kind::kPrefix);
  switch (event->kind) {
    case KvEvent::Kind::kCleared:
      of_tenants_.clear();
      return;
    case KvEvent::Kind::kRemoved:
      if (of_tenants_.empty()) return;
      std::erase_if(event->hashes, [this](uint64_t hash) {
        return of_tenants_.erase(hash) > 0;
      });
      return;
    case KvEvent::Kind::kBlocks:
      if (event->scope->tenant.empty()) return;
      of_tenants_.insert(event->hashes.begin(), event->hashes.end());
      event->hashes.clear();
      return;
    case KvEvent::Kind::kPrefix:
      return;
  }
}

int64_t KvEventBatches::AddRemoved(const KvEvent& event, int64_t max_bytes) {
  common::KvBlocksRemoved& removed = *AddEvent()->mutable_removed();
  removed.set_tier(common::KV_CACHE_TIER_DEVICE);
  removed.set_medium(kMedium);
  int64_t bytes = kEventBytes;
  // Every event carries at least one hash. Otherwise the stream would make no
  // progress.
  do {
    removed.add_block_hashes(ToId(event.hashes[block_]));
    bytes += kHashBytes;
    ++block_;
  } while (block_ < event.hashes.size() && bytes < max_bytes);
  return bytes;
}

int64_t KvEventBatches::AddStored(const KvEvent& event, int64_t max_bytes) {
  common::KvBlocksStored& stored = *AddEvent()->mutable_stored();
  stored.set_tier(common::KV_CACHE_TIER_DEVICE);
  stored.set_medium(kMedium);
  if (block_ > 0) {
    stored.set_parent_block_hash(ToId(event.hashes[block_ - 1]));
  } else if (event.parent.has_value()) {
    stored.set_parent_block_hash(ToId(*event.parent));
  }
  const ContentScope& scope = *event.scope;
  if (!scope.lora.empty()) stored.set_lora_name(scope.lora);
  if (!scope.cache_salt.empty()) stored.set_cache_salt(scope.cache_salt);
  int64_t bytes =
      kEventBytes + std::ssize(scope.lora) + std::ssize(scope.cache_salt);
  const size_t page_size = event.tokens.size() / event.hashes.size();
  do {
    common::KvBlock& added = *stored.add_blocks();
    added.set_block_hash(ToId(event.hashes[block_]));
    added.set_block_size(page_size_);
    const std::span<const int32_t> tokens =
        std::span(event.tokens).subspan(block_ * page_size, page_size);
    added.mutable_token_ids()->Add(tokens.begin(), tokens.end());
    bytes += kEventBytes + kMostTokenBytes * std::ssize(tokens) +
             AddMedia(event.media[block_], &added);
    ++block_;
  } while (block_ < event.hashes.size() && bytes < max_bytes);
  return bytes;
}

common::KvCacheEvent* KvEventBatches::AddEvent() {
  common::KvCacheEvent* const event = batch_.add_events();
  event->set_event_id(++num_events_);
  return event;
}

void KvEventBatches::FinishBatch(bool load_only) {
  const double now = NowSeconds();
  batch_.set_timestamp(now);
  batch_.set_dp_rank(0);
  // Before the first load there is nothing to add.
  if (num_samples_ == 0 && load_seconds_ == 0) return;
  common::EngineLoad& load = *batch_.mutable_load();
  load = load_;
  load.set_sample(++num_samples_);
  load.set_load_only(load_only);
  load.set_age_ms(
      static_cast<uint32_t>(std::clamp((now - load_seconds_) * 1e3, 0.0, 1e6)));
}

}  // namespace blockmgr
