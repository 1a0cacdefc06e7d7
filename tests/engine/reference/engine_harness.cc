#include "tests/engine/reference/engine_harness.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/select.h"
#include "blockmgr/eviction/window_eviction.h"
#include "engine/reference/tiny_backends.h"
#include "kernels/backend.h"
#include "tests/testing/test_tables.h"

namespace blockmgr {
namespace {

ModelLayout WholeLayout(const LanguageModel& model, DType dtype,
                        int32_t num_blocks, int32_t num_shards) {
  ModelLayout whole = MakeLayout(model.shape(), 16, dtype, num_blocks);
  whole.num_shards = num_shards;
  return whole;
}

std::vector<std::unique_ptr<Backend>> CpuShards(const ModelLayout& whole) {
  auto backends = CreateCpuShards(whole);
  BM_CHECK(backends.ok());
  return *std::move(backends);
}

}  // namespace

std::vector<int32_t> KeptPositions(const EntryIndex& candidates,
                                   const KeepSets& keep, size_t head_index) {
  std::vector<int32_t> positions;
  for (int64_t i = keep.offsets[head_index]; i < keep.offsets[head_index + 1];
       ++i) {
    const int64_t entry =
        candidates.offsets[head_index] + keep.ranks[static_cast<size_t>(i)];
    positions.push_back(candidates.positions[static_cast<size_t>(entry)]);
  }
  return positions;
}

EngineHarness::EngineHarness(const std::shared_ptr<const LanguageModel>& model,
                             DType dtype, int32_t num_blocks,
                             int32_t num_shards, int32_t num_host_blocks)
    : EngineHarness(
          model, CpuShards(WholeLayout(*model, dtype, num_blocks, num_shards)),
          num_host_blocks) {}

EngineHarness::EngineHarness(std::shared_ptr<const LanguageModel> model,
                             std::vector<std::unique_ptr<Backend>> backends,
                             int32_t num_host_blocks, bool captures_graphs)
    : sequences_(kNumSlots), logits_(kNumSlots) {
  const ModelLayout& of_shard = backends.front()->layout();
  const ModelLayout whole =
      WholeLayout(*model, of_shard.dtype, of_shard.num_blocks,
                  static_cast<int32_t>(backends.size()));
  // Whatever is read without having been written shows up as NaN.
  for (const std::unique_ptr<Backend>& backend : backends) backend->Poison();
  const ModelShape& shape = model->shape();
  QueryStatsTables query_stats = MeasuredQueryStats(
      shape.num_layers, shape.num_q_heads, shape.head_dim, 1);
  auto forward = CreateTinyForward(model.get(), whole, backends);
  BM_CHECK(forward.ok());
  engine_ = std::make_unique<TinyEngine>(
      std::move(model), whole, std::move(backends),
      TinyEngineOptions{.max_sequences = static_cast<int32_t>(kNumSlots),
                        .num_host_blocks = num_host_blocks,
                        .query_stats = std::move(query_stats),
                        .captures_graphs = captures_graphs},
      *std::move(forward));
  merger_ = std::make_unique<ShardMerger>(whole);
  for (int32_t block = whole.num_blocks - 1; block > 0; --block) {
    free_.push_back(BlockId{block});
  }
  engine_->set_observer(TinyObserver{
      .on_logits =
          [this](SequenceSlot slot, int32_t, std::span<const float> logits) {
            logits_[static_cast<size_t>(Index(slot))].assign(logits.begin(),
                                                             logits.end());
          },
      .on_eviction =
          [this](const EvictionOrder& order, int32_t shard,
                 const ScoredEntries& scored, const KeepSets& keep) {
            if (!merger_->Add(shard, scored, keep)) return;
            evictions_.push_back({.order = order,
                                  .candidates = merger_->scored().candidates,
                                  .scores = merger_->scored().scores,
                                  .keep = merger_->keep(),
                                  .outcome = {}});
          }});
}

BlockId EngineHarness::Allocate() {
  BM_CHECK(!free_.empty());
  const BlockId block = free_.back();
  free_.pop_back();
  return block;
}

void EngineHarness::Extend(int32_t num_pages, std::vector<BlockId>* table,
                           std::vector<BlockId>* added) {
  while (static_cast<int32_t>(table->size()) < num_pages) {
    table->push_back(Allocate());
    added->push_back(table->back());
  }
}

void EngineHarness::FreeOwn(const Sequence& sequence,
                            std::span<const BlockId> blocks) {
  for (const BlockId block : blocks) {
    if (block == kNullBlock || sequence.shared.contains(block)) continue;
    free_.push_back(block);
  }
}

std::vector<BlockId> EngineHarness::SharedPages(const Sequence& from,
                                                int32_t group, int32_t begin,
                                                int32_t end) const {
  const int32_t page_size = layout().page_size;
  const Group& table = from.groups[static_cast<size_t>(group)];
  const int32_t first = layout().FirstPage(group, end * page_size);
  std::vector<BlockId> pages;
  for (int32_t page = begin; page < end; ++page) {
    pages.push_back(
        page < first
            ? kNullBlock
            : table.blocks[static_cast<size_t>(page - table.cut / page_size)]);
  }
  return pages;
}

void EngineHarness::LeaveBehind(Sequence* sequence) {
  for (int32_t g = 0; g < layout().num_groups(); ++g) {
    Group& group = sequence->groups[static_cast<size_t>(g)];
    const int32_t num_gone = layout().FirstPage(g, sequence->computed) -
                             group.cut / layout().page_size;
    if (num_gone < 0) continue;  // something of the region is left
    FreeOwn(*sequence,
            std::span(group.blocks).first(static_cast<size_t>(num_gone)));
    std::fill_n(group.blocks.begin(), num_gone, kNullBlock);
    FreeOwn(*sequence, group.region);
    group.region.clear();
  }
}

void EngineHarness::Start(int32_t slot, std::vector<int32_t> prompt,
                          int32_t query_window,
                          std::span<const BlockId> shared) {
  Sequence& sequence = sequences_[static_cast<size_t>(slot)];
  const int32_t cached =
      static_cast<int32_t>(shared.size()) * layout().page_size;
  sequence = Sequence();
  sequence.tokens = std::move(prompt);
  sequence.computed = cached;
  sequence.shared.insert(shared.begin(), shared.end());
  sequence.groups.resize(static_cast<size_t>(layout().num_groups()));
  sequence.groups[0].blocks.assign(shared.begin(), shared.end());
  sequence.start =
      SequenceStart{.slot = SequenceSlot{slot},
                    .request = RequestId{static_cast<uint64_t>(slot) + 100},
                    .num_tokens = static_cast<int32_t>(sequence.tokens.size()),
                    .num_cached_tokens = cached,
                    .query_window = query_window};
}

void EngineHarness::StartOnPages(int32_t slot, std::vector<int32_t> prompt,
                                 int32_t source, int32_t num_pages) {
  const Sequence& from = sequences_[static_cast<size_t>(source)];
  Start(slot, std::move(prompt), 32, SharedPages(from, 0, 0, num_pages));
  Sequence& sequence = sequences_[static_cast<size_t>(slot)];
  for (int32_t group = 1; group < layout().num_groups(); ++group) {
    std::vector<BlockId> pages = SharedPages(from, group, 0, num_pages);
    sequence.shared.insert(pages.begin(), pages.end());
    sequence.groups[static_cast<size_t>(group)].blocks = std::move(pages);
  }
}

void EngineHarness::StartOnRegion(int32_t slot, std::vector<int32_t> prompt,
                                  int32_t source, RegionId region,
                                  int32_t num_pages) {
  const Sequence& from = sequences_[static_cast<size_t>(source)];
  const std::vector<int32_t>& cuts = kept_.at(region);
  const int32_t page_size = layout().page_size;
  const int32_t end = cuts[0] / page_size + num_pages;
  Start(slot, std::move(prompt), 32, {});
  Sequence& sequence = sequences_[static_cast<size_t>(slot)];
  sequence.computed = end * page_size;
  for (int32_t group = 0; group < layout().num_groups(); ++group) {
    const auto index = static_cast<size_t>(group);
    Group& own = sequence.groups[index];
    const int32_t first = layout().FirstPage(group, sequence.computed);
    if (cuts[index] > first * page_size) own.cut = cuts[index];
    own.blocks = SharedPages(from, group, own.cut / page_size, end);
    sequence.shared.insert(own.blocks.begin(), own.blocks.end());
  }
  sequence.start->num_cached_tokens = sequence.computed;
  sequence.start->region = region;
}

void EngineHarness::Schedule(int32_t slot, int32_t num_tokens) {
  Sequence& sequence = sequences_[static_cast<size_t>(slot)];
  std::vector<std::vector<BlockId>> added(sequence.groups.size());
  if (sequence.start) {
    sequence.start->token_begin =
        static_cast<int64_t>(plan_.start_tokens.size());
    plan_.start_tokens.insert(plan_.start_tokens.end(), sequence.tokens.begin(),
                              sequence.tokens.end());
    plan_.starts.push_back(*sequence.start);
    sequence.start.reset();
    for (size_t i = 0; i < added.size(); ++i) {
      added[i] = sequence.groups[i].blocks;
    }
  }
  if (plan_.block_offsets.empty()) plan_.block_offsets.push_back(0);
  plan_.slots.push_back(SequenceSlot{slot});
  plan_.positions.push_back(sequence.computed);
  plan_.num_tokens.push_back(num_tokens);
  sequence.computed += num_tokens;
  const bool all =
      sequence.computed == static_cast<int32_t>(sequence.tokens.size());
  plan_.samples.push_back(all ? 1 : 0);
  for (size_t i = 0; i < added.size(); ++i) {
    Group& group = sequence.groups[i];
    Extend(CeilDiv(sequence.computed - group.cut, layout().page_size),
           &group.blocks, &added[i]);
    plan_.blocks.insert(plan_.blocks.end(), added[i].begin(), added[i].end());
    plan_.block_offsets.push_back(static_cast<int64_t>(plan_.blocks.size()));
  }
}

void EngineHarness::Release(int32_t slot) {
  Sequence& sequence = sequences_[static_cast<size_t>(slot)];
  plan_.released.push_back(SequenceSlot{slot});
  for (const Group& group : sequence.groups) {
    FreeOwn(sequence, group.region);
    FreeOwn(sequence, group.blocks);
  }
  sequence = Sequence();
}

void EngineHarness::Evict(int32_t slot, int32_t cut, const std::string& policy,
                          const EvictionTarget& target, DestinationKind kind) {
  const absl::StatusOr<EvictionPolicy> parsed = ParsePolicy(policy);
  BM_CHECK(parsed.ok());
  EvictionOrder order;
  order.slot = SequenceSlot{slot};
  order.cut = cut;
  order.policy = *parsed;
  order.target = target;
  AddOrder(std::move(order), kind);
}

void EngineHarness::EvictEverywhere(int32_t slot, int32_t cut,
                                    const std::string& policy,
                                    const EvictionTarget& target,
                                    DestinationKind kind) {
  Evict(slot, cut, policy, target, kind);
  for (int32_t group = 1; group < layout().num_groups(); ++group) {
    EvictionOrder order;
    order.slot = SequenceSlot{slot};
    order.group = group;
    order.cut = cut;
    order.policy = plan_.evictions.back().policy;
    order.target = target;
    AddOrder(std::move(order), kind);
  }
}

void EngineHarness::AddOrder(EvictionOrder order, DestinationKind kind) {
  const Sequence& sequence = sequences_[static_cast<size_t>(Index(order.slot))];
  const Group& group = sequence.groups[static_cast<size_t>(order.group)];
  order.length = sequence.computed;
  const HeadShape shape{layout().num_layers, layout().shard_heads(),
                        layout().page_size};
  const int32_t window = layout().window_of(order.group);
  if (window == 0) {
    order.page_total =
        PageTotal(order.policy, order.target, shape, {order.cut, order.length});
  } else {
    const WindowEviction eviction =
        WindowEviction::Of(order.policy, window, order.cut, order.length);
    order.page_total =
        PageTotal(eviction.policy, order.target, shape, eviction.range);
  }
  std::vector<BlockId> own;
  const int32_t cut_page = group.cut / layout().page_size;
  const int32_t first = layout().FirstPage(order.group, order.length + 1);
  // Of a region that the window has passed nothing is moved.
  if (cut_page > first) own = group.region;
  const auto below =
      std::span(group.blocks)
          .first(
              static_cast<size_t>((order.cut - group.cut) / layout().page_size))
          .subspan(static_cast<size_t>(std::max(first - cut_page, 0)));
  std::ranges::copy_if(below, std::back_inserter(own), [&](BlockId block) {
    return !sequence.shared.contains(block);
  });
  order.destination_begin = static_cast<int64_t>(plan_.destinations.size());
  order.num_destinations = static_cast<int32_t>(
      CeilDiv<int64_t>(order.page_total, layout().shard_pages_per_block()));
  // The last ones first: then list order, block order and age all differ.
  for (int32_t i = 0; i < order.num_destinations; ++i) {
    const bool use_own = kind == DestinationKind::kOwn ||
                         (kind == DestinationKind::kMixed && i % 2 == 0);
    if (use_own && !own.empty()) {
      plan_.destinations.push_back(own.back());
      own.pop_back();
    } else {
      plan_.destinations.push_back(Allocate());
    }
  }
  plan_.evictions.push_back(std::move(order));
}

void EngineHarness::Commit(const EvictionOrder& order) {
  Sequence& sequence = sequences_[static_cast<size_t>(Index(order.slot))];
  Group& group = sequence.groups[static_cast<size_t>(order.group)];
  const std::span<const BlockId> destinations =
      EngineTables::Destinations(plan_, order);
  const auto end =
      group.blocks.begin() + (order.cut - group.cut) / layout().page_size;
  std::vector<BlockId> gone = group.region;
  gone.insert(gone.end(), group.blocks.begin(), end);
  std::erase_if(gone, [&](BlockId block) {
    return std::ranges::count(destinations, block) > 0;
  });
  FreeOwn(sequence, gone);
  group.blocks.erase(group.blocks.begin(), end);
  group.region.assign(destinations.begin(), destinations.end());
  group.cut = order.cut;
}

void EngineHarness::Keep(const EvictionOrder& order) {
  const Sequence& sequence = sequences_[static_cast<size_t>(Index(order.slot))];
  std::vector<int32_t>& cuts = kept_[order.region];
  cuts.clear();
  for (int32_t group = 0; group < layout().num_groups(); ++group) {
    const int32_t cut = sequence.groups[static_cast<size_t>(group)].cut;
    const int32_t first = layout().FirstPage(group, order.length);
    cuts.push_back(cut > first * layout().page_size ? cut : 0);
  }
}

absl::Status EngineHarness::Run() {
  evictions_.clear();
  for (std::vector<float>& logits : logits_) logits.clear();
  plan_.id = StepId{++num_steps_};
  BM_RETURN_IF_ERROR(engine_->Run(plan_, &result_));
  BM_CHECK(result_.id == plan_.id);
  for (size_t i = 0; i < plan_.slots.size(); ++i) {
    if (plan_.samples[i] == 0) continue;
    sequences_[static_cast<size_t>(Index(plan_.slots[i]))].tokens.push_back(
        result_.sampled[i]);
  }
  if (layout().has_windows()) {
    for (const SequenceSlot slot : plan_.slots) {
      LeaveBehind(&sequences_[static_cast<size_t>(Index(slot))]);
    }
  }
  size_t seen = 0;
  for (size_t i = 0; i < plan_.evictions.size(); ++i) {
    if (!result_.evictions[i].ok) continue;
    evictions_[seen++].outcome = result_.evictions[i];
    Commit(plan_.evictions[i]);
  }
  for (size_t i = 0; i < plan_.evictions.size(); ++i) {
    const EvictionOrder& order = plan_.evictions[i];
    if (result_.evictions[i].ok && order.region != kNoRegion) Keep(order);
  }
  plan_.Clear();
  return absl::OkStatus();
}

std::vector<float> EngineHarness::Prefill(int32_t slot,
                                          std::span<const int32_t> chunks) {
  for (const int32_t chunk : chunks) {
    Schedule(slot, chunk);
    BM_CHECK(Run().ok());
  }
  return logits(slot);
}

std::vector<float> EngineHarness::Decode(int32_t slot) {
  Schedule(slot, 1);
  BM_CHECK(Run().ok());
  return logits(slot);
}

LogitRows EngineHarness::Generate(int32_t slot, std::span<const int32_t> chunks,
                                  int32_t num_decodes) {
  LogitRows rows = {Prefill(slot, chunks)};
  for (int32_t i = 0; i < num_decodes; ++i) rows.push_back(Decode(slot));
  return rows;
}

}  // namespace blockmgr
