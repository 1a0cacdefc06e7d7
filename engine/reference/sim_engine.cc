#include "engine/reference/sim_engine.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <string>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/eviction/window_eviction.h"

namespace blockmgr {
namespace {

// Sampled tokens are below this: the vocabulary of Llama 3.
constexpr int32_t kVocabulary = 128256;
constexpr double kMaxConcentration = 4.0;

// Uniform in (0, 1).
double Uniform(uint64_t bits) {
  return (static_cast<double>(bits >> 11) + 0.5) * 0x1p-53;
}

// exp(sigma * z), z standard normal by Box and Muller, from two draws.
double LogNormal(double sigma, uint64_t key, uint64_t index) {
  const double radius = Uniform(SplitMix64(key ^ SplitMix64(2 * index)));
  const double angle = Uniform(SplitMix64(key ^ SplitMix64(2 * index + 1)));
  const double z = std::sqrt(-2.0 * std::log(radius)) *
                   std::cos(2.0 * std::numbers::pi * angle);
  return std::exp(sigma * z);
}

// Returns the number that all draws for a request start from.
uint64_t RequestKey(uint64_t seed, RequestId request) {
  return SplitMix64(seed ^ SplitMix64(Index(request)));
}

// The positions of one head that the queries of a step read.
struct Reads {
  double live = 0;      // once each
  double attended = 0;  // as often as a query attends to them
};

// Returns the reads of the last n of `length` tokens. Each attends to the last
// `window` tokens up to itself, or to all if `window` is 0.
Reads ReadsOf(double n, double length, double window) {
  if (window == 0) return {length, n * length - n * (n - 1) / 2};
  const double before = length - n;
  // The first of the queries may still see everything.
  const double num_whole = std::clamp(window - before, 0.0, n);
  return {std::min(length, window + n - 1),
          num_whole * before + num_whole * (num_whole + 1) / 2 +
              (n - num_whole) * window};
}

uint64_t HashTokens(std::span<const int32_t> tokens) {
  uint64_t hash = 0;
  for (const int32_t token : tokens) {
    hash = SplitMix64(hash ^ static_cast<uint64_t>(token));
  }
  return hash;
}

absl::Status CheckRange(const char* field, double value, double least,
                        double most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return Invalid("sim model: ", field, ": expected a number of ", least, " to ",
                 most, ", got ", value);
}

}  // namespace

absl::Status SimModel::Validate() const {
  struct Field {
    const char* name;
    double value;
    double least;
    double most;
  };
  for (const Field& field :
       {Field{"layer_params", layer_params, 1, kMaxParams},
        Field{"output_params", output_params, 0, kMaxParams},
        Field{"weight_bytes", static_cast<double>(weight_bytes), 1, 8},
        Field{"flops", flops, 1, kMaxPerSecond},
        Field{"attention_flops", attention_flops, 1, kMaxPerSecond},
        Field{"bandwidth", bandwidth, 1, kMaxPerSecond},
        Field{"attention_bandwidth", attention_bandwidth, 1, kMaxPerSecond},
        Field{"host_bandwidth", host_bandwidth, 1, kMaxPerSecond},
        Field{"step_overhead_s", step_overhead_s, 0, kMaxStepOverhead},
        Field{"head_concentration", head_concentration, 0, kMaxConcentration},
        Field{"num_drafts", static_cast<double>(num_drafts), 0, 1024},
        Field{"draft_acceptance", draft_acceptance, 0, 1}}) {
    BM_RETURN_IF_ERROR(
        CheckRange(field.name, field.value, field.least, field.most));
  }
  return absl::OkStatus();
}

ModelLayout MakeLayout(const SimModel& model, int32_t num_blocks) {
  return ModelLayout{.num_layers = model.num_layers,
                     .num_heads = model.num_heads,
                     .num_q_heads = model.num_q_heads,
                     .head_dim = model.head_dim,
                     .page_size = model.page_size,
                     .dtype = DType::kBFloat16,
                     .num_blocks = num_blocks,
                     .num_shards = model.num_shards,
                     .window = model.window,
                     .group_windows = model.group_windows};
}

SimEngine::SimEngine(const ModelLayout& layout, const SimModel& model,
                     uint64_t seed, int32_t num_host_blocks)
    : layout_(layout),
      model_(model),
      seed_(seed),
      tables_(layout, kMaxSequenceSlots, num_host_blocks) {
  BM_CHECK(layout.Validate().ok());
  BM_CHECK(model.Validate().ok());
}

double SimEngine::Run(const StepPlan& plan, StepResult* result) {
  const absl::StatusOr<double> seconds = TryRun(plan, result);
  BM_CHECK(seconds.ok());
  return *seconds;
}

absl::StatusOr<double> SimEngine::TryRun(const StepPlan& plan,
                                         StepResult* result) {
  BM_RETURN_IF_ERROR(tables_.Apply(plan));
  result->id = plan.id;
  result->sampled.assign(plan.slots.size(), -1);
  result->evictions.assign(plan.evictions.size(), {});
  result->num_accepted.assign(plan.num_drafts.size(), 0);
  result->accepted.clear();
  result->num_drafts.assign(model_.num_drafts > 0 ? plan.slots.size() : 0, 0);
  const double seconds = StepSeconds(plan);
  Sample(plan, result);
  for (size_t i = 0; i < plan.evictions.size(); ++i) {
    EvictionOutcome& outcome = result->evictions[i];
    const absl::Status status = Evict(plan, plan.evictions[i], &outcome.counts);
    outcome.ok = status.ok();
    outcome.error = std::string(status.message());
    if (!outcome.ok) {
      outcome.counts.clear();
      continue;
    }
    outcome.layout_checksum = tables_.ChecksumOf(plan.evictions[i]);
  }
  return seconds;
}

int32_t SimEngine::TokenAt(RequestId request, int32_t position) const {
  const uint64_t draw =
      SplitMix64(RequestKey(seed_, request) + static_cast<uint64_t>(position));
  return static_cast<int32_t>(draw % uint64_t{kVocabulary});
}

void SimEngine::ProposeDrafts(SequenceSlot slot) {
  const SequenceTable& table = tables_.row(slot);
  const auto begin = static_cast<int32_t>(table.tokens.size());
  drafts_.clear();
  for (int32_t i = begin; i < begin + model_.num_drafts; ++i) {
    const int32_t token = TokenAt(table.request, i);
    const uint64_t draw = SplitMix64(~RequestKey(seed_, table.request) +
                                     static_cast<uint64_t>(i));
    const bool is_right = Uniform(draw) < model_.draft_acceptance;
    drafts_.push_back(is_right ? token : (token + 1) % kVocabulary);
  }
  tables_.SetDrafts(slot, drafts_);
}

void SimEngine::Sample(const StepPlan& plan, StepResult* result) {
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    if (plan.samples[i] == 0) continue;
    const SequenceSlot slot = plan.slots[i];
    const SequenceTable& table = tables_.row(slot);
    const int32_t num_drafts = plan.num_drafts.empty() ? 0 : plan.num_drafts[i];
    auto position = static_cast<int32_t>(table.tokens.size()) - num_drafts;
    int32_t token = TokenAt(table.request, position);
    if (num_drafts > 0) {
      int32_t& num_accepted = result->num_accepted[i];
      while (num_accepted < num_drafts &&
             token == table.tokens[static_cast<size_t>(position)]) {
        result->accepted.push_back(token);
        ++num_accepted;
        token = TokenAt(table.request, ++position);
      }
      tables_.RejectDrafts(slot, num_drafts, num_accepted);
    }
    result->sampled[i] = token;
    tables_.AddSampled(slot, token);
    if (model_.num_drafts == 0) continue;
    ProposeDrafts(slot);
    result->num_drafts[i] = model_.num_drafts;
  }
}

double SimEngine::StepSeconds(const StepPlan& plan) const {
  double slowest = 0;
  for (int32_t shard = 0; shard < layout_.num_shards; ++shard) {
    slowest = std::max(slowest, AttentionSeconds(plan, shard));
  }
  // Blocks are copied to the host before their memory is written again, and
  // back before they are read: nothing hides it. Each rank has its own link.
  const auto num_transfers = static_cast<double>(
      std::ssize(plan.transfers_out) + std::ssize(plan.transfers_in));
  const double copied = num_transfers *
                        static_cast<double>(layout_.block_bytes()) /
                        layout_.num_shards;
  return ProductSeconds(plan) + slowest + copied / model_.host_bandwidth +
         model_.step_overhead_s;
}

double SimEngine::ProductSeconds(const StepPlan& plan) const {
  double tokens = 0;
  double outputs = 0;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    tokens += plan.num_tokens[i];
    if (plan.samples[i] == 0) continue;
    outputs += 1 + (plan.num_drafts.empty() ? 0 : plan.num_drafts[i]);
  }
  if (tokens == 0) return 0;
  const double read =
      model_.layer_params + (outputs > 0 ? model_.output_params : 0);
  const double multiplied =
      model_.layer_params * tokens + model_.output_params * outputs;
  return std::max(2.0 * multiplied / model_.flops,
                  read * model_.weight_bytes / model_.bandwidth) /
         layout_.num_shards;
}

double SimEngine::AttentionSeconds(const StepPlan& plan, int32_t shard) const {
  // Totals over layers and heads; doubles hold them exactly below 2^53.
  const double num_heads = layout_.shard_pages_per_block();
  double live = 0;
  double attended = 0;
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const SequenceTable& table = tables_.row(plan.slots[i]);
    const double n = plan.num_tokens[i];
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      const TableRegion* region =
          table.groups[static_cast<size_t>(group)].attended_region();
      const int32_t cut = region == nullptr ? 0 : region->cut;
      const Reads reads =
          ReadsOf(n, table.num_computed - cut, layout_.window_of(group));
      // As if all of a region stayed in the window until it is gone.
      const double kept =
          region == nullptr
              ? 0.0
              : static_cast<double>(
                    region->shard_entries[static_cast<size_t>(shard)]);
      live += kept + num_heads * reads.live;
      attended += n * kept + num_heads * reads.attended;
    }
  }
  const double flops = 4.0 * layout_.head_dim * layout_.group_size() * attended;
  const double bytes = live * 2.0 * static_cast<double>(layout_.row_bytes());
  return std::max(flops / model_.attention_flops,
                  bytes / model_.attention_bandwidth);
}

absl::Status SimEngine::Evict(const StepPlan& plan, const EvictionOrder& order,
                              std::vector<int32_t>* counts) {
  BM_RETURN_IF_ERROR(tables_.CheckOrder(plan, order));
  *counts = DrawCounts(order);
  BM_RETURN_IF_ERROR(tables_.CheckCounts(order, *counts));
  tables_.Commit(plan, order, *counts);
  return absl::OkStatus();
}

std::vector<int32_t> SimEngine::DrawCounts(const EvictionOrder& order) const {
  std::vector<int32_t> counts(static_cast<size_t>(layout_.pages_per_block()));
  for (int32_t shard = 0; shard < layout_.num_shards; ++shard) {
    DrawShard(order, shard, &counts);
  }
  return counts;
}

uint64_t SimEngine::KeyOf(const EvictionOrder& order) const {
  const SequenceTable& table = tables_.row(order.slot);
  const RegionId name =
      order.group == 0 ? order.region : tables_.KeptName(order.slot);
  if (name == kNoRegion) {
    return SplitMix64(RequestKey(seed_, table.request) +
                      static_cast<uint64_t>(table.num_evictions));
  }
  // A region that others may start with depends on the tokens alone.
  const auto num_tokens = static_cast<size_t>(order.length);
  return SplitMix64(seed_ ^
                    HashTokens(std::span(table.tokens).first(num_tokens)));
}

void SimEngine::DrawShard(const EvictionOrder& order, int32_t shard,
                          std::vector<int32_t>* counts) const {
  const HeadShape shape{layout_.num_layers, layout_.shard_heads(),
                        layout_.page_size};
  EvictionRange range{order.cut, order.length};
  EvictionPolicy policy = order.policy;
  if (order.group > 0) {
    const WindowEviction eviction = WindowEviction::Of(
        policy, layout_.window_of(order.group), order.cut, order.length);
    range = eviction.range;
    policy = eviction.policy;
  }
  const uint64_t key = KeyOf(order);
  const bool is_external = policy.budget.kind == BudgetKind::kExternal;
  const bool is_adaptive = IsAdaptive(policy.budget.kind);
  // places[i] is the index, among the heads of all shards, of the shard's i-th
  // (layer, head).
  std::vector<size_t> places;
  std::vector<int32_t> held;
  std::vector<double> shares;
  std::vector<int32_t> external;
  for (int32_t head = 0; head < layout_.shard_pages_per_block(); ++head) {
    const auto place =
        static_cast<size_t>(layout_.shard_head_index(shard, head));
    places.push_back(place);
    // No more than there are positions: the sim follows none of them.
    held.push_back(std::min(
        range.cut, tables_.CountHeldBelow(order, static_cast<int32_t>(place))));
    if (is_adaptive) {
      shares.push_back(LogNormal(model_.head_concentration, key, place));
    }
    if (is_external) external.push_back((*order.budgets)[place]);
  }
  const std::vector<int32_t> budgets = BudgetsByWeight(
      policy, order.target, shape, range, held, shares, external);
  for (size_t head = 0; head < places.size(); ++head) {
    (*counts)[places[head]] = budgets[head];
  }
}

}  // namespace blockmgr
