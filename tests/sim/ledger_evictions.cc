// What requests ask of evictions: who shares, by which budgets.

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
      "/", eviction.target.window_ratio.ToString(), "/",
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

}  // namespace blockmgr::sim
