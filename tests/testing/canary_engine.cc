#include "tests/testing/canary_engine.h"

#include <algorithm>
#include <utility>

#include <absl/container/flat_hash_set.h>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/compaction.h"
#include "blockmgr/ragged_region.h"
#include "tests/testing/canary_error.h"

namespace blockmgr {

CanaryEngine::CanaryEngine(const ModelLayout& layout, int32_t max_sequences,
                           const CanaryOptions& options)
    : layout_(layout),
      options_(options),
      tables_(layout, max_sequences, options.num_host_blocks),
      sequences_(tables_, max_sequences),
      memory_(layout, options.num_host_blocks),
      orders_(options_, tables_, sequences_, memory_) {}

void CanaryEngine::Restart() {
  tables_.Reset();
  sequences_.Clear();
  memory_ = CanaryMemory(layout_, options_.num_host_blocks);
  queue_.clear();
}

int32_t CanaryEngine::SampleAfter(uint64_t chain) const {
  return static_cast<int32_t>(SplitMix64(chain ^ options_.seed) %
                              options_.vocabulary);
}

std::vector<int32_t> CanaryEngine::OutputsAlone(
    std::span<const int32_t> prompt, int32_t max_tokens,
    std::span<const int32_t> stop_token_ids,
    const std::optional<SamplingParams>& sampling) const {
  uint64_t chain = 0;
  for (const int32_t token : prompt) chain = ExtendHash(chain, token);
  std::vector<int32_t> outputs;
  while (std::ssize(outputs) < max_tokens) {
    outputs.push_back(SampleAfter(chain));
    chain = ExtendHash(chain, outputs.back());
    if (std::ranges::count(stop_token_ids, outputs.back()) > 0) break;
    if (StopAfter(sampling, outputs).has_value()) break;
  }
  return outputs;
}

std::string CanaryEngine::TextOf(int32_t token) {
  const uint64_t draw = SplitMix64(static_cast<uint64_t>(token));
  return {"abc"[draw % 3], "abc"[draw / 3 % 3]};
}

std::optional<int32_t> CanaryEngine::StopAfter(
    const std::optional<SamplingParams>& sampling,
    std::span<const int32_t> outputs) {
  if (!sampling.has_value() || std::ssize(outputs) <= sampling->min_tokens) {
    return std::nullopt;
  }
  std::string text;
  for (const int32_t token : outputs) text += TextOf(token);
  const size_t before = text.size() - TextOf(outputs.back()).size();
  for (size_t i = 0; i < sampling->stop.size(); ++i) {
    const size_t last = text.rfind(sampling->stop[i]);
    if (last == std::string::npos) continue;
    if (last + sampling->stop[i].size() > before) {
      return static_cast<int32_t>(i);
    }
  }
  return std::nullopt;
}

std::optional<int32_t> CanaryEngine::StopAt(SequenceSlot slot,
                                            size_t length) const {
  const RequestInfo* info = sequences_.contents(slot).info.get();
  if (info == nullptr) return std::nullopt;
  return StopAfter(info->sampling,
                   std::span(row(slot).tokens)
                       .first(length)
                       .subspan(static_cast<size_t>(info->num_prompt_tokens)));
}

absl::Status CanaryEngine::Enqueue(const StepPlan& plan) {
  if (plan.slots.empty()) {
    return CanaryError("step ", Index(plan.id), " computes nothing");
  }
  Queued queued{.plan = plan, .in_flight = {}};
  for (const Queued& earlier : queue_) {
    if (earlier.plan.id >= plan.id) return CanaryError("step ids must ascend");
    queued.in_flight.push_back(earlier.plan.id);
  }
  queue_.push_back(std::move(queued));
  return absl::OkStatus();
}

absl::StatusOr<StepResult> CanaryEngine::Execute() {
  const Queued queued = std::move(queue_.front());
  queue_.pop_front();
  const StepPlan& plan = queued.plan;
  StepResult result;
  result.id = plan.id;
  BM_RETURN_IF_ERROR(AsCanaryError(tables_.Apply(plan)));
  BM_RETURN_IF_ERROR(memory_.CopyOut(plan, queued.in_flight, &result));
  BM_RETURN_IF_ERROR(sequences_.Apply(plan));
  BM_RETURN_IF_ERROR(CheckNewBlocks(queued));
  memory_.CopyIn(plan, &result);
  BM_RETURN_IF_ERROR(Compute(plan, &result));
  for (const SequenceSlot slot : plan.slots) {
    BM_RETURN_IF_ERROR(ReadAll(slot));
    memory_.Touch(plan.id, sequences_.ReadBlocks(slot));
  }
  for (const EvictionOrder& order : plan.evictions) {
    BM_RETURN_IF_ERROR(orders_.Check(plan, queued.in_flight, order));
    memory_.Touch(plan.id, EngineTables::Destinations(plan, order));
    result.evictions.emplace_back();
    BM_RETURN_IF_ERROR(CarryOut(plan, order, &result.evictions.back()));
    BM_RETURN_IF_ERROR(ReadAll(order.slot));
  }
  memory_.CarryOutLosses(&result);
  memory_.ForgetStepsBefore(plan.id);
  return result;
}

bool CanaryEngine::IsDamaged(SequenceSlot slot) const {
  if (sequences_.contents(slot).is_tainted) return true;
  if (!memory_.has_lost()) return false;
  return std::ranges::any_of(
      sequences_.ReadBlocks(slot),
      [this](BlockId block) { return memory_.IsLost(block); });
}

absl::Status CanaryEngine::CheckNewBlocks(const Queued& queued) {
  const StepPlan& plan = queued.plan;
  std::vector<int32_t> holders = sequences_.CountHolders();
  // A region that sequences may yet start on is nobody else's, but for its
  // blocks in windows. A start behind those does not need them.
  for (const BlockId block : sequences_.KeptBlocks()) ++holders[Index(block)];
  absl::flat_hash_set<BlockId> given;
  const auto check = [&](SequenceSlot slot, BlockId block) {
    // The block may have left the window before it is read.
    const auto num_own = std::ranges::count(sequences_.LiveBlocks(slot), block);
    if (!given.insert(block).second ||
        holders[Index(block)] > std::min<int64_t>(num_own, 1)) {
      return CanaryError("new block ", Index(block), " is in a table already");
    }
    memory_.SetLost(block, false);
    return memory_.CheckFresh(block, plan.id, queued.in_flight);
  };
  for (const SequenceSlot slot : plan.slots) {
    const int32_t page_size = layout_.page_size;
    const int32_t end = CeilDiv(row(slot).num_computed, page_size);
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      const GroupTable& table = row(slot).groups[group];
      const int32_t before = table.region.cut / page_size;
      const std::vector<BlockId>& blocks = table.blocks;
      if (before + std::ssize(blocks) != end) {
        return CanaryError("slot ", Index(slot), ": ", blocks.size(),
                           " blocks of group ", group, " for pages ", before,
                           " to ", end);
      }
      // The content of those before is checked when they are read.
      for (int32_t page =
               CeilDiv(sequences_.contents(slot).length(), page_size);
           page < end; ++page) {
        BM_RETURN_IF_ERROR(check(slot, blocks[page - before]));
      }
    }
  }
  for (const SequenceStart& start : plan.starts) {
    for (int32_t i = 0; i < start.num_transfers; ++i) {
      BM_RETURN_IF_ERROR(
          check(start.slot, plan.transfers_in[start.transfer_begin + i].block));
    }
  }
  for (const CopyOnWrite& copy : plan.copies) {
    BM_RETURN_IF_ERROR(check(copy.slot, copy.blocks.destination));
    const int32_t length = sequences_.contents(copy.slot).length();
    if (copy.num_tokens == length % layout_.page_size) continue;
    return CanaryError("slot ", Index(copy.slot), " copies ", copy.num_tokens,
                       " tokens of its last block, and has ", length);
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::Compute(const StepPlan& plan, StepResult* result) {
  const std::vector<int32_t> holders = sequences_.CountHolders();
  if (!plan.num_drafts.empty()) {
    result->num_accepted.assign(plan.slots.size(), 0);
  }
  for (size_t i = 0; i < plan.slots.size(); ++i) {
    const SequenceSlot slot = plan.slots[i];
    BM_RETURN_IF_ERROR(ComputeRun(plan, i, holders));
    if (plan.samples[i] == 0) {
      result->sampled.push_back(-1);
      continue;
    }
    if (!plan.num_drafts.empty()) Verify(plan, i, result);
    // What is computed from lost content is of no use.
    result->sampled.push_back(SampleAfter(
        sequences_.contents(slot).chain.back() ^ (IsDamaged(slot) ? 1 : 0)));
    tables_.AddSampled(slot, result->sampled.back());
    sequences_.ExtendChain(slot);
    const std::optional<int32_t> stop = StopAt(slot, row(slot).tokens.size());
    if (stop.has_value()) {
      result->stop_matches.push_back(
          {.run = static_cast<int32_t>(i), .stop = *stop});
    }
    if (options_.max_drafts > 0) ProposeDrafts(slot);
  }
  if (options_.max_drafts > 0) {
    for (const SequenceSlot slot : plan.slots) {
      result->num_drafts.push_back(
          static_cast<int32_t>(row(slot).drafts.size()));
    }
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::ComputeRun(const StepPlan& plan, size_t run,
                                      std::span<const int32_t> holders) {
  const SequenceSlot slot = plan.slots[run];
  const int32_t num_drafts = plan.num_drafts.empty() ? 0 : plan.num_drafts[run];
  const bool is_evicted =
      std::ranges::count(plan.evictions, slot, &EvictionOrder::slot) > 0;
  if (num_drafts > 0 &&
      (plan.num_tokens[run] != 1 + num_drafts || is_evicted)) {
    return CanaryError("slot ", Index(slot), ": ", num_drafts,
                       " drafts in a run of ", plan.num_tokens[run],
                       " tokens, evicted: ", is_evicted);
  }
  sequences_.ExtendChain(slot);
  CanaryContents& contents = sequences_.contents(slot);
  for (int32_t p = contents.length(); p < row(slot).num_computed; ++p) {
    contents.Compute(plan.id);
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      BM_RETURN_IF_ERROR(Write(slot, group, p, holders));
    }
  }
  contents.first_query = plan.positions[run];
  contents.is_tainted = IsDamaged(slot);
  return absl::OkStatus();
}

absl::Status CanaryEngine::Write(SequenceSlot slot, int32_t group,
                                 int32_t position,
                                 std::span<const int32_t> holders) {
  const CanaryContents& contents = sequences_.contents(slot);
  const GroupTable& table = row(slot).groups[group];
  const int32_t place = position - table.region.cut;
  const BlockId block = table.blocks[place / layout_.page_size];
  if (holders[Index(block)] != 1) {
    return CanaryError("block ", Index(block), " is written and shared");
  }
  memory_.Write(block, place % layout_.page_size,
                {.content = contents.content.back(),
                 .incarnation = contents.incarnation,
                 .request = row(slot).request,
                 .step = contents.steps.back(),
                 .position = position,
                 .head_index = -1,
                 .group = group});
  return absl::OkStatus();
}

absl::Status CanaryEngine::ReadAll(SequenceSlot slot) const {
  if (IsDamaged(slot)) return absl::OkStatus();
  const CanaryContents& contents = sequences_.contents(slot);
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const int32_t first = sequences_.FirstAttended(group, contents.first_query);
    const CanaryView view =
        sequences_.ViewOf(slot, group, first, contents.length());
    const EntryIndex entries =
        IndexEntries(layout_, view.cache(), contents.positions[group],
                     contents.length(), first);
    for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
      for (int64_t i = entries.offsets[h]; i < entries.offsets[h + 1]; ++i) {
        BM_RETURN_IF_ERROR(
            CheckTag(slot, group, h, entries.positions[i], entries.slots[i]));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::CheckTag(SequenceSlot slot, int32_t group,
                                    int32_t head_index, int32_t position,
                                    SlotIndex place) const {
  const CanaryContents& contents = sequences_.contents(slot);
  const CanaryTag& tag = memory_.tag(place);
  const bool is_shared = position < contents.num_cached;
  if (tag.head_index == head_index && tag.group == group &&
      tag.position == position && tag.content == contents.content[position] &&
      (is_shared || (tag.incarnation == contents.incarnation &&
                     tag.step == contents.steps[position]))) {
    return absl::OkStatus();
  }
  return CanaryError(
      "slot ", place, ": expected request ", Index(row(slot).request),
      " incarnation ", contents.incarnation, " group ", group, " head ",
      head_index, " position ", position, " content ",
      contents.content[position], " step ", Index(contents.steps[position]),
      ", got request ", Index(tag.request), " incarnation ", tag.incarnation,
      " group ", tag.group, " head ", tag.head_index, " position ",
      tag.position, " content ", tag.content, " step ", Index(tag.step));
}

void CanaryEngine::Verify(const StepPlan& plan, size_t run,
                          StepResult* result) {
  const SequenceSlot slot = plan.slots[run];
  const std::vector<int32_t>& tokens = row(slot).tokens;
  CanaryContents& contents = sequences_.contents(slot);
  const int32_t num_drafts = plan.num_drafts[run];
  const auto num_known = static_cast<int32_t>(tokens.size()) - num_drafts;
  const uint64_t damage = IsDamaged(slot) ? 1 : 0;
  int32_t num_accepted = 0;
  while (num_accepted < num_drafts) {
    const int32_t next = num_known + num_accepted;
    if (SampleAfter(contents.chain[next - 1] ^ damage) != tokens[next]) break;
    // Then it is sampled, as the last token.
    if (StopAt(slot, next + 1).has_value()) break;
    result->accepted.push_back(tokens[next]);
    ++num_accepted;
  }
  result->num_accepted[run] = num_accepted;
  // The blocks of all drafts were written.
  memory_.Touch(plan.id, sequences_.ReadBlocks(slot));
  tables_.RejectDrafts(slot, num_drafts, num_accepted);
  contents.Cut(num_known + num_accepted);
}

void CanaryEngine::ProposeDrafts(SequenceSlot slot) {
  uint64_t chain = sequences_.contents(slot).chain.back();
  uint64_t draw = SplitMix64(chain ^ ~options_.seed);
  const auto num_drafts = draw % (options_.max_drafts + 1);
  std::vector<int32_t> drafts;
  for (uint64_t i = 0; i < num_drafts; ++i) {
    draw = SplitMix64(draw);
    const bool is_random = draw % options_.wrong_draft_one_in == 0;
    drafts.push_back(is_random ? static_cast<int32_t>(SplitMix64(~draw) %
                                                      options_.vocabulary)
                               : SampleAfter(chain));
    chain = ExtendHash(chain, drafts.back());
  }
  tables_.SetDrafts(slot, drafts);
}

absl::Status CanaryEngine::CarryOut(const StepPlan& plan,
                                    const EvictionOrder& order,
                                    EvictionOutcome* outcome) {
  if (refuses_all_ || orders_.IsRefused(order)) {
    outcome->ok = false;
    outcome->error = "refused at random";
    return absl::OkStatus();
  }
  const CanaryContents& contents = sequences_.contents(order.slot);
  const EntryIndex entries =
      IndexEntries(layout_, sequences_.ViewBelow(order).cache(),
                   contents.positions[order.group], order.cut,
                   sequences_.FirstAttended(order.group, order.length));
  const KeepSets keep = orders_.ChooseSurvivors(order, entries);
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    outcome->counts.push_back(
        static_cast<int32_t>(keep.offsets[h + 1] - keep.offsets[h]));
  }
  // A move of lost content leaves it lost, even if all blocks are fresh.
  const bool was_damaged = IsDamaged(order.slot);
  BM_RETURN_IF_ERROR(
      AsCanaryError(tables_.CheckCounts(order, outcome->counts)));
  tables_.Commit(plan, order, outcome->counts);
  outcome->layout_checksum = tables_.ChecksumOf(order);
  const RaggedRegion next(layout_,
                          *sequences_.RegionFrom(order.slot, order.group, 0));
  BM_RETURN_IF_ERROR(orders_.CheckShards(next));
  for (const BlockId block : next.blocks()) memory_.SetLost(block, was_damaged);
  CompactionPlan compaction = PlanCompaction(layout_, entries, keep, next);
  memory_.Move(std::move(compaction.moves), contents.history + 1);
  sequences_.Evict(order, keep.ranks, std::move(compaction.positions));
  return absl::OkStatus();
}

}  // namespace blockmgr
