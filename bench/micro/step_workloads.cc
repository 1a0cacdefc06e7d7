#include "bench/micro/step_workloads.h"

#include <ctime>

#include <algorithm>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>

#include "bench/micro/memory_workloads.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {
namespace {

// `num_shared` tokens that all prompts of a family begin with, then others.
std::vector<int32_t> Prompt(int64_t family, int32_t num_shared, int64_t request,
                            int32_t num_own) {
  std::vector<int32_t> tokens;
  const auto add = [&tokens](int64_t seed, int32_t count) {
    for (int32_t i = 0; i < count; ++i) {
      tokens.push_back(
          static_cast<int32_t>(SplitMix64(static_cast<uint64_t>(seed) * 100003 +
                                          static_cast<uint64_t>(i)) %
                               128000));
    }
  };
  add(family, num_shared);
  add(request + 1000000, num_own);
  return tokens;
}

constexpr int32_t kShortestPrompt = 33;
constexpr int32_t kLongestPrompt = 48;
constexpr int32_t kPromptTokens = 2048;  // of a step at least

SchedulerOptions DecodeOptions(const DecodeWorkload::Setting& setting) {
  SchedulerOptions options;
  options.max_num_seqs = setting.num_running;
  // Drafts come before new prompts, and leave them as much.
  options.max_num_batched_tokens =
      setting.num_drafts == 0
          ? std::max(kPromptTokens, setting.num_running)
          : kPromptTokens + setting.num_running * (1 + setting.num_drafts);
  options.max_steps_in_flight = 1;
  options.num_speculative_tokens = setting.num_drafts;
  return options;
}

// Outputs of a request that must go on while the last prompts are computed,
// and for all the steps to be timed. Prompts share their steps with those that
// decode already: twice their own time is enough. The last drafts are cut
// short.
int32_t DecodeOutputs(const DecodeWorkload::Setting& setting) {
  const int32_t num_steps =
      setting.max_steps + 16 +
      2 * CeilDiv(setting.num_running * kLongestPrompt, kPromptTokens);
  return num_steps * (1 + setting.num_drafts / 2) + setting.num_drafts;
}

ModelLayout DecodeLayout(const DecodeWorkload::Setting& setting) {
  const int32_t tokens = kLongestPrompt + DecodeOutputs(setting);
  // A few more than they will ever hold: the watermark holds nobody back.
  const int32_t num_pages = setting.num_running * (CeilDiv(tokens, 16) + 4);
  ModelLayout layout =
      LlamaLayout((1 + setting.num_window_groups) * num_pages + 2);
  layout.group_windows.assign(setting.num_window_groups, 128);
  layout.num_layers = setting.num_layers;
  layout.num_heads = setting.num_heads;
  layout.num_q_heads = 4 * setting.num_heads;
  return layout;
}

SchedulerOptions WaitingOptions(const WaitingWorkload::Setting& setting) {
  SchedulerOptions options;
  // As many run however much they share, so that steps compare.
  options.max_num_seqs = 72;
  options.policy = setting.policy;
  options.fair_share = setting.fair_share;
  options.tenant_limits.max_blocks = setting.max_blocks;
  options.max_steps_in_flight = 1;
  return options;
}

}  // namespace

double ThreadMicroseconds() {
  timespec now{};
  BM_CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) * 1e6 +
         static_cast<double>(now.tv_nsec) * 1e-3;
}

StepHarness::StepHarness(const ModelLayout& layout,
                         const SchedulerOptions& options)
    : scheduler_(*Scheduler::Create(layout, options)) {}

void StepHarness::Submit(Request request) {
  request.id = absl::StrCat("r", ++num_submitted_);
  BM_CHECK(scheduler_->Submit(std::move(request)).ok());
}

double StepHarness::Step() {
  effects_.Clear();
  const double begin = ThreadMicroseconds();
  BM_CHECK(scheduler_->Schedule(&plan_));
  const double scheduled = ThreadMicroseconds();
  result_.id = plan_.id;
  result_.sampled.assign(plan_.slots.size(), -1);
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    if (plan_.samples[i] != 0) result_.sampled[i] = 7;
  }
  if (scheduler_->options().num_speculative_tokens > 0) AnswerDrafts();
  result_.evictions.clear();
  for (size_t i = 0; i < plan_.evictions.size(); ++i) {
    BM_CHECK(!counts_.empty());
    result_.evictions.push_back({.ok = true, .error = "", .counts = counts_});
  }
  const double answered = ThreadMicroseconds();
  BM_CHECK(scheduler_->Update(result_, &effects_).ok());
  return ThreadMicroseconds() - answered + scheduled - begin;
}

void StepHarness::AnswerDrafts() {
  result_.num_accepted.assign(plan_.num_drafts.size(), 0);
  result_.accepted.clear();
  for (size_t i = 0; i < plan_.num_drafts.size(); ++i) {
    result_.num_accepted[i] = plan_.num_drafts[i] / 2;
    result_.accepted.insert(result_.accepted.end(), result_.num_accepted[i], 6);
  }
  result_.num_drafts.assign(plan_.slots.size(), 0);
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    if (plan_.samples[i] == 0) continue;
    result_.num_drafts[i] = scheduler_->options().num_speculative_tokens;
  }
}

DecodeWorkload::DecodeWorkload(const Setting& setting)
    : num_running_(setting.num_running),
      tokens_per_step_(int64_t{setting.num_running} *
                       (1 + setting.num_drafts / 2)),
      steps_left_(setting.max_steps),
      harness_(DecodeLayout(setting), DecodeOptions(setting)) {
  for (int32_t i = 0; i < num_running_; ++i) {
    Request request;
    request.prompt = Prompt(0, 0, i, kShortestPrompt + i % 16);
    request.max_tokens = DecodeOutputs(setting);
    if (setting.eviction != EvictionMode::kNone) {
      request.eviction.mode = setting.eviction;
      request.eviction.target.kind = EvictionTarget::Kind::kTokens;
      request.eviction.target.tokens = 4096;
      if (setting.eviction == EvictionMode::kEveryChunk ||
          setting.eviction == EvictionMode::kDecode) {
        request.eviction.compress_every = 512;
      }
    }
    harness_.Submit(std::move(request));
  }
  do {
    harness_.Step();
  } while (std::ssize(harness_.effects().tokens) < tokens_per_step_);
}

double DecodeWorkload::Step() {
  BM_CHECK(steps_left_ > 0);
  --steps_left_;
  const double time_us = harness_.Step();
  BM_CHECK(std::ssize(harness_.plan().slots) == num_running_);
  BM_CHECK(std::ssize(harness_.effects().tokens) == tokens_per_step_);
  return time_us;
}

namespace {

SchedulerOptions EvictionOptions(const EvictionStepWorkload::Setting& setting) {
  SchedulerOptions options;
  options.max_num_batched_tokens = setting.num_tokens;
  options.max_steps_in_flight = 1;
  options.enable_prefix_caching = setting.prefix_caching;
  options.compaction = setting.compaction;
  return options;
}

}  // namespace

EvictionStepWorkload::EvictionStepWorkload(const Setting& setting)
    : setting_(setting),
      harness_(LlamaLayout(setting.num_tokens / 16 * 3 + 4),
               EvictionOptions(setting)) {
  harness_.AnswerEvictions(
      UnevenCounts(LlamaLayout(1), setting.num_tokens, 20));
}

double EvictionStepWorkload::Step() {
  Request request;
  request.prompt = Prompt(0, 0, ++num_requests_, setting_.num_tokens + 17);
  request.max_tokens = 64;
  request.eviction.mode = EvictionMode::kAfterPrefill;
  request.eviction.target.kind = EvictionTarget::Kind::kTokens;
  request.eviction.target.tokens = setting_.num_tokens / 5;
  request.eviction.share_prefix = setting_.share_prefix;
  harness_.Submit(std::move(request));
  double time_us = harness_.Step();
  while (harness_.plan().evictions.empty()) time_us = harness_.Step();
  BM_CHECK(harness_.effects().evictions.size() == 1);
  BM_CHECK(harness_.effects().evictions.front().status.ok());
  BM_CHECK(harness_.effects().evictions.front().freed_blocks > 0);
  Effects effects;
  const RequestId id = harness_.effects().evictions.front().request;
  BM_CHECK(harness_.scheduler().Cancel(id, &effects).ok());
  return time_us;
}

// With 24 blocks each, about 64 requests fit: admission is limited by blocks.
WaitingWorkload::WaitingWorkload(const Setting& setting)
    : setting_(setting),
      harness_(LlamaLayout(64 * 24), WaitingOptions(setting)) {
  Refill();
  for (int32_t i = 0; i < 100; ++i) {
    harness_.Step();
    Refill();
  }
}

void WaitingWorkload::Refill() {
  while (harness_.scheduler().stats().num_waiting < setting_.num_waiting) {
    const int64_t number = next_number_++;
    Request request;
    request.prompt = Prompt(number % 97, 128, number, 128);
    request.max_tokens = 32 + static_cast<int32_t>(number * 7 % 97);
    request.priority = static_cast<int32_t>(number % 5);
    if (setting_.fair_share || setting_.max_blocks > 0) {
      request.scope.tenant =
          absl::StrCat("tenant", number % setting_.num_tenants);
    }
    harness_.Submit(std::move(request));
  }
}

}  // namespace blockmgr
