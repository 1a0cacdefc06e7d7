// A decode step allocates nothing. A program of its own: it counts every call
// of operator new.

#include <cstdint>
#include <utility>

#include <absl/strings/str_cat.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "tests/testing/counted_new.h"
#include "tests/testing/test_requests.h"

namespace blockmgr {
namespace {

struct Case {
  bool prefix_caching = true;
  // Mode, and entries that every head keeps: by default more than there are.
  EvictionMode mode = EvictionMode::kNone;
  int32_t keep = 4096;
  int32_t num_prompt = 17;
  int32_t steps_in_flight = 2;  // with drafts one
  bool fair_share = false;
  SchedulingPolicy policy = SchedulingPolicy::kFcfs;
  ChunkPolicy chunk_policy = ChunkPolicy::kFirstCome;
  int32_t num_waiting = 0;  // for a sequence slot
  bool has_slots = false;   // those wait for blocks instead
  int32_t num_drafts = 0;   // of every run; half of them are accepted
  int32_t num_window_groups = 0;
  // The pool is full of what plain and compressed requests left that ended, so
  // that every block that is taken is reclaimed; those that wait begin as they.
  bool is_full = false;
  int64_t wish_ms = 0;  // for all blocks, outputs too; a step takes 1; 0: none
  bool one_tenant = false;
  // Of those that wait: compressed, and let in over compressed prefixes; an
  // image with as long a name as there is.
  bool waiting_share = false;
  bool waiting_has_media = false;
};

class SteadyDecode {
 public:
  explicit SteadyDecode(const Case& c) : case_(c) {
    SchedulerOptions options;
    options.max_num_seqs = kNumRunning + (c.has_slots ? 1 : 0);
    options.max_model_len = 1 << 20;
    options.max_steps_in_flight = c.steps_in_flight;
    // All sequences enter blocks, and are compressed, in the same steps.
    options.max_num_batched_tokens = kNumRunning * c.num_prompt;
    options.enable_prefix_caching = c.prefix_caching;
    options.policy = c.policy;
    options.chunk_policy = c.chunk_policy;
    options.fair_share = c.fair_share;
    options.num_speculative_tokens = c.num_drafts;
    ModelLayout layout = SmallLayout(kPageSize, kNumBlocks);
    layout.group_windows.assign(c.num_window_groups, 64);
    scheduler_ = *Scheduler::Create(layout, options);
    // The caller's buffers.
    for (StepPlan& plan : plans_) plan.dropped_regions.reserve(8);
    if (c.is_full) FillPool();
    for (int32_t i = 0; i < kNumRunning; ++i) Submit(i, c.num_prompt, i);
    Step();
    for (int32_t i = kNumRunning; i < kNumRunning + c.num_waiting; ++i) {
      const int32_t topic = c.is_full ? kNumRunning + i % kNumEnded : i;
      Submit(i, c.has_slots ? kNumBlocks * kPageSize - 2000 : c.num_prompt,
             topic);
    }
  }

  // A pair of calls, with more steps in flight; with drafts alone.
  void Step() {
    const int32_t most = case_.num_drafts == 0 ? case_.steps_in_flight : 1;
    StepPlan& plan = plans_[num_issued_ % 4];
    scheduler_->SetTime(++now_ms_);
    const bool issued = scheduler_->Schedule(&plan);
    num_issued_ += issued ? 1 : 0;
    has_evictions_ = issued && !plan.evictions.empty();
    num_dropped_regions_ += issued ? std::ssize(plan.dropped_regions) : 0;
    // A compression may wait for the one before.
    if (issued && scheduler_->num_steps_in_flight() < most) return;
    const StepPlan& oldest = plans_[num_answered_++ % 4];
    has_evictions_ |= !oldest.evictions.empty();
    result_.id = oldest.id;
    result_.sampled.resize(oldest.samples.size());
    for (size_t i = 0; i < oldest.samples.size(); ++i) {
      result_.sampled[i] = oldest.samples[i] != 0 ? 7 : -1;
    }
    if (case_.num_drafts > 0) AnswerDrafts(oldest);
    AnswerEvictions(oldest);
    effects_.Clear();
    EXPECT_TRUE(scheduler_->Update(result_, &effects_).ok());
    for (const EvictionEffect& effect : effects_.evictions) {
      EXPECT_TRUE(effect.status.ok());
      num_freed_blocks_ += effect.freed_blocks;
    }
  }
  // Of the plan that was issued, or answered, last.
  bool has_evictions() const { return has_evictions_; }
  int64_t num_freed_blocks() const { return num_freed_blocks_; }
  int64_t num_dropped_regions() const { return num_dropped_regions_; }
  size_t num_tokens() const { return effects_.tokens.size(); }
  SchedulerStats stats() const { return scheduler_->stats(); }
  // Steps in which no sequence enters a new block, and those in which all do,
  // come in turns of kPageSize.
  static constexpr int32_t kPageSize = 16;
  static constexpr int32_t kNumRunning = 64;
  static constexpr int32_t kNumBlocks = 14000;
  static constexpr int32_t kCompressEvery = 160;

 private:
  static constexpr int32_t kNumEnded = 20;  // whose prompts are waited with

  void Submit(int32_t i, int32_t num_prompt, int32_t topic) {
    Request request = MakeRequest(absl::StrCat(i), num_prompt, 1100, topic);
    if (case_.mode != EvictionMode::kNone) {
      request.eviction = Recency(case_.keep, case_.mode, kCompressEvery);
    }
    if (i >= kNumRunning && case_.waiting_share) {
      request.eviction = Recency(64);
      request.eviction.share_prefix = true;
    }
    if (i >= kNumRunning && case_.waiting_has_media) {
      request.scope.media = {{.length = 10, .hash = std::string(64, 'm')}};
    }
    Submit(std::move(request));
  }
  void Submit(Request request) {
    const bool is_even = request.prompt.front() % 20000 == 0;
    request.scope.tenant = is_even || case_.one_tenant ? "a" : "b";
    if (case_.wish_ms > 0) {
      request.retention = {{.priority = 60, .duration_ms = case_.wish_ms}};
    }
    EXPECT_TRUE(scheduler_->Submit(std::move(request)).ok());
  }
  void FillPool() {
    for (int32_t i = 0; stats().blocks.reclaimed_blocks == 0; ++i) {
      const int32_t topic = kNumRunning + i;
      Submit(MakeRequest(absl::StrCat("plain ", i), 9600, 1, topic));
      Request compressed =
          MakeRequest(absl::StrCat("compressed ", i), 640, 1, topic);
      compressed.eviction = Recency(64);
      compressed.eviction.share_prefix = true;
      Submit(std::move(compressed));
      while (scheduler_->has_unfinished_requests()) Step();
    }
    num_freed_blocks_ = 0;
  }
  // Of one head all pages that it may keep.
  void AnswerEvictions(const StepPlan& plan) {
    result_.evictions.resize(plan.evictions.size());
    for (size_t i = 0; i < plan.evictions.size(); ++i) {
      result_.evictions[i].counts.assign(
          1, static_cast<int32_t>(plan.evictions[i].page_total) * kPageSize);
    }
  }
  void AnswerDrafts(const StepPlan& plan) {
    result_.num_accepted.assign(plan.slots.size(), 0);
    result_.accepted.clear();
    for (size_t i = 0; i < plan.num_drafts.size(); ++i) {
      result_.num_accepted[i] = plan.num_drafts[i] / 2;
      result_.accepted.insert(result_.accepted.end(), result_.num_accepted[i],
                              6);
    }
    result_.num_drafts.assign(plan.slots.size(), case_.num_drafts);
  }

  const Case case_;
  std::unique_ptr<Scheduler> scheduler_;
  StepPlan plans_[4];
  int32_t num_issued_ = 0;
  int32_t num_answered_ = 0;
  bool has_evictions_ = false;
  int64_t num_freed_blocks_ = 0;
  int64_t num_dropped_regions_ = 0;
  int64_t now_ms_ = 0;
  StepResult result_;
  Effects effects_;
};

void ExpectNoAllocations(const Case& c) {
  SteadyDecode decode(c);
  // Buffers have the size they need once every sequence has entered a block at
  // once; sequences have 18 blocks then. They end with 66: what doubles does so
  // at 32 and 64.
  constexpr int32_t kNumPages = 48;
  for (int32_t i = 0; i < 18 * SteadyDecode::kPageSize; ++i) decode.Step();
  const int64_t num_dropped_regions = decode.num_dropped_regions();
  const uint64_t num_reclaimed = decode.stats().blocks.reclaimed_blocks;
  int64_t allocations = 0;
  int64_t num_tokens = 0;
  int32_t num_evicting_steps = 0;
  for (int32_t i = 0; i < kNumPages * SteadyDecode::kPageSize; ++i) {
    const int64_t before = num_allocations();
    decode.Step();
    num_tokens += static_cast<int64_t>(decode.num_tokens());
    if (decode.has_evictions()) {
      ++num_evicting_steps;
    } else {
      allocations += num_allocations() - before;
    }
  }
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(num_tokens,
            kNumPages * SteadyDecode::kPageSize * SteadyDecode::kNumRunning);
  EXPECT_EQ(num_evicting_steps > 0, c.mode == EvictionMode::kDecode);
  const bool compresses =
      c.mode != EvictionMode::kNone && c.mode != EvictionMode::kPressure;
  EXPECT_EQ(decode.num_freed_blocks() > 0, compresses && c.keep < c.num_prompt);
  if (!c.is_full) return;
  const BlockManagerStats blocks = decode.stats().blocks;
  EXPECT_EQ(blocks.reclaimed_blocks - num_reclaimed,
            uint64_t{kNumPages} * SteadyDecode::kNumRunning *
                (1 + c.num_window_groups));
  EXPECT_GT(decode.num_dropped_regions(), num_dropped_regions);
}

TEST(AllocationTest, NoneInASteadyDecodeStep) {
  constexpr auto kPriority = SchedulingPolicy::kPriority;
  constexpr auto kPrefix = SchedulingPolicy::kPrefix;
  constexpr auto kEqual = ChunkPolicy::kEqualProgress;
  const std::pair<const char*, Case> cases[] = {
      {"plain", {.prefix_caching = false}},
      {"publishing", {}},
      {"evictable", {.mode = EvictionMode::kAfterPrefill}},
      {"four in flight", {.steps_in_flight = 4}},
      {"four in flight, plain",
       {.prefix_caching = false, .steps_in_flight = 4}},
      {"windows, plain", {.prefix_caching = false, .num_window_groups = 3}},
      {"windows", {.num_window_groups = 3}},
      {"queue",
       {.fair_share = true, .chunk_policy = kEqual, .num_waiting = 10}},
      {"queue by priority",
       {.fair_share = true,
        .policy = kPriority,
        .chunk_policy = kEqual,
        .num_waiting = 10}},
      {"queue of one tenant",
       {.fair_share = true, .num_waiting = 10, .one_tenant = true}},
      {"full pool", {.is_full = true}},
      {"windows, full pool", {.num_window_groups = 3, .is_full = true}},
  };
  for (const auto& [name, c] : cases) {
    SCOPED_TRACE(name);
    ExpectNoAllocations(c);
  }
  for (const int32_t num_waiting : {10, 1000}) {
    SCOPED_TRACE(testing::Message() << num_waiting << " in order of prefixes");
    ExpectNoAllocations({.num_prompt = 200,
                         .policy = kPrefix,
                         .num_waiting = num_waiting,
                         .is_full = true});
  }
}

// Retention wishes expire or last; requests of the queue wait for blocks.
TEST(AllocationTest, NoneInAFullPoolOrNot) {
  const std::pair<const char*, Case> cases[] = {
      {"lasting wishes", {.wish_ms = 1 << 30}},
      {"wishes that expire", {.wish_ms = 500}},
      {"queue", {.num_waiting = 5, .has_slots = true}},
      {"queue, equal progress",
       {.chunk_policy = ChunkPolicy::kEqualProgress,
        .num_waiting = 5,
        .has_slots = true}},
      {"queue of sharers",
       {.num_waiting = 5, .has_slots = true, .waiting_share = true}},
      {"queue of media",
       {.num_waiting = 5, .has_slots = true, .waiting_has_media = true}},
  };
  for (const bool is_full : {false, true}) {
    for (const auto& [name, c] : cases) {
      SCOPED_TRACE(testing::Message() << name << ", full " << is_full);
      Case row = c;
      row.is_full = is_full;
      ExpectNoAllocations(row);
    }
  }
}

// A region below the tail, which grows again.
TEST(AllocationTest, NoneOverACompressedPrompt) {
  for (const bool prefix_caching : {false, true}) {
    for (const EvictionMode mode :
         {EvictionMode::kAfterPrefill, EvictionMode::kEveryChunk,
          EvictionMode::kDecode, EvictionMode::kPressure}) {
      for (const int32_t steps_in_flight : {1, 2, 4}) {
        SCOPED_TRACE(testing::Message()
                     << "mode " << static_cast<int32_t>(mode) << ", caching "
                     << prefix_caching << ", in flight " << steps_in_flight);
        ExpectNoAllocations({.prefix_caching = prefix_caching,
                             .mode = mode,
                             .keep = 32,
                             .num_prompt = 200,
                             .steps_in_flight = steps_in_flight});
      }
    }
  }
}

// Three positions a step, two tokens.
TEST(AllocationTest, NoneInASteadyStepWithDrafts) {
  SteadyDecode decode({.num_drafts = 2});
  for (int32_t i = 0; i < 9 * SteadyDecode::kPageSize; ++i) decode.Step();
  const int64_t before = num_allocations();
  int64_t num_tokens = 0;
  for (int32_t i = 0; i < 4 * SteadyDecode::kPageSize; ++i) {
    decode.Step();
    num_tokens += static_cast<int64_t>(decode.num_tokens());
  }
  const int64_t allocations = num_allocations() - before;
  EXPECT_EQ(allocations, 0);
  EXPECT_EQ(num_tokens,
            4 * SteadyDecode::kPageSize * 2 * SteadyDecode::kNumRunning);
}

}  // namespace
}  // namespace blockmgr
