#include "tests/blockmgr/manager_driver.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"
#include "tests/blockmgr/region_history.h"

namespace blockmgr {

DriverConfig RandomConfig(std::mt19937_64& random, int32_t page_size,
                          bool caching, DriverWindows windows) {
  constexpr std::array<int32_t, 4> kMaxBlocks = {4, 10, 24, 64};
  DriverConfig config;
  config.layout = {
      .num_layers = RandomInt(random, 1, 3),
      .num_heads = RandomInt(random, 1, 4),
      .num_q_heads = 0,
      .head_dim = 8,
      .page_size = page_size,
      .dtype = DType::kFloat32,
      .num_blocks = RandomInt(random, 2, kMaxBlocks[RandomInt(random, 0, 3)])};
  if (RandomChance(random, 0.5)) {
    config.layout.num_shards = RandomInt(random, 1, 3);
    config.layout.num_heads =
        config.layout.num_shards * RandomInt(random, 1, 2);
  }
  config.layout.num_q_heads = config.layout.num_heads;
  config.max_sequences = RandomInt(random, 1, 6);
  config.caching = caching;
  config.max_steps_in_flight = RandomInt(random, 1, 4);
  if (windows == DriverWindows::kNone) return config;
  config.layout.num_blocks += RandomInt(random, 0, 30);
  const auto random_window = [&] {
    // Often such that a sequence loses a page with the first token of another.
    const int32_t more = RandomChance(random, 0.5)
                             ? RandomInt(random, 0, 3) * page_size + 1
                             : RandomInt(random, 0, 3 * page_size);
    return page_size + more;
  };
  if (windows == DriverWindows::kAll) config.layout.window = random_window();
  if (windows == DriverWindows::kAll) return config;
  config.evicts_in_windows = windows == DriverWindows::kEvictedGroups;
  config.layout.group_windows.resize(RandomInt(random, 1, 3));
  for (int32_t& window : config.layout.group_windows) window = random_window();
  // As many pages of tokens find a place.
  config.layout.num_blocks *= RandomInt(random, 1, config.layout.num_groups());
  return config;
}

ManagerDriver::ManagerDriver(const DriverConfig& config,
                             std::mt19937_64& random, DriverTally* tally)
    : config_(config),
      random_(random),
      tally_(tally),
      manager_(config.layout, config.max_sequences, config.caching,
               config.num_host_blocks),
      model_(config.layout, config.caching, config.num_host_blocks,
             &tally->naive),
      reader_(config.layout.page_size) {
  EXPECT_TRUE(config.layout.Validate().ok());
}

int32_t ManagerDriver::Int(int32_t low, int32_t high) {
  return RandomInt(random_, low, high);
}

bool ManagerDriver::Chance(double probability) {
  return RandomChance(random_, probability);
}

SequenceSlot ManagerDriver::AnySlot() {
  const auto& sequences = model_.sequences();
  const int32_t i = Int(0, static_cast<int32_t>(sequences.size()) - 1);
  return std::next(sequences.begin(), i)->first;
}

void ManagerDriver::AppendTokens(std::vector<int32_t>* tokens, int32_t count) {
  // Two kinds of pages: prompts often begin alike.
  for (int32_t i = 0; i < count; ++i) {
    const bool begins = std::ssize(*tokens) % config_.layout.page_size == 0;
    tokens->push_back(begins ? Int(0, 1) : tokens->back());
  }
}

bool ManagerDriver::IsStale(SequenceSlot slot, uint64_t incarnation) const {
  const auto found = incarnations_.find(slot);
  return found == incarnations_.end() || found->second != incarnation;
}

void ManagerDriver::Check() {
  manager_.CheckInvariants();
  model_.Check(manager_);
  std::vector<RegionId> dropped;
  manager_.TakeDroppedRegions(&dropped);
  for (const RegionId region : dropped) {
    EXPECT_EQ(findable_.erase(region), 1u) << "dropped twice, or never there";
  }
  EXPECT_EQ(std::ssize(findable_), model_.cache().CountRegions());
  ReadPrefixCache();
  if (Chance(0.05)) {
    for (const auto& [slot, sequence] : model_.sequences()) {
      model_.CheckRegions(manager_, slot);
      CheckCoveredInWindows(slot);
      CheckCovered(slot, 0);
      for (const int32_t back : {0, 1, config_.layout.page_size}) {
        const int32_t num_tokens = std::max(0, sequence.num_settled - back);
        EXPECT_EQ(manager_.CanGoBack(slot, num_tokens),
                  model_.CanGoBack(slot, num_tokens));
      }
    }
  }
}

void ManagerDriver::ReadPrefixCache() {
  if (!RandomChance(reader_random_, 0.2)) return;
  const PrefixCache& cache = manager_.prefix_cache();
  const int64_t num_resets = reader_.num_resets();
  const int64_t num_removed = reader_.num_removed();
  const int32_t max_blocks = RandomInt(reader_random_, 1, 40);
  if (RandomChance(reader_random_, 0.1)) {
    reader_.ReadInPart(cache, max_blocks, RandomInt(reader_random_, 0, 10));
    return;
  }
  const bool is_current = reader_.Read(cache, max_blocks);
  // The first reading begins with one.
  if (num_resets > 0) {
    tally_->lapsed_readers += reader_.num_resets() - num_resets;
  }
  tally_->told_removals += reader_.num_removed() - num_removed;
  if (!is_current) return;
  ++tally_->complete_readings;
  tally_->told_regions += reader_.num_regions();
  EXPECT_EQ(reader_.Difference(cache), "");
  EXPECT_EQ(reader_.num_repeated(), 0);
  for (const auto& [slot, sequence] : model_.sequences()) {
    const BlockChain& chain = sequence.names;
    std::vector<BlockId> blocks;
    cache.Match(chain, chain.keys().size(), sequence.tokens, &blocks);
    const auto named =
        std::span(sequence.tokens)
            .first(chain.keys().size() *
                   static_cast<size_t>(config_.layout.page_size));
    EXPECT_EQ(reader_.MatchBlocks(DecodeRoot(chain.root()), named),
              std::ssize(blocks));
  }
}

void ManagerDriver::Operate(double grow) {
  ++tally_->num_ops;
  if (Chance(0.15)) {
    Dispatch();
  } else if (config_.num_host_blocks > 0 && Chance(0.2)) {
    Swap();
  } else if (Chance(grow)) {
    Grow();
  } else {
    Shrink();
  }
  if (Chance(0.05)) {
    now_ms_ += Int(0, 10);
    model_.cache().Line();
    manager_.SetTime(now_ms_);
    model_.cache().SetTime(now_ms_);
  }
  model_.cache().Line();
}

void ManagerDriver::Grow() {
  const int32_t kind = Int(0, 10);
  if (kind == 10) {
    Fork();
  } else if (kind < 3) {
    Open();
  } else if (kind < 7) {
    Reserve();
  } else if (kind < 9) {
    config_.evicts_in_windows&& Chance(0.5) ? OrderInAllGroups()
                                            : OrderEviction();
  } else {
    Chance(0.5) ? UndoReserve() : UndoOrder();
  }
}

void ManagerDriver::Shrink() {
  const bool has_windows = config_.layout.has_windows();
  const int32_t kind = has_windows && Chance(0.05) ? Int(0, 39) : Int(0, 999);
  if (kind < 20) {
    if (!model_.sequences().empty()) RollbackSome(AnySlot());
  } else if (kind < 30) {
    if (!model_.sequences().empty()) CutBack(AnySlot());
  } else if (kind < 40) {
    LoseBlocks();
  } else if (kind < 600) {
    Acknowledge();
  } else if (kind < 750) {
    AbortRun();
  } else if (kind < 994) {
    if (!model_.sequences().empty()) CloseAny();
  } else if (kind < 998) {
    ResetPrefixCache();
  } else {
    LoseEngine();
  }
}

void ManagerDriver::CloseAny() {
  const SequenceSlot slot = AnySlot();
  // A sequence with a region in a window mostly lives on, to be compressed
  // again.
  if (HasMovingRegion(model_.at(slot)) && Chance(0.8)) return;
  Close(slot);
}

NaiveSequence ManagerDriver::RandomSequence() {
  const int32_t page_size = config_.layout.page_size;
  NaiveSequence sequence;
  std::vector<int32_t>& prompt = sequence.tokens;
  sequence.scope = Chance(0.2) ? 1 : 0;
  const bool has_windows = config_.layout.has_windows();
  const bool again = !compressed_.empty() && Chance(has_windows ? 0.5 : 0.3);
  if (again) {
    // A conversation that was compressed goes on.
    const auto last = static_cast<int32_t>(compressed_.size()) - 1;
    const auto& [scope, tokens] =
        compressed_[static_cast<size_t>(Int(std::max(0, last - 3), last))];
    sequence.scope = scope;
    prompt = tokens;
  }
  const int32_t num_more = again         ? Int(0, page_size)
                           : Chance(0.5) ? Int(0, page_size * 6)
                                         : Int(0, 6) * page_size;
  const bool same = again && has_windows && Chance(0.7);
  if (!same) AppendTokens(&prompt, num_more);
  if (Chance(0.3)) sequence.wishes = RandomWishes();
  sequence.names =
      BlockChain({.tenant = sequence.scope == 0 ? "one" : "other"});
  sequence.names.SetRetention(sequence.wishes);
  sequence.names.Extend(prompt, page_size);
  return sequence;
}

void ManagerDriver::Open() {
  const int32_t page_size = config_.layout.page_size;
  NaiveSequence sequence = RandomSequence();
  const std::vector<int32_t>& prompt = sequence.tokens;
  const auto num_prompt = static_cast<int32_t>(prompt.size());
  const int32_t max_tokens = Chance(0.5) ? num_prompt : Int(-1, num_prompt);
  const std::string plan = Chance(0.8) ? "p" : "q";
  const std::string history = RandomHistory();
  const int32_t slack = Chance(0.5) ? num_prompt : Int(-2, 4 * page_size);
  const auto limit = [&](int32_t length) {
    return std::min(num_prompt, length + slack);
  };
  const RegionQuery query = {.plan = plan,
                             .history = history,
                             .any_history = Chance(0.5),
                             .max_tokens_over = limit};
  const bool has_windows = config_.layout.has_windows();
  const RegionQuery* asked = Chance(has_windows ? 0.5 : 0.7) ? &query : nullptr;
  PrefixMatch match = manager_.Match(sequence.names, prompt, max_tokens, asked);
  NaiveMatch expected =
      model_.cache().Match(sequence.scope, prompt, max_tokens, asked);
  if (Chance(0.5)) {
    const int32_t part_limit =
        match.cached == nullptr ? max_tokens : limit(match.length());
    manager_.MatchPart(sequence.names, prompt, part_limit, &match);
    model_.cache().MatchPart(sequence.scope, prompt, part_limit, &expected);
    if (Chance(0.1)) {
      match.DropPart(page_size);
      expected.DropPart(page_size);
    }
  }
  CheckMatch(match, expected);
  EXPECT_EQ(manager_.num_open_slots(),
            config_.max_sequences - std::ssize(model_.sequences()));
  if (manager_.num_open_slots() == 0) return;
  const BlockManagerStats before = manager_.stats();
  const int32_t available = manager_.num_available();
  const SequenceSlot slot = manager_.Open(sequence.names, match);
  // Every matched block that only the cache held is used now.
  const int32_t woken = before.cached_blocks - manager_.stats().cached_blocks;
  const int32_t num_reclaimable =
      match.cost.num_reclaimable + (match.cost.part_is_reclaimable ? 1 : 0);
  EXPECT_EQ(available - manager_.num_available(), num_reclaimable);
  tally_->matched_blocks += std::ssize(match.blocks);
  tally_->matched_parts += match.has_part ? 1 : 0;
  tally_->matched_waiting_blocks += woken - num_reclaimable;
  model_.Open(slot, std::move(sequence), expected);
  const int32_t num_part = match.has_part ? 1 : 0;
  EXPECT_EQ(manager_.CountBlocks(slot), match.CountBlocks() + num_part);
  model_.CheckRegions(manager_, slot);
  if (match.cached != nullptr) {
    ++tally_->matched_regions;
    EXPECT_TRUE(findable_.contains(match.cached->record().id));
  }
  incarnations_[slot] = next_incarnation_++;
}

void ManagerDriver::CheckMatch(const PrefixMatch& match,
                               const NaiveMatch& expected) {
  EXPECT_EQ(match.has_part, expected.has_part);
  EXPECT_EQ(match.cost.part_is_reclaimable, expected.part_is_reclaimable);
  EXPECT_EQ(match.num_tokens, expected.num_tokens);
  EXPECT_EQ(match.cached != nullptr, expected.region != 0);
  for (size_t group = 0; group < expected.pages.size(); ++group) {
    const auto index = static_cast<int32_t>(group);
    // Groups that are not in the match have nothing.
    const bool has_group = group < match.groups.size();
    const MatchedGroup own = has_group ? match.groups[group] : MatchedGroup();
    std::vector<BlockId> found;
    if (has_group) {
      std::ranges::copy(match.blocks_of(index), std::back_inserter(found));
      // Pages before the first one are in the region or outside of the span.
      if (!found.empty()) {
        found.insert(found.begin(), own.first_page, kNullBlock);
      }
    }
    std::vector<BlockId> pages = expected.pages[group];
    if (std::ranges::count(pages, kNullBlock) == std::ssize(pages)) {
      pages.clear();
    }
    EXPECT_EQ(found, pages) << group;
    const int32_t num_region_ins = expected.CountIns(index, true);
    EXPECT_EQ(own.num_region_ins, num_region_ins) << group;
    EXPECT_EQ(own.num_tail_ins, expected.CountIns(index, false)) << group;
    EXPECT_EQ(own.num_region_blocks(),
              std::ssize(expected.regions[group].blocks) + num_region_ins)
        << group;
  }
  EXPECT_EQ(match.cost.num_reclaimable, expected.num_reclaimable);
  EXPECT_EQ(match.cost.num_cooling, expected.num_cooling);
  EXPECT_EQ(match.cost.num_moving, expected.num_moving);
  tally_->naive.shortened_matches += expected.is_shortened ? 1 : 0;
  tally_->naive.refused_regions += expected.has_refused_region ? 1 : 0;
}

std::string ManagerDriver::RandomHistory() {
  // Equal regions are of interest where windows may be gone.
  const bool few = config_.layout.has_windows();
  std::string history(1, Chance(few ? 0.9 : 0.5) ? 'a' : 'b');
  if (Chance(few ? 0.1 : 0.3)) history += 'c';
  return history;
}

std::vector<RetentionRange> ManagerDriver::RandomWishes() {
  std::vector<RetentionRange> wishes(Int(1, 3));
  for (RetentionRange& wish : wishes) {
    wish.begin = Int(0, config_.layout.page_size * 4);
    wish.end = wish.begin + Int(1, config_.layout.page_size * 4);
    wish.retention.priority = static_cast<uint8_t>(Int(0, kMaxPriority));
    if (Chance(0.5)) wish.retention.expires_ms = now_ms_ + Int(0, 20);
  }
  return wishes;
}

std::vector<TokenDemand> ManagerDriver::RandomDemands() {
  std::vector<TokenDemand> demands;
  for (const auto& [slot, sequence] : model_.sequences()) {
    // Few while an order is on its way: only what nothing was added to since
    // can be published.
    const double haste = config_.layout.has_windows() ? 0.02 : 0.1;
    const bool has_order = sequence.groups[0].pending.has_value();
    if (!Chance(has_order ? haste : 0.5)) continue;
    if (HasOrderAtLength(slot)) continue;
    if (IsReady(sequence) && Chance(0.7)) continue;
    const int32_t page_size = config_.layout.page_size;
    const int32_t missing =
        static_cast<int32_t>(sequence.tokens.size()) - sequence.num_reserved;
    int32_t num_tokens = Int(0, 3 * page_size);
    if (HasMovingRegion(sequence) && Chance(0.7)) {
      // At the end of a page group 0 can be compressed again, and the window
      // still has its region.
      num_tokens = page_size - sequence.num_reserved % page_size;
    } else if (Chance(0.3)) {
      num_tokens = CeilDiv(sequence.num_reserved, page_size) * page_size -
                   sequence.num_reserved;
    } else if (missing > 0 && Chance(0.5)) {
      num_tokens = missing;
    }
    demands.push_back({slot, num_tokens});
  }
  return demands;
}

bool ManagerDriver::Reserve() {
  const std::vector<TokenDemand> demands = RandomDemands();
  int32_t needed = 0;
  for (const TokenDemand& demand : demands) {
    needed += model_.CountBlocksNeeded(demand.slot, demand.num_tokens);
  }
  const std::vector<TokenDemand> leavers = model_.Leavers(demands);
  const auto num_copies =
      config_.layout.num_groups() * static_cast<int32_t>(leavers.size());
  const BlockManagerStats before = manager_.stats();
  const bool fits = needed + num_copies <= manager_.num_available();
  const uint64_t hash = manager_.StateHash();
  std::vector<int64_t> offsets = {0};
  std::vector<BlockId> blocks;
  std::vector<CopyOnWrite> copies;
  const bool done = manager_.Reserve(demands, &offsets, &blocks, &copies);
  EXPECT_EQ(done, fits);
  if (!done) {
    EXPECT_EQ(manager_.StateHash(), hash);
    EXPECT_EQ(offsets.size(), 1u);
    EXPECT_TRUE(blocks.empty());
    EXPECT_TRUE(copies.empty());
    ++tally_->refused_reservations;
    if (needed + num_copies == manager_.num_available() + 1) {
      ++tally_->reservations_less_one;
      tally_->copies_less_one += num_copies > 0 ? 1 : 0;
    }
    return false;
  }
  EXPECT_EQ(std::ssize(blocks), needed);
  CheckCopies(demands, leavers, copies);
  std::vector<BlockId> taken = blocks;
  for (const CopyOnWrite& copy : copies) {
    taken.push_back(copy.blocks.destination);
  }
  const int32_t reclaimed = model_.HandOut(taken, before.free_blocks);
  EXPECT_EQ(manager_.stats().reclaimed_blocks,
            before.reclaimed_blocks + static_cast<uint64_t>(reclaimed));
  tally_->reclaimed_blocks += reclaimed;
  cache_was_touched_ = reclaimed > 0;
  if (!taken.empty() && manager_.num_available() == 0) {
    ++tally_->last_reservations;
    tally_->last_reclaims += reclaimed > 0 ? 1 : 0;
  }
  for (const CopyOnWrite& copy : copies) model_.Leave(copy);
  for (size_t i = 0; i < demands.size(); ++i) {
    const auto [slot, num_tokens] = demands[i];
    NaiveSequence& sequence = model_.at(slot);
    EXPECT_EQ(offsets[i + 1] - offsets[i],
              model_.CountBlocksNeeded(slot, num_tokens));
    const int32_t missing = sequence.num_reserved + num_tokens -
                            static_cast<int32_t>(sequence.tokens.size());
    AppendTokens(&sequence.tokens, missing);
    model_.Reserve(
        slot, num_tokens,
        std::span(blocks).subspan(offsets[i], offsets[i + 1] - offsets[i]));
    step_.runs.push_back({slot, incarnations_.at(slot), num_tokens});
  }
  return true;
}

bool ManagerDriver::IsReady(const NaiveSequence& sequence) const {
  const int32_t page_size = config_.layout.page_size;
  return config_.layout.has_windows() &&
         sequence.num_settled == sequence.num_reserved &&
         sequence.num_settled % page_size == 0 &&
         sequence.num_settled > sequence.cut() + page_size;
}

SequenceSlot ManagerDriver::SlotToCompress() {
  const SequenceSlot any = AnySlot();
  for (const auto& [slot, sequence] : model_.sequences()) {
    if (IsReady(sequence) && Chance(0.7)) return slot;
  }
  return any;
}

void ManagerDriver::AbortRun() {
  if (step_.runs.empty()) return;
  const Run run = step_.runs.back();
  if (!IsStale(run.slot, run.incarnation)) {
    const NaiveSequence& sequence = model_.at(run.slot);
    const int32_t num_left = sequence.num_reserved - run.num_tokens;
    if (sequence.CountOrdered() > num_left) return;
    Undo(run);
  }
  step_.runs.pop_back();
}

void ManagerDriver::Undo(const Run& run) {
  const std::vector<BlockId> before = model_.at(run.slot).groups[0].pages;
  manager_.Abort(run.slot, run.num_tokens);
  model_.Withdraw(run.slot, run.num_tokens, false);
  const std::vector<BlockId>& after = model_.at(run.slot).groups[0].pages;
  const bool kept = std::equal(after.begin(), after.end(), before.begin());
  tally_->undone_copies += kept ? 0 : 1;
}

void ManagerDriver::UndoReserve() {
  const uint64_t hash = manager_.StateHash();
  const size_t num_runs = step_.runs.size();
  if (!Reserve()) return;
  while (step_.runs.size() > num_runs) {
    const Run run = step_.runs.back();
    Undo(run);
    step_.runs.pop_back();
  }
  if (cache_was_touched_) return;
  EXPECT_EQ(manager_.StateHash(), hash);
  ++tally_->undone_reservations;
}

}  // namespace blockmgr
