#include "bench/evict/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>
#include <memory>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>

#include "bench/charts/curve_chart.h"
#include "bench/charts/heat_map.h"
#include "bench/evict/commands.h"
#include "bench/evict/loss.h"
#include "bench/evict/model_oracle.h"
#include "bench/evict/output_name.h"
#include "bench/evict/perturbation.h"
#include "bench/evict/policy_runner.h"
#include "bench/evict/tensors.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "program/flag_names.h"
#include "program/output_file.h"
#include "program/progress.h"

namespace blockmgr {
namespace {

constexpr std::array<absl::string_view, 4> kPlotKinds = {"budgets", "loss",
                                                         "curve", "recall"};

constexpr char kPlotFooter[] =
    "\nbudgets  a map of entries kept per layer and KV head, one per policy\n"
    "loss     a map of how far the output of each query head moves, "
    "|y - y^| / |y| in L1,\n         one per policy\n"
    "curve    how far the output of attention moves, |y - y^| / |y| in L1 as "
    "the mean\n         over the layers, against the keep ratio\n"
    "recall   how much of what the tokens behind the text need is kept, "
    "against the keep\n         ratio: the largest attention times |v W_O| "
    "(LU-KV's oracle), as the mean over\n         the layers; for --model\n"
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

std::string TargetText(const PolicyList& list, const EvictionTarget& target) {
  return KeepText(list.all_external() ? "" : target.ratio.ToString());
}

std::string PanelName(const NamedPolicy& policy, double kept_fraction) {
  return absl::StrFormat("%s, keeps %.3f", policy.name, kept_fraction);
}

absl::StatusOr<std::string> PlotBudgets(const PlotFlags& flags,
                                        const PolicyList& list,
                                        const Tensors& tensors) {
  BM_ASSIGN_OR_RETURN(const EvictionTarget target,
                      ResolveKeepRatio(flags.keep_ratio, list));
  HeatMap map;
  map.title = absl::StrCat("Entries kept of ", tensors.length, " at ",
                           TargetText(list, target));
  map.row_name = "layer";
  map.column_name = "KV head";
  map.value_name = "entries";
  map.num_rows = tensors.num_layers();
  map.num_columns = tensors.num_heads;
  Progress progress(static_cast<int64_t>(list.policies.size()), true, "steps",
                    "plot ");
  for (const NamedPolicy& policy : list.policies) {
    BM_ASSIGN_OR_RETURN(PolicyRun run, RunPolicy(policy.policy, target, tensors,
                                                 policy.options));
    map.panels.push_back(
        {PanelName(policy, KeptFraction(run.keep, tensors.length)),
         std::move(run.budgets)});
    progress.Step();
  }
  return DrawHeatMap(map);
}

absl::StatusOr<std::string> PlotLoss(const PlotFlags& flags,
                                     const PolicyList& list,
                                     const Tensors& tensors) {
  BM_ASSIGN_OR_RETURN(const EvictionTarget target,
                      ResolveKeepRatio(flags.keep_ratio, list));
  Progress progress(std::ssize(list.policies) + int64_t{tensors.num_layers()},
                    true, "steps", "plot ");
  BM_ASSIGN_OR_RETURN(const MeasuredPolicies measured,
                      MeasurePolicies(list, target, flags.queries_window,
                                      tensors, [&] { progress.Step(); }));
  const std::vector<PolicyLoss>& losses = measured.losses;
  HeatMap map;
  map.title = absl::StrCat(
      "Perturbation of the attention output at ", TargetText(list, target),
      ", last ", measured.queries_window, " queries of ", tensors.length);
  map.row_name = "layer";
  map.column_name = "query head";
  map.value_name = "thousandths of |y|";
  map.num_rows = tensors.num_layers();
  map.num_columns = tensors.num_q_heads;
  for (size_t i = 0; i < losses.size(); ++i) {
    std::vector<int32_t> values;
    for (const LossMeans& means : losses[i].q_heads) {
      const double value = std::round(1000.0 * means.relative());
      // Also true for NaN.
      if (!(value <= INT32_MAX)) {
        const auto head = std::ssize(values);
        return Invalid("--kind loss: policy ", list.policies[i].name,
                       ", layer ", head / tensors.num_q_heads, ", query head ",
                       head % tensors.num_q_heads,
                       ": expected a finite perturbation, got ",
                       means.relative());
      }
      values.push_back(static_cast<int32_t>(value));
    }
    map.panels.push_back({PanelName(list.policies[i], losses[i].kept_fraction),
                          std::move(values)});
  }
  return DrawHeatMap(map);
}

absl::StatusOr<std::vector<EvictionTarget>> CurveTargets(
    const PlotFlags& flags) {
  if (!flags.policies.budgets.empty()) {
    return Invalid("--budgets: expected with --kind budgets, got ", flags.kind,
                   ": external budgets do not follow --keep-ratios");
  }
  std::vector<EvictionTarget> targets;
  for (const std::string& text : flags.keep_ratios) {
    BM_ASSIGN_OR_RETURN(const EvictionTarget target,
                        ParseTarget("--keep-ratios", text));
    targets.push_back(target);
  }
  return targets;
}

// A chart leaves out what is not finite.
absl::StatusOr<std::string> DrawFiniteCurves(const CurveChart& chart) {
  for (const Curve& curve : chart.curves) {
    for (const Curve::Sample& sample : curve.samples) {
      if (std::isfinite(sample.y)) continue;
      return Invalid("--kind: policy ", curve.name, ", keep ratio ", sample.x,
                     ": expected a finite value, got ", sample.y);
    }
  }
  return DrawCurves(chart);
}

absl::StatusOr<std::string> PlotRecall(const PlotFlags& flags,
                                       const PolicyList& list) {
  BM_ASSIGN_OR_RETURN(const std::vector<EvictionTarget> targets,
                      CurveTargets(flags));
  BM_ASSIGN_OR_RETURN(const ModelOracle oracle,
                      ReadOracle(flags.tensors, flags.query_tokens));
  CurveChart chart;
  chart.title =
      absl::StrCat("What ", flags.query_tokens, " tokens need of the ",
                   oracle.tensors.length, " before them");
  chart.x_label = "keep ratio";
  chart.y_label = "kept part of attention x |v W_O|, mean over layers";
  Progress progress(std::ssize(list.policies) * std::ssize(targets), true,
                    "steps", "plot ");
  for (const NamedPolicy& policy : list.policies) {
    Curve curve;
    curve.name = policy.name;
    for (const EvictionTarget& target : targets) {
      BM_ASSIGN_OR_RETURN(
          const PolicyRun run,
          RunPolicy(policy.policy, target, oracle.tensors, policy.options));
      curve.samples.push_back(
          {target.ratio.value(), KeptImportance(run.keep, oracle)});
      progress.Step();
    }
    chart.curves.push_back(std::move(curve));
  }
  return DrawFiniteCurves(chart);
}

absl::StatusOr<std::string> PlotCurve(const PlotFlags& flags,
                                      const PolicyList& list,
                                      const Tensors& tensors) {
  BM_ASSIGN_OR_RETURN(const std::vector<EvictionTarget> targets,
                      CurveTargets(flags));
  const size_t num_runs = list.policies.size() * targets.size();
  Progress progress(static_cast<int64_t>(num_runs) + tensors.num_layers(), true,
                    "steps", "plot ");
  PerturbationOptions options;
  options.queries_window =
      flags.queries_window.value_or(DefaultQueriesWindow(tensors.length));
  options.on_layer = [&](int32_t) { progress.Step(); };
  BM_RETURN_IF_ERROR(CheckPerturbationInputs(tensors, options));
  std::vector<KeepSets> keep;
  for (const NamedPolicy& policy : list.policies) {
    for (const EvictionTarget& target : targets) {
      BM_ASSIGN_OR_RETURN(PolicyRun run, RunPolicy(policy.policy, target,
                                                   tensors, policy.options));
      keep.push_back(std::move(run.keep));
      progress.Step();
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
  return DrawFiniteCurves(chart);
}

absl::Status WritePlot(const PlotFlags& flags) {
  BM_RETURN_IF_ERROR(
      CheckOutputName("--output", flags.output, ".svg", "an SVG picture"));
  BM_ASSIGN_OR_RETURN(const std::string document, MakePlot(flags));
  return WriteOutputFiles({{"--output", flags.output, document}});
}

void PrintFailure(const CLI::App& command, const absl::Status& status,
                  int* exit_status) {
  *exit_status = 1;
  PrintError(command, status.message());
}

void RunPlot(const CLI::App& command, const PlotFlags& flags,
             int* exit_status) {
  const absl::Status status = WritePlot(flags);
  *exit_status = 0;
  if (!status.ok()) PrintFailure(command, status, exit_status);
}

// Refuses what only other kinds look at.
absl::Status CheckKindFlags(const CLI::App& command, const std::string& kind) {
  using Kinds = std::vector<absl::string_view>;
  for (const auto& [flag, kinds] :
       {std::pair("--keep-ratio", Kinds{"budgets", "loss"}),
        std::pair("--keep-ratios", Kinds{"curve", "recall"}),
        std::pair("--queries-window", Kinds{"loss", "curve"}),
        std::pair("--log-y", Kinds{"curve"}),
        std::pair("--query-tokens", Kinds{"recall"})}) {
    if (command.count(flag) == 0 ||
        std::ranges::find(kinds, kind) != kinds.end()) {
      continue;
    }
    return Invalid(flag, ": expected with --kind ",
                   absl::StrJoin(kinds, " or "), ", got ", kind);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> MakePlot(const PlotFlags& flags) {
  if (std::ranges::find(kPlotKinds, flags.kind) == kPlotKinds.end()) {
    return Invalid("--kind: expected one of ", absl::StrJoin(kPlotKinds, ", "),
                   ", got '", flags.kind, "'");
  }
  BM_ASSIGN_OR_RETURN(const PolicyList list, ReadPolicies(flags.policies));
  if (flags.kind == "recall") return PlotRecall(flags, list);
  BM_ASSIGN_OR_RETURN(const Tensors tensors, ReadTensors(flags.tensors));
  if (flags.kind == "curve") return PlotCurve(flags, list, tensors);
  if (flags.kind == "loss") return PlotLoss(flags, list, tensors);
  return PlotBudgets(flags, list, tensors);
}

void AddPlotCommand(CLI::App& app, int* exit_status) {
  const auto flags = std::make_shared<PlotFlags>();
  CLI::App* command = app.add_subcommand(
      "plot", "Draw budgets or perturbations of policies as an SVG picture.");
  command->footer(kPlotFooter);
  AddPolicyFlags(*command, &flags->policies);
  command->add_option("--kind", flags->kind, "what to draw")
      ->check(CLI::IsMember(
          std::vector<std::string>(kPlotKinds.begin(), kPlotKinds.end())))
      ->capture_default_str();
  command
      ->add_option("--keep-ratio", flags->keep_ratio,
                   "budgets, loss: fraction of the entries to keep [0.2]; of "
                   "no use to external budgets")
      ->type_name("RATIO");
  command
      ->add_option("--keep-ratios", flags->keep_ratios,
                   "curve, recall: fractions to keep, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option(
          "--queries-window", flags->queries_window,
          "loss, curve: how many of the last queries to measure [32, or all "
          "where there are fewer]")
      ->type_name("N");
  command->add_flag("--log-y", flags->log_y,
                    "curve: logarithmic perturbation; zeros are left out");
  command
      ->add_option("--query-tokens", flags->query_tokens,
                   "recall: tokens behind the text")
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command->add_option("--output", flags->output, "the picture to write, as SVG")
      ->check(OutputFile())
      ->required()
      ->type_name("FILE.svg");
  AddTensorFlags(*command, &flags->tensors);
  command->callback([flags, exit_status, command] {
    const absl::Status status = CheckKindFlags(*command, flags->kind);
    if (status.ok()) {
      RunPlot(*command, *flags, exit_status);
    } else {
      PrintFailure(*command, status, exit_status);
    }
  });
}

}  // namespace blockmgr
