// Embedding blockmgr: an engine's loop around the scheduler, in one file.
//
// The "model" here samples token 7 and keeps the last tokens of every head; a
// real engine runs its kernels where RunOnGpu stands.

#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"

namespace {

// Runs one step. The plan says, as flat arrays, which blocks join which table,
// which positions to compute, and which sequences to evict from.
blockmgr::StepResult RunOnGpu(const blockmgr::StepPlan& plan,
                              const blockmgr::ModelLayout& layout) {
  blockmgr::StepResult result;
  result.id = plan.id;
  for (const uint8_t samples : plan.samples) {
    result.sampled.push_back(samples != 0 ? 7 : -1);
  }
  for (const blockmgr::EvictionOrder& order : plan.evictions) {
    // Any counts per (layer, head) within every shard's page total are legal.
    const int64_t pages = order.page_total / layout.shard_pages_per_block();
    const auto kept = static_cast<int32_t>(pages) * layout.page_size;
    blockmgr::EvictionOutcome outcome;
    outcome.counts.assign(layout.pages_per_block(), kept);
    result.evictions.push_back(std::move(outcome));
  }
  return result;
}

}  // namespace

int main() {
  blockmgr::ModelLayout layout;  // Llama-3.1-8B, 16 tokens to a page
  layout.num_layers = 32;
  layout.num_heads = 8;
  layout.num_q_heads = 32;
  layout.head_dim = 128;
  layout.num_blocks = 4096;
  auto scheduler = blockmgr::Scheduler::Create(layout, {});
  if (!scheduler.ok()) {
    std::printf("%s\n", scheduler.status().ToString().c_str());
    return 1;
  }

  blockmgr::Request request;
  request.id = "a";
  request.prompt.assign(4000, 1);
  request.max_tokens = 32;
  request.eviction.mode = blockmgr::EvictionMode::kAfterPrefill;
  request.eviction.policy = *blockmgr::ParsePolicy("keydiff | adakv | topk");
  request.eviction.target.ratio = *blockmgr::KeepRatio::Parse("0.2");
  if (auto id = (*scheduler)->Submit(std::move(request)); !id.ok()) {
    std::printf("%s\n", id.status().ToString().c_str());
    return 1;
  }

  blockmgr::StepPlan plan;
  blockmgr::Effects effects;
  size_t num_tokens = 0;
  while ((*scheduler)->Schedule(&plan)) {
    effects.Clear();  // Update appends
    const absl::Status status =
        (*scheduler)->Update(RunOnGpu(plan, layout), &effects);
    if (!status.ok()) {
      std::printf("%s\n", status.ToString().c_str());
      return 1;
    }
    num_tokens += effects.tokens.size();  // a server sends them to its clients
  }
  const blockmgr::SchedulerStats stats = (*scheduler)->stats();
  std::printf("%zu tokens, %lld blocks (%.1f MB) given back by eviction\n",
              num_tokens, static_cast<long long>(stats.evicted_blocks),
              static_cast<double>(stats.evicted_bytes) / 1e6);
  return num_tokens == 32 && stats.evicted_blocks > 0 ? 0 : 1;
}
