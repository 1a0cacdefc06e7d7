#include "bench/quality/summary.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

namespace blockmgr {
namespace {

using Json = nlohmann::ordered_json;

// The outcomes of one cell, by context.
using Outcomes = std::vector<const CellOutcome*>;

// Returns a value of each context: the mean over its answers.
template <typename Get>
std::vector<double> ValuesOf(const Outcomes& outcomes, const Get& get) {
  std::vector<double> values;
  for (const CellOutcome* outcome : outcomes) {
    double sum = 0.0;
    for (const AnswerOutcome& answer : outcome->answers) sum += get(answer);
    values.push_back(sum / static_cast<double>(outcome->answers.size()));
  }
  return values;
}

double CorrectOf(const AnswerOutcome& answer) {
  return answer.correct ? 1.0 : 0.0;
}
double KlOf(const AnswerOutcome& answer) { return answer.kl; }

template <typename Get>
double MeanOf(const Outcomes& outcomes, const Get& get) {
  double sum = 0.0;
  for (const CellOutcome* outcome : outcomes) sum += get(*outcome);
  return sum / static_cast<double>(outcomes.size());
}

void AddAnswer(bool correct, AnswerShare* share) {
  const auto before = static_cast<double>(share->num_answers++);
  share->accuracy = (share->accuracy * before + (correct ? 1.0 : 0.0)) /
                    static_cast<double>(share->num_answers);
}

void DivideAnswers(const Outcomes& outcomes, CellSummary* summary) {
  summary->by_depth.resize(kNumDepths);
  for (const CellOutcome* outcome : outcomes) {
    for (size_t turn = 0; turn < outcome->answers.size(); ++turn) {
      const AnswerOutcome& answer = outcome->answers[turn];
      if (turn == summary->by_turn.size()) summary->by_turn.emplace_back();
      AddAnswer(answer.correct, &summary->by_turn[turn]);
      if (answer.depth < 0.0) continue;
      const auto part = std::min(
          static_cast<int32_t>(answer.depth * kNumDepths), kNumDepths - 1);
      AddAnswer(answer.correct, &summary->by_depth[static_cast<size_t>(part)]);
    }
  }
}

// Says what the intervals exclude.
std::string VerdictOf(const Interval& accuracy, const Interval& kl,
                      bool is_telling) {
  std::vector<std::string> parts;
  if (accuracy.Excludes(0.0)) {
    parts.emplace_back(accuracy.mean > 0.0 ? "more correct" : "less correct");
  }
  if (is_telling && kl.Excludes(0.0)) {
    parts.emplace_back(kl.mean < 0.0 ? "less KL" : "more KL");
  }
  return absl::StrJoin(parts, ", ");
}

CellSummary SummarizeCell(const std::string& name, const Outcomes& outcomes,
                          const Outcomes& full) {
  CellSummary summary;
  // "mode/target/policy"
  const std::vector<std::string> parts =
      absl::StrSplit(name, absl::MaxSplits('/', 2));
  summary.target = parts.size() == 3 ? parts[1] : "1";
  summary.policy = parts.back();
  const std::vector<double> correct = ValuesOf(outcomes, CorrectOf);
  const std::vector<double> full_correct = ValuesOf(full, CorrectOf);
  summary.accuracy = BootstrapMean(correct);
  summary.accuracy_of_full = BootstrapRatio(correct, full_correct);
  summary.accuracy_difference = BootstrapDifference(correct, full_correct);
  summary.token_share =
      BootstrapMean(ValuesOf(outcomes, [](const AnswerOutcome& answer) {
        return answer.token_share;
      }));
  summary.kl = BootstrapMean(ValuesOf(outcomes, KlOf));
  summary.nll = BootstrapMean(ValuesOf(
      outcomes, [](const AnswerOutcome& answer) { return answer.nll; }));
  summary.kept_share = MeanOf(
      outcomes, [](const CellOutcome& outcome) { return outcome.kept_share; });
  summary.held_bytes = MeanOf(outcomes, [](const CellOutcome& outcome) {
    return static_cast<double>(outcome.held_bytes);
  });
  summary.mean_entries = MeanOf(outcomes, [](const CellOutcome& outcome) {
    return outcome.mean_entries;
  });
  summary.tokens_per_s = MeanOf(outcomes, [](const CellOutcome& outcome) {
    return outcome.tokens_per_s;
  });
  DivideAnswers(outcomes, &summary);
  return summary;
}

// Compares each policy with the first one at the same target.
void CompareCells(const std::vector<Outcomes>& outcomes, GroupSummary* group) {
  for (size_t i = 1; i < group->cells.size(); ++i) {
    CellSummary& cell = group->cells[i];
    size_t first = 1;
    while (group->cells[first].target != cell.target) ++first;
    if (first == i) continue;
    const std::vector<double> kl = ValuesOf(outcomes[i], KlOf);
    const std::vector<double> first_kl = ValuesOf(outcomes[first], KlOf);
    cell.accuracy_gain = BootstrapDifference(
        ValuesOf(outcomes[i], CorrectOf), ValuesOf(outcomes[first], CorrectOf));
    cell.kl_gain = BootstrapDifference(kl, first_kl);
    const bool is_telling =
        std::max(cell.kl.mean, group->cells[first].kl.mean) >= kMinTellingKl;
    if (kl.size() < kMinTellingContexts) continue;
    cell.verdict = VerdictOf(cell.accuracy_gain, cell.kl_gain, is_telling);
  }
}

GroupSummary SummarizeGroup(const std::vector<const QualitySample*>& samples) {
  const QualitySample& first = *samples.front();
  GroupSummary group = {.task = first.task,
                        .num_tokens = first.num_tokens,
                        .mode = first.mode,
                        .num_contexts = std::ssize(samples)};
  std::vector<Outcomes> outcomes(first.cells.size());
  for (const QualitySample* sample : samples) {
    group.num_answers += std::ssize(sample->outcomes.front().answers);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      outcomes[i].push_back(&sample->outcomes[i]);
    }
  }
  for (size_t i = 0; i < outcomes.size(); ++i) {
    group.cells.push_back(
        SummarizeCell(first.cells[i], outcomes[i], outcomes.front()));
  }
  CompareCells(outcomes, &group);
  return group;
}

Json IntervalToJson(const Interval& interval) {
  if (std::isnan(interval.mean)) return nullptr;
  return {
      {"mean", interval.mean}, {"low", interval.low}, {"high", interval.high}};
}

Json SharesToJson(std::span<const AnswerShare> shares) {
  Json list = Json::array();
  for (const AnswerShare& share : shares) {
    list.push_back({{"n", share.num_answers}, {"accuracy", share.accuracy}});
  }
  return list;
}

Json CellToJson(const CellSummary& cell) {
  return {{"target", cell.target},
          {"policy", cell.policy},
          {"accuracy", IntervalToJson(cell.accuracy)},
          {"accuracy_of_full", IntervalToJson(cell.accuracy_of_full)},
          {"accuracy_difference", IntervalToJson(cell.accuracy_difference)},
          {"token_share", IntervalToJson(cell.token_share)},
          {"kl", IntervalToJson(cell.kl)},
          {"nll", IntervalToJson(cell.nll)},
          {"accuracy_gain", IntervalToJson(cell.accuracy_gain)},
          {"kl_gain", IntervalToJson(cell.kl_gain)},
          {"verdict", cell.verdict},
          {"kept_share", cell.kept_share},
          {"held_bytes", cell.held_bytes},
          {"mean_entries", cell.mean_entries},
          {"tokens_per_s", cell.tokens_per_s},
          {"by_turn", SharesToJson(cell.by_turn)},
          {"by_depth", SharesToJson(cell.by_depth)}};
}

}  // namespace

std::vector<GroupSummary> Summarize(std::span<const QualitySample> samples) {
  std::vector<std::vector<const QualitySample*>> groups;
  for (const QualitySample& sample : samples) {
    const auto found =
        std::ranges::find_if(groups, [&sample](const auto& group) {
          const QualitySample& first = *group.front();
          return first.task == sample.task &&
                 first.num_tokens == sample.num_tokens &&
                 first.mode == sample.mode;
        });
    if (found == groups.end()) {
      groups.push_back({&sample});
    } else if (found->front()->cells == sample.cells) {
      found->push_back(&sample);
    }
  }
  std::vector<GroupSummary> summaries;
  summaries.reserve(groups.size());
  for (const auto& group : groups) summaries.push_back(SummarizeGroup(group));
  return summaries;
}

nlohmann::ordered_json SummaryToJson(std::span<const GroupSummary> groups) {
  Json list = Json::array();
  for (const GroupSummary& group : groups) {
    Json cells = Json::array();
    for (const CellSummary& cell : group.cells) {
      cells.push_back(CellToJson(cell));
    }
    list.push_back({{"task", group.task},
                    {"num_tokens", group.num_tokens},
                    {"mode", group.mode},
                    {"num_contexts", group.num_contexts},
                    {"num_answers", group.num_answers},
                    {"cells", std::move(cells)}});
  }
  return list;
}

std::string SummaryTable(std::span<const GroupSummary> groups) {
  std::string text;
  for (const GroupSummary& group : groups) {
    absl::StrAppend(&text, "\n### ", group.task, ", ", group.num_tokens,
                    " tokens, ", group.mode, ": ", group.num_contexts,
                    " contexts, ", group.num_answers, " answers\n\n");
    absl::StrAppend(&text,
                    "| keep | policy | accuracy | of the full cache's | KL | "
                    "NLL | entries | KiB | mean entries | tokens/s | against "
                    "the first |\n"
                    "|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (const CellSummary& cell : group.cells) {
      absl::StrAppendFormat(
          &text,
          "| %s | %s | %s | %s | %s | %.3f | %.3f | %.0f | %.1f | %.0f | %s "
          "|\n",
          cell.target, absl::StrJoin(absl::StrSplit(cell.policy, '|'), "\\|"),
          TextOf(cell.accuracy), TextOf(cell.accuracy_of_full), TextOf(cell.kl),
          cell.nll.mean, cell.kept_share, cell.held_bytes / 1024.0,
          cell.mean_entries, cell.tokens_per_s,
          cell.verdict.empty() ? "-" : cell.verdict);
    }
  }
  return text;
}

}  // namespace blockmgr
