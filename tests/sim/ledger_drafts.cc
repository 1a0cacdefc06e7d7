// Drafts: when they may run, which answers are right, and what is left of them.

#include <algorithm>
#include <numeric>

#include "tests/sim/ledger.h"

namespace blockmgr::sim {

void Ledger::CheckNobodyAwaits() {
  for (const auto& [slot, table] : tables_) {
    const Served& served = requests_.at(table.request);
    if (served.num_ready == 0 || served.num_placeholders == 0) continue;
    report_->Fail("a step is issued ahead of request ", Index(table.request),
                  ", with ", served.num_placeholders,
                  " tokens not answered and drafts behind the last");
  }
}

void Ledger::CheckDrafts(const Table& table, int32_t num_drafts, int32_t end) {
  if (num_drafts == 0) return;
  const Served& served = requests_.at(table.request);
  const bool is_wanted = num_drafts > 0 && num_drafts <= served.num_ready &&
                         num_drafts <= options_.num_speculative_tokens;
  // That they miss no eviction is seen by CheckReplay.
  if (!is_wanted || table.has_scores ||
      table.num_settled != table.num_reserved ||
      end - num_drafts != std::ssize(served.tokens)) {
    report_->Fail("request ", Index(table.request), " runs ", num_drafts,
                  " of ", served.num_ready, " drafts up to ", end, " of ",
                  served.tokens.size(), " tokens, ", table.num_settled, " of ",
                  table.num_reserved,
                  " settled, accumulates scores: ", table.has_scores);
  }
}

bool Ledger::DraftsAreValid(const Step& step, const StepResult& result) const {
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
    const Step::Run& run = step.runs[i];
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

std::vector<std::vector<int32_t>> Ledger::Sampled(const Step& step,
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

void Ledger::SettleDrafts(const Step::Run& run, int32_t num_tokens,
                          Table* table) {
  // One position before each token that counts.
  table->num_settled += num_tokens;
  table->num_reserved = table->num_settled;
  CutTables(table->num_settled, table);
  const int32_t num_rejected = 1 + run.num_drafts - num_tokens;
  report_->counts().rejected_drafts += num_rejected;
  report_->counts().accepted_drafts += num_tokens - 1;
}

}  // namespace blockmgr::sim
