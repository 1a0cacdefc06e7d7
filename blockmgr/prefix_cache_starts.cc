// PrefixCache: finds cached blocks by their first tokens.

#include <algorithm>

#include "blockmgr/base/check.h"
#include "blockmgr/prefix_cache.h"

namespace blockmgr {

int32_t PrefixCache::MatchPart(int32_t before, const BlockChain& chain,
                               std::span<const int32_t> tokens, int32_t begin,
                               int32_t max_tokens, BlockId* block) const {
  const int32_t end = std::min({max_tokens, begin + page_size_ - 1,
                                static_cast<int32_t>(tokens.size())});
  if (end <= begin || !chain.HasNoMedia(begin, end)) return 0;
  EntrySerial parent = kNoSerial;
  if (before == kNone) {
    const auto root = roots_.find(chain.root());
    if (root == roots_.end()) return 0;
    parent = root->second.serial;
  } else {
    parent = serial(before);
  }
  const std::span<const int32_t> wanted = tokens.subspan(begin, end - begin);
  const auto youngest = starts_.find({parent, wanted.front()});
  int32_t candidate = youngest == starts_.end() ? kNone : youngest->second;
  int32_t best = 0;
  for (int32_t looks = 0; candidate != kNone && looks < kMaxPartLooks;
       ++looks, candidate = entries_[candidate].older_same_start) {
    if (entries_[candidate].has_media) continue;
    const auto differs = std::ranges::mismatch(wanted, TokensOf(candidate));
    const auto common = static_cast<int32_t>(differs.in1 - wanted.begin());
    if (common <= best) continue;
    best = common;
    *block = BlockId{candidate};
  }
  return best;
}

void PrefixCache::AddStart(int32_t block) {
  const auto [youngest, is_new] = starts_.try_emplace(StartKeyOf(block), block);
  if (is_new) return;
  entries_[block].older_same_start = youngest->second;
  entries_[youngest->second].younger_same_start = block;
  youngest->second = block;
}

void PrefixCache::RemoveStart(int32_t block) {
  const Entry& own = entries_[block];
  if (own.older_same_start != kNone) {
    entries_[own.older_same_start].younger_same_start = own.younger_same_start;
  }
  if (own.younger_same_start != kNone) {
    entries_[own.younger_same_start].older_same_start = own.older_same_start;
  } else if (own.older_same_start != kNone) {
    starts_.at(StartKeyOf(block)) = own.older_same_start;
  } else {
    starts_.erase(StartKeyOf(block));
  }
}

bool PrefixCache::CheckStart(int32_t block) const {
  const int32_t older = entries_[block].older_same_start;
  const int32_t younger = entries_[block].younger_same_start;
  if (older != kNone) {
    BM_CHECK(entries_[older].younger_same_start == block);
    BM_CHECK(serial(older) != kNoSerial && serial(older) < serial(block));
    BM_CHECK(StartKeyOf(older) == StartKeyOf(block));
  }
  BM_CHECK((younger == kNone) == (starts_.at(StartKeyOf(block)) == block));
  return younger == kNone;
}

}  // namespace blockmgr
