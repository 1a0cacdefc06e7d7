#include "bench/evict/golden_check.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "bench/evict/golden_budgets.h"
#include "bench/evict/parity.h"
#include "bench/evict/policy_runner.h"
#include "bench/evict/tensors.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// Scores are fp32 sums of some hundred terms, the vectors have nine digits.
constexpr double kRelativeTolerance = 1e-5;
// A fraction of the case's greatest score, for scores that are differences of
// larger numbers.
constexpr double kAbsoluteTolerance = 1e-6;
// Inputs with so many bits are exact in bfloat16 and in float16.
constexpr int kBitsExactInHalfWords = 5;
constexpr int32_t kPageSize = 16;

absl::StatusOr<int32_t> Size(const GoldenCase& golden, const std::string& key) {
  const auto found = golden.integers.find(key);
  if (found == golden.integers.end()) {
    return Invalid("expected i ", key, ", got none");
  }
  if (found->second < 1 || found->second > 1 << 24) {
    return Invalid("i ", key, ": expected a size in [1, 2^24], got ",
                   found->second);
  }
  return static_cast<int32_t>(found->second);
}

// The input of that name, if there is one; it must have this shape.
absl::Status TakeInput(const GoldenCase& golden, const std::string& name,
                       const std::vector<int64_t>& shape,
                       std::vector<float>* values) {
  const auto found = golden.inputs.find(name);
  if (found == golden.inputs.end()) return absl::OkStatus();
  if (found->second.dims != shape) {
    return Invalid("in ", name, ": expected shape ", ShapeText(shape), ", got ",
                   ShapeText(found->second.dims));
  }
  BM_ASSIGN_OR_RETURN(*values, found->second.Generate());
  return absl::OkStatus();
}

// tab s0, s1, ..: literal scores by head.
absl::Status TakeScores(const GoldenCase& golden, const Tensors& tensors,
                        std::vector<float>* scores) {
  for (int32_t head = 0; head < tensors.num_heads; ++head) {
    const auto found = golden.tables.find(absl::StrCat("s", head));
    if (found == golden.tables.end()) return absl::OkStatus();
    if (found->second.size() != static_cast<size_t>(tensors.length)) {
      return Invalid("tab s", head, ": expected ", tensors.length,
                     " scores, got ", found->second.size());
    }
    scores->insert(scores->end(), found->second.begin(), found->second.end());
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensors> MakeTensors(const GoldenCase& golden) {
  Tensors tensors;
  BM_ASSIGN_OR_RETURN(tensors.num_heads, Size(golden, "KH"));
  BM_ASSIGN_OR_RETURN(tensors.length, Size(golden, "T"));
  tensors.num_q_heads = tensors.num_heads;
  LayerTensors& layer = tensors.layers.emplace_back();
  if (!golden.inputs.empty()) {
    BM_ASSIGN_OR_RETURN(tensors.num_q_heads, Size(golden, "H"));
    BM_ASSIGN_OR_RETURN(tensors.head_dim, Size(golden, "D"));
    BM_ASSIGN_OR_RETURN(tensors.model_dim, Size(golden, "M"));
    if (tensors.num_q_heads % tensors.num_heads != 0) {
      return Invalid("i H: expected a multiple of KH, got ",
                     tensors.num_q_heads);
    }
  }
  const int64_t q_heads = tensors.num_q_heads;
  const int64_t heads = tensors.num_heads;
  const int64_t length = tensors.length;
  const int64_t dim = tensors.head_dim;
  BM_RETURN_IF_ERROR(
      TakeInput(golden, "Q", {q_heads, length, dim}, &layer.queries));
  BM_RETURN_IF_ERROR(TakeInput(golden, "K", {heads, length, dim}, &layer.keys));
  BM_RETURN_IF_ERROR(
      TakeInput(golden, "V", {heads, length, dim}, &layer.values));
  BM_RETURN_IF_ERROR(TakeInput(golden, "Wo", {q_heads, dim, tensors.model_dim},
                               &layer.output_projection));
  BM_RETURN_IF_ERROR(TakeScores(golden, tensors, &layer.scores));
  if (const auto theta = golden.numbers.find("theta");
      theta != golden.numbers.end()) {
    tensors.rope_theta = theta->second;
  }
  return tensors;
}

bool IsExactInHalfWords(const GoldenCase& golden) {
  const auto fits = [&](const char* name) {
    const auto found = golden.inputs.find(name);
    return found != golden.inputs.end() &&
           found->second.bits <= kBitsExactInHalfWords;
  };
  return fits("K") && fits("V");
}

absl::StatusOr<PolicyRun> Run(const GoldenRun& run, const Tensors& tensors,
                              DType dtype) {
  PolicyRunOptions options;
  options.page_size = kPageSize;
  options.dtype = dtype;
  if (run.block == 0) {
    return RunPolicy(run.policy, run.target, tensors, options);
  }
  return RunPolicyByBlocks(run.policy, run.target, tensors, run.block, options);
}

absl::Status CompareKept(int32_t head, std::span<const int32_t> expected,
                         std::span<const int32_t> got) {
  const auto [left, right] =
      std::mismatch(expected.begin(), expected.end(), got.begin(), got.end());
  if (left == expected.end() && right == got.end()) return absl::OkStatus();
  const auto shown = [](auto at, auto end) {
    return at == end ? std::string("the end") : absl::StrCat(*at);
  };
  return Invalid("kept of head ", head, ": expected ", expected.size(),
                 " positions, got ", got.size(),
                 "; the first to differ is number ", left - expected.begin(),
                 ": expected ", shown(left, expected.end()), ", got ",
                 shown(right, got.end()));
}

// The last `past` positions, which the case leaves out, must be kept as well.
absl::Status CheckKept(const GoldenCase& golden, const GoldenRun& run,
                       const Tensors& tensors, const PolicyRun& result) {
  if (golden.kept.size() != static_cast<size_t>(tensors.num_heads)) {
    return Invalid("kept: expected a line for each of ", tensors.num_heads,
                   " heads, got ", golden.kept.size());
  }
  for (const auto& [head, positions] : golden.kept) {
    if (head < 0 || head >= tensors.num_heads) {
      return Invalid("kept: expected a head below ", tensors.num_heads,
                     ", got ", head);
    }
    std::vector<int32_t> expected = positions;
    for (int32_t i = std::max(0, tensors.length - run.past); i < tensors.length;
         ++i) {
      expected.push_back(i);
    }
    const auto index = static_cast<size_t>(head);
    const auto begin = static_cast<size_t>(result.keep.offsets[index]);
    const auto end = static_cast<size_t>(result.keep.offsets[index + 1]);
    BM_RETURN_IF_ERROR(
        CompareKept(head, expected,
                    std::span(result.keep.ranks).subspan(begin, end - begin)));
  }
  return absl::OkStatus();
}

absl::Status CheckBudgets(const GoldenCase& golden, const GoldenRun& run,
                          const PolicyRun& result) {
  if (golden.budgets.empty()) return absl::OkStatus();
  std::vector<int32_t> got = result.budgets;
  for (int32_t& budget : got) budget -= run.past;
  if (got == golden.budgets) return absl::OkStatus();
  return Invalid("b: expected ", absl::StrJoin(golden.budgets, " "), ", got ",
                 absl::StrJoin(got, " "));
}

// The scores as the published program has them, its padding included.
std::vector<float> ProgramScores(const GoldenRun& run, const Tensors& tensors,
                                 const PolicyRun& result) {
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> positions(result.scores.size());
  for (int32_t head = 0; head < tensors.num_heads; ++head) {
    const auto begin = positions.begin() + offsets.back();
    std::iota(begin, begin + tensors.length, 0);
    offsets.push_back(offsets.back() + tensors.length);
  }
  return ParityScores({run.policy,
                       run.target,
                       {1, tensors.num_heads, kPageSize},
                       {tensors.length, tensors.length}},
                      {.offsets = offsets,
                       .positions = positions,
                       .scores = result.scores,
                       .value_norms = {},
                       .products = {}});
}

absl::Status CheckScores(const GoldenCase& golden, const GoldenRun& run,
                         const Tensors& tensors, const PolicyRun& result) {
  if (golden.scores.empty()) return absl::OkStatus();
  const auto length = static_cast<size_t>(tensors.length);
  if (result.scores.size() != length * static_cast<size_t>(tensors.num_heads)) {
    return Invalid(
        "sc: expected a method that makes scores, got one that does not");
  }
  const std::vector<float> got = ProgramScores(run, tensors, result);
  for (const auto& [head, expected] : golden.scores) {
    if (head < 0 || head >= tensors.num_heads || expected.size() != length) {
      return Invalid("sc ", head, ": expected a head below ", tensors.num_heads,
                     " with ", length, " scores, got ", expected.size());
    }
    double greatest = 0;
    for (const double score : expected) {
      greatest = std::max(greatest, std::abs(score));
    }
    for (size_t i = 0; i < length; ++i) {
      const double score = got[static_cast<size_t>(head) * length + i];
      const double tolerance = kRelativeTolerance * std::abs(expected[i]) +
                               kAbsoluteTolerance * greatest;
      // Written so that NaN fails.
      if (std::abs(score - expected[i]) <= tolerance) continue;
      return Invalid("sc of head ", head, ": position ", i, ": expected ",
                     expected[i], " within ", tolerance, ", got ", score);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckPolicyCase(const GoldenCase& golden,
                             const GoldenMethod& method) {
  BM_ASSIGN_OR_RETURN(const GoldenRun run, ResolveGoldenMethod(method, golden));
  BM_ASSIGN_OR_RETURN(const Tensors tensors, MakeTensors(golden));
  BM_ASSIGN_OR_RETURN(const PolicyRun result,
                      Run(run, tensors, DType::kFloat32));
  BM_RETURN_IF_ERROR(CheckScores(golden, run, tensors, result));
  BM_RETURN_IF_ERROR(CheckBudgets(golden, run, result));
  BM_RETURN_IF_ERROR(CheckKept(golden, run, tensors, result));
  if (!IsExactInHalfWords(golden)) return absl::OkStatus();
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    BM_ASSIGN_OR_RETURN(const PolicyRun stored, Run(run, tensors, dtype));
    const absl::Status status = CheckKept(golden, run, tensors, stored);
    if (status.ok()) continue;
    return Invalid("stored as ", DTypeName(dtype), ": ",
                   std::string(status.message()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckGoldenCase(
    const GoldenCase& golden,
    const std::map<std::string, GoldenMethod>& methods) {
  if (const auto status = CheckGoldenBudgets(golden, methods)) return *status;
  BM_ASSIGN_OR_RETURN(const GoldenMethod method,
                      FindGoldenMethod(methods, golden.method));
  return CheckPolicyCase(golden, method);
}

}  // namespace blockmgr
