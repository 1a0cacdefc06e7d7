#include "tests/sim/taker_scenarios.h"

#include <cstdint>
#include <vector>

namespace blockmgr::sim {
namespace {

void OneSequence(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 30);
  const SequenceSlot slot = taker->Open(tokens);
  for (const int32_t chunk : {7, 1, 9, 13}) {
    taker->GoOn(slot, tokens, chunk);
  }
  taker->Close(slot);
}

void SeveralInOneCall(Taker* taker) {
  const SequenceSlot a = taker->Open(Taker::Tokens(1, 20));
  const SequenceSlot b = taker->Open(Taker::Tokens(2, 20));
  const SequenceSlot c = taker->Open(Taker::Tokens(3, 20));
  taker->Reserve({{a, 9}, {b, 5}, {c, 12}});
  taker->Reserve({{a, 1}, {b, 9}, {c, 1}});
  taker->Close(b);
  taker->Reserve({{a, 10}, {c, 7}});
}

void AfterAbort(Taker* taker) {
  const SequenceSlot a = taker->Open(Taker::Tokens(1, 20));
  taker->Reserve({{a, 9}});
  taker->manager().Abort(a, 7);
  taker->Reserve({{a, 18}});
}

void WithoutCache(Taker* taker) {
  taker->Close(taker->Compute(Taker::Tokens(1, 16)));
  taker->Compute(Taker::Tokens(1, 27));
}

void SharedPrefix(Taker* taker) {
  taker->Compute(Taker::Tokens(1, 16));
  taker->Compute(Taker::Tokens(1, 27));
  taker->Close(taker->Compute(Taker::Tokens(1, 31)));
  taker->Compute(Taker::Tokens(1, 31));
}

void ReclaimsToTake(Taker* taker) {
  for (const int32_t topic : {1, 2, 3, 1, 4, 2}) {
    taker->Close(taker->Compute(Taker::Tokens(topic, 40)));
  }
}

void RetainedEntriesGoLast(Taker* taker) {
  for (const int32_t topic : {1, 2, 3, 1}) {
    taker->Close(taker->Compute(Taker::Tokens(topic, 40)));
  }
}

void FencedBlocks(Taker* taker) {
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 22));
  taker->Dispatch();
  taker->Close(a);  // five blocks are cached, one is released
  const SequenceSlot b = taker->Open(Taker::Tokens(2, 60));
  taker->Reserve({{b, 24}});
  taker->Acknowledge();
  taker->Reserve({{b, 36}});
}

void DraftsThatAreRejected(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 10));
  for (const int32_t accepted : {1, 5, 0, 3}) {
    taker->Reserve({{a, 6}});
    taker->Dispatch();
    taker->Commit(a, tokens, accepted);
    taker->manager().Rollback(a, 6 - accepted);
    taker->Acknowledge();
  }
  taker->GoOn(a, tokens, 9);
}

void BlocksAreLost(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 30);
  const SequenceSlot a = taker->Compute(tokens);
  const SequenceSlot b = taker->Compute(Taker::Tokens(1, 14));
  const std::vector<BlockId>& tail = taker->manager().sequence(a).first().tail;
  taker->Lose({tail[1], tail[4]});
  taker->GoOn(b, tokens, 9);
  taker->GoOn(a, tokens, 26);
}

void ForkWritesFirst(Taker* taker) {
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 10));
  const SequenceSlot b = taker->Fork(a);
  taker->Reserve({{b, 1}});
  taker->Reserve({{a, 4}});
}

void ForksInOneCall(Taker* taker) {
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 10));
  const SequenceSlot b = taker->Fork(a);
  const SequenceSlot c = taker->Fork(b);
  taker->Reserve({{c, 3}, {a, 1}, {b, 7}});
  taker->Dispatch();
  taker->Acknowledge();
  taker->Reserve({{c, 3}, {a, 1}, {b, 7}});
}

void ForkThatGivesUpItsCopy(Taker* taker) {
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 10));
  const SequenceSlot b = taker->Fork(a);
  taker->Reserve({{b, 6}});
  taker->manager().Abort(b, 6);
  taker->Reserve({{a, 1}, {b, 6}});
  taker->Close(b);
}

void ForkOfWhatIsInFlight(Taker* taker) {
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 9));
  taker->Reserve({{a, 7}});
  taker->Dispatch();
  const SequenceSlot b = taker->Fork(a);
  taker->Reserve({{b, 4}, {a, 1}});
  taker->Acknowledge();
}

void ForkAtEarlierTokens(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 20);
  const SequenceSlot a = taker->Compute(tokens);
  const SequenceSlot b = taker->ForkAt(a, 7);
  const SequenceSlot c = taker->ForkAt(a, 12);
  taker->Reserve({{b, 1}, {c, 1}});
  taker->Dispatch();
  taker->manager().CutBack(a, 9);
  taker->Acknowledge();
  taker->GoOn(a, tokens, 9);
}

void ForkWithDrafts(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 9));
  const SequenceSlot b = taker->Fork(a);
  for (const int32_t accepted : {0, 2}) {
    taker->Reserve({{b, 5}, {a, 1}});
    taker->Dispatch();
    taker->Commit(a, tokens, 1);
    taker->Commit(b, tokens, accepted);
    taker->manager().Rollback(b, 5 - accepted);
    taker->Acknowledge();
  }
}

void PartOfACachedBlock(Taker* taker) {
  taker->Close(taker->Compute(Taker::Tokens(1, 12)));
  std::vector<int32_t> tokens = Taker::Tokens(1, 7);
  tokens.insert(tokens.end(), {7, 8, 9});
  const SequenceSlot a = taker->OpenOnPart(tokens);
  taker->GoOn(a, tokens, 3);
}

void PartOfABlockInUse(Taker* taker) {
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 12));
  const SequenceSlot b = taker->OpenOnPart(Taker::Tokens(1, 4));
  taker->Reserve({{b, 1}, {a, 1}});
  taker->manager().Abort(b, 1);
  taker->Reserve({{b, 9}});
}

void PartWhereAllElseIsReclaimed(Taker* taker) {
  taker->Close(taker->Compute(Taker::Tokens(2, 60)));
  const SequenceSlot a = taker->OpenOnPart(Taker::Tokens(2, 8));
  taker->Compute(Taker::Tokens(3, 8));
  taker->Reserve({{a, 40}});
}

void EvictionIntoFreshBlocks(Taker* taker) {
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 30));
  taker->Order(a, 28, 3, 3);
  taker->CommitOrder(a, 10);
  taker->Reserve({{a, 20}});
}

void EvictionInPlaceAndFresh(Taker* taker) {
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 30));
  taker->ExpectOwn(a, 28, 7);
  taker->Order(a, 24, 4, 2);
  taker->CommitOrder(a, 15);
  taker->Order(a, 28, 3, 1);
  taker->CommitOrder(a, 12);
}

void EvictionOfWhatOthersShare(Taker* taker) {
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 24));
  const SequenceSlot b = taker->Compute(Taker::Tokens(1, 28));
  taker->ExpectOwn(b, 28, 1);
  taker->ExpectOwn(a, 24, 0);
  taker->Order(b, 24, 2, 2);
  taker->CommitOrder(b, 7);
  taker->ExpectOwn(a, 24, 6);
  taker->Order(a, 20, 1, 1);
  taker->manager().AbortEviction(a, 0);
  taker->Close(a);
  taker->Close(b);
}

void EvictionThatReclaims(Taker* taker) {
  for (const int32_t topic : {1, 2}) {
    taker->Close(taker->Compute(Taker::Tokens(topic, 24)));
  }
  const SequenceSlot a = taker->Compute(Taker::Tokens(3, 28));
  taker->Order(a, 24, 4, 4);
  taker->Close(a);
  taker->Compute(Taker::Tokens(4, 60));
}

void EvictionOfAFork(Taker* taker) {
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 18));
  const SequenceSlot b = taker->Fork(a);
  taker->ExpectOwn(b, 16, 0);
  taker->Order(b, 16, 2, 2);
  taker->CommitOrder(b, 8);
  taker->ExpectOwn(a, 16, 4);
  taker->Reserve({{b, 1}, {a, 1}});
}

void RegionOfAFork(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 17));
  taker->Order(a, 16, 2, 2);
  taker->CommitOrder(a, 7);
  const SequenceSlot b = taker->Fork(a);
  taker->Reserve({{b, 7}, {a, 3}});
  taker->Dispatch();
  taker->Commit(b, tokens, 7);
  taker->Acknowledge();
  // The region is shared: only what came after it is its own.
  taker->ExpectOwn(b, 24, 2);
  taker->Order(b, 24, 2, 1);
  taker->CommitOrder(b, 5);
  taker->ExpectOwn(a, 20, 3);
}

void RegionThatOthersFind(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 20));
  taker->Order(a, 16, 2, 2);
  taker->CommitOrder(a, 8, Taker::Tokens(1, 20));
  const SequenceSlot b = taker->OpenOnRegion(tokens);
  taker->GoOn(b, tokens, 8);
  taker->Order(b, 24, 3, 3);
  taker->Close(a);
  taker->CommitOrder(b, 9);
  taker->Close(b);
  taker->Compute(Taker::Tokens(2, 72));
}

void CachedRegionInPlace(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 20));
  taker->Order(a, 16, 3, 3);
  taker->CommitOrder(a, 10, Taker::Tokens(1, 20));
  taker->GoOn(a, tokens, 8);
  taker->ExpectOwn(a, 28, 6);
}

void EvictionsInPlaceTwice(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 20));
  taker->Order(a, 16, 3, 1);
  taker->CommitOrder(a, 11);
  taker->GoOn(a, tokens, 12);
  taker->Order(a, 28, 7, 1);
  taker->manager().AbortEviction(a, 0);
  taker->Order(a, 32, 4, 3);
  taker->CommitOrder(a, 13);
  taker->GoOn(a, tokens, 3);
}

void EvictionAtTheEndOfWhatIsReserved(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 14));
  taker->Reserve({{a, 6}});
  taker->ExpectOwn(a, 20, 5);
  taker->Order(a, 20, 3, 1);
  taker->Commit(a, tokens, 6);
  taker->CommitOrder(a, 9);
}

void RegionIsLost(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 20));
  taker->Order(a, 16, 2, 2);
  taker->CommitOrder(a, 7);
  taker->Order(a, 20, 3, 2);
  taker->Lose({taker->manager().sequence(a).first().region->blocks[0]});
  taker->GoOn(a, tokens, 22);
}

void HeadsInShards(Taker* taker) {
  const auto tokens = Taker::Tokens(1, 40);
  const SequenceSlot a = taker->Compute(Taker::Tokens(1, 20));
  taker->ExpectOwn(a, 20, 5);
  taker->Order(a, 16, 3, 3);
  taker->CommitOrder(a, 9);
  taker->GoOn(a, tokens, 8);
  taker->ExpectOwn(a, 28, 6);
  taker->Order(a, 28, 5, 2);
  taker->CommitOrder(a, 18);
}

}  // namespace

std::vector<TakerScenario> PoolScenarios() {
  return {
      {"OneSequence", {}, OneSequence},
      {"SeveralInOneCall", {}, SeveralInOneCall},
      {"AfterAbort", {}, AfterAbort},
      {"WithoutCache", {.prefix_caching = false}, WithoutCache},
      {"SharedPrefix", {}, SharedPrefix},
      {"ReclaimsToTake", {}, ReclaimsToTake},
      {"RetainedEntriesGoLast", {.retention = true}, RetainedEntriesGoLast},
      {"FencedBlocks", {}, FencedBlocks},
      {"DraftsThatAreRejected", {}, DraftsThatAreRejected},
      {"BlocksAreLost", {}, BlocksAreLost},
      {"ForkWritesFirst", {}, ForkWritesFirst},
      {"ForksInOneCall", {}, ForksInOneCall},
      {"ForkThatGivesUpItsCopy", {}, ForkThatGivesUpItsCopy},
      {"ForkOfWhatIsInFlight", {}, ForkOfWhatIsInFlight},
      {"ForkAtEarlierTokens", {}, ForkAtEarlierTokens},
      {"ForkWithDrafts", {}, ForkWithDrafts},
      {"PartOfACachedBlock", {}, PartOfACachedBlock},
      {"PartOfABlockInUse", {}, PartOfABlockInUse},
      {"PartWhereAllElseIsReclaimed", {}, PartWhereAllElseIsReclaimed},
      {"EvictionIntoFreshBlocks", {}, EvictionIntoFreshBlocks},
      {"EvictionInPlaceAndFresh", {}, EvictionInPlaceAndFresh},
      {"EvictionOfWhatOthersShare", {}, EvictionOfWhatOthersShare},
      {"EvictionThatReclaims", {}, EvictionThatReclaims},
      {"EvictionOfAFork", {}, EvictionOfAFork},
      {"RegionOfAFork", {}, RegionOfAFork},
      {"RegionThatOthersFind", {}, RegionThatOthersFind},
      {"CachedRegionInPlace", {}, CachedRegionInPlace},
      {"EvictionsInPlaceTwice", {}, EvictionsInPlaceTwice},
      {"EvictionAtTheEndOfWhatIsReserved",
       {},
       EvictionAtTheEndOfWhatIsReserved},
      {"RegionIsLost", {}, RegionIsLost},
      {"HeadsInShards", {.num_heads = 4, .num_shards = 2}, HeadsInShards},
  };
}

}  // namespace blockmgr::sim
