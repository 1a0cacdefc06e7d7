// Tenants that ask for the very same prompts, under keys of 8 bits, so that
// contents of all of them collide: whoever has computed a prompt finds all of
// it, another tenant, whose scope differs in nothing else, finds nothing. Every
// prompt is new, and looked up once by each of the two. Nor does the owner find
// it with other media, or with the same somewhere else.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "blockmgr/block_manager.h"
#include "blockmgr/prefix_cache.h"
#include "tests/testing/case_count.h"

namespace blockmgr {
namespace {

using Prompt = std::vector<int32_t>;

constexpr int32_t kNumKeys = 256;
constexpr int32_t kPromptsPerRound = 500;

// An input that begins in the first block.
std::vector<MediaItem> Media(const char* hash, int32_t begin) {
  return {{.begin = begin, .length = 1, .hash = hash}};
}

// Each and the one next to it differ in the tenant alone.
const ContentScope kScopes[] = {
    {.tenant = "a"},
    {.tenant = "b"},
    {.tenant = "a", .lora = "l"},
    {.tenant = "b", .lora = "l"},
    {.tenant = "a", .cache_salt = "s"},
    {.tenant = "b", .cache_salt = "s"},
    {.tenant = "a", .media = Media("x", 0)},
    {.tenant = "b", .media = Media("x", 0)},
    {.tenant = "a", .media = Media("y", 0)},
    {.tenant = "b", .media = Media("y", 0)},
    {.tenant = "a", .media = Media("x", 1)},
    {.tenant = "b", .media = Media("x", 1)},
};
constexpr size_t kNumScopes = std::size(kScopes);

bool HasMedia(size_t scope) { return !kScopes[scope].media.empty(); }

// Whether media, which both have, are all that tells them apart.
bool DifferInMedia(size_t a, size_t b) {
  return HasMedia(a) && HasMedia(b) && kScopes[a].tenant == kScopes[b].tenant;
}

Prompt PromptOf(int32_t number, int32_t num_tokens) {
  Prompt tokens(num_tokens);
  tokens[0] = number;
  tokens[1] = number + 1;
  tokens[2] = number % 3;
  return tokens;
}

BlockChain ChainOf(const Prompt& tokens, size_t scope, int32_t page_size) {
  BlockChain chain(kScopes[scope], 8);
  chain.Extend(tokens, page_size);
  return chain;
}

// Whole blocks.
class BlocksRound {
 public:
  static constexpr int32_t kPageSize = 2;
  static constexpr int32_t kNumTokens = 4;

  static int32_t CountFindable(size_t) { return kNumTokens; }
  static BlockKey KeyOf(const BlockChain& chain) { return chain.keys()[0]; }

  void Publish(const Prompt& tokens, const BlockChain& chain) {
    const EntrySerial root = cache_.AcquireRoot(chain.root());
    EntrySerial parent = root;
    for (int32_t begin = 0; begin < kNumTokens; begin += kPageSize) {
      bool inserted = false;
      parent = cache_.serial(
          cache_.Insert(NextBlock(), chain.keys()[begin / kPageSize], chain,
                        parent, tokens, begin, &inserted));
      ASSERT_TRUE(inserted);
    }
    cache_.ReleaseRoot(root);
  }

  int32_t CountFound(const Prompt& tokens, const BlockChain& chain) const {
    std::vector<BlockId> blocks;
    cache_.Match(chain, chain.keys().size(), tokens, &blocks);
    return static_cast<int32_t>(blocks.size()) * kPageSize;
  }

 private:
  BlockId NextBlock() { return BlockId{++num_blocks_}; }

  PrefixCache cache_{1 + 2 * kPromptsPerRound, kPageSize};
  int32_t num_blocks_ = 0;
};

// A region of the first page, the page after it, and one computed over it.
class RegionsRound {
 public:
  static constexpr int32_t kPageSize = 2;
  static constexpr int32_t kNumTokens = 6;

  static int32_t CountFindable(size_t) { return kNumTokens; }
  static BlockKey KeyOf(const BlockChain& chain) {
    return chain.RegionKey(kLength / kPageSize, "p");
  }

  void Publish(const Prompt& tokens, const BlockChain& chain) {
    const BlockId tail = NextBlock();
    const BlockId over = NextBlock();
    auto record = std::make_shared<RegionRecord>();
    record->id = RegionId{static_cast<uint64_t>(Index(tail))};
    record->cut = kPageSize;
    record->blocks = {NextBlock()};
    const EntrySerial root = cache_.AcquireRoot(chain.root());
    cache_.InsertTail(tail, chain.keys()[1], chain, tokens, kPageSize);
    const int32_t entry = cache_.InsertRegion(
        record, {.plan = "p", .history = "h", .length = kLength}, chain, root,
        tokens, tail);
    bool inserted = false;
    cache_.Insert(over,
                  chain.KeyAfter(cache_.key(entry), tokens, kLength, kPageSize),
                  chain, cache_.serial(entry), tokens, kLength, &inserted);
    ASSERT_TRUE(inserted);
    cache_.ReleaseRoot(root);
  }

  int32_t CountFound(const Prompt& tokens, const BlockChain& chain) const {
    int64_t num_looks = 0;
    const int32_t entry = cache_.MatchRegion(
        chain, tokens,
        {.plan = "p",
         .any_history = true,
         .max_tokens_over = [](int32_t) { return kNumTokens; }},
        &num_looks);
    if (entry == PrefixCache::kNone) return 0;
    std::vector<BlockId> blocks;
    cache_.MatchOver(entry, chain, tokens, kNumTokens, &blocks);
    return kPageSize + static_cast<int32_t>(blocks.size()) * kPageSize;
  }

 private:
  static constexpr int32_t kLength = 4;

  BlockId NextBlock() { return BlockId{++num_blocks_}; }

  PrefixCache cache_{1 + 3 * kPromptsPerRound, kPageSize};
  int32_t num_blocks_ = 0;
};

// The block manager's view: a whole block, and the first rows of the next one;
// of a prompt without a whole block in common, those of the first.
class ManagerRound {
 public:
  static constexpr int32_t kPageSize = 4;
  static constexpr int32_t kNumTokens = 8;

  // Rows of a block with media are not shared.
  static int32_t CountFindable(size_t scope) {
    return HasMedia(scope) ? 7 : 10;
  }
  static BlockKey KeyOf(const BlockChain& chain) { return chain.keys()[0]; }

  void Publish(const Prompt& tokens, const BlockChain& chain) {
    const SequenceSlot slot = manager_.Open(chain, {});
    const TokenDemand demand{slot, kNumTokens};
    std::vector<int64_t> offsets;
    std::vector<BlockId> blocks;
    ASSERT_TRUE(manager_.Reserve(std::span(&demand, 1), &offsets, &blocks));
    manager_.Commit(slot, kNumTokens, tokens, chain);
    manager_.Close(slot);
  }

  int32_t CountFound(const Prompt& tokens, const BlockChain& chain) const {
    return CountFound(tokens, chain, 7) + CountFound(tokens, chain, 3);
  }

 private:
  int32_t CountFound(const Prompt& tokens, const BlockChain& chain,
                     int32_t max_tokens) const {
    PrefixMatch match = manager_.Match(chain, tokens, max_tokens);
    manager_.MatchPart(chain, tokens, max_tokens, &match);
    return match.num_tokens;
  }

  BlockManager manager_{{.num_layers = 1,
                         .num_heads = 1,
                         .num_q_heads = 1,
                         .head_dim = 8,
                         .page_size = kPageSize,
                         .dtype = DType::kFloat32,
                         .num_blocks = 1 + 2 * kPromptsPerRound},
                        1,
                        true};
};

// Pairs of lookups, of the owner and of the other tenant; of some prompts in
// the scopes with another adapter, salt or media, too.
template <typename Round>
void LookUpPairs(int32_t num_pairs) {
  const auto chain_of = [](const Prompt& tokens, size_t scope) {
    return ChainOf(tokens, scope, Round::kPageSize);
  };
  int64_t num_collisions = 0;
  int64_t num_media_collisions = 0;
  for (int32_t first = 0; first < num_pairs; first += kPromptsPerRound) {
    auto round = std::make_unique<Round>();
    for (int32_t i = first; i < first + kPromptsPerRound; ++i) {
      const Prompt tokens = PromptOf(i, Round::kNumTokens);
      round->Publish(tokens, chain_of(tokens, i % kNumScopes));
      if (testing::Test::HasFatalFailure()) return;
    }
    int64_t num_own_misses = 0;
    int64_t num_foreign = 0;
    for (int32_t i = first; i < first + kPromptsPerRound; ++i) {
      const Prompt tokens = PromptOf(i, Round::kNumTokens);
      const size_t owner = i % kNumScopes;
      const BlockChain own = chain_of(tokens, owner);
      const BlockChain foreign = chain_of(tokens, owner ^ 1);
      num_own_misses +=
          round->CountFound(tokens, own) == Round::CountFindable(owner) ? 0 : 1;
      num_foreign += round->CountFound(tokens, foreign);
      num_collisions += Round::KeyOf(own) == Round::KeyOf(foreign) ? 1 : 0;
      // Of all scopes' prompts in turn.
      for (size_t scope = 0; i % 13 == 0 && scope < kNumScopes; ++scope) {
        if (scope == owner) continue;
        const BlockChain other = chain_of(tokens, scope);
        num_foreign += round->CountFound(tokens, other);
        num_media_collisions += DifferInMedia(owner, scope) &&
                                        Round::KeyOf(own) == Round::KeyOf(other)
                                    ? 1
                                    : 0;
      }
    }
    ASSERT_EQ(num_own_misses, 0) << "prompts from " << first;
    ASSERT_EQ(num_foreign, 0) << "prompts from " << first;
  }
  // With equal tokens under an equal key only the scope tells them apart.
  EXPECT_GT(num_collisions, num_pairs / kNumKeys / 2);
  // Two others to each prompt with media, which half of them have.
  EXPECT_GT(num_media_collisions, num_pairs / 13 / kNumKeys / 2);
}

TEST(PrefixCacheIsolationTest, NoTenantFindsTheOthersBlocks) {
  LookUpPairs<BlocksRound>(1'000'000 / kCaseDivisor);
}

TEST(PrefixCacheIsolationTest, NoTenantFindsTheOthersRegions) {
  LookUpPairs<RegionsRound>(100'000 / kCaseDivisor);
}

TEST(PrefixCacheIsolationTest, NoTenantFindsTheOthersThroughTheManager) {
  LookUpPairs<ManagerRound>(100'000 / kCaseDivisor);
}

}  // namespace
}  // namespace blockmgr
