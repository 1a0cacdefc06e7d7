#include "tests/sim/plan_trace.h"

#include <bit>
#include <vector>

#include "blockmgr/eviction/policy.h"

namespace blockmgr::sim {
namespace {

class PlanMixer {
 public:
  explicit PlanMixer(Report* report) : report_(report) {}

  template <typename... Values>
  void Mix(Values... values) {
    (report_->Mix(static_cast<uint64_t>(values)), ...);
  }
  // How many there are, so that no two lists can be taken for others.
  template <typename Item, typename Each>
  void MixAll(const std::vector<Item>& items, Each each) {
    Mix(items.size());
    for (const Item& item : items) each(item);
  }
  template <typename Number>
  void MixNumbers(const std::vector<Number>& numbers) {
    MixAll(numbers, [this](Number number) { Mix(number); });
  }
  template <typename Id>
  void MixIds(const std::vector<Id>& ids) {
    MixAll(ids, [this](Id id) { Mix(Index(id)); });
  }
  void MixTransfers(const std::vector<BlockTransfer>& transfers) {
    MixAll(transfers, [this](const BlockTransfer& transfer) {
      Mix(Index(transfer.block), Index(transfer.host));
    });
  }
  void MixStart(const SequenceStart& start) {
    Mix(Index(start.slot), Index(start.request), start.token_begin,
        start.num_tokens, start.num_cached_tokens, Index(start.source),
        Index(start.region), Index(start.swap), start.transfer_begin,
        start.num_transfers, start.query_window, start.scorer_state,
        start.state_begin);
    if (start.info == nullptr) return;
    report_->MixText(start.info->id);
    Mix(start.info->num_prompt_tokens);
    report_->MixText(start.info->lora);
    MixAll(start.info->media, [this](const MediaItem& item) {
      Mix(item.begin, item.length);
      report_->MixText(item.hash);
    });
    report_->MixText(start.info->engine_data);
  }
  void MixOrder(const EvictionOrder& order) {
    Mix(Index(order.slot), order.cut, order.length, order.target.kind,
        order.target.tokens, order.target.ratio.numerator,
        order.target.ratio.denominator, order.destination_begin,
        order.num_destinations, order.page_total, Index(order.region),
        order.budgets != nullptr, order.scores != nullptr);
    if (order.group > 0 || order.target.evicts_in_windows()) {
      Mix(order.group, order.target.window_keep_ratio.numerator,
          order.target.window_keep_ratio.denominator);
    }
    report_->MixText(FormatPolicy(order.policy));
    MixNumbers(order.shard_page_totals);
    if (order.budgets != nullptr) MixNumbers(*order.budgets);
    if (order.scores == nullptr) return;
    MixAll(*order.scores,
           [this](float score) { Mix(std::bit_cast<uint32_t>(score)); });
  }

 private:
  Report* const report_;
};

}  // namespace

void MixPlan(const StepPlan& plan, Report* report) {
  PlanMixer mixer(report);
  mixer.Mix(Index(plan.id));
  mixer.MixIds(plan.dropped_swaps);
  mixer.MixAll(plan.swap_outs, [&](const SwapOut& out) {
    mixer.Mix(Index(out.slot), Index(out.swap), out.num_tokens,
              out.transfer_begin, out.num_transfers);
  });
  mixer.MixTransfers(plan.transfers_out);
  mixer.MixIds(plan.released);
  mixer.MixAll(plan.starts,
               [&](const SequenceStart& start) { mixer.MixStart(start); });
  mixer.MixTransfers(plan.transfers_in);
  mixer.MixNumbers(plan.start_tokens);
  mixer.MixIds(plan.dropped_regions);
  mixer.MixAll(plan.copies, [&](const CopyOnWrite& copy) {
    mixer.Mix(Index(copy.slot), Index(copy.blocks.source),
              Index(copy.blocks.destination), copy.num_tokens, copy.group);
  });
  mixer.MixIds(plan.slots);
  mixer.MixNumbers(plan.positions);
  mixer.MixNumbers(plan.num_tokens);
  mixer.MixNumbers(plan.samples);
  mixer.MixNumbers(plan.num_drafts);
  mixer.MixNumbers(plan.block_offsets);
  mixer.MixIds(plan.blocks);
  mixer.MixAll(plan.evictions,
               [&](const EvictionOrder& order) { mixer.MixOrder(order); });
  mixer.MixIds(plan.destinations);
}

}  // namespace blockmgr::sim
