#include "tests/sim/ledger_records.h"

#include <absl/strings/str_cat.h>

#include "blockmgr/eviction/policy.h"

namespace blockmgr::sim {

std::set<BlockId> LedgerTable::Blocks() const {
  std::set<BlockId> blocks;
  for (const GroupBook& group : groups) {
    for (const BlockId block : group.Blocks()) blocks.insert(block);
  }
  return blocks;
}

std::string ScopeOf(const ContentScope& scope, int32_t num_tokens) {
  std::string text =
      absl::StrCat(scope.tenant, "/", scope.lora, "/", scope.cache_salt);
  for (const MediaItem& item : scope.media) {
    if (item.begin >= num_tokens) break;
    absl::StrAppend(&text, "/", item.hash, " at ", item.begin, "+",
                    item.length);
  }
  return text;
}

std::string PlanOf(const LedgerRequest& served) {
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
      // The world has each table once, so the address names the table.
      absl::Hex(reinterpret_cast<uintptr_t>(eviction.table.get())));
}

}  // namespace blockmgr::sim
