#include "tests/sim/taker.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <span>
#include <utility>

#include <gtest/gtest.h>

#include "blockmgr/base/bits.h"

namespace blockmgr::sim {
namespace {

constexpr int32_t kMaxSequences = 8;

ModelLayout TakerLayout(const TakerWorld& world) {
  return {.num_layers = 2,
          .num_heads = world.num_heads,
          .num_q_heads = world.num_heads,
          .head_dim = 8,
          .page_size = Taker::kPageSize,
          .dtype = DType::kFloat32,
          .num_blocks = world.num_usable + 1,
          .num_shards = world.num_shards,
          .window = world.window,
          .group_windows = world.group_windows};
}

}  // namespace

Taker::Taker(const TakerWorld& world, std::vector<Taking> known,
             int32_t fail_at)
    : world_(world),
      known_(std::move(known)),
      fail_at_(fail_at),
      has_part_(kMaxSequences),
      manager_(TakerLayout(world), kMaxSequences, world.prefix_caching,
               world.num_host_blocks) {}

std::vector<int32_t> Taker::Tokens(int32_t topic, int32_t num_tokens) {
  std::vector<int32_t> tokens(num_tokens);
  std::iota(tokens.begin(), tokens.end(), 1000 * topic);
  return tokens;
}

BlockChain Taker::Chain(const std::vector<int32_t>& tokens) const {
  BlockChain chain;
  chain.Extend(tokens, kPageSize);
  if (world_.retention) chain.SetRetention({{.retention = {.priority = 90}}});
  return chain;
}

PrefixMatch Taker::MatchFor(const std::vector<int32_t>& tokens) const {
  return manager_.Match(Chain(tokens), tokens,
                        static_cast<int32_t>(tokens.size()) - 1);
}

SequenceSlot Taker::Open(const std::vector<int32_t>& tokens) {
  const SequenceSlot slot = manager_.Open(Chain(tokens), MatchFor(tokens));
  manager_.CheckInvariants();
  return slot;
}

SequenceSlot Taker::OpenOnPart(const std::vector<int32_t>& tokens) {
  PrefixMatch match = MatchFor(tokens);
  manager_.MatchPart(Chain(tokens), tokens,
                     static_cast<int32_t>(tokens.size()) - 1, &match);
  EXPECT_TRUE(match.has_part);
  const SequenceSlot slot = manager_.Open(Chain(tokens), match);
  has_part_[Index(slot)] = true;
  manager_.CheckInvariants();
  return slot;
}

SequenceSlot Taker::OpenOnRegion(const std::vector<int32_t>& tokens) {
  const auto limit = [](int32_t) {
    return std::numeric_limits<int32_t>::max();
  };
  const RegionQuery query{
      .plan = "plan", .any_history = true, .max_tokens_over = limit};
  const PrefixMatch match = manager_.Match(Chain(tokens), tokens, 0, &query);
  EXPECT_NE(match.cached, nullptr);
  const SequenceSlot slot = manager_.Open(Chain(tokens), match);
  manager_.CheckInvariants();
  return slot;
}

SequenceSlot Taker::Fork(SequenceSlot slot) {
  const SequenceSlot fork = manager_.Fork(slot);
  manager_.CheckInvariants();
  return fork;
}

SequenceSlot Taker::ForkAt(SequenceSlot slot, int32_t num_tokens) {
  const SequenceSlot fork =
      manager_.Open(BlockChain(), manager_.MatchFork(slot, num_tokens));
  manager_.CheckInvariants();
  return fork;
}

void Taker::Reserve(const std::vector<TokenDemand>& demands) {
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  std::vector<CopyOnWrite> copies;
  bool has_part = false;
  for (const TokenDemand& demand : demands) {
    has_part |= has_part_[Index(demand.slot)];
    has_part_[Index(demand.slot)] = false;
  }
  const int32_t needed_alone =
      manager_.BlocksNeeded(demands[0].slot, demands[0].num_tokens);
  Take([&] { return manager_.Reserve(demands, &offsets, &blocks, &copies); },
       [&] { return offsets.empty() && blocks.empty() && copies.empty(); });
  takings_.back().kind = KindOf(copies.empty()       ? "reserve"
                                : has_part           ? "copy a part"
                                : demands.size() > 1 ? "copy in one call"
                                                     : "copy a fork's");
  if (demands.size() == 1) {
    EXPECT_EQ(std::ssize(blocks) + std::ssize(copies), needed_alone);
  }
}

void Taker::Commit(SequenceSlot slot, const std::vector<int32_t>& tokens,
                   int32_t num_tokens) {
  manager_.Commit(slot, num_tokens, tokens, Chain(tokens));
  manager_.CheckInvariants();
}

SequenceSlot Taker::Compute(const std::vector<int32_t>& tokens) {
  const SequenceSlot slot = Open(tokens);
  GoOn(slot, tokens,
       static_cast<int32_t>(tokens.size()) -
           manager_.sequence(slot).num_settled);
  return slot;
}

void Taker::GoOn(SequenceSlot slot, const std::vector<int32_t>& tokens,
                 int32_t num_tokens) {
  Reserve({{slot, num_tokens}});
  const bool is_alone = next_step_ == next_acknowledged_;
  if (is_alone) Dispatch();
  Commit(slot, tokens, num_tokens);
  if (is_alone) Acknowledge();
}

void Taker::Close(SequenceSlot slot) {
  manager_.Close(slot);
  manager_.CheckInvariants();
}

void Taker::Order(SequenceSlot slot, int32_t cut, int32_t num_blocks,
                  int32_t num_fresh, int32_t group) {
  std::vector<BlockId> destinations;
  const bool again =
      group == 0 ? manager_.sequence(slot).first().region != nullptr
                 : manager_.sequence(slot).groups[group].region != nullptr;
  const int64_t num_pages =
      int64_t{num_blocks} * manager_.layout().shard_pages_per_block();
  Take(
      [&] {
        return manager_.ReserveEviction(slot,
                                        {.group = group,
                                         .cut = cut,
                                         .page_total = num_pages,
                                         .num_fresh = num_fresh},
                                        &destinations);
      },
      [&] { return destinations.empty(); });
  takings_.back().kind =
      KindOf(std::string("order") + (group > 0 ? " of a window" : "") +
             (again ? " again" : "") +
             (num_fresh < num_blocks ? ", partly in place" : ""));
}

void Taker::ExpectOwn(SequenceSlot slot, int32_t cut, int32_t num_own) {
  std::vector<BlockId> destinations;
  const auto order = [&](int32_t num_blocks) {
    return manager_.ReserveEviction(
        slot,
        {.cut = cut,
         .page_total =
             int64_t{num_blocks} * manager_.layout().shard_pages_per_block()},
        &destinations);
  };
  if (IsDue(KindOf("order in place"), 1)) {
    Refuse([&] { return order(num_own + 1); },
           [&] { return destinations.empty(); });
  }
  EXPECT_TRUE(order(num_own));
  EXPECT_EQ(std::ssize(destinations), num_own);
  manager_.AbortEviction(slot, 0);
  manager_.CheckInvariants();
}

void Taker::CommitWindowOrder(SequenceSlot slot, int32_t group, int32_t kept) {
  const std::vector<int32_t> counts(manager_.layout().pages_per_block(), kept);
  if (IsDue(KindOf("counts of a window"), 1)) {
    std::vector<int32_t> too_many = counts;
    too_many.back() = manager_.sequence(slot).groups[group].pending->cut + 1;
    Refuse([&] { return manager_.ValidateCounts(slot, group, too_many).ok(); },
           [] { return true; });
  }
  ASSERT_TRUE(manager_.ValidateCounts(slot, group, counts).ok());
  manager_.CommitEviction(slot, group, counts);
  manager_.CheckInvariants();
}

void Taker::CommitOrder(SequenceSlot slot, int32_t kept,
                        const std::vector<int32_t>& tokens) {
  const std::vector<int32_t> counts(manager_.layout().pages_per_block(), kept);
  if (IsDue(KindOf("counts"), 1)) {
    std::vector<int32_t> too_many = counts;
    too_many.back() = manager_.sequence(slot).first().pending->cut + 1;
    Refuse([&] { return manager_.ValidateCounts(slot, 0, too_many).ok(); },
           [] { return true; });
  }
  ASSERT_TRUE(manager_.ValidateCounts(slot, 0, counts).ok());
  const BlockChain chain = Chain(tokens);
  const RegionPublication publication{
      .name = {.plan = "plan",
               .history = "history",
               .length =
                   manager_.sequence(slot).first().pending->cut + kPageSize},
      .chain = &chain,
      .tokens = tokens};
  const EvictionReceipt receipt = manager_.CommitEviction(
      slot, 0, counts, tokens.empty() ? nullptr : &publication);
  EXPECT_EQ(receipt.published, !tokens.empty());
  manager_.CheckInvariants();
}

void Taker::Acknowledge() {
  if (next_acknowledged_ == next_step_) return;  // a fault was earlier
  manager_.Acknowledge(StepId{next_acknowledged_++});
  manager_.CheckInvariants();
}

SwapId Taker::SwapOut(SequenceSlot slot) {
  std::vector<BlockTransfer> transfers;
  SwapId swap = kNoSwap;
  const auto take = [&] {
    swap = manager_.SwapOut(slot, &transfers);
    return swap != kNoSwap;
  };
  const bool has_region = manager_.sequence(slot).first().region != nullptr;
  const std::string kind =
      KindOf(has_region ? "swap a region out" : "swap out");
  const size_t index = takings_.size();
  if (IsDue(kind, 1)) {
    const int32_t needed = known_[index].num_blocks;
    LeaveHostFree(needed - 1);
    Refuse(take, [&] { return transfers.empty(); });
    FreeHostages();
    // Theirs are fenced as long as steps are in flight.
    while (next_acknowledged_ < next_step_) Acknowledge();
    LeaveHostFree(needed);
  }
  const int32_t before = manager_.host().num_free();
  EXPECT_TRUE(take());
  takings_.back().num_blocks = before - manager_.host().num_free();
  EXPECT_EQ(std::ssize(transfers), takings_.back().num_blocks);
  Close(slot);
  FreeHostages();
  return swap;
}

void Taker::ExpectNoSwapOut(SequenceSlot slot) {
  std::vector<BlockTransfer> transfers;
  if (!IsDue(KindOf("swap out what went back"), 1)) return;
  Refuse([&] { return manager_.SwapOut(slot, &transfers) != kNoSwap; },
         [&] { return transfers.empty(); });
}

SequenceSlot Taker::SwapIn(SwapId swap, const std::vector<int32_t>& tokens,
                           int32_t num_tokens, int32_t length) {
  PrefixMatch match;
  const auto take = [&] {
    match = manager_.Match(Chain(tokens), tokens, num_tokens);
    manager_.MatchSwapped(swap, num_tokens, length, &match);
    // Who opens a sequence asks for this before.
    return match.num_taken() <= manager_.num_available();
  };
  SequenceSlot slot = kNoSequenceSlot;
  std::vector<BlockTransfer> transfers;
  Take(
      [&] {
        if (!take()) {
          EXPECT_DEATH(manager_.SwapIn(manager_.Open(Chain(tokens), match),
                                       match, &transfers),
                       "num_available");
          return false;
        }
        slot = manager_.Open(Chain(tokens), match);
        manager_.SwapIn(slot, match, &transfers);
        return true;
      },
      [&] { return transfers.empty(); });
  EXPECT_EQ(match.swap, swap);
  takings_.back().kind = KindOf(match.num_region_ins() > 0 ? "swap a region in"
                                : match.num_blocks() > match.num_ins()
                                    ? "swap in behind what is cached"
                                    : "swap in");
  EXPECT_EQ(manager_.sequence(slot).num_settled, num_tokens);
  return slot;
}

void Taker::Lose(std::vector<BlockId> blocks) {
  for (const BlockId wrong :
       {kNullBlock, BlockId{manager_.layout().num_blocks}}) {
    if (!IsDue(KindOf("lose blocks"), 1)) continue;
    std::vector<BlockId> bad = blocks;
    bad.push_back(wrong);
    Refuse([&] { return manager_.LoseBlocks(bad).ok(); }, [] { return true; });
  }
  EXPECT_TRUE(manager_.LoseBlocks(blocks).ok());
  manager_.CheckInvariants();
}

void Taker::LoseHost(std::vector<HostBlockId> blocks) {
  for (const HostBlockId wrong :
       {HostBlockId{-1}, HostBlockId{world_.num_host_blocks}}) {
    if (!IsDue("lose host blocks", 1)) continue;
    std::vector<HostBlockId> bad = blocks;
    bad.push_back(wrong);
    Refuse([&] { return manager_.LoseHostBlocks(bad).ok(); },
           [] { return true; });
  }
  EXPECT_TRUE(manager_.LoseHostBlocks(blocks).ok());
  manager_.CheckInvariants();
}

bool Taker::IsDue(std::string kind, int32_t num_blocks) {
  const bool is_due = std::ssize(takings_) == fail_at_;
  takings_.push_back({.kind = std::move(kind), .num_blocks = num_blocks});
  return is_due;
}

void Taker::Refuse(const Call& call, const Call& untouched) {
  const uint64_t before = manager_.StateHash();
  EXPECT_FALSE(call());
  EXPECT_TRUE(untouched());
  EXPECT_EQ(manager_.StateHash(), before);
  manager_.CheckInvariants();
}

void Taker::Take(const Call& take, const Call& untouched) {
  const size_t index = takings_.size();
  const bool is_due = IsDue("", 0);
  if (is_due) {
    const int32_t needed = known_[index].num_blocks;
    LeaveAvailable(needed - 1);
    Refuse(take, untouched);
    FreeHostages();
    LeaveAvailable(needed);
  }
  const int32_t before = manager_.num_available();
  const uint64_t reclaimed = manager_.stats().reclaimed_blocks;
  EXPECT_TRUE(take());
  takings_.back().num_blocks = before - manager_.num_available();
  takings_.back().reclaims = manager_.stats().reclaimed_blocks > reclaimed;
  if (is_due) {
    EXPECT_EQ(manager_.num_available(), 0);
  }
  manager_.CheckInvariants();
  FreeHostages();
}

std::string Taker::KindOf(const std::string& call) const {
  if (manager_.layout().has_windows()) return call + ", with windows";
  return world_.num_shards > 1 ? call + ", with shards" : call;
}

void Taker::LeaveAvailable(int32_t num_blocks) {
  const int32_t ransom = manager_.num_available() - num_blocks;
  ASSERT_GE(ransom, 0);
  if (ransom == 0) return;
  hostage_ = manager_.Open(BlockChain(), {});
  const int32_t num_groups = manager_.layout().num_groups();
  const TokenDemand demand{hostage_, ransom / num_groups * kPageSize};
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  ASSERT_TRUE(manager_.Reserve(std::span(&demand, 1), &offsets, &blocks));
  const int32_t rest = ransom % num_groups;
  if (rest > 0) {
    ASSERT_TRUE(manager_.ReserveEviction(
        hostage_,
        {.cut = kPageSize,
         .page_total =
             int64_t{rest} * manager_.layout().shard_pages_per_block(),
         .num_fresh = rest},
        &blocks));
  }
  ASSERT_EQ(manager_.num_available(), num_blocks);
}

void Taker::LeaveHostFree(int32_t num_blocks) {
  const ModelLayout& layout = manager_.layout();
  const auto blocks_of = [&](int32_t num_pages) {
    int32_t count = 0;
    for (int32_t group = 0; group < layout.num_groups(); ++group) {
      count += num_pages - layout.FirstPage(group, num_pages * kPageSize);
    }
    return count;
  };
  ASSERT_GE(manager_.host().num_free(), num_blocks);
  while (manager_.host().num_free() > num_blocks) {
    // With windows, a longer one where the rest is no multiple of the groups.
    const int32_t ransom = manager_.host().num_free() - num_blocks;
    int32_t num_pages = 1;
    while ((ransom - blocks_of(num_pages)) % layout.num_groups() != 0) {
      ++num_pages;
    }
    const std::vector<int32_t> tokens =
        Tokens(100 + static_cast<int32_t>(host_hostages_.size()),
               num_pages * kPageSize);
    const SequenceSlot slot = manager_.Open(Chain(tokens), {});
    const TokenDemand demand{slot, num_pages * kPageSize};
    std::vector<int64_t> offsets;
    std::vector<BlockId> blocks;
    std::vector<BlockTransfer> transfers;
    ASSERT_TRUE(manager_.Reserve(std::span(&demand, 1), &offsets, &blocks));
    Commit(slot, tokens, demand.num_tokens);
    host_hostages_.push_back(manager_.SwapOut(slot, &transfers));
    ASSERT_NE(host_hostages_.back(), kNoSwap);
    Close(slot);
  }
}

void Taker::FreeHostages() {
  for (const SwapId swap : host_hostages_) manager_.DropSwapped(swap);
  host_hostages_.clear();
  if (hostage_ == kNoSequenceSlot) return;
  // Given back untouched, so that no fence holds them.
  if (manager_.sequence(hostage_).first().pending != nullptr) {
    manager_.AbortEviction(hostage_, 0);
  }
  manager_.Abort(hostage_, manager_.sequence(hostage_).num_reserved);
  Close(hostage_);
  hostage_ = kNoSequenceSlot;
}

}  // namespace blockmgr::sim
