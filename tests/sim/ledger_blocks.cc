#include "tests/sim/ledger_blocks.h"

#include <algorithm>
#include <string>

#include "blockmgr/base/bits.h"

namespace blockmgr::sim {
namespace {

// Returns the blocks that a run adds to a group.
std::vector<BlockId> NewBlocks(const StepPlan& plan, size_t run, int32_t group,
                               const LedgerBooks& books) {
  const size_t row = run * (1 + books.layout.group_windows.size()) + group;
  return {plan.blocks.begin() + plan.block_offsets[row],
          plan.blocks.begin() + plan.block_offsets[row + 1]};
}

// Checks that the block holds the page of the group from `begin` on, for the
// first num_tokens tokens of the sequence.
void CheckHit(const LedgerTable& table, int32_t group, int32_t begin,
              BlockId block, int32_t num_tokens, const LedgerBooks& books) {
  const LedgerRequest& served = books.requests.at(table.request);
  const std::vector<int32_t>& tokens = served.tokens;
  const LedgerBlock& noted = books.blocks[Index(block)];
  const std::string context =
      books.ContextAt(table, begin).value_or("of several");
  const std::string scope = ScopeOf(served.request.scope, num_tokens);
  const std::string has = ScopeOf(noted.scope, num_tokens);
  if (has != scope) {
    books.Fail("request ", Index(table.request), " of '", scope,
               "' hits block ", Index(block), " of '", has, "'");
  }
  if (noted.context != context) {
    books.Fail("request ", Index(table.request), " hits block ", Index(block),
               " computed after '", noted.context, "', expected '", context,
               "'");
  }
  if (noted.group != group ||
      std::ssize(noted.content) != begin + books.layout.page_size ||
      num_tokens > std::ssize(tokens) ||
      !std::equal(noted.content.begin(), noted.content.begin() + num_tokens,
                  tokens.begin())) {
    books.Fail("request ", Index(table.request), " hits block ", Index(block),
               ", which does not hold its first ", num_tokens,
               " tokens for group ", group);
  }
}

// Takes a copy of the first rows of a cached block.
void TakePart(const StepPlan& plan, const CopyOnWrite& copy,
              const LedgerTable& table, LedgerBooks* books) {
  const int32_t page_size = books->layout.page_size;
  const auto [source, destination] = copy.blocks;
  const int32_t num_rows = table.num_reserved % page_size;
  const int32_t index = (table.num_reserved - table.cut()) / page_size;
  const auto run = std::ranges::find(plan.slots, copy.slot);
  if (run == plan.slots.end() || num_rows == 0 || books->layout.has_windows() ||
      copy.num_tokens != num_rows) {
    books->Fail("slot ", Index(copy.slot), " copies ", copy.num_tokens,
                " tokens, expected ", num_rows, ", and runs");
    return;
  }
  const BlockId own =
      NewBlocks(plan, run - plan.slots.begin(), 0, *books)[index];
  if (own != destination) {
    books->Fail("slot ", Index(copy.slot), " copies to block ",
                Index(destination), " and goes on in ", Index(own));
    return;
  }
  CheckHit(table, 0, table.cut() + index * page_size, source,
           table.num_reserved, *books);
  // This step reads the source.
  books->blocks[Index(source)].fence = Index(plan.id);
  ++books->counts().parts;
}

// Takes the blocks of a run in one group.
void TakeGroup(const StepPlan& plan, size_t run, int32_t group,
               LedgerTable* table, LedgerBooks* books) {
  std::vector<BlockId>& own = table->groups[group].pages;
  const int32_t page_size = books->layout.page_size;
  // A table that goes on has pages.
  const bool is_new = own.empty();
  const int32_t num_in_region = table->groups[group].region.cut / page_size;
  // Plans name blocks from the cut on.
  if (is_new) own.assign(num_in_region, kNullBlock);
  const int32_t num_hit = is_new ? table->groups[group].num_shared : 0;
  for (const BlockId block : NewBlocks(plan, run, group, *books)) {
    const auto page = static_cast<int32_t>(own.size());
    const int32_t begin = page * page_size;
    if (is_new && books->rules.IsOut(group, page, table->num_reserved)) {
      if (block != kNullBlock) {
        books->Fail("request ", Index(table->request), " starts with page ",
                    page, " of group ", group, ", which is left behind");
      }
    } else if (page < num_hit) {
      CheckHit(*table, group, begin, block, begin + page_size, *books);
    } else {
      books->TakeFresh(block);
    }
    if (!books->ok()) return;
    own.push_back(block);
  }
  const int32_t end = plan.positions[run] + plan.num_tokens[run];
  if (std::ssize(own) != CeilDiv(end, page_size)) {
    books->Fail("request ", Index(table->request), ": ", own.size(),
                " pages of group ", group, " for ", end, " tokens");
  }
}

}  // namespace

void CheckBlockArrays(const StepPlan& plan, const LedgerBooks& books) {
  const size_t expected =
      plan.slots.size() * (1 + books.layout.group_windows.size()) + 1;
  const int64_t num_blocks =
      plan.block_offsets.empty() ? 0 : plan.block_offsets.back();
  if (plan.block_offsets.size() != expected ||
      std::ssize(plan.blocks) != num_blocks) {
    books.Fail("step ", Index(plan.id), " has ", plan.block_offsets.size(),
               " offsets and ", plan.blocks.size(), " blocks; expected ",
               expected, " and ", num_blocks);
  }
}

void TakeCopies(const StepPlan& plan, LedgerBooks* books) {
  const int32_t num_groups = books->layout.num_groups();
  for (const CopyOnWrite& copy : plan.copies) {
    const auto found = books->tables.find(copy.slot);
    const auto num_copies =
        std::ranges::count(plan.copies, copy.slot, &CopyOnWrite::slot);
    if (found == books->tables.end() || copy.group < 0 ||
        copy.group >= num_groups || num_copies != num_groups) {
      books->Fail("slot ", Index(copy.slot), " makes ", num_copies,
                  " copies, one in group ", copy.group, " of ", num_groups);
      return;
    }
    LedgerTable& table = found->second;
    std::vector<BlockId>& own = table.groups[copy.group].pages;
    if (own.empty()) {
      TakePart(plan, copy, table, books);
      continue;
    }
    const auto [source, destination] = copy.blocks;
    const int32_t num_rows = table.num_reserved % books->layout.page_size;
    if (own.back() != source || copy.num_tokens != num_rows || num_rows == 0 ||
        books->CountHolders(source) < 2) {
      books->Fail("slot ", Index(copy.slot), " copies ", copy.num_tokens,
                  " tokens of block ", Index(source), " with ",
                  books->CountHolders(source), " holders; its last block ",
                  Index(own.back()), " has ", num_rows);
      return;
    }
    books->TakeFresh(destination);
    own.back() = destination;
    // This step reads the source.
    books->blocks[Index(source)].fence = Index(plan.id);
  }
}

void TakeBlocks(const StepPlan& plan, size_t run, LedgerTable* table,
                LedgerBooks* books) {
  for (int32_t group = 0; group < books->layout.num_groups(); ++group) {
    if (books->ok()) TakeGroup(plan, run, group, table, books);
  }
}

}  // namespace blockmgr::sim
