#include "tests/sim/taker_scenarios.h"
#include "tests/testing/block_tables.h"

#include <cstdint>
#include <vector>

namespace blockmgr::sim {
namespace {

void SwapsOutAndIn(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 18));
  taker->Reserve({{a, 7}});
  const SwapId swap = taker->SwapOut(a);
  taker->manager().ResetPrefixCache();
  const SequenceSlot back = taker->SwapIn(swap, tokens, 18);
  taker->Dispatch();
  taker->Acknowledge();
  taker->GoOn(back, tokens, 6);
}

void LessComesBack(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SwapId swap = taker->SwapOut(taker->Compute(Taker::Tokens(1, 18)));
  taker->manager().ResetPrefixCache();
  taker->SwapIn(swap, tokens, 11);
}

void ComesBackBehindWhatIsCached(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 30);
  const SwapId swap = taker->SwapOut(taker->Compute(Taker::Tokens(1, 26)));
  taker->Close(taker->Compute(Taker::Tokens(2, 28)));
  taker->SwapIn(swap, tokens, 26);
}

void TwoInTheHostTier(Taker* taker) {
  const SwapId a = taker->SwapOut(taker->Compute(Taker::Tokens(1, 14)));
  taker->Dispatch();
  const SwapId b = taker->SwapOut(taker->Compute(Taker::Tokens(2, 7)));
  taker->manager().ResetPrefixCache();
  taker->Acknowledge();
  taker->SwapIn(a, Taker::Tokens(1, 14), 14);
  taker->Dispatch();
  // What comes back is read by the step in flight.
  const SwapId c = taker->SwapOut(taker->Compute(Taker::Tokens(3, 9)));
  taker->Acknowledge();
  taker->manager().DropSwapped(c);
  taker->SwapIn(b, Taker::Tokens(2, 7), 7);
}

void RegionIsSwapped(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 22));
  taker->Order(a, 16, 3, 3);
  taker->CommitOrder(a, 9);
  const SwapId swap = taker->SwapOut(a);
  const SequenceSlot back = taker->SwapIn(swap, tokens, 22);
  taker->Dispatch();
  taker->Acknowledge();
  taker->GoOn(back, tokens, 3);
  taker->Order(back, 24, 3, 1);
  taker->CommitOrder(back, 11);
}

void HostBlocksAreLost(Taker* taker) {
  const SwapId a = taker->SwapOut(taker->Compute(Taker::Tokens(1, 14)));
  const SwapId b = taker->SwapOut(taker->Compute(Taker::Tokens(2, 7)));
  taker->LoseHost({taker->manager().host().at(a).blocks[2]});
  taker->SwapOut(taker->Compute(Taker::Tokens(3, 22)));
  taker->manager().ResetPrefixCache();
  taker->SwapIn(b, Taker::Tokens(2, 7), 7);
}

void OneWindowGroup(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Open(tokens);
  for (const int32_t chunk : {7, 1, 9, 13}) {
    taker->GoOn(a, tokens, chunk);
  }
  taker->Close(a);
  taker->Compute(Taker::Tokens(1, 33));
}

void TwoWindowGroups(Taker* taker) {
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 22));
  const SequenceSlot b = taker->Fork(a);
  taker->Reserve({{b, 1}});
  taker->Reserve({{a, 7}});
}

void NothingButAWindow(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 60);
  const SequenceSlot a = taker->Open(tokens);
  for (const int32_t chunk : {12, 12, 5, 12}) {
    taker->GoOn(a, tokens, chunk);
  }
}

void WindowsForkedInOneCall(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 18));
  const SequenceSlot b = taker->Fork(a);
  const SequenceSlot c = taker->ForkAt(a, 17);
  taker->Reserve({{a, 1}, {b, 4}, {c, 1}});
  taker->Dispatch();
  taker->Commit(b, tokens, 2);
  taker->manager().Rollback(b, 2);
  taker->Acknowledge();
  taker->GoOn(b, tokens, 9);
}

void WindowsReclaimed(Taker* taker) {
  for (const int32_t topic : {1, 2, 1, 3}) {
    taker->Close(taker->Compute(Taker::Tokens(topic, 34)));
  }
}

void WindowsGoneBack(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 12));
  taker->manager().CutBack(a, 11);
  taker->ExpectNoSwapOut(a);
  taker->Reserve({{a, 2}});
  taker->Dispatch();
  taker->Commit(a, tokens, 2);
  taker->Acknowledge();
  taker->SwapOut(a);
}

void EvictionBesideAWindow(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 20));
  taker->ExpectOwn(a, 16, 4);
  taker->Order(a, 16, 2, 2);
  taker->CommitOrder(a, 8, Taker::Tokens(1, 20));
  const SequenceSlot b = taker->OpenOnRegion(tokens);
  taker->GoOn(b, tokens, 9);
  taker->Order(a, 20, 3, 3);
  taker->manager().AbortEviction(a, 0);
}

void EvictionsFromAWindow(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 60);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 22));
  // The next token attends to those from 11 on.
  taker->Order(a, 20, 2, 2);
  taker->Order(a, 20, 1, 1, 1);
  taker->CommitOrder(a, 8);
  taker->CommitWindowOrder(a, 1, 3);
  const SequenceSlot b = taker->Fork(a);
  taker->GoOn(b, tokens, 3);
  taker->Close(b);
  taker->GoOn(a, tokens, 4);
  taker->Order(a, 24, 2, 2);
  taker->Order(a, 24, 1, 0, 1);
  taker->CommitOrder(a, 6);
  taker->CommitWindowOrder(a, 1, 4);
  const SequenceSlot back = taker->SwapIn(taker->SwapOut(a), tokens, 26, 26);
  taker->Dispatch();
  taker->Acknowledge();
  // Until the region has fallen out, and on.
  taker->GoOn(back, tokens, 9);
  taker->GoOn(back, tokens, 2);
}

void EvictionsFromAWindowThatOthersFind(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 60);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 24));
  taker->Order(a, 20, 2, 2);
  taker->Order(a, 20, 1, 1, 1);
  taker->CommitWindowOrder(a, 1, 3);
  taker->CommitOrder(a, 8, Taker::Tokens(1, 24));
  const SequenceSlot b = taker->OpenOnRegion(tokens);
  taker->GoOn(b, tokens, 4);
  // Others have the region: only what came after it is its own.
  taker->Order(b, 24, 2, 2);
  taker->Order(b, 24, 1, 1, 1);
  taker->Close(a);
  taker->CommitWindowOrder(b, 1, 4);
  taker->CommitOrder(b, 6);
  taker->GoOn(b, tokens, 9);
  taker->Close(b);
  // What nobody uses makes room.
  taker->Compute(Taker::Tokens(2, 40));
}

void WindowsAreSwapped(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 22));
  const SwapId swap = taker->SwapOut(a);
  taker->manager().ResetPrefixCache();
  const SequenceSlot back = taker->SwapIn(swap, tokens, 22);
  taker->Dispatch();
  taker->Acknowledge();
  taker->GoOn(back, tokens, 6);
}

void WindowBlocksAreLost(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 22));
  taker->Lose({BlocksByPage(taker->manager().sequence(a).groups[1])[4]});
  taker->GoOn(a, tokens, 7);
}

}  // namespace

std::vector<TakerScenario> HostAndWindowScenarios() {
  const TakerWorld one = {.num_usable = 40, .group_windows = {8}};
  TakerWorld swapping = one;
  swapping.num_host_blocks = 17;
  return {
      {"SwapsOutAndIn", {.num_host_blocks = 8}, SwapsOutAndIn},
      {"LessComesBack", {.num_host_blocks = 8}, LessComesBack},
      {"ComesBackBehindWhatIsCached",
       {.num_usable = 12, .num_host_blocks = 8},
       ComesBackBehindWhatIsCached},
      {"TwoInTheHostTier", {.num_host_blocks = 9}, TwoInTheHostTier},
      {"RegionIsSwapped", {.num_host_blocks = 8}, RegionIsSwapped},
      {"HostBlocksAreLost", {.num_host_blocks = 8}, HostBlocksAreLost},
      {"OneWindowGroup", one, OneWindowGroup},
      {"TwoWindowGroups",
       {.num_usable = 40, .group_windows = {5, 9}},
       TwoWindowGroups},
      {"NothingButAWindow", {.window = 8}, NothingButAWindow},
      {"WindowsForkedInOneCall", one, WindowsForkedInOneCall},
      {"WindowsReclaimed",
       {.num_usable = 24, .group_windows = {8}},
       WindowsReclaimed},
      {"WindowsGoneBack", swapping, WindowsGoneBack},
      {"EvictionBesideAWindow", one, EvictionBesideAWindow},
      {"EvictionsFromAWindow", swapping, EvictionsFromAWindow},
      {"EvictionsFromAWindowThatOthersFind", one,
       EvictionsFromAWindowThatOthersFind},
      {"WindowsAreSwapped", swapping, WindowsAreSwapped},
      {"WindowBlocksAreLost", one, WindowBlocksAreLost},
  };
}

}  // namespace blockmgr::sim
