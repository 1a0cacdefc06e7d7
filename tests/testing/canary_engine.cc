#include "tests/testing/canary_engine.h"

#include <algorithm>
#include <utility>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {

CanaryEngine::CanaryEngine(const ModelLayout& layout, int32_t max_sequences,
                           const CanaryOptions& options)
    : layout_(layout),
      options_(options),
      tables_(layout, max_sequences, options.num_host_blocks),
      contents_(max_sequences),
      infos_(max_sequences),
      memory_(layout.num_pages() * layout.page_size),
      host_memory_(options.num_host_blocks) {}

uint64_t CanaryEngine::Extend(uint64_t hash, uint64_t value) {
  return SplitMix64(hash ^ (value + 0x1000));
}

void CanaryEngine::Restart() {
  tables_.Reset();
  std::ranges::fill(contents_, Contents{});
  regions_.clear();
  swaps_.clear();
  std::ranges::fill(memory_, Tag{});
  queue_.clear();
  touched_.clear();
  losses_.clear();
  lost_.clear();
  std::ranges::fill(host_memory_, std::vector<Tag>());
  touched_host_.clear();
  host_losses_.clear();
  lost_host_.clear();
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
  for (const int32_t token : prompt) chain = Extend(chain, token);
  std::vector<int32_t> outputs;
  while (std::ssize(outputs) < max_tokens) {
    outputs.push_back(SampleAfter(chain));
    chain = Extend(chain, outputs.back());
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
  const RequestInfo* info = infos_[Index(slot)].get();
  if (info == nullptr) return std::nullopt;
  return StopAfter(info->sampling,
                   std::span(row(slot).tokens)
                       .first(length)
                       .subspan(static_cast<size_t>(info->num_prompt_tokens)));
}

absl::Status CanaryEngine::Enqueue(const StepPlan& plan) {
  if (plan.slots.empty()) {
    return Wrong("step ", Index(plan.id), " computes nothing");
  }
  Queued queued{.plan = plan, .in_flight = {}};
  for (const Queued& earlier : queue_) {
    if (earlier.plan.id >= plan.id) return Wrong("step ids must ascend");
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
  BM_RETURN_IF_ERROR(Right(tables_.Apply(plan)));
  BM_RETURN_IF_ERROR(CopyOut(queued, &result));
  for (const SequenceSlot slot : plan.released) contents_of(slot) = Contents{};
  for (const SequenceStart& start : plan.starts) {
    BM_RETURN_IF_ERROR(Start(start));
    infos_[Index(start.slot)] = start.info;
  }
  for (const RegionId region : plan.dropped_regions) regions_.erase(region);
  BM_RETURN_IF_ERROR(CheckNewBlocks(queued));
  CopyIn(plan, &result);
  BM_RETURN_IF_ERROR(Compute(plan, &result));
  for (const SequenceSlot slot : plan.slots) {
    BM_RETURN_IF_ERROR(ReadAll(slot));
    Touch(slot, plan.id);
  }
  for (const EvictionOrder& order : plan.evictions) {
    BM_RETURN_IF_ERROR(CheckOrder(queued, order));
    const auto destinations = EngineTables::Destinations(plan, order);
    touched_[plan.id].insert(destinations.begin(), destinations.end());
    result.evictions.emplace_back();
    BM_RETURN_IF_ERROR(CarryOut(plan, order, &result.evictions.back()));
    BM_RETURN_IF_ERROR(ReadAll(order.slot));
  }
  CarryOutLosses(&result);
  // No more than a few steps are ever in flight.
  const auto is_old = [&plan](const auto& step) {
    return Index(step.first) + 16 < Index(plan.id);
  };
  absl::erase_if(touched_, is_old);
  absl::erase_if(touched_host_, is_old);
  return result;
}

void CanaryEngine::ExtendChain(SequenceSlot slot) {
  std::vector<uint64_t>& chain = contents_of(slot).chain;
  const std::vector<int32_t>& tokens = row(slot).tokens;
  for (size_t i = chain.size(); i < tokens.size(); ++i) {
    chain.push_back(Extend(i == 0 ? 0 : chain.back(), tokens[i]));
  }
}

absl::Status CanaryEngine::Compute(const StepPlan& plan, StepResult* result) {
  const std::vector<int32_t> holders = CountHolders();
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
    result->sampled.push_back(SampleAfter(contents_of(slot).chain.back() ^
                                          (IsDamaged(slot) ? 1 : 0)));
    tables_.AddSampled(slot, result->sampled.back());
    ExtendChain(slot);
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
    return Wrong("slot ", Index(slot), ": ", num_drafts, " drafts in a run of ",
                 plan.num_tokens[run], " tokens, evicted: ", is_evicted);
  }
  ExtendChain(slot);
  Contents& contents = contents_of(slot);
  for (int32_t p = contents.length(); p < row(slot).num_computed; ++p) {
    contents.content.push_back(Extend(contents.chain[p], contents.history));
    contents.steps.push_back(plan.id);
    for (int32_t group = 0; group < layout_.num_groups(); ++group) {
      BM_RETURN_IF_ERROR(Write(slot, group, p, holders));
    }
  }
  contents.first_query = plan.positions[run];
  contents.is_tainted = IsDamaged(slot);
  return absl::OkStatus();
}

std::vector<SlotIndex> CanaryEngine::SlotsOf(BlockId block) const {
  std::vector<SlotIndex> slots;
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    const PageId page =
        layout_.page_id(h / layout_.num_heads, block, h % layout_.num_heads);
    for (int32_t i = 0; i < layout_.page_size; ++i) {
      slots.push_back(layout_.slot(page, i));
    }
  }
  return slots;
}

absl::Status CanaryEngine::Write(SequenceSlot slot, int32_t group,
                                 int32_t position,
                                 std::span<const int32_t> holders) {
  const Contents& contents = contents_of(slot);
  const GroupTable& table = row(slot).groups[group];
  const int32_t place = position - table.region.cut;
  const BlockId block = table.blocks[place / layout_.page_size];
  if (holders[Index(block)] != 1) {
    return Wrong("block ", Index(block), " is written and shared");
  }
  for (int32_t h = 0; h < layout_.pages_per_block(); ++h) {
    const PageId page =
        layout_.page_id(h / layout_.num_heads, block, h % layout_.num_heads);
    memory_[layout_.slot(page, place % layout_.page_size)] = {
        .content = contents.content.back(),
        .incarnation = contents.incarnation,
        .request = row(slot).request,
        .step = contents.steps.back(),
        .position = position,
        .head_index = h,
        .group = group};
  }
  return absl::OkStatus();
}

absl::Status CanaryEngine::ReadAll(SequenceSlot slot) const {
  if (IsDamaged(slot)) return absl::OkStatus();
  const Contents& contents = contents_of(slot);
  for (int32_t group = 0; group < layout_.num_groups(); ++group) {
    const int32_t first = FirstRead(slot, group);
    const View view = ViewOf(slot, group, first, contents.length());
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
  const Contents& contents = contents_of(slot);
  const Tag& tag = memory_[place];
  const bool is_shared = position < contents.num_cached;
  if (tag.head_index == head_index && tag.group == group &&
      tag.position == position && tag.content == contents.content[position] &&
      (is_shared || (tag.incarnation == contents.incarnation &&
                     tag.step == contents.steps[position]))) {
    return absl::OkStatus();
  }
  return Wrong("slot ", place, ": expected request ", Index(row(slot).request),
               " incarnation ", contents.incarnation, " group ", group,
               " head ", head_index, " position ", position, " content ",
               contents.content[position], " step ",
               Index(contents.steps[position]), ", got request ",
               Index(tag.request), " incarnation ", tag.incarnation, " group ",
               tag.group, " head ", tag.head_index, " position ", tag.position,
               " content ", tag.content, " step ", Index(tag.step));
}

void CanaryEngine::Verify(const StepPlan& plan, size_t run,
                          StepResult* result) {
  const SequenceSlot slot = plan.slots[run];
  const std::vector<int32_t>& tokens = row(slot).tokens;
  Contents& contents = contents_of(slot);
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
  // Written all the same.
  Touch(slot, plan.id);
  tables_.RejectDrafts(slot, num_drafts, num_accepted);
  const int32_t length = num_known + num_accepted;
  contents.chain.resize(length);
  contents.content.resize(length);
  contents.steps.resize(length);
}

void CanaryEngine::ProposeDrafts(SequenceSlot slot) {
  uint64_t chain = contents_of(slot).chain.back();
  uint64_t draw = SplitMix64(chain ^ ~options_.seed);
  const auto num_drafts = draw % (options_.max_drafts + 1);
  std::vector<int32_t> drafts;
  for (uint64_t i = 0; i < num_drafts; ++i) {
    draw = SplitMix64(draw);
    const bool is_random = draw % options_.wrong_draft_one_in == 0;
    drafts.push_back(is_random ? static_cast<int32_t>(SplitMix64(~draw) %
                                                      options_.vocabulary)
                               : SampleAfter(chain));
    chain = Extend(chain, drafts.back());
  }
  tables_.SetDrafts(slot, drafts);
}

}  // namespace blockmgr
