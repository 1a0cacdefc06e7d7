// A Scheduler that is simple enough to predict: every step runs every request
// that is not in a step already, one token each; no blocks, no admission. The
// prefix cache has the first page of every prompt that has ended; of one with
// more, also the last page and a region for those before.
#ifndef TESTS_SCHEDULER_SERVER_FAKE_SCHEDULER_H_
#define TESTS_SCHEDULER_SERVER_FAKE_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "blockmgr/base/ids.h"
#include "scheduler/scheduler.h"

namespace blockmgr {

class FakeScheduler : public Scheduler {
 public:
  static absl::StatusOr<std::unique_ptr<Scheduler>> Make(
      const ModelLayout& layout, const SchedulerOptions& options) {
    return std::make_unique<FakeScheduler>(layout, options);
  }

  FakeScheduler(const ModelLayout& layout, const SchedulerOptions& options)
      : layout_(layout),
        options_(options),
        cache_(layout.num_blocks, layout.page_size) {}

  absl::StatusOr<RequestId> Submit(Request request) override {
    if (ids_.contains(request.id)) {
      return absl::AlreadyExistsError("request_id: a live request has it");
    }
    const RequestId id{next_request_++};
    ids_[request.id] = id;
    Live& live = live_[id];
    live.request = std::move(request);
    return id;
  }

  absl::Status ValidateEviction(
      const RequestEviction& eviction) const override {
    if (eviction.mode != EvictionMode::kEveryChunk) return absl::OkStatus();
    return absl::InvalidArgumentError("eviction.mode: not here");
  }

  absl::Status Cancel(RequestId request, Effects* effects) override {
    const auto live = live_.find(request);
    if (live == live_.end()) return absl::NotFoundError("request");
    Finish(live, FinishReason::kCancelled, effects);
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Evict(RequestId request,
                                 EvictionCommand command) override {
    const auto live = live_.find(request);
    if (live == live_.end()) return absl::NotFoundError("request");
    if (live->second.eviction != 0) {
      return absl::FailedPreconditionError("an eviction is under way");
    }
    live->second.eviction = ++next_eviction_;
    live->second.command = std::move(command);
    return live->second.eviction;
  }

  bool WithdrawEviction(RequestId request, uint64_t command) override {
    const auto live = live_.find(request);
    if (live == live_.end() || live->second.eviction != command) return false;
    live->second.eviction = 0;
    return true;
  }

  absl::StatusOr<RequestId> Find(absl::string_view id) const override {
    const auto found = ids_.find(std::string(id));
    if (found == ids_.end()) return absl::NotFoundError("request_id: unknown");
    return found->second;
  }

  bool Schedule(StepPlan* plan) override {
    if (num_steps_in_flight() >= options_.max_steps_in_flight) return false;
    plan->Clear();
    for (auto& [id, live] : live_) {
      if (live.in_flight) continue;
      live.in_flight = true;
      if (!std::exchange(live.started, true)) {
        SequenceStart start;
        start.slot = SequenceSlot{static_cast<int32_t>(Index(id))};
        start.request = id;
        start.info = std::make_shared<const RequestInfo>(
            RequestInfo{.id = live.request.id,
                        .num_prompt_tokens =
                            static_cast<int32_t>(live.request.prompt.size()),
                        .lora = live.request.scope.lora,
                        .media = {},
                        .engine_data = live.request.engine_data});
        plan->starts.push_back(start);
      }
      plan->slots.push_back(SequenceSlot{static_cast<int32_t>(Index(id))});
      plan->positions.push_back(live.num_outputs);
      plan->num_tokens.push_back(1);
      plan->samples.push_back(1);
      if (live.eviction != 0) {
        EvictionOrder order;
        order.slot = plan->slots.back();
        order.cut = live.command.cut;
        order.policy = live.command.policy;
        order.target = live.command.target;
        order.scores = live.command.scores;
        plan->evictions.push_back(order);
      }
    }
    if (plan->slots.empty()) return false;
    plan->id = StepId{++next_step_};
    in_flight_.push_back(*plan);
    return true;
  }

  void ForgetKeptEntries() override {}

  absl::Status Update(const StepResult& result, Effects* effects) override {
    if (in_flight_.empty() || result.id != in_flight_.front().id ||
        result.sampled.size() != in_flight_.front().slots.size()) {
      return absl::InvalidArgumentError("result.step: not the oldest step");
    }
    const StepPlan plan = in_flight_.front();
    in_flight_.pop_front();
    ++num_steps_;
    for (const RunLogProbs& rows : result.logprobs) {
      const auto live = FindSlot(plan.slots.at(static_cast<size_t>(rows.run)));
      if (live == live_.end()) continue;
      effects->logprobs.push_back({.request = live->first,
                                   .num_outputs = live->second.num_outputs,
                                   .of_prompt = true,
                                   .logprobs = rows.prompt});
    }
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      const auto live = FindSlot(plan.slots[i]);
      if (live == live_.end()) continue;
      live->second.in_flight = false;
      if (!result.token_data.empty() && !result.token_data[i].empty()) {
        effects->token_data.push_back(
            {live->first, live->second.num_outputs, result.token_data[i]});
      }
      effects->tokens.push_back(TokenEffect{live->first, result.sampled[i],
                                            live->second.num_outputs++});
      if (live->second.num_outputs == live->second.request.max_tokens) {
        Finish(live, FinishReason::kLength, effects);
      }
    }
    for (size_t i = 0; i < plan.evictions.size(); ++i) {
      const auto live = FindSlot(plan.evictions[i].slot);
      if (live == live_.end()) continue;
      EvictionEffect effect;
      effect.request = live->first;
      effect.command = std::exchange(live->second.eviction, 0);
      live->second.command = EvictionCommand();
      effect.cut = plan.evictions[i].cut;
      effect.freed_blocks = 3;
      effect.kept_entries = result.evictions[i].counts;
      if (!result.evictions[i].ok) {
        effect.status = absl::InternalError(result.evictions[i].error);
      }
      effects->evictions.push_back(std::move(effect));
    }
    return absl::OkStatus();
  }

  void LoseEngine(Effects* effects) override {
    for (const StepPlan& plan : in_flight_) {
      for (const EvictionOrder& order : plan.evictions) {
        const auto live = FindSlot(order.slot);
        if (live == live_.end()) continue;
        EvictionEffect effect;
        effect.request = live->first;
        effect.command = std::exchange(live->second.eviction, 0);
        effect.status = absl::AbortedError("the engine was lost");
        effects->evictions.push_back(std::move(effect));
      }
    }
    in_flight_.clear();
    for (auto& [id, live] : live_) live.in_flight = false;
  }

  void TakeAbilities(const EngineAbilities& abilities) override {
    options_.engine = abilities;
  }

  CacheReset ResetPrefixCache() override {
    for (int32_t i = 0; i < cache_.entry_limit(); ++i) {
      if (cache_.serial(i) != kNoSerial) cache_.Remove(i);
    }
    return {.num_in_use = static_cast<int32_t>(live_.size())};
  }
  const PrefixCache& prefix_cache() const override { return cache_; }
  void SetTime(int64_t /*now_ms*/) override {}
  bool has_unfinished_requests() const override { return !live_.empty(); }
  int32_t num_running() const override { return stats().num_running; }
  int32_t num_used_blocks() const override {
    return stats().blocks.used_blocks;
  }
  int32_t num_steps_in_flight() const override {
    return static_cast<int32_t>(in_flight_.size());
  }
  const ModelLayout& layout() const override { return layout_; }
  const SchedulerOptions& options() const override { return options_; }
  SchedulerStats stats() const override {
    SchedulerStats stats;
    stats.num_running = static_cast<int32_t>(live_.size());
    stats.num_steps = num_steps_;
    stats.num_finished = num_finished_;
    stats.blocks.num_blocks = layout_.num_blocks;
    stats.blocks.used_blocks = 10 * stats.num_running;
    stats.tenants = {{.name = "*",
                      .num_requests = stats.num_running,
                      .queued_tokens = 7,
                      .reserved_blocks = 8}};
    return stats;
  }
  int64_t metadata_bytes() const override { return 64000; }
  void CheckInvariants() const override {}

 private:
  struct Live {
    Request request;
    int32_t num_outputs = 0;
    bool in_flight = false;
    bool started = false;
    uint64_t eviction = 0;
    EvictionCommand command;
  };
  using LiveMap = std::map<RequestId, Live>;

  LiveMap::iterator FindSlot(SequenceSlot slot) {
    return live_.find(RequestId{static_cast<uint64_t>(Index(slot))});
  }

  // A block that is not cached; the null block: there is none.
  BlockId FreeBlock() const {
    for (int32_t i = 1; i < layout_.num_blocks; ++i) {
      if (!cache_.Contains(BlockId{i})) return BlockId{i};
    }
    return kNullBlock;
  }

  void Cache(const Request& request) {
    BlockChain chain(request.scope);
    chain.Extend(request.prompt, layout_.page_size);
    const auto num_pages = static_cast<int32_t>(chain.keys().size());
    if (num_pages == 0 || FreeBlock() == kNullBlock) return;
    const EntrySerial root = cache_.AcquireRoot(chain.root());
    bool inserted = false;
    cache_.Insert(FreeBlock(), chain.keys()[0], chain, root, request.prompt, 0,
                  &inserted);
    const BlockId tail = FreeBlock();
    if (num_pages > 1 && tail != kNullBlock) {
      auto record = std::make_shared<RegionRecord>();
      record->id = RegionId{next_region_++};
      record->cut = (num_pages - 1) * layout_.page_size;
      record->blocks = {kNullBlock};
      cache_.InsertTail(tail, chain.keys().back(), chain, request.prompt,
                        record->cut);
      cache_.InsertRegion(record,
                          {.plan = "fake",
                           .history = {},
                           .length = record->cut + layout_.page_size},
                          chain, root, request.prompt, tail);
    }
    cache_.ReleaseRoot(root);
  }

  void Finish(LiveMap::iterator live, FinishReason reason, Effects* effects) {
    Cache(live->second.request);
    FinishEffect effect;
    effect.request = live->first;
    effect.reason = reason;
    effect.num_output_tokens = live->second.num_outputs;
    effects->finished.push_back(std::move(effect));
    ids_.erase(live->second.request.id);
    live_.erase(live);
    ++num_finished_;
  }

  const ModelLayout layout_;
  SchedulerOptions options_;
  PrefixCache cache_;
  LiveMap live_;
  std::map<std::string, RequestId> ids_;
  std::deque<StepPlan> in_flight_;
  uint64_t next_region_ = 1;
  uint64_t next_request_ = 1;
  uint64_t next_eviction_ = 0;
  uint64_t next_step_ = 0;
  uint64_t num_steps_ = 0;
  uint64_t num_finished_ = 0;
};

// A layout that the real Scheduler accepts too: 4 KiB blocks.
inline ModelLayout SmallLayout() {
  ModelLayout layout;
  layout.num_layers = 2;
  layout.num_heads = 2;
  layout.num_q_heads = 4;
  layout.head_dim = 8;
  layout.page_size = 16;
  layout.dtype = DType::kFloat32;
  layout.num_blocks = 64;
  return layout;
}

}  // namespace blockmgr

#endif  // TESTS_SCHEDULER_SERVER_FAKE_SCHEDULER_H_
