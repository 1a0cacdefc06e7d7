#include "bench/micro/memory_workloads.h"

#include <numeric>
#include <random>
#include <span>

#include "blockmgr/base/bits.h"
#include "blockmgr/base/check.h"

namespace blockmgr {

ModelLayout LlamaLayout(int32_t num_blocks) {
  return {.num_layers = 32,
          .num_heads = 8,
          .num_q_heads = 32,
          .head_dim = 128,
          .page_size = 16,
          .dtype = DType::kBFloat16,
          .num_blocks = num_blocks};
}

std::vector<int32_t> RandomTokens(int32_t num_tokens, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(num_tokens);
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 128000);
  return tokens;
}

void ReserveTokens(BlockManager* manager, SequenceSlot slot,
                   int32_t num_tokens) {
  std::vector<int64_t> offsets;
  std::vector<BlockId> blocks;
  const TokenDemand demand{slot, num_tokens};
  BM_CHECK(manager->Reserve(std::span(&demand, 1), &offsets, &blocks));
}

std::vector<int32_t> UnevenCounts(const ModelLayout& layout, int32_t cut,
                                  int32_t keep_percent) {
  std::mt19937 random(2);
  const int32_t num_heads = layout.pages_per_block();
  const int32_t pages_per_head = cut / layout.page_size * keep_percent / 100;
  std::vector<int32_t> pages(num_heads, pages_per_head);
  for (int32_t i = 0; i + 1 < num_heads; i += 2) {
    const auto moved = static_cast<int32_t>(random() % pages_per_head);
    pages[i] -= moved;
    pages[i + 1] += moved;
  }
  for (int32_t& count : pages) count *= layout.page_size;
  return pages;
}

AllocateWorkload::AllocateWorkload(int32_t num_blocks)
    : pool_(num_blocks + 1), blocks_(num_blocks) {}

void AllocateWorkload::Run() {
  BM_CHECK(pool_.Allocate(blocks_));
  for (const BlockId block : blocks_) pool_.Release(block);
  BM_CHECK(pool_.num_free() == static_cast<int32_t>(blocks_.size()));
}

MatchWorkload::MatchWorkload(int32_t num_tokens)
    : num_blocks_(num_tokens / 16),
      prompt_(RandomTokens(num_tokens, 1)),
      manager_(LlamaLayout(num_blocks_ + 1), 1, true) {
  BlockChain chain;
  chain.Extend(prompt_, 16);
  const SequenceSlot slot = manager_.Open({}, {});
  ReserveTokens(&manager_, slot, num_tokens);
  manager_.Commit(slot, num_tokens, prompt_, chain);
}

void MatchWorkload::Run() {
  BlockChain chain;
  chain.Extend(prompt_, 16);
  const PrefixMatch match =
      manager_.Match(chain, prompt_, static_cast<int32_t>(prompt_.size()));
  BM_CHECK(std::ssize(match.blocks) == num_blocks_);
}

ReadCacheWorkload::ReadCacheWorkload(int32_t num_blocks)
    : num_blocks_(num_blocks), manager_(LlamaLayout(num_blocks + 1), 1, true) {
  BM_CHECK(num_blocks % (kLongPromptTokens / 16) == 0);
  for (int32_t i = 0; i < num_blocks / (kLongPromptTokens / 16); ++i) {
    const std::vector<int32_t> prompt =
        RandomTokens(kLongPromptTokens, static_cast<uint32_t>(i));
    BlockChain chain;
    chain.Extend(prompt, 16);
    const SequenceSlot slot = manager_.Open({}, {});
    ReserveTokens(&manager_, slot, kLongPromptTokens);
    manager_.Commit(slot, kLongPromptTokens, prompt, chain);
    manager_.Close(slot);
  }
}

void ReadCacheWorkload::Run(int32_t max_blocks, bool walks) {
  const PrefixCache& cache = manager_.prefix_cache();
  PrefixCachePosition position;
  if (!walks) {
    position = {
        .change = cache.num_changes() - static_cast<uint64_t>(num_blocks_),
        .entry = PrefixCachePosition::kAllEntries};
  }
  int64_t num_told = 0;
  for (bool current = false; !current;) {
    const PrefixCacheDelta delta = cache.Read(&position, max_blocks);
    num_told += std::ssize(delta.blocks);
    current = delta.current;
  }
  BM_CHECK(num_told == num_blocks_);
}

namespace {

// Computes a prompt of its own, with a page more than its region will cover,
// which is what publishing it takes.
SequenceSlot ComputePrompt(BlockManager* manager, const BlockChain& chain,
                           const std::vector<int32_t>& tokens) {
  const auto num_tokens = static_cast<int32_t>(tokens.size());
  const SequenceSlot slot =
      manager->Open(chain, manager->Match(chain, tokens, num_tokens - 1));
  ReserveTokens(manager, slot, num_tokens);
  manager->Commit(slot, num_tokens, tokens, chain);
  return slot;
}

// The same in all, with so many entries of every other head to its neighbour.
std::vector<int32_t> MoveEntries(std::vector<int32_t> counts,
                                 int32_t num_entries) {
  for (size_t i = 0; i + 1 < counts.size(); i += 2) {
    counts[i] -= num_entries;
    counts[i + 1] += num_entries;
  }
  return counts;
}

// Evicts [0, cut) down to `counts`, into fresh blocks or its own.
EvictionReceipt EvictTo(BlockManager* manager, SequenceSlot slot, int32_t cut,
                        std::span<const int32_t> counts, bool in_place,
                        const RegionPublication* publication) {
  const ModelLayout& layout = manager->layout();
  const int64_t page_total =
      std::accumulate(counts.begin(), counts.end(), int64_t{0}) /
      layout.page_size;
  const auto num_fresh = static_cast<int32_t>(
      CeilDiv<int64_t>(page_total, layout.pages_per_block()));
  std::vector<BlockId> destinations;
  BM_CHECK(manager->ReserveEviction(slot,
                                    {.cut = cut,
                                     .page_total = page_total,
                                     .num_fresh = in_place ? 0 : num_fresh},
                                    &destinations));
  return manager->CommitEviction(slot, 0, counts, publication);
}

}  // namespace

EvictionWorkload::EvictionWorkload(const Setting& setting)
    : setting_(setting),
      counts_(UnevenCounts(LlamaLayout(1), setting.num_tokens,
                           setting.keep_percent)),
      counts_again_(MoveEntries(counts_, 16)),
      manager_(LlamaLayout(setting.num_tokens / 16 * 2 + 2), 1,
               setting.cached) {}

void EvictionWorkload::Evict(std::span<const int32_t> counts, bool in_place) {
  RegionPublication publication;
  publication.name = {.plan = "20 %",
                      .history = {},
                      .length = static_cast<int32_t>(prompt_.size())};
  publication.chain = &chain_;
  publication.tokens = prompt_;
  const EvictionReceipt receipt =
      EvictTo(&manager_, slot_, cut_, counts, in_place,
              setting_.published ? &publication : nullptr);
  BM_CHECK(receipt.published == setting_.published);
  evicted_entries_ = receipt.evicted_entries;
}

void EvictionWorkload::Prepare() {
  cut_ = setting_.num_tokens;
  prompt_ = RandomTokens(cut_ + 16, ++num_prepared_);
  chain_ = BlockChain();
  chain_.Extend(prompt_, 16);
  slot_ = ComputePrompt(&manager_, chain_, prompt_);
  if (!setting_.again_in_place) return;
  Evict(counts_, false);
  cut_ += 16;
}

void EvictionWorkload::Run() {
  Evict(setting_.again_in_place ? counts_again_ : counts_,
        setting_.in_place || setting_.again_in_place);
}

void EvictionWorkload::Finish() {
  BM_CHECK(evicted_entries_ > 0);
  manager_.Close(slot_);
}

ReclaimWorkload::ReclaimWorkload(int32_t num_blocks)
    : manager_(LlamaLayout(num_blocks + 1), 1, true) {
  BM_CHECK(num_blocks % kNumTaken == 0);
  for (int32_t i = 0; i < num_blocks; i += kNumTaken) Prepare();
}

void ReclaimWorkload::Prepare() {
  const std::vector<int32_t> prompt =
      RandomTokens(kNumTaken * 16, ++num_prompts_);
  BlockChain chain;
  chain.Extend(prompt, 16);
  manager_.Close(ComputePrompt(&manager_, chain, prompt));
}

void ReclaimWorkload::Run() {
  BM_CHECK(manager_.stats().free_blocks == 0);
  slot_ = manager_.Open({}, {});
  ReserveTokens(&manager_, slot_, kNumTaken * 16);
}

void ReclaimWorkload::Finish() {
  manager_.Abort(slot_, kNumTaken * 16);
  manager_.Close(slot_);
  BM_CHECK(manager_.stats().free_blocks == kNumTaken);
}

MetadataBytes MeasureMetadata(const MetadataSetting& setting) {
  const ModelLayout layout = LlamaLayout(setting.num_blocks);
  const int32_t page_size = layout.page_size;
  const std::vector<int32_t> counts =
      UnevenCounts(layout, setting.num_tokens, 20);
  // A fifth of each stays, and a few blocks of a tail.
  const int32_t max_sequences =
      CeilDiv(setting.num_blocks * page_size, setting.num_tokens) * 5;
  BlockManager manager(layout, max_sequences, true);
  MetadataBytes result;
  const int32_t num_prompt = setting.num_tokens + page_size;
  while (manager.num_open_slots() > 0 &&
         manager.num_available() >= num_prompt / page_size * 2) {
    const auto number = static_cast<uint32_t>(manager.num_open_slots());
    const std::vector<int32_t> tokens =
        RandomTokens(num_prompt + page_size, number);
    BlockChain chain;
    chain.Extend(std::span(tokens).first(num_prompt), page_size);
    const std::vector<int32_t> prompt(tokens.begin(),
                                      tokens.begin() + num_prompt);
    const SequenceSlot slot = ComputePrompt(&manager, chain, prompt);
    if (!setting.with_regions) continue;
    RegionPublication publication;
    publication.name = {.plan = "20 %", .history = {}, .length = num_prompt};
    publication.chain = &chain;
    publication.tokens = prompt;
    EvictTo(&manager, slot, setting.num_tokens, counts, false, &publication);
    ++result.num_regions;
    if (result.num_regions % 2 == 0) continue;
    ReserveTokens(&manager, slot, page_size);
    manager.Commit(slot, page_size, tokens, chain);
    EvictTo(&manager, slot, num_prompt, counts, true, nullptr);
  }
  const auto bytes = static_cast<double>(manager.metadata_bytes());
  result.per_block = bytes / setting.num_blocks;
  result.pool_fraction = bytes / static_cast<double>(layout.pool_bytes());
  return result;
}

}  // namespace blockmgr
