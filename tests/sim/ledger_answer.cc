#include "tests/sim/ledger_answer.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/ledger_effects.h"
#include "tests/sim/ledger_loss.h"
#include "tests/sim/ledger_outcomes.h"

namespace blockmgr::sim {
namespace {

bool HasValidTokens(const StepResult& result, const LedgerStep& step) {
  for (size_t i = 0; i < step.runs.size(); ++i) {
    if (step.runs[i].samples != (result.sampled[i] >= 0)) return false;
  }
  return true;
}

bool HasValidDrafts(const StepResult& result, const LedgerStep& step) {
  const size_t num_runs = step.runs.size();
  const std::vector<int32_t>& num_accepted = result.num_accepted;
  const std::vector<int32_t>& num_drafts = result.num_drafts;
  if ((!num_accepted.empty() && num_accepted.size() != num_runs) ||
      (!num_drafts.empty() && num_drafts.size() != num_runs) ||
      std::ranges::any_of(result.accepted,
                          [](int32_t token) { return token < 0; }) ||
      std::accumulate(num_accepted.begin(), num_accepted.end(), int64_t{0}) !=
          std::ssize(result.accepted)) {
    return false;
  }
  for (size_t i = 0; i < num_runs; ++i) {
    const LedgerStep::Run& run = step.runs[i];
    if (!num_accepted.empty() &&
        (num_accepted[i] < 0 || num_accepted[i] > run.num_drafts)) {
      return false;
    }
    if (!num_drafts.empty() &&
        (num_drafts[i] < 0 || (num_drafts[i] > 0 && !run.samples))) {
      return false;
    }
  }
  return true;
}

bool HasValidLosses(const StepResult& result, const LedgerBooks& books) {
  const auto is_block = [&](BlockId block) {
    return Index(block) >= 1 && Index(block) < books.layout.num_blocks;
  };
  const auto is_host_block = [&](HostBlockId block) {
    return Index(block) >= 0 &&
           Index(block) < books.options.engine.num_host_blocks;
  };
  return std::ranges::all_of(result.lost_blocks, is_block) &&
         std::ranges::all_of(result.lost_host_blocks, is_host_block);
}

// Returns whether every head keeps no more entries than it had, and every shard
// no more pages than the order leaves it.
bool CountsAreValid(const LedgerTable& table, int32_t group,
                    const std::vector<int32_t>& counts,
                    const LedgerBooks& books) {
  if (std::ssize(counts) != books.layout.pages_per_block()) return false;
  const GroupBook& book = table.groups[group];
  const std::vector<int32_t> held = books.rules.EntriesCovered(book, group);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] < 0 || counts[i] > held[i]) return false;
  }
  const std::vector<int64_t> num_pages = books.rules.PagesByShard(counts);
  for (int32_t shard = 0; shard < books.layout.num_shards; ++shard) {
    if (num_pages[shard] > book.pending->page_totals[shard]) return false;
  }
  return true;
}

// Returns whether the checksum is that of the region's page lists. An answer
// may be without one.
bool ChecksumIsValid(const LedgerTable& table, int32_t group,
                     const EvictionOutcome& outcome, const LedgerBooks& books) {
  if (!outcome.layout_checksum.has_value()) return true;
  const ModelLayout& layout = books.layout;
  const NaivePages lists =
      books.rules.RegionOf(table.groups[group], group, outcome.counts).pages;
  constexpr uint64_t kFactor = 0x9E3779B97F4A7C15;
  uint64_t checksum = 0;
  uint64_t index = 0;
  for (const auto& [head, list] : lists) {
    uint64_t hash = index * kFactor + outcome.counts[index];
    ++index;
    for (const auto& [layer, block, of_head] : list) {
      const int32_t page =
          (layer * layout.num_blocks + block) * layout.num_heads + of_head;
      hash = hash * kFactor + page;
    }
    hash = (hash ^ hash >> 32) * kFactor;
    checksum += hash ^ hash >> 32;
  }
  return checksum == *outcome.layout_checksum;
}

// Returns the tokens that each run of the step has sampled, in order.
std::vector<std::vector<int32_t>> Sampled(const LedgerStep& step,
                                          const StepResult& result) {
  std::vector<std::vector<int32_t>> sampled(step.runs.size());
  auto next = result.accepted.begin();
  for (size_t i = 0; i < step.runs.size(); ++i) {
    if (!result.num_accepted.empty()) {
      sampled[i].assign(next, next + result.num_accepted[i]);
      next += result.num_accepted[i];
    }
    if (step.runs[i].samples) sampled[i].push_back(result.sampled[i]);
  }
  return sampled;
}

// Settles the first tokens of a run with drafts, and takes back the rest.
void SettleDrafts(const LedgerStep::Run& run, int32_t num_tokens,
                  LedgerTable* table, LedgerBooks* books) {
  // The run has computed one position before each of the tokens.
  table->num_settled += num_tokens;
  table->num_reserved = table->num_settled;
  books->CutTables(table->num_settled, table);
  const int32_t num_rejected = 1 + run.num_drafts - num_tokens;
  books->counts().rejected_drafts += num_rejected;
  books->counts().accepted_drafts += num_tokens - 1;
}

// Notes what the full blocks of the table hold.
void NoteContent(const LedgerRequest& served, const LedgerTable& table,
                 LedgerBooks* books) {
  const int32_t page_size = books->layout.page_size;
  for (int32_t group = 0; group < books->layout.num_groups(); ++group) {
    const std::optional<BookOrder>& pending = table.groups[group].pending;
    for (int32_t begin = 0; begin + page_size <= table.num_settled;
         begin += page_size) {
      const BlockId block = table.groups[group].pages[begin / page_size];
      const std::optional<std::string> context = books->ContextAt(table, begin);
      const bool is_doomed =
          pending.has_value() && std::ranges::count(pending->own, block) > 0;
      if (block == kNullBlock || is_doomed || !context.has_value()) continue;
      LedgerBlock& noted = books->blocks[Index(block)];
      noted.scope = served.request.scope;
      noted.context = *context;
      noted.group = group;
      noted.content.assign(served.tokens.begin(),
                           served.tokens.begin() + begin + page_size);
    }
  }
}

// Gives up the pages and regions that have left the windows.
void ReleaseOutOfSpan(LedgerTable* table, LedgerBooks* books) {
  RunCounts& counts = books->counts();
  for (int32_t group = 0; group < books->layout.num_groups(); ++group) {
    const BookCover left = books->rules.LeaveWindow(group, table->num_settled,
                                                    &table->groups[group]);
    for (const BlockId block : left.Blocks()) books->Release(block);
    counts.left_behind += left.pages.size();
    counts.left_regions += left.region.cut > 0 ? 1 : 0;
  }
}

// Checks that the effects tell these tokens of the request next, and adds them.
// Returns whether they do.
bool TakeTokens(const std::vector<int32_t>& sampled, RequestId request,
                const Effects& effects, size_t* next_token,
                LedgerBooks* books) {
  LedgerRequest& served = books->requests.at(request);
  for (const int32_t token : sampled) {
    const size_t index = (*next_token)++;
    if (index >= effects.tokens.size() ||
        effects.tokens[index].request != request ||
        effects.tokens[index].token != token ||
        effects.tokens[index].index != served.num_outputs()) {
      books->Fail("request ", Index(request), ": its token ",
                  served.num_outputs(), " was not told");
      return false;
    }
    served.tokens.push_back(token);
  }
  return true;
}

// Settles a run and the tokens that it has sampled.
void SettleRun(const LedgerStep::Run& run, std::vector<int32_t> sampled,
               const Effects& effects, size_t* next_token, LedgerBooks* books) {
  LedgerTable* const table = books->Find(run);
  if (table == nullptr || !books->ok()) return;
  LedgerRequest& served = books->requests.at(run.request);
  const SamplingParams sampling =
      served.request.sampling.value_or(SamplingParams());
  const auto ends = [&](int32_t token) {
    const std::vector<int32_t>& end_tokens =
        books->options.engine.sampling.end_token_ids;
    return std::ranges::count(served.request.stop_token_ids, token) > 0 ||
           (!sampling.ignore_eos && std::ranges::count(end_tokens, token) > 0);
  };
  int32_t num_outputs = served.num_outputs();
  const auto stop = std::ranges::find_if(sampled, [&](int32_t token) {
    return ++num_outputs > sampling.min_tokens && ends(token);
  });
  const bool stops = stop != sampled.end();
  // Tokens behind the stop are void.
  if (stops) sampled.erase(stop + 1, sampled.end());
  if (!TakeTokens(sampled, run.request, effects, next_token, books)) return;
  if (run.samples) served.num_placeholders -= 1 + run.num_drafts;
  if (run.num_drafts > 0) {
    SettleDrafts(run, static_cast<int32_t>(sampled.size()), table, books);
  } else {
    table->num_settled += run.num_tokens;
  }
  NoteContent(served, *table, books);
  ReleaseOutOfSpan(table, books);
  if (!run.samples) return;
  if (!stops && served.num_outputs() < served.request.max_tokens) return;
  const FinishEffect* const finish = FindFinish(effects, run.request);
  if (finish == nullptr) {
    books->Fail("request ", Index(run.request), " ended and nobody said so");
    return;
  }
  TakeEnd(*finish, stops ? FinishReason::kStop : FinishReason::kLength, books);
}

void SettleRuns(const LedgerStep& step, const StepResult& result,
                const Effects& effects, LedgerBooks* books) {
  std::vector<std::vector<int32_t>> sampled = Sampled(step, result);
  size_t next_token = 0;
  for (size_t i = 0; i < step.runs.size(); ++i) {
    const LedgerStep::Run& run = step.runs[i];
    SettleRun(run, std::move(sampled[i]), effects, &next_token, books);
    const LedgerTable* const table = books->Find(run);
    if (table == nullptr || !run.samples) continue;
    const bool can_draft =
        books->options.num_speculative_tokens > 0 && !table->has_scores;
    books->requests.at(table->request).num_ready =
        can_draft && !result.num_drafts.empty() ? result.num_drafts[i] : 0;
  }
  if (next_token != effects.tokens.size()) {
    books->Fail(effects.tokens.size(), " tokens were told, ", next_token,
                " were sampled");
  }
}

void SettleOrders(const LedgerStep& step, const StepResult& result,
                  const Effects& effects, LedgerBooks* books) {
  const std::span<const LedgerStep::Order> orders(step.orders);
  for (size_t i = 0; i < orders.size() && books->ok();) {
    size_t end = i + 1;
    while (end < orders.size() && orders[end].run == orders[i].run) ++end;
    TakeOutcomes({.run = step.runs[orders[i].run],
                  .orders = orders.subspan(i, end - i),
                  .outcomes = std::span(result.evictions).subspan(i, end - i),
                  .effects = effects},
                 books);
    i = end;
  }
}

}  // namespace

bool IsValidAnswer(const StepResult& result, const LedgerBooks& books) {
  if (books.in_flight.empty()) return false;
  const LedgerStep& step = books.in_flight.front();
  if (result.id != step.id || result.sampled.size() != step.runs.size() ||
      result.evictions.size() != step.orders.size() ||
      !HasValidTokens(result, step) || !HasValidDrafts(result, step) ||
      !HasValidLosses(result, books)) {
    return false;
  }
  for (size_t i = 0; i < step.orders.size(); ++i) {
    const LedgerStep::Order& order = step.orders[i];
    const EvictionOutcome& outcome = result.evictions[i];
    const LedgerTable* const table = books.Find(step.runs[order.run]);
    if (table == nullptr || !outcome.ok) continue;
    if (!CountsAreValid(*table, order.group, outcome.counts, books) ||
        !ChecksumIsValid(*table, order.group, outcome, books)) {
      return false;
    }
  }
  return true;
}

void TakeAnswer(const StepResult& result, const Effects& effects,
                LedgerBooks* books) {
  const LedgerStep step = std::move(books->in_flight.front());
  books->in_flight.pop_front();
  books->acknowledged = Index(step.id);
  TakeCommandEffects(effects, books);
  TakeLoss(result, books);
  const uint64_t finished_before = books->num_finished;
  SettleRuns(step, result, effects, books);
  SettleOrders(step, result, effects, books);
  if (books->num_finished - finished_before != effects.finished.size()) {
    books->Fail(effects.finished.size(), " ends were told, expected ",
                books->num_finished - finished_before);
  }
}

}  // namespace blockmgr::sim
