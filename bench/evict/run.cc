// blockmgr-evict run: one policy on tensors.
#include "bench/evict/run.h"

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "bench/evict/commands.h"
#include "bench/evict/output_name.h"
#include "bench/evict/policy_flags.h"
#include "bench/evict/tensor_flags.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "program/flag_names.h"
#include "program/output_file.h"

namespace blockmgr {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMiB = 1024.0 * 1024.0;

constexpr char kRunFooter[] =
    "\nScores K (and what else the policy reads) with the CPU kernels, shares\n"
    "the budget out and prints how many entries each layer's heads keep; with\n"
    "--json also which. Scores of your own: policy external, --scores.\n"
    "\nExamples:\n"
    "  blockmgr-evict run --policy 'snapkv | adakv' --keep-ratio 0.2 \\\n"
    "      --queries q.npy --keys k.npy --output-positions kept.npy\n"
    "  blockmgr-evict run --policy 'keydiff | uniform | topk | round(token)' "
    "\\\n"
    "      --keep-tokens 512 --block 128 --keys k.npy --json\n"
    "  blockmgr-evict run --policy 'keydiff | external | topk | round(token)' "
    "\\\n"
    "      --budgets b.npy --keys k.npy\n"
    "  blockmgr-evict run --policy 'external | headkv(profile=mine)' \\\n"
    "      --table heads.json --keep-ratio 0.1 --scores s.npy\n"
    "  blockmgr-evict run --policy 'snapkv | adakv | critical' \\\n"
    "      --keep-ratio 0.25 --model model.gguf --text book.txt\n";

struct RunFlags {
  PolicyFlags policy;
  TensorFlags tensors;
  std::string keep_ratio;
  int32_t keep_tokens = 0;
  int32_t block = 0;
  std::string output_positions;
  std::string output_budgets;
  bool json = false;
};

// Budgets of one's own say how much to keep; others must be told, once.
absl::Status CheckTargetFlags(const RunFlags& flags) {
  const int num_given = static_cast<int>(!flags.keep_ratio.empty()) +
                        static_cast<int>(flags.keep_tokens > 0);
  const int expected = flags.policy.budgets.empty() ? 1 : 0;
  if (num_given != expected) {
    return Invalid("--keep-ratio, --keep-tokens: expected ",
                   expected == 1 ? "exactly one" : "neither with --budgets",
                   ", got ",
                   num_given == 2   ? "both"
                   : num_given == 1 ? "one"
                                    : "neither");
  }
  if (flags.block == 0 || flags.keep_tokens > 0) return absl::OkStatus();
  return Invalid("--block: expected --keep-tokens, got ",
                 expected == 1 ? "--keep-ratio" : "--budgets");
}

absl::StatusOr<RunReport> MakeReport(const RunFlags& flags) {
  if (flags.policy.policies.size() != 1) {
    return Invalid("--policy: expected exactly one, got ",
                   flags.policy.policies.size());
  }
  BM_ASSIGN_OR_RETURN(const PolicyList list, ReadPolicies(flags.policy));
  const NamedPolicy& named = list.policies.front();
  RunReport report;
  report.policy = named.name;
  report.block = flags.block;
  BM_RETURN_IF_ERROR(CheckTargetFlags(flags));
  report.external = !flags.policy.budgets.empty();
  if (report.external) {
    // The target is not read.
  } else if (flags.keep_tokens > 0) {
    report.target.kind = EvictionTarget::Kind::kTokens;
    report.target.tokens = flags.keep_tokens;
  } else {
    BM_ASSIGN_OR_RETURN(report.target,
                        ParseTarget("--keep-ratio", flags.keep_ratio));
  }
  BM_ASSIGN_OR_RETURN(const Tensors tensors, ReadTensors(flags.tensors));
  report.num_layers = tensors.num_layers();
  report.num_heads = tensors.num_heads;
  report.length = tensors.length;
  report.page_size = named.options.page_size;
  report.row_bytes =
      int64_t{tensors.head_dim} * DTypeBytes(named.options.dtype);
  if (flags.block > 0) {
    BM_ASSIGN_OR_RETURN(report.run,
                        RunPolicyByBlocks(named.policy, report.target, tensors,
                                          flags.block, named.options));
  } else {
    BM_ASSIGN_OR_RETURN(report.run, RunPolicy(named.policy, report.target,
                                              tensors, named.options));
  }
  return report;
}

absl::Status WriteOutputs(const RunFlags& flags, const RunReport& report) {
  std::vector<FileContent> files;
  std::vector<int64_t> shape;
  if (!flags.output_positions.empty()) {
    const std::vector<int32_t> positions = PaddedPositions(report, &shape);
    files.push_back({"--output-positions", flags.output_positions,
                     EncodeNpyInts(shape, positions)});
  }
  if (!flags.output_budgets.empty()) {
    shape = {report.num_layers, report.num_heads};
    files.push_back({"--output-budgets", flags.output_budgets,
                     EncodeNpyInts(shape, report.run.budgets)});
  }
  return WriteOutputFiles(files);
}

// Before anything is computed.
absl::Status CheckOutputFlags(const RunFlags& flags) {
  BM_RETURN_IF_ERROR(CheckOutputName(
      "--output-positions", flags.output_positions, ".npy", "a NumPy array"));
  BM_RETURN_IF_ERROR(CheckOutputName("--output-budgets", flags.output_budgets,
                                     ".npy", "a NumPy array"));
  if (flags.output_budgets.empty() || flags.output_positions.empty() ||
      !IsSameFile(flags.output_budgets, flags.output_positions)) {
    return absl::OkStatus();
  }
  return Invalid(
      "--output-budgets: expected a file of its own, got that of "
      "--output-positions, ",
      flags.output_budgets);
}

absl::Status Run(const RunFlags& flags) {
  BM_RETURN_IF_ERROR(CheckOutputFlags(flags));
  BM_ASSIGN_OR_RETURN(const RunReport report, MakeReport(flags));
  BM_RETURN_IF_ERROR(WriteOutputs(flags, report));
  if (flags.json) {
    std::cout << RunJson(report).dump() << "\n";
  } else {
    std::cout << FormatRun(report);
  }
  return absl::OkStatus();
}

// REQUIRES: ascending, at least one.
double Median(std::span<const int32_t> sorted) {
  const int64_t sum =
      int64_t{sorted[(sorted.size() - 1) / 2]} + sorted[sorted.size() / 2];
  return static_cast<double>(sum) / 2;
}

// "2.5 of 10.0 MiB", or nothing.
std::string BytesText(const RunReport& report) {
  if (report.row_bytes == 0) return "";
  return absl::StrFormat("%.1f of %.1f MiB in pages of %d",
                         static_cast<double>(report.kept_bytes()) / kMiB,
                         static_cast<double>(report.full_bytes()) / kMiB,
                         report.page_size);
}

}  // namespace

int64_t RunReport::kept_bytes() const {
  int64_t pages = 0;
  for (const int32_t budget : run.budgets) pages += CeilDiv(budget, page_size);
  return pages * page_size * 2 * row_bytes;
}

int64_t RunReport::full_bytes() const {
  return int64_t{num_layers} * num_heads * CeilDiv(length, page_size) *
         page_size * 2 * row_bytes;
}

std::span<const int32_t> RunReport::Budgets(int32_t layer) const {
  const auto heads = static_cast<size_t>(num_heads);
  return std::span(run.budgets)
      .subspan(static_cast<size_t>(layer) * heads, heads);
}

std::string FormatRun(const RunReport& report) {
  std::string text = absl::StrCat("policy  ", report.policy, "\n");
  absl::StrAppend(&text, absl::StrFormat("%-7s %8s %8s %8s %10s\n", "layer",
                                         "min", "median", "max", "kept"));
  for (int32_t layer = 0; layer < report.num_layers; ++layer) {
    const auto budgets = report.Budgets(layer);
    std::vector<int32_t> sorted(budgets.begin(), budgets.end());
    std::sort(sorted.begin(), sorted.end());
    int64_t sum = 0;
    for (const int32_t budget : sorted) sum += budget;
    absl::StrAppend(&text, absl::StrFormat("%-7d %8d %8.10g %8d %10d\n", layer,
                                           sorted.front(), Median(sorted),
                                           sorted.back(), sum));
  }
  absl::StrAppend(
      &text, absl::StrFormat("kept    %d of %d entries (%.2f %%)\n",
                             report.num_kept(), report.num_entries(),
                             100.0 * static_cast<double>(report.num_kept()) /
                                 static_cast<double>(report.num_entries())));
  if (const std::string bytes = BytesText(report); !bytes.empty()) {
    absl::StrAppend(&text, "bytes   ", bytes, "\n");
  }
  if (report.run.keep.num_nan > 0) {
    absl::StrAppend(&text, "NaN     ", report.run.keep.num_nan,
                    " scores, which count as best\n");
  }
  return text;
}

Json RunJson(const RunReport& report) {
  Json json;
  json["policy"] = report.policy;
  if (report.external) {
    json["external_budgets"] = true;
  } else if (report.target.kind == EvictionTarget::Kind::kTokens) {
    json["keep_tokens"] = report.target.tokens;
  } else {
    json["keep_ratio"] = report.target.ratio.value();
  }
  if (report.block > 0) json["block"] = report.block;
  json["num_layers"] = report.num_layers;
  json["num_heads"] = report.num_heads;
  json["length"] = report.length;
  json["page_size"] = report.page_size;
  json["num_entries"] = report.num_entries();
  json["num_kept"] = report.num_kept();
  json["num_nan"] = report.run.keep.num_nan;
  if (report.row_bytes > 0) {
    json["kept_bytes"] = report.kept_bytes();
    json["full_bytes"] = report.full_bytes();
  }
  Json layers = Json::array();
  Json positions = Json::array();
  const KeepSets& keep = report.run.keep;
  size_t index = 0;
  for (int32_t layer = 0; layer < report.num_layers; ++layer) {
    layers.push_back(report.Budgets(layer));
    Json heads = Json::array();
    for (int32_t head = 0; head < report.num_heads; ++head, ++index) {
      const auto begin = static_cast<size_t>(keep.offsets[index]);
      const auto end = static_cast<size_t>(keep.offsets[index + 1]);
      heads.push_back(std::span(keep.ranks).subspan(begin, end - begin));
    }
    positions.push_back(std::move(heads));
  }
  json["budgets"] = std::move(layers);
  json["positions"] = std::move(positions);
  return json;
}

std::vector<int32_t> PaddedPositions(const RunReport& report,
                                     std::vector<int64_t>* shape) {
  const std::vector<int32_t>& budgets = report.run.budgets;
  const int32_t largest =
      budgets.empty() ? 0 : *std::max_element(budgets.begin(), budgets.end());
  *shape = {report.num_layers, report.num_heads, largest};
  std::vector<int32_t> padded(budgets.size() * static_cast<size_t>(largest),
                              -1);
  const KeepSets& keep = report.run.keep;
  for (size_t head = 0; head < budgets.size(); ++head) {
    std::copy(keep.ranks.begin() + keep.offsets[head],
              keep.ranks.begin() + keep.offsets[head + 1],
              padded.begin() + static_cast<int64_t>(head) * largest);
  }
  return padded;
}

void AddRunCommand(CLI::App& app, int* exit_status) {
  CLI::App* run = app.add_subcommand(
      "run", "Run a policy on tensors: budgets and kept positions.");
  run->footer(kRunFooter);
  auto flags = std::make_shared<RunFlags>();
  AddPolicyFlags(*run, &flags->policy);
  CLI::Option_group* keep =
      run->add_option_group("How much to keep (exactly one, or --budgets)");
  keep->add_option("--keep-ratio", flags->keep_ratio,
                   "fraction of the positions, a decimal in (0, 1]")
      ->type_name("RATIO");
  keep->add_option("--keep-tokens", flags->keep_tokens,
                   "tokens per head, on average over heads")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N");
  run->add_option("--block", flags->block,
                  "tokens arrive in blocks of N; after each, evict down to "
                  "--keep-tokens from what is kept and the block")
      ->check(CLI::Range(1, 1 << 30))
      ->type_name("N");
  AddTensorFlags(*run, &flags->tensors);
  const char* group = "Results";
  run->add_option("--output-positions", flags->output_positions,
                  "kept positions as int32 [layers, KV heads, largest budget], "
                  "filled up with -1")
      ->check(OutputFile())
      ->type_name("FILE.npy")
      ->group(group);
  run->add_option("--output-budgets", flags->output_budgets,
                  "entries per head as int32 [layers, KV heads]")
      ->check(OutputFile())
      ->type_name("FILE.npy")
      ->group(group);
  run->add_flag("--json", flags->json,
                "print JSON, with budgets and positions, in place of a table")
      ->group(group);
  run->callback([flags, exit_status, run] {
    const absl::Status status = Run(*flags);
    if (status.ok()) return;
    PrintError(*run, status.message());
    *exit_status = 1;
  });
}

}  // namespace blockmgr
