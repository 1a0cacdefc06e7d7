// What requests ask of evictions: who shares, by which budgets, and what
// becomes of those whose evictions are refused.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/str_cat.h>

#include "blockmgr/eviction/budget_table.h"
#include "tests/sim/ledger.h"

namespace blockmgr::sim {

std::string Ledger::PlanOf(const Served& served) {
  const RequestEviction& eviction = served.request.eviction;
  if (!eviction.share_prefix) return "";
  const bool by_chunk = eviction.mode == EvictionMode::kEveryChunk;
  const bool by_tokens =
      by_chunk || eviction.target.kind == EvictionTarget::Kind::kTokens;
  return absl::StrCat(
      FormatPolicy(eviction.policy), "/",
      by_tokens ? absl::StrCat(
                      by_chunk ? eviction.target.TokensPerHead(served.num_own)
                               : eviction.target.tokens,
                      " tokens")
                : eviction.target.ratio.ToString(),
      "/", eviction.target.window_keep_ratio.ToString(), "/",
      by_chunk ? eviction.compress_every : 0, "/",
      // The world has each table once.
      absl::Hex(reinterpret_cast<uintptr_t>(eviction.table.get())));
}

void Ledger::CheckBudgets(const Served& served, const EvictionOrder& order) {
  const RequestEviction& eviction = served.request.eviction;
  // Commands have budgets of their own, and are replayed.
  if (eviction.table == nullptr || was_commanded_) return;
  EvictionRange range = {.cut = order.cut, .length = order.length};
  EvictionTarget target = eviction.target;
  if (eviction.mode == EvictionMode::kEveryChunk) {
    target = {.kind = EvictionTarget::Kind::kTokens,
              .ratio = {},
              .tokens = eviction.target.TokensPerHead(served.num_own)};
    if (!eviction.share_prefix) {
      const int32_t page_size = layout_.page_size;
      range = {.cut = (served.num_own - 1) / page_size * page_size,
               .length = served.num_own};
    }
  }
  const std::vector<int32_t> expected =
      TableBudgets(eviction.policy, target,
                   {.num_layers = layout_.num_layers,
                    .num_heads = layout_.num_heads,
                    .page_size = layout_.page_size},
                   range, *eviction.table);
  if (order.budgets == nullptr || *order.budgets != expected) {
    report_->Fail("an eviction at ", order.length, " of '", served.request.id,
                  "' has budgets that are not its table's");
  }
  ++report_->counts().table_evictions;
}

bool Ledger::FitsWhole(const Request& request) const {
  const int32_t most = PeaksOf(request, request.eviction.target).most;
  const int32_t quota = options_.tenant_limits.max_blocks;
  return most <= layout_.num_blocks - 1 && (quota == 0 || most <= quota);
}

void Ledger::SettleRefusal(const Step::Run& run, const EvictionEffect& effect,
                           bool has_moved, const FinishEffect* finish,
                           Table* table) {
  Served& served = requests_.at(run.request);
  const Request& request = served.request;
  ++report_->counts().refused_evictions;
  AbortOrders(table);
  const int32_t length = served.issued.back().length;
  served.issued.pop_back();
  // What is refused in a replay has not happened any more.
  const int64_t index = std::ssize(served.issued);
  const bool is_new = index >= std::ssize(served.recorded);
  if (!is_new) {
    served.recorded.erase(served.recorded.begin() + index);
    // There is more than before for those that follow: one that had nothing to
    // free may have now.
    served.kept_less = true;
  }
  // A command, or a squeeze, was promised nothing. (What is new to a fork may
  // be its parent's.)
  const bool is_extra =
      effect.command != 0 || (is_new && request.fork_of.empty() &&
                              request.eviction.mode == EvictionMode::kPressure);
  if (!is_extra) {
    was_refused_ = true;
    served.refused.insert(length);
    served.refused_at = std::min(served.refused_at, length);
    table->takes_more = true;
    table->may_leave = options_.tenant_limits.max_blocks > 0;
  }
  // Without compressions to come it is what it is.
  const bool is_whole = request.eviction.mode == EvictionMode::kAfterPrefill &&
                        served.recorded.empty() && request.fork_of.empty();
  const bool must_end =
      !is_extra && is_whole &&
      PeaksOf(request, request.eviction.target).least > layout_.num_blocks - 1;
  const bool may_end = !is_extra && !FitsWhole(request);
  if (finish == nullptr ? must_end : !may_end) {
    report_->Fail("request ", Index(run.request), ", refused its eviction at ",
                  length, ", ended: ", finish != nullptr, ", must: ", must_end,
                  ", may: ", may_end);
    return;
  }
  if (finish != nullptr) {
    ++report_->counts().refused_ends;
    End(*finish, FinishReason::kFailed);
  } else if (has_moved) {
    CloseTable(run.slot);
  }
}

void Ledger::TakeLeft(const BlockManager& manager) {
  std::vector<SequenceSlot> left;
  for (auto& [slot, table] : tables_) {
    if (!table.may_leave) continue;
    table.may_leave = false;
    if (!manager.sequence(slot).open) left.push_back(slot);
  }
  for (const SequenceSlot slot : left) CloseTable(slot);
}

}  // namespace blockmgr::sim
