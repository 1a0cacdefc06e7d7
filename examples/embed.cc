// Embedding blockmgr: the loop of a server around the scheduler, in one file.
//
// The "model" samples token 7 and keeps the same number of entries of every
// head. A real engine runs its kernels where the comments say so.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include <absl/status/status.h>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/eviction/keep_ratio.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/step_plan.h"
#include "engine/tables/tables.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"

namespace {

// The host engine: block tables, fed by plans, and the model that reads them.
class Engine {
 public:
  explicit Engine(const blockmgr::ModelLayout& layout)
      : tables_(layout, blockmgr::kMaxSequenceSlots) {}

  // Runs one step. An error names what in the plan contradicts the tables.
  absl::Status Run(const blockmgr::StepPlan& plan,
                   blockmgr::StepResult* result) {
    if (absl::Status status = tables_.Apply(plan); !status.ok()) return status;
    *result = {};
    result->id = plan.id;
    // Kernels: copy the blocks of plan.copies. Then compute num_tokens[i]
    // tokens of row(slots[i]).tokens, from positions[i] on. In every layer
    // group: write their K and V to the blocks of row(slots[i]).groups[group],
    // and attend to those and to the pages of its region.layout.
    for (size_t i = 0; i < plan.slots.size(); ++i) {
      const int32_t token = plan.samples[i] != 0 ? 7 : -1;
      if (plan.samples[i] != 0) tables_.AddSampled(plan.slots[i], token);
      result->sampled.push_back(token);
    }
    for (const blockmgr::EvictionOrder& order : plan.evictions) {
      blockmgr::EvictionOutcome& outcome = result->evictions.emplace_back();
      const absl::Status status = Evict(plan, order, &outcome);
      outcome.ok = status.ok();  // else the request goes on without
      outcome.error = std::string(status.message());
    }
    return absl::OkStatus();
  }
  void Reset() { tables_.Reset(); }

 private:
  // Carries out one order of a plan: nothing has changed if it fails.
  absl::Status Evict(const blockmgr::StepPlan& plan,
                     const blockmgr::EvictionOrder& order,
                     blockmgr::EvictionOutcome* outcome) {
    absl::Status status = tables_.CheckOrder(plan, order);
    if (!status.ok()) return status;
    // Kernels: score the entries by order.policy and select. Any counts within
    // the page total are legal.
    const blockmgr::ModelLayout& layout = tables_.layout();
    const auto pages =
        static_cast<int32_t>(order.page_total / layout.shard_pages_per_block());
    std::vector<int32_t> counts(layout.pages_per_block());
    for (size_t head = 0; head < counts.size(); ++head) {
      counts[head] =
          std::min(pages * layout.page_size,
                   tables_.CountHeldBelow(order, static_cast<int32_t>(head)));
    }
    status = tables_.CheckCounts(order, counts);
    if (!status.ok()) return status;
    tables_.Commit(plan, order, counts);
    // Kernels: move the survivors to the pages of the group's region.layout.
    outcome->counts = std::move(counts);
    outcome->layout_checksum = tables_.ChecksumOf(order);
    return absl::OkStatus();
  }

  blockmgr::EngineTables tables_;
};

void Submit(std::string id, size_t num_prompt_tokens,
            blockmgr::Scheduler* scheduler) {
  blockmgr::Request request;
  request.id = std::move(id);
  request.prompt.assign(num_prompt_tokens, 1);
  request.max_tokens = 32;
  request.eviction.mode = blockmgr::EvictionMode::kAfterPrefill;
  request.eviction.policy = *blockmgr::ParsePolicy("keydiff | adakv | topk");
  request.eviction.target.ratio = *blockmgr::KeepRatio::Parse("0.2");
  const auto number = scheduler->Submit(std::move(request));
  if (!number.ok()) {  // malformed, too long, or too many wait
    std::printf("refused: %s\n", number.status().ToString().c_str());
  }
}

// A server sends all of this to its clients, by effect.request.
void Deliver(const blockmgr::Effects& effects) {
  for (const blockmgr::EvictionEffect& eviction : effects.evictions) {
    std::printf("evicted %lld entries: %s\n",
                static_cast<long long>(eviction.evicted_entries),
                eviction.status.ToString().c_str());
  }
  for (const blockmgr::FinishEffect& end : effects.finished) {
    std::printf(
        "ended after %d tokens, %s: %s\n", end.num_output_tokens,
        end.reason == blockmgr::FinishReason::kLength ? "all" : "not all",
        end.status.ToString().c_str());
  }
}

}  // namespace

int main() {
  const blockmgr::ModelLayout layout = {.num_layers = 32,  // Llama-3.1-8B
                                        .num_heads = 8,
                                        .num_q_heads = 32,
                                        .head_dim = 128,
                                        .num_blocks = 4096};
  const auto created = blockmgr::Scheduler::Create(layout, {});
  if (!created.ok()) {
    std::printf("%s\n", created.status().ToString().c_str());
    return 1;
  }
  blockmgr::Scheduler* const scheduler = created->get();
  Engine engine(layout);
  Submit("a", 4000, scheduler);
  Submit("b", 3000, scheduler);
  Submit("c", 100000, scheduler);  // can never fit: refused

  blockmgr::StepPlan plan;
  blockmgr::StepResult result;
  blockmgr::Effects effects;
  int num_failures = 0;
  // A server never ends: while there is no plan, it waits for commands.
  while (num_failures < 3 && scheduler->Schedule(&plan)) {
    effects.Clear();  // the calls below append
    absl::Status status = engine.Run(plan, &result);
    if (status.ok()) status = scheduler->Update(result, &effects);
    if (!status.ok()) {  // what is running will be computed again
      std::printf("%s\n", status.ToString().c_str());
      ++num_failures;
      engine.Reset();
      scheduler->LoseEngine(&effects);
    }
    // Commands come between steps. Here the client of "b" goes away.
    const auto left = scheduler->Find("b");
    if (left.ok() && scheduler->stats().num_steps == 10) {
      (void)scheduler->Cancel(*left, &effects);  // NotFound: it has ended
    }
    Deliver(effects);
  }
  const blockmgr::SchedulerStats stats = scheduler->stats();
  std::printf("%lld blocks (%.1f MB) given back by eviction\n",
              static_cast<long long>(stats.evicted_blocks),
              static_cast<double>(stats.evicted_bytes) / 1e6);
  const bool is_done = stats.num_finished == 2 && stats.num_evictions == 2 &&
                       stats.num_output_tokens < 64 && num_failures == 0;
  return is_done ? 0 : 1;
}
