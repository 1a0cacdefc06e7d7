#include "bench/evict/golden_budgets.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/lukv_solver.h"
#include "blockmgr/eviction/published_budgets.h"

namespace blockmgr {
namespace {

using Line = std::vector<std::string>;

template <typename... Pieces>
absl::Status BadBudgets(const Pieces&... pieces) {
  return absl::InvalidArgumentError(absl::StrCat(pieces...));
}

absl::StatusOr<int64_t> Integer(const GoldenCase& golden,
                                const std::string& key, int64_t min,
                                int64_t max) {
  const auto found = golden.integers.find(key);
  if (found == golden.integers.end()) {
    return BadBudgets("expected i ", key, ", got none");
  }
  if (found->second < min || found->second > max) {
    return BadBudgets("i ", key, ": expected a number in [", min, ", ", max,
                      "], got ", found->second);
  }
  return found->second;
}

absl::StatusOr<double> Number(const GoldenCase& golden,
                              const std::string& key) {
  const auto found = golden.numbers.find(key);
  if (found != golden.numbers.end()) return found->second;
  const auto integer = golden.integers.find(key);
  if (integer != golden.integers.end()) {
    return static_cast<double>(integer->second);
  }
  return BadBudgets("expected d ", key, ", got none");
}

absl::StatusOr<std::vector<float>> Table(const GoldenCase& golden,
                                         const std::string& key) {
  const auto found = golden.tables.find(key);
  if (found != golden.tables.end() && !found->second.empty()) {
    return found->second;
  }
  return BadBudgets("expected tab ", key, ", got none");
}

absl::StatusOr<std::vector<int64_t>> Integers(const Line& words,
                                              size_t begin = 0) {
  std::vector<int64_t> values;
  for (size_t i = begin; i < words.size(); ++i) {
    if (!absl::SimpleAtoi(words[i], &values.emplace_back())) {
      return BadBudgets("expected an integer, got '", words[i], "'");
    }
  }
  return values;
}

absl::Status Compare(absl::string_view what, std::span<const int64_t> expected,
                     std::span<const int64_t> got) {
  if (expected.size() != got.size()) {
    return BadBudgets(what, ": expected ", expected.size(), " numbers, got ",
                      got.size());
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (expected[i] == got[i]) continue;
    return BadBudgets(what, ": number ", i, ": expected ", expected[i],
                      ", got ", got[i]);
  }
  return absl::OkStatus();
}

// Compares with every line of that kind; counts them.
absl::Status CompareLines(const GoldenCase& golden, const std::string& kind,
                          std::span<const int64_t> got, int* num_compared) {
  const auto found = golden.others.find(kind);
  if (found == golden.others.end()) return absl::OkStatus();
  for (const Line& line : found->second) {
    BM_ASSIGN_OR_RETURN(const std::vector<int64_t> expected, Integers(line));
    BM_RETURN_IF_ERROR(Compare(kind, expected, got));
    ++*num_compared;
  }
  return absl::OkStatus();
}

absl::Status ExpectCompared(int num_compared) {
  if (num_compared > 0) return absl::OkStatus();
  return BadBudgets("expected results to compare with, got none");
}

constexpr int64_t kMaxLength = std::numeric_limits<int32_t>::max();

absl::Status CheckPyramid(const GoldenCase& golden) {
  PyramidLine line;
  BM_ASSIGN_OR_RETURN(line.length, Integer(golden, "T", 1, kMaxLength));
  BM_ASSIGN_OR_RETURN(const int64_t layers, Integer(golden, "L", 1, 1 << 16));
  BM_ASSIGN_OR_RETURN(const int64_t window,
                      Integer(golden, "window", 0, line.length));
  BM_ASSIGN_OR_RETURN(const int64_t kept,
                      Integer(golden, "n_kept", 0, line.length));
  BM_ASSIGN_OR_RETURN(line.beta, Number(golden, "beta"));
  BM_ASSIGN_OR_RETURN(const double evicted, Number(golden, "ratio"));
  if (line.beta < 1)
    return BadBudgets("beta: expected at least 1, got ", line.beta);
  line.num_layers = static_cast<int32_t>(layers);
  line.window = static_cast<int32_t>(window);
  int compared = 0;
  BM_RETURN_IF_ERROR(CompareLines(golden, "kvpress",
                                  PyramidKvPress(line, evicted), &compared));
  // The other two have no results without a budget beside the window.
  if (kept <= window) return ExpectCompared(compared);
  BM_RETURN_IF_ERROR(CompareLines(
      golden, "adakv", PyramidAdaKv(line, kept - window), &compared));
  BM_RETURN_IF_ERROR(
      CompareLines(golden, "factory", PyramidFactory(line, kept), &compared));
  return ExpectCompared(compared);
}

absl::Status CheckHeadKv(const GoldenCase& golden) {
  BM_ASSIGN_OR_RETURN(const std::vector<float> scores, Table(golden, "score"));
  BM_ASSIGN_OR_RETURN(const int64_t base,
                      Integer(golden, "base", 0, kMaxLength));
  BM_ASSIGN_OR_RETURN(const double beta, Number(golden, "beta"));
  BM_ASSIGN_OR_RETURN(const double temp, Number(golden, "temp"));
  const bool valid = std::all_of(scores.begin(), scores.end(),
                                 [](float score) { return score >= 0; }) &&
                     std::any_of(scores.begin(), scores.end(),
                                 [](float score) { return score > 0; });
  if (!valid || !(beta >= 1)) {
    return BadBudgets(
        "headkv: expected scores >= 0 with a positive sum and beta >= 1");
  }
  const std::vector<int64_t> expected(golden.budgets.begin(),
                                      golden.budgets.end());
  return Compare("b", expected,
                 HeadKvBudgetsReleased(scores, base, beta, temp));
}

absl::Status CheckLuKvOnline(const GoldenCase& golden) {
  BM_ASSIGN_OR_RETURN(const std::vector<float> r, Table(golden, "r"));
  BM_ASSIGN_OR_RETURN(const int64_t length,
                      Integer(golden, "T", 1, kMaxLength));
  int compared = 0;
  BM_RETURN_IF_ERROR(
      CompareLines(golden, "paper", LuKvBudgetsPaper(r, length), &compared));
  BM_RETURN_IF_ERROR(CompareLines(golden, "kvpress",
                                  LuKvBudgetsKvPress(r, length), &compared));
  return ExpectCompared(compared);
}

// "2/1 3/3" of the words from `begin` on.
std::string BlocksText(std::span<const GainBlock> blocks) {
  return absl::StrJoin(
      blocks, " ", [](std::string* out, const GainBlock& block) {
        absl::StrAppend(out, static_cast<int64_t>(block.sum), "/", block.count);
      });
}

// The words behind `key`, up to the next word that is no number.
absl::StatusOr<std::vector<int64_t>> After(const Line& line,
                                           absl::string_view key) {
  const auto at = std::find(line.begin(), line.end(), key);
  if (at == line.end())
    return BadBudgets("solve: expected ", key, ", got none");
  Line words;
  for (auto word = at + 1; word != line.end(); ++word) {
    int64_t unused = 0;
    if (!absl::SimpleAtoi(*word, &unused)) break;
    words.push_back(*word);
  }
  return Integers(words);
}

struct Gains {
  std::vector<int64_t> offsets = {0};
  std::vector<float> values;

  size_t num_heads() const { return offsets.size() - 1; }
  std::span<const float> Head(size_t head) const {
    return std::span(values).subspan(
        static_cast<size_t>(offsets[head]),
        static_cast<size_t>(offsets[head + 1] - offsets[head]));
  }
};

absl::Status CheckBlocks(const GoldenCase& golden, const Gains& gains,
                         int* num_compared) {
  const auto lines = golden.others.find("blocks");
  if (lines == golden.others.end()) return absl::OkStatus();
  for (const Line& line : lines->second) {
    size_t head = 0;
    if (line.size() < 2 || !absl::SimpleAtoi(line[0], &head) ||
        head >= gains.num_heads()) {
      return BadBudgets("blocks: expected a head below ", gains.num_heads(),
                        " and a count, got '", absl::StrJoin(line, " "), "'");
    }
    std::vector<GainBlock> blocks;
    PavaBlocks(gains.Head(head), &blocks);
    const std::string expected =
        absl::StrJoin(line.begin() + 2, line.end(), " ");
    const std::string got = BlocksText(blocks);
    if (got != expected) {
      return BadBudgets("blocks of head ", head, ": expected ", expected,
                        ", got ", got);
    }
    ++*num_compared;
  }
  return absl::OkStatus();
}

absl::Status CheckSolution(const Line& line, const Gains& gains,
                           const LuKvSolver& solver) {
  int64_t total = 0;
  if (line.empty() || !absl::SimpleAtoi(line[0], &total) ||
      total < solver.min_total() || total > solver.max_total()) {
    return BadBudgets("solve: expected a total in [", solver.min_total(), ", ",
                      solver.max_total(), "], got '", absl::StrJoin(line, " "),
                      "'");
  }
  BM_ASSIGN_OR_RETURN(const std::vector<int64_t> expected, After(line, "b"));
  BM_ASSIGN_OR_RETURN(const std::vector<int64_t> value, After(line, "value"));
  const std::vector<int32_t> budgets = solver.Budgets(total);
  const std::vector<int64_t> got(budgets.begin(), budgets.end());
  BM_RETURN_IF_ERROR(
      Compare(absl::StrCat("solve ", total, ": b"), expected, got));
  int64_t kept = 0;
  for (size_t head = 0; head < budgets.size(); ++head) {
    const std::span<const float> own = gains.Head(head);
    for (size_t i = 0; i < static_cast<size_t>(budgets[head]); ++i) {
      kept += static_cast<int64_t>(own[i]);
    }
  }
  return Compare(absl::StrCat("solve ", total, ": value"), value,
                 std::vector<int64_t>{kept});
}

absl::Status CheckLuKvSolver(const GoldenCase& golden) {
  BM_ASSIGN_OR_RETURN(const int64_t num_heads,
                      Integer(golden, "H", 1, 1 << 16));
  Gains gains;
  for (int64_t head = 0; head < num_heads; ++head) {
    BM_ASSIGN_OR_RETURN(const std::vector<float> own,
                        Table(golden, absl::StrCat("g", head)));
    gains.values.insert(gains.values.end(), own.begin(), own.end());
    gains.offsets.push_back(static_cast<int64_t>(gains.values.size()));
  }
  int compared = 0;
  BM_RETURN_IF_ERROR(CheckBlocks(golden, gains, &compared));
  const std::vector<int32_t> min_units(gains.num_heads());
  const LuKvSolver solver(gains.offsets, gains.values, min_units);
  const auto lines = golden.others.find("solve");
  if (lines == golden.others.end()) return ExpectCompared(compared);
  for (const Line& line : lines->second) {
    BM_RETURN_IF_ERROR(CheckSolution(line, gains, solver));
    ++compared;
  }
  return ExpectCompared(compared);
}

}  // namespace

std::optional<absl::Status> CheckGoldenBudgets(const GoldenCase& golden) {
  if (golden.method == "pyramid") return CheckPyramid(golden);
  if (golden.method == "headkv") return CheckHeadKv(golden);
  if (golden.method == "lukv_online") return CheckLuKvOnline(golden);
  if (golden.method == "lukv_solver") return CheckLuKvSolver(golden);
  return std::nullopt;
}

}  // namespace blockmgr
