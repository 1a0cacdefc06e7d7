// The bytes of metadata that a BlockManager reports are those it allocates. A
// program of its own: operator new is counted in it.

#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"
#include "tests/testing/counted_new.h"

namespace blockmgr {
namespace {

constexpr int32_t kPageSize = 16;

// The cache of Llama-3.1-8B in bf16.
ModelLayout Llama(int32_t num_blocks) {
  return {.num_layers = 32,
          .num_heads = 8,
          .num_q_heads = 32,
          .head_dim = 128,
          .page_size = kPageSize,
          .dtype = DType::kBFloat16,
          .num_blocks = num_blocks};
}

// What the manager holds, by the allocator's count.
class MetadataTest : public ::testing::Test {
 protected:
  static constexpr int32_t kBlocks = 2200;
  static constexpr int32_t kSequences = 32;

  explicit MetadataTest(const ModelLayout& layout = Llama(kBlocks),
                        int32_t num_host_blocks = 0) {
    const int64_t before = AllocatedBytes();
    manager_ = std::make_unique<BlockManager>(layout, kSequences, true,
                                              num_host_blocks);
    allocated_ =
        AllocatedBytes() - before - static_cast<int64_t>(sizeof(BlockManager));
  }

  // Whatever `change` allocates, and the caller does not keep, is metadata.
  template <typename Change>
  void Do(const Change& change) {
    const int64_t before = AllocatedBytes();
    change();
    allocated_ += AllocatedBytes() - before;
  }

  void ExpectReportIsTrue(const char* when) {
    SCOPED_TRACE(when);
    const int64_t reported = manager_->metadata_bytes();
    // Control blocks, sentinels and maps of deques are not reported.
    EXPECT_LE(reported, allocated_);
    EXPECT_GE(static_cast<double>(reported),
              0.99 * static_cast<double>(allocated_) - 2000);
  }

  static std::vector<int32_t> Tokens(int32_t kind, int32_t count) {
    std::vector<int32_t> tokens(count);
    std::iota(tokens.begin(), tokens.end(), 100000 * kind);
    return tokens;
  }

  // Computes a prompt; the caller owns what names it.
  SequenceSlot Compute(const std::vector<int32_t>& tokens,
                       const BlockChain& chain) {
    const auto count = static_cast<int32_t>(tokens.size());
    const SequenceSlot slot =
        manager_->Open(chain, manager_->Match(chain, tokens, count - 1));
    Append(slot, count - manager_->sequence(slot).num_settled, tokens, chain);
    return slot;
  }

  void Append(SequenceSlot slot, int32_t count,
              const std::vector<int32_t>& tokens, const BlockChain& chain) {
    std::vector<int64_t> offsets;
    std::vector<BlockId> blocks;
    const TokenDemand demand{slot, count};
    EXPECT_TRUE(manager_->Reserve(std::span(&demand, 1), &offsets, &blocks));
    manager_->Commit(slot, count, tokens, chain);
  }

  // Keeps `pages` pages of every head of [0, cut).
  void Evict(SequenceSlot slot, int32_t cut, int32_t pages, bool in_place,
             const RegionPublication* publication = nullptr) {
    Order(slot, 0, cut, pages, in_place);
    Answer(slot, 0, pages, publication);
  }
  void Order(SequenceSlot slot, int32_t group, int32_t cut, int32_t pages,
             bool in_place) {
    std::vector<BlockId> destinations;
    EXPECT_TRUE(manager_->ReserveEviction(
        slot,
        {.group = group,
         .cut = cut,
         .page_total = int64_t{pages} * manager_->layout().pages_per_block(),
         .num_fresh = in_place ? 0 : pages},
        &destinations));
  }
  void Answer(SequenceSlot slot, int32_t group, int32_t pages,
              const RegionPublication* publication = nullptr) {
    const std::vector<int32_t> counts(manager_->layout().pages_per_block(),
                                      pages * kPageSize);
    const EvictionReceipt receipt =
        manager_->CommitEviction(slot, group, counts, publication);
    EXPECT_EQ(receipt.published, publication != nullptr);
  }

  static BlockChain Chain(const std::vector<int32_t>& tokens,
                          const ContentScope& scope = {}) {
    BlockChain chain(scope);
    chain.Extend(tokens, kPageSize);
    return chain;
  }

  std::unique_ptr<BlockManager> manager_;
  int64_t allocated_ = 0;
};

TEST_F(MetadataTest, TheCounterCounts) {
  const int64_t before = AllocatedBytes();
  auto numbers = std::make_unique<std::vector<int32_t>>(1000);
  EXPECT_EQ(AllocatedBytes() - before,
            static_cast<int64_t>(sizeof(std::vector<int32_t>)) + 4000);
  numbers.reset();
  EXPECT_EQ(AllocatedBytes(), before);
}

TEST_F(MetadataTest, OfAnEmptyPool) { ExpectReportIsTrue("at first"); }

TEST_F(MetadataTest, OfSequencesAndTheirCachedBlocks) {
  std::vector<SequenceSlot> slots;
  slots.reserve(kSequences);
  for (int32_t i = 0; i < 20; ++i) {
    const std::vector<int32_t> tokens = Tokens(i, 1600);
    // Names too long to be inside a string, and media.
    const BlockChain chain =
        Chain(tokens, {.tenant = "tenant number " + std::to_string(i),
                       .media = {{0, 400, std::string(40, 'h')}}});
    Do([&] { slots.push_back(Compute(tokens, chain)); });
  }
  ExpectReportIsTrue("full");
  for (const SequenceSlot slot : slots) Do([&] { manager_->Close(slot); });
  ExpectReportIsTrue("cached");
  Do([&] { manager_->ResetPrefixCache(); });
  ExpectReportIsTrue("reset");
}

TEST_F(MetadataTest, OfExpiringWishes) {
  const std::vector<int32_t> tokens = Tokens(1, 16000);
  BlockChain chain = Chain(tokens);
  RetentionRange range;
  range.retention = {.priority = 80, .expires_ms = 1000};
  chain.SetRetention({range});
  Do([&] { Compute(tokens, chain); });
  ExpectReportIsTrue("wished");
  Do([&] { manager_->SetTime(2000); });
  ExpectReportIsTrue("expired");
}

TEST_F(MetadataTest, OfRegions) {
  const int64_t empty = manager_->metadata_bytes();
  std::vector<SequenceSlot> slots;
  slots.reserve(kSequences);
  for (int32_t i = 0; i < 10; ++i) {
    const std::vector<int32_t> tokens = Tokens(i, 1600 + kPageSize);
    const BlockChain chain = Chain(tokens);
    // In the cache, and its pages follow from blocks and counts.
    RegionPublication publication;
    publication.chain = &chain;
    publication.tokens = tokens;
    publication.name = {.plan = "snapkv, a fifth of the entries",
                        .history = "compressed once, after the prompt",
                        .length = 1600 + kPageSize};
    Do([&] {
      slots.push_back(Compute(tokens, chain));
      Evict(slots.back(), 1600, 20, false, &publication);
    });
    EXPECT_NE(manager_->sequence(slots.back()).first().region, nullptr);
  }
  ExpectReportIsTrue("published");
  const int64_t published = manager_->metadata_bytes();
  EXPECT_GT(published, empty);
  for (const SequenceSlot slot : slots) {
    // Its own, and with page lists.
    const std::vector<int32_t> tokens = Tokens(0, 1600 + 4 * kPageSize);
    Do([&] {
      Append(slot, 3 * kPageSize, tokens, {});
      Evict(slot, 1600 + 4 * kPageSize, 21, true);
    });
    EXPECT_EQ(manager_->sequence(slot).cut(), 1600 + 4 * kPageSize);
  }
  ExpectReportIsTrue("compressed again");
  for (const SequenceSlot slot : slots) Do([&] { manager_->Close(slot); });
  Do([&] { manager_->ResetPrefixCache(); });
  ExpectReportIsTrue("dropped");
  EXPECT_LT(manager_->metadata_bytes(), published);
}

class SwapMetadataTest : public MetadataTest {
 protected:
  SwapMetadataTest() : MetadataTest(Llama(kBlocks), kBlocks) {}
};

// The cache and the host tier share the records of regions.
TEST_F(SwapMetadataTest, OfRegionsThatWereSwappedOut) {
  for (int32_t i = 0; i < 20; ++i) {
    const std::vector<int32_t> tokens = Tokens(i, 960 + kPageSize);
    const BlockChain chain = Chain(tokens);
    const RegionPublication publication = {
        .name = {.plan = "p", .history = "h", .length = 960 + kPageSize},
        .chain = &chain,
        .tokens = tokens};
    Do([&] {
      const SequenceSlot slot = Compute(tokens, chain);
      Evict(slot, 960, 12, false, &publication);
      std::vector<BlockTransfer> transfers;
      EXPECT_NE(manager_->SwapOut(slot, &transfers), kNoSwap);
      manager_->Close(slot);
    });
  }
  ExpectReportIsTrue("swapped out");
  Do([&] { manager_->ResetPrefixCache(); });
  ExpectReportIsTrue("in the host tier only");
}

// One head, and many groups of layers with a window each.
class HybridMetadataTest : public MetadataTest {
 protected:
  static constexpr int32_t kWindows = 32;
  HybridMetadataTest()
      : MetadataTest({.num_layers = 1,
                      .num_heads = 1,
                      .num_q_heads = 1,
                      .head_dim = 8,
                      .page_size = kPageSize,
                      .dtype = DType::kBFloat16,
                      .num_blocks = 4000,
                      .group_windows = std::vector<int32_t>(kWindows, 256)}) {}
};

TEST_F(HybridMetadataTest, OfRegionsInWindows) {
  const std::vector<int32_t> tokens = Tokens(1, 40 * kPageSize);
  const BlockChain chain = Chain(tokens);
  SequenceSlot slot{};
  const auto publish = [&](int32_t num_pages) {
    const RegionPublication publication = {
        .name = {.plan = "p", .history = "h", .length = num_pages * kPageSize},
        .chain = &chain,
        .tokens = tokens};
    Evict(slot, (num_pages - 1) * kPageSize, 1, false, &publication);
  };
  Do([&] {
    slot = manager_->Open(chain, {});
    Append(slot, 18 * kPageSize, tokens, chain);
    for (int32_t group = 1; group <= kWindows; ++group) {
      Order(slot, group, 17 * kPageSize, 1, false);
      Answer(slot, group, 1);
    }
    publish(18);
  });
  ExpectReportIsTrue("published");
  // Further regions of group 0 lead to the same regions in the windows. The
  // report grows by what they allocate.
  const int64_t allocated = allocated_;
  const int64_t reported = manager_->metadata_bytes();
  for (int32_t num_pages = 19; num_pages < 30; ++num_pages) {
    Do([&] {
      Append(slot, kPageSize, tokens, chain);
      publish(num_pages);
    });
  }
  const auto grown = static_cast<double>(allocated_ - allocated);
  const auto more = static_cast<double>(manager_->metadata_bytes() - reported);
  EXPECT_LE(more, grown);
  EXPECT_GE(more, 0.95 * grown);
  // The orders take the windows' regions out of the cache. The sequence and all
  // links share the records.
  Do([&] {
    for (int32_t group = 1; group <= kWindows; ++group) {
      Order(slot, group, 18 * kPageSize, 2, true);
    }
  });
  EXPECT_GT(manager_->stats().dropped_entries, kWindows);
  ExpectReportIsTrue("taken");
  Do([&] { manager_->Close(slot); });
  ExpectReportIsTrue("closed");
  Do([&] { manager_->ResetPrefixCache(); });
  ExpectReportIsTrue("reset");
}

// What is promised: under half a percent of the pool.
TEST_F(MetadataTest, IsASmallPartOfThePoolWithRegionsOfOneBlock) {
  const auto part = [this] {
    return static_cast<double>(manager_->metadata_bytes()) /
           static_cast<double>(manager_->layout().pool_bytes());
  };
  EXPECT_LT(part(), 0.0005);
  // The worst that fits: as many sequences as there are, one page per head.
  for (int32_t i = 0; i < kSequences; ++i) {
    const std::vector<int32_t> tokens = Tokens(i, 960);
    const BlockChain chain = Chain(tokens);
    const SequenceSlot slot = Compute(tokens, chain);
    Evict(slot, 960, 1, false);
  }
  EXPECT_LT(part(), 0.0005);
}

}  // namespace
}  // namespace blockmgr
