#include "scheduler/server/kv_event_batches.h"

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include <absl/strings/escaping.h>

#include "wire/vllm_wire.h"

namespace blockmgr {
namespace {

namespace common = ::smg::grpc::common;

// On the wire, at most: an id; a token; and the tags and numbers of a message.
constexpr int64_t kHashBytes = 10;
constexpr int64_t kMostTokenBytes = 5;
constexpr int64_t kEventBytes = 60;

constexpr char kMedium[] = "GPU";

double NowSeconds() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int64_t HashOf(EntrySerial serial) { return static_cast<int64_t>(serial); }

// Returns an upper bound of the bytes.
int64_t AddMedia(const std::string& media, common::KvBlock* block) {
  int64_t bytes = 0;
  for (const MediaItem& item : DecodeMedia(media)) {
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
                               TokenRate* rate, int32_t max_num_seqs)
    : rate_(rate),
      max_num_seqs_(max_num_seqs),
      may_begin_with_load_(request.load_records_before_first_batch()),
      next_number_(std::max<uint64_t>(request.start_sequence_number(), 1)) {}

void KvEventBatches::Take(PrefixCacheReading reading) {
  const PrefixCacheDelta& delta = reading.delta;
  page_size_ = reading.page_size;
  if (delta.reset) {
    forgets_ = true;
    collects_ = true;
    told_.clear();
    removed_.clear();
    stored_.clear();
  }
  for (const EntrySerial serial : delta.removed) {
    if (stored_.erase(serial) == 0 && told_.erase(serial) > 0) {
      removed_.push_back(serial);
    }
  }
  for (const auto& [serial, root] : delta.scopes) {
    scopes_[serial] = std::make_shared<const ContentScope>(DecodeRoot(root));
  }
  for (size_t i = 0; i < delta.blocks.size(); ++i) {
    const PrefixCacheDelta::Block& block = delta.blocks[i];
    if (told_.contains(block.serial)) continue;
    const std::span<const int32_t> tokens = delta.TokensOf(i);
    stored_[block.serial] = {.parent = block.parent,
                             .tokens = {tokens.begin(), tokens.end()},
                             .media = block.media};
  }
  if (delta.current) collects_ = false;
}

const google::protobuf::Message* KvEventBatches::Next(int64_t max_bytes) {
  batch_.Clear();
  if (collects_) return nullptr;
  if (forgets_) {
    forgets_ = false;
    batch_.mutable_snapshot()->set_count(1);
    AddEvent()->mutable_cleared();
  } else {
    const int64_t bytes = AddRemoved(max_bytes);
    AddStored(max_bytes - bytes);
  }
  if (batch_.events().empty()) {
    scopes_.clear();
    return nullptr;
  }
  has_begun_ = true;
  batch_.set_sequence_number(next_number_++);
  FinishBatch(/*load_only=*/false);
  return &batch_;
}

const google::protobuf::Message* KvEventBatches::TakeLoad(
    const CoreStats& stats) {
  load_.Clear();
  ToProto(
      LoadStats{.core = stats,
                .max_num_seqs = max_num_seqs_,
                .tokens_per_second = rate_->Look(
                    stats.scheduler.num_output_tokens, stats.clock_seconds)},
      &load_);
  load_seconds_ = NowSeconds();
  if (!has_begun_ && !may_begin_with_load_) return nullptr;
  batch_.Clear();
  batch_.set_sequence_number(has_begun_ ? next_number_ - 1 : 0);
  FinishBatch(/*load_only=*/true);
  return &batch_;
}

KvEventBatches::Scope KvEventBatches::ScopeAfter(EntrySerial parent) const {
  const auto block = told_.find(parent);
  if (block != told_.end()) return block->second;
  const auto scope = scopes_.find(parent);
  if (scope == scopes_.end() || !scope->second->tenant.empty()) return nullptr;
  return scope->second;
}

int64_t KvEventBatches::AddRemoved(int64_t max_bytes) {
  if (removed_.empty()) return 0;
  const size_t most = static_cast<size_t>(max_bytes / kHashBytes);
  const size_t count = std::min(removed_.size(), most);
  common::KvBlocksRemoved& event = *AddEvent()->mutable_removed();
  event.set_tier(common::KV_CACHE_TIER_DEVICE);
  event.set_medium(kMedium);
  const auto end = removed_.begin() + static_cast<std::ptrdiff_t>(count);
  std::for_each(removed_.begin(), end, [&event](EntrySerial serial) {
    event.add_block_hashes(HashOf(serial));
  });
  removed_.erase(removed_.begin(), end);
  return static_cast<int64_t>(count) * kHashBytes;
}

int64_t KvEventBatches::AddStored(int64_t max_bytes) {
  int64_t bytes = 0;
  common::KvBlocksStored* event = nullptr;
  EntrySerial before = kNoSerial;  // the last one of the event
  while (!stored_.empty() && bytes < max_bytes) {
    const auto node = stored_.extract(stored_.begin());
    const Block& block = node.mapped();
    const Scope scope = ScopeAfter(block.parent);
    if (scope == nullptr) continue;  // behind a region, or a tenant's
    if (event == nullptr || block.parent != before) {
      event = AddEvent()->mutable_stored();
      event->set_tier(common::KV_CACHE_TIER_DEVICE);
      event->set_medium(kMedium);
      if (told_.contains(block.parent)) {
        event->set_parent_block_hash(HashOf(block.parent));
      }
      if (!scope->lora.empty()) event->set_lora_name(scope->lora);
      if (!scope->cache_salt.empty()) event->set_cache_salt(scope->cache_salt);
      bytes += kEventBytes + std::ssize(scope->lora) +
               std::ssize(scope->cache_salt);
    }
    before = node.key();
    told_.emplace(before, scope);
    common::KvBlock& added = *event->add_blocks();
    added.set_block_hash(HashOf(before));
    added.set_block_size(page_size_);
    added.mutable_token_ids()->Add(block.tokens.begin(), block.tokens.end());
    bytes += kEventBytes + kMostTokenBytes * std::ssize(block.tokens) +
             AddMedia(block.media, &added);
  }
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
  if (num_samples_ == 0 && load_seconds_ == 0) return;  // none has come yet
  common::EngineLoad& load = *batch_.mutable_load();
  load = load_;
  load.set_sample(++num_samples_);
  load.set_load_only(load_only);
  load.set_age_ms(
      static_cast<uint32_t>(std::clamp((now - load_seconds_) * 1e3, 0.0, 1e6)));
}

}  // namespace blockmgr
