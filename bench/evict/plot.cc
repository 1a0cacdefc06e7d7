#include "bench/evict/plot.h"

#include <cstddef>
#include <fstream>
#include <memory>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "bench/charts/curve_chart.h"
#include "bench/charts/heat_map.h"
#include "bench/evict/commands.h"
#include "bench/evict/output_name.h"
#include "bench/evict/perturbation.h"
#include "bench/evict/policy_runner.h"
#include "bench/evict/status_line.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr char kPlotFooter[] =
    "\nbudgets  a map of entries kept per layer and KV head, one per policy\n"
    "curve    how far the output of attention moves, |y - y^| / |y| in L1 as "
    "the mean\n         over the layers, against the keep ratio\n"
    "\nExamples:\n"
    "  blockmgr-evict plot --model model.gguf --text book.txt --keep-ratio 0.2 "
    "\\\n"
    "      --policy \"snapkv | adakv\" --policy \"snapkv | pyramid\" "
    "--output budgets.svg\n"
    "  blockmgr-evict plot --kind curve --log-y --keep-ratios "
    "0.05,0.1,0.2,0.4 \\\n"
    "      --queries q.npy --keys k.npy --values v.npy --output-projection "
    "wo.npy \\\n"
    "      --policy snapkv --policy \"snapkv | adakv\" --output curve.svg\n";

absl::StatusOr<std::string> PlotBudgets(const PlotFlags& flags,
                                        const PolicyList& list,
                                        const Tensors& tensors) {
  BM_ASSIGN_OR_RETURN(const EvictionTarget target,
                      ParseTarget("--keep-ratio", flags.keep_ratio));
  HeatMap map;
  map.title = absl::StrCat("Entries kept of ", tensors.length,
                           " at keep ratio ", target.ratio.ToString());
  map.row_name = "layer";
  map.column_name = "KV head";
  map.value_name = "entries";
  map.num_rows = tensors.num_layers();
  map.num_columns = tensors.num_heads;
  StatusLine status_line("plot", static_cast<int64_t>(list.policies.size()));
  for (const NamedPolicy& policy : list.policies) {
    BM_ASSIGN_OR_RETURN(PolicyRun run, RunPolicy(policy.policy, target, tensors,
                                                 policy.options));
    map.panels.push_back({policy.name, std::move(run.budgets)});
    status_line.Step();
  }
  return DrawHeatMap(map);
}

absl::StatusOr<std::string> PlotCurve(const PlotFlags& flags,
                                      const PolicyList& list,
                                      const Tensors& tensors) {
  if (!flags.policies.budgets.empty()) {
    return absl::InvalidArgumentError(
        "--budgets: expected with --kind budgets, got curve: external budgets "
        "do not follow --keep-ratios");
  }
  std::vector<EvictionTarget> targets;
  for (const std::string& text : flags.keep_ratios) {
    BM_ASSIGN_OR_RETURN(const EvictionTarget target,
                        ParseTarget("--keep-ratios", text));
    targets.push_back(target);
  }
  const size_t num_runs = list.policies.size() * targets.size();
  StatusLine status_line("plot",
                         static_cast<int64_t>(num_runs) + tensors.num_layers());
  PerturbationOptions options;
  options.queries_window =
      flags.queries_window.value_or(DefaultQueriesWindow(tensors.length));
  options.on_layer = [&](int32_t) { status_line.Step(); };
  BM_RETURN_IF_ERROR(CheckPerturbationInputs(tensors, options));
  std::vector<KeepSets> keep;
  for (const NamedPolicy& policy : list.policies) {
    for (const EvictionTarget& target : targets) {
      BM_ASSIGN_OR_RETURN(PolicyRun run, RunPolicy(policy.policy, target,
                                                   tensors, policy.options));
      keep.push_back(std::move(run.keep));
      status_line.Step();
    }
  }
  BM_ASSIGN_OR_RETURN(const std::vector<PolicyLoss> losses,
                      MeasurePerturbation(tensors, keep, options));
  CurveChart chart;
  chart.title =
      absl::StrCat("Perturbation of the attention output, last ",
                   options.queries_window, " queries of ", tensors.length);
  chart.x_label = "keep ratio";
  chart.y_label = "relative perturbation |y - y^| / |y|, mean over layers";
  chart.log_y = flags.log_y;
  for (size_t i = 0; i < list.policies.size(); ++i) {
    Curve curve;
    curve.name = list.policies[i].name;
    for (size_t j = 0; j < targets.size(); ++j) {
      curve.samples.push_back({targets[j].ratio.value(),
                               MeanRelative(losses[i * targets.size() + j])});
    }
    chart.curves.push_back(std::move(curve));
  }
  return DrawCurves(chart);
}

absl::Status WritePlot(const PlotFlags& flags) {
  BM_RETURN_IF_ERROR(
      CheckOutputName("--output", flags.output, ".svg", "an SVG picture"));
  BM_ASSIGN_OR_RETURN(const std::string document, MakePlot(flags));
  std::ofstream file(flags.output, std::ios::binary);
  file << document;
  file.close();
  if (!file) {
    return absl::UnavailableError(
        absl::StrCat("--output: expected a file that can be written, got '",
                     flags.output, "'"));
  }
  return absl::OkStatus();
}

void PrintFailure(const absl::Status& status, int* exit_status) {
  *exit_status = 1;
  absl::FPrintF(stderr, "blockmgr-evict plot: %s\n",
                std::string(status.message()));
}

void RunPlot(const PlotFlags& flags, int* exit_status) {
  const absl::Status status = WritePlot(flags);
  *exit_status = 0;
  if (!status.ok()) PrintFailure(status, exit_status);
}

// Refuses what only the other kind looks at.
absl::Status CheckKindFlags(const CLI::App& command, const std::string& kind) {
  const bool is_curve = kind == "curve";
  for (const auto& [flag, of_curve] :
       {std::pair("--keep-ratio", false), std::pair("--keep-ratios", true),
        std::pair("--queries-window", true), std::pair("--log-y", true)}) {
    if (of_curve == is_curve || command.count(flag) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": expected with --kind ",
                     of_curve ? "curve" : "budgets", ", got ", kind));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> MakePlot(const PlotFlags& flags) {
  if (flags.kind != "budgets" && flags.kind != "curve") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--kind: expected budgets or curve, got '", flags.kind, "'"));
  }
  BM_ASSIGN_OR_RETURN(const PolicyList list, ReadPolicies(flags.policies));
  BM_ASSIGN_OR_RETURN(const Tensors tensors, ReadTensors(flags.tensors));
  return flags.kind == "curve" ? PlotCurve(flags, list, tensors)
                               : PlotBudgets(flags, list, tensors);
}

void AddPlotCommand(CLI::App& app, int* exit_status) {
  const auto flags = std::make_shared<PlotFlags>();
  CLI::App* command = app.add_subcommand(
      "plot", "Draw budgets or perturbations of policies as an SVG picture.");
  command->footer(kPlotFooter);
  AddPolicyFlags(*command, &flags->policies);
  command->add_option("--kind", flags->kind, "what to draw")
      ->check(CLI::IsMember({"budgets", "curve"}))
      ->capture_default_str();
  command
      ->add_option("--keep-ratio", flags->keep_ratio,
                   "budgets: fraction of the entries to keep")
      ->capture_default_str();
  command
      ->add_option("--keep-ratios", flags->keep_ratios,
                   "curve: fractions to keep, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--queries-window", flags->queries_window,
                   "curve: how many of the last queries to measure [32, or all "
                   "where there are fewer]")
      ->type_name("N");
  command->add_flag("--log-y", flags->log_y,
                    "curve: logarithmic perturbation; zeros are left out");
  command->add_option("--output", flags->output, "the picture to write, as SVG")
      ->required()
      ->type_name("FILE.svg");
  AddTensorFlags(*command, &flags->tensors);
  command->callback([flags, exit_status, command] {
    const absl::Status status = CheckKindFlags(*command, flags->kind);
    if (status.ok()) {
      RunPlot(*flags, exit_status);
    } else {
      PrintFailure(status, exit_status);
    }
  });
}

}  // namespace blockmgr
