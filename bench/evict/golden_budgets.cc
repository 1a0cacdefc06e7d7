#include "bench/evict/golden_budgets.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>

#include "bench/evict/parity.h"
#include "bench/evict/parity_budgets.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/budget_table.h"
#include "blockmgr/eviction/lukv_solver.h"
#include "blockmgr/eviction/policy.h"
#include "blockmgr/eviction/select.h"

namespace blockmgr {
namespace {

using Line = std::vector<std::string>;

absl::StatusOr<int64_t> Integer(const GoldenCase& golden,
                                const std::string& key, int64_t min,
                                int64_t max) {
  const auto found = golden.integers.find(key);
  if (found == golden.integers.end()) {
    return Invalid("expected i ", key, ", got none");
  }
  if (found->second < min || found->second > max) {
    return Invalid("i ", key, ": expected a number in [", min, ", ", max,
                   "], got ", found->second);
  }
  return found->second;
}

absl::StatusOr<std::vector<float>> Table(const GoldenCase& golden,
                                         const std::string& key) {
  const auto found = golden.tables.find(key);
  if (found != golden.tables.end() && !found->second.empty()) {
    return found->second;
  }
  return Invalid("expected tab ", key, ", got none");
}

absl::StatusOr<std::vector<int64_t>> Integers(const Line& words,
                                              size_t begin = 0) {
  std::vector<int64_t> values;
  for (size_t i = begin; i < words.size(); ++i) {
    if (!absl::SimpleAtoi(words[i], &values.emplace_back())) {
      return Invalid("expected an integer, got '", words[i], "'");
    }
  }
  return values;
}

absl::Status Compare(absl::string_view what, std::span<const int64_t> expected,
                     std::span<const int64_t> got) {
  if (expected.size() != got.size()) {
    return Invalid(what, ": expected ", expected.size(), " numbers, got ",
                   got.size());
  }
  for (size_t i = 0; i < got.size(); ++i) {
    if (expected[i] == got[i]) continue;
    return Invalid(what, ": number ", i, ": expected ", expected[i], ", got ",
                   got[i]);
  }
  return absl::OkStatus();
}

absl::Status ExpectCompared(int num_compared) {
  if (num_compared > 0) return absl::OkStatus();
  return Invalid("expected results to compare with, got none");
}

// More are no case that fits into memory.
constexpr int64_t kMaxEntries = int64_t{1} << 28;

// The input of a case's policies: layers of one head, or a layer of as many
// heads as its table has. Every position is held; all scores and sizes of
// values are 0.
struct BudgetCase {
  HeadShape shape{.num_layers = 1, .num_heads = 1};
  EvictionRange range;
  std::optional<BudgetTable> table;
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> positions;
  std::vector<float> scores;
};

LuKvProfile MakeProfile(std::span<const float> r) {
  const double sum = std::accumulate(r.begin(), r.end(), 0.0);
  LuKvProfile profile;
  profile.num_layers = 1;
  profile.num_heads = static_cast<int32_t>(r.size());
  // The only row between nothing and all: looked up whatever the target.
  profile.rho = {0.0f, static_cast<float>(sum / static_cast<double>(r.size())),
                 1.0f};
  profile.r.assign(r.size(), 0.0f);
  profile.r.insert(profile.r.end(), r.begin(), r.end());
  profile.r.insert(profile.r.end(), r.size(), 1.0f);
  return profile;
}

absl::StatusOr<BudgetCase> MakeCase(const GoldenCase& golden) {
  BudgetCase made;
  int64_t num_heads = 1;
  if (golden.tables.empty()) {
    BM_ASSIGN_OR_RETURN(num_heads, Integer(golden, "L", 1, 1 << 16));
    made.shape.num_layers = static_cast<int32_t>(num_heads);
  } else {
    const bool is_headkv = golden.tables.count("score") > 0;
    BM_ASSIGN_OR_RETURN(const std::vector<float> values,
                        Table(golden, is_headkv ? "score" : "r"));
    num_heads = std::ssize(values);
    made.shape.num_heads = static_cast<int32_t>(num_heads);
    if (is_headkv) {
      made.table = HeadScores{1, made.shape.num_heads, values};
    } else {
      made.table = MakeProfile(values);
    }
  }
  // Without a length no head is to hold less than its budget.
  const int64_t max = kMaxEntries / num_heads;
  int64_t length =
      std::min(max, std::accumulate(golden.budgets.begin(),
                                    golden.budgets.end(), int64_t{0}));
  if (length < 1 || golden.integers.count("T") > 0) {
    BM_ASSIGN_OR_RETURN(length, Integer(golden, "T", 1, max));
  }
  made.range.cut = made.range.length = static_cast<int32_t>(length);
  made.positions.resize(static_cast<size_t>(num_heads * length));
  for (int64_t head = 0; head < num_heads; ++head) {
    const auto begin = made.positions.begin() + made.offsets.back();
    std::iota(begin, begin + length, 0);
    made.offsets.push_back(made.offsets.back() + length);
  }
  made.scores.resize(made.positions.size());
  return made;
}

// Returns the budgets that the library gives the heads of the case, without
// the entries that the method's results leave out.
absl::StatusOr<std::vector<int64_t>> RunMethod(const BudgetCase& made,
                                               const GoldenRun& run) {
  std::vector<int32_t> external;
  if (run.policy.needs_table()) {
    if (!made.table) return Invalid("expected tab score or r, got none");
    BM_RETURN_IF_ERROR(CheckTable(run.policy, made.shape, *made.table));
    external = ParityTableBudgets(
        {run.policy, run.target, made.shape, made.range}, *made.table);
  } else if (run.policy.parity == Parity::kNone) {
    return Invalid("policy: expected one with parity(..), got ",
                   FormatPolicy(run.policy));
  }
  const KeepSets kept =
      SelectParity({run.policy, run.target, made.shape, made.range},
                   {.offsets = made.offsets,
                    .positions = made.positions,
                    .scores = made.scores,
                    .value_norms = made.scores,
                    .products = made.scores},
                   external);
  std::vector<int64_t> budgets;
  for (size_t head = 0; head + 1 < kept.offsets.size(); ++head) {
    budgets.push_back(kept.offsets[head + 1] - kept.offsets[head] - run.past);
  }
  return budgets;
}

absl::Status CheckLines(const GoldenCase& golden,
                        const std::map<std::string, GoldenMethod>& methods) {
  BM_ASSIGN_OR_RETURN(const BudgetCase made, MakeCase(golden));
  const auto run =
      [&](const std::string& name) -> absl::StatusOr<std::vector<int64_t>> {
    BM_ASSIGN_OR_RETURN(const GoldenMethod method,
                        FindGoldenMethod(methods, name));
    BM_ASSIGN_OR_RETURN(const GoldenRun resolved,
                        ResolveGoldenMethod(method, golden));
    return RunMethod(made, resolved);
  };
  for (const auto& [kind, lines] : golden.others) {
    BM_ASSIGN_OR_RETURN(const std::vector<int64_t> got,
                        run(absl::StrCat(golden.method, "/", kind)));
    for (const Line& line : lines) {
      BM_ASSIGN_OR_RETURN(const std::vector<int64_t> expected, Integers(line));
      BM_RETURN_IF_ERROR(Compare(kind, expected, got));
    }
  }
  if (golden.budgets.empty()) return absl::OkStatus();
  BM_ASSIGN_OR_RETURN(const std::vector<int64_t> got, run(golden.method));
  const std::vector<int64_t> expected(golden.budgets.begin(),
                                      golden.budgets.end());
  return Compare("b", expected, got);
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
  if (at == line.end()) {
    return Invalid("solve: expected ", key, ", got none");
  }
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
      return Invalid("blocks: expected a head below ", gains.num_heads(),
                     " and a count, got '", absl::StrJoin(line, " "), "'");
    }
    std::vector<GainBlock> blocks;
    PavaBlocks(gains.Head(head), &blocks);
    const std::string expected =
        absl::StrJoin(line.begin() + 2, line.end(), " ");
    const std::string got = BlocksText(blocks);
    if (got != expected) {
      return Invalid("blocks of head ", head, ": expected ", expected, ", got ",
                     got);
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
    return Invalid("solve: expected a total in [", solver.min_total(), ", ",
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

std::optional<absl::Status> CheckGoldenBudgets(
    const GoldenCase& golden,
    const std::map<std::string, GoldenMethod>& methods) {
  if (golden.method == "lukv_solver") return CheckLuKvSolver(golden);
  const bool has_results = !golden.others.empty() || !golden.budgets.empty();
  if (!golden.kept.empty() || !has_results) return std::nullopt;
  return CheckLines(golden, methods);
}

}  // namespace blockmgr
