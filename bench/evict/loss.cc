#include "bench/evict/loss.h"

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "bench/evict/commands.h"
#include "bench/evict/loss_contexts.h"
#include "bench/evict/policy_runner.h"
#include "blockmgr/base/status_macros.h"
#include "program/flag_names.h"
#include "program/progress.h"

namespace blockmgr {
namespace {

constexpr char kFooter[] =
    "\nFor the last queries, as means over them (norms are L1):\n"
    "  kept mass     of the attention, by the entries that stay (sigma)\n"
    "  Ada-KV bound  2 C (1 - sigma), C the largest |V_j W_O| (2407.11550)\n"
    "  CriticalKV    the tighter bound theta (2502.03805)\n"
    "  perturbation  |y - y^| of the output, which no bound is below\n"
    "  relative      perturbation / |y|\n"
    "With --num-contexts also the log-determinant of the kept keys, as the "
    "mean over\nheads: ln det(I + U U^T), U the keys divided by their lengths "
    "(KeyDiff, 2504.15364).\n"
    "A layer's bounds are the sums of its query heads'. snapkv has seen the "
    "queries of\nits own window; a larger --queries-window shows others.\n"
    "\nExamples:\n"
    "  blockmgr-evict loss --model model.gguf --text book.txt \\\n"
    "      --policy snapkv --policy \"snapkv | adakv\" --keep-ratio 0.1\n"
    "  blockmgr-evict loss --model model.gguf --text book.txt --context 512 "
    "\\\n"
    "      --num-contexts 100 --policy snapkv --policy \"snapkv | adakv\"\n"
    "  blockmgr-evict loss --queries q.npy --keys k.npy --values v.npy \\\n"
    "      --output-projection wo.npy --policy \"snapkv | adakv | critical\" "
    "\\\n"
    "      --per-head --json > loss.json\n";

std::string Row(const std::string& layer, const std::string& head,
                const LossMeans& means) {
  return absl::StrFormat("%5s  %6s  %9.6f  %12.6g  %12.6g  %12.6g  %8.5f\n",
                         layer, head, means.kept_mass, means.ada_kv_bound,
                         means.critical_kv_bound, means.perturbation,
                         means.relative());
}

nlohmann::ordered_json MeansJson(const LossMeans& means) {
  return {{"kept_mass", means.kept_mass},
          {"ada_kv_bound", means.ada_kv_bound},
          {"critical_kv_bound", means.critical_kv_bound},
          {"perturbation", means.perturbation},
          {"output_norm", means.output_norm},
          {"relative_perturbation", means.relative()}};
}

std::span<const LossMeans> HeadsOf(const LossReport& report,
                                   const PolicyLoss& loss, size_t layer) {
  const auto num_q_heads = static_cast<size_t>(report.num_q_heads);
  return std::span(loss.q_heads).subspan(layer * num_q_heads, num_q_heads);
}

absl::StatusOr<std::string> LossText(const LossFlags& flags) {
  if (flags.num_contexts > 1 || flags.query_tokens > 0) {
    BM_ASSIGN_OR_RETURN(const ContextsLoss loss, ComputeContextsLoss(flags));
    return flags.json ? absl::StrCat(ContextsLossJson(loss).dump(2), "\n")
                      : FormatContextsLoss(loss);
  }
  BM_ASSIGN_OR_RETURN(const LossReport report, ComputeLoss(flags));
  return flags.json
             ? absl::StrCat(LossJson(report, flags.per_head).dump(2), "\n")
             : FormatLoss(report, flags.per_head);
}

void RunLoss(const CLI::App& command, const LossFlags& flags,
             int* exit_status) {
  const absl::StatusOr<std::string> text = LossText(flags);
  *exit_status = text.ok() ? 0 : 1;
  if (text.ok()) {
    absl::PrintF("%s", *text);
  } else {
    PrintError(command, text.status().message());
  }
}

// Adds the flags of ComputeContextsLoss. REQUIRES: --model is there.
void AddContextFlags(CLI::App& command, LossFlags* flags) {
  CLI::Option* model = command.get_option("--model");
  CLI::Option* per_head = command.get_option("--per-head");
  command
      .add_option("--num-contexts", flags->num_contexts,
                  "contexts of the text, each of --context tokens; more than "
                  "1: a row per policy, with intervals")
      ->needs(model)
      ->excludes(per_head)
      ->check(CLI::Range(1, 1 << 16))
      ->capture_default_str();
  command
      .add_option("--query-tokens", flags->query_tokens,
                  "also how much is kept of what so many tokens behind a "
                  "context need of it (recall, as plot)")
      ->needs(model)
      ->excludes(per_head)
      ->check(CLI::Range(1, 1 << 16));
}

}  // namespace

absl::StatusOr<MeasuredPolicies> MeasurePolicies(
    const PolicyList& list, const EvictionTarget& target,
    std::optional<int32_t> queries_window, const Tensors& tensors,
    const std::function<void()>& on_step) {
  MeasuredPolicies measured;
  measured.queries_window =
      queries_window.value_or(DefaultQueriesWindow(tensors.length));
  const PerturbationOptions options = {
      .queries_window = measured.queries_window,
      .on_layer = [&](int32_t) { on_step(); }};
  BM_RETURN_IF_ERROR(CheckPerturbationInputs(tensors, options));
  for (const NamedPolicy& policy : list.policies) {
    BM_ASSIGN_OR_RETURN(PolicyRun run, RunPolicy(policy.policy, target, tensors,
                                                 policy.options));
    measured.keep.push_back(std::move(run.keep));
    on_step();
  }
  BM_ASSIGN_OR_RETURN(measured.losses,
                      MeasurePerturbation(tensors, measured.keep, options));
  for (size_t i = 0; i < measured.keep.size(); ++i) {
    measured.losses[i].kept_fraction =
        KeptFraction(measured.keep[i], tensors.length);
  }
  return measured;
}

absl::StatusOr<LossReport> ComputeLoss(const LossFlags& flags) {
  BM_ASSIGN_OR_RETURN(const PolicyList list, ReadPolicies(flags.policies));
  BM_ASSIGN_OR_RETURN(const EvictionTarget target,
                      ResolveKeepRatio(flags.keep_ratio, list));
  BM_ASSIGN_OR_RETURN(const Tensors tensors, ReadTensors(flags.tensors));
  Progress progress(
      static_cast<int64_t>(list.policies.size()) + tensors.num_layers(), true,
      "steps", "loss ");
  BM_ASSIGN_OR_RETURN(MeasuredPolicies measured,
                      MeasurePolicies(list, target, flags.queries_window,
                                      tensors, [&] { progress.Step(); }));
  LossReport report;
  for (const NamedPolicy& policy : list.policies) {
    report.policies.push_back(policy.name);
  }
  if (!list.all_external()) report.keep_ratio = target.ratio.ToString();
  report.queries_window = measured.queries_window;
  report.length = tensors.length;
  report.num_q_heads = tensors.num_q_heads;
  report.has_output_projection = tensors.model_dim > 0;
  report.losses = std::move(measured.losses);
  return report;
}

nlohmann::ordered_json RatioJson(const std::string& keep_ratio) {
  if (keep_ratio.empty()) return nullptr;
  return keep_ratio;
}

std::string FormatLoss(const LossReport& report, bool per_head) {
  std::string text = absl::StrFormat(
      "%s of %d positions, means over the last %d queries%s\n",
      KeepText(report.keep_ratio), report.length, report.queries_window,
      report.has_output_projection
          ? ""
          : "\nno W_O given: outputs of heads side by side");
  for (size_t i = 0; i < report.losses.size(); ++i) {
    const PolicyLoss& loss = report.losses[i];
    absl::StrAppend(&text, "\n", report.policies[i], "\n");
    absl::StrAppendFormat(&text, "%5s  %6s  %9s  %12s  %12s  %12s  %8s\n",
                          "layer", "q_head", "kept mass", "Ada-KV bound",
                          "CriticalKV", "perturbation", "relative");
    for (size_t layer = 0; layer < loss.layers.size(); ++layer) {
      text += Row(absl::StrCat(layer), "all", loss.layers[layer]);
      if (!per_head) continue;
      const std::span<const LossMeans> heads = HeadsOf(report, loss, layer);
      for (size_t head = 0; head < heads.size(); ++head) {
        text += Row(absl::StrCat(layer), absl::StrCat(head), heads[head]);
      }
    }
    absl::StrAppendFormat(&text,
                          "kept fraction of the entries: %.5f\n"
                          "mean relative perturbation of the layers: "
                          "%.5f\n",
                          loss.kept_fraction, MeanRelative(loss));
  }
  return text;
}

nlohmann::ordered_json LossJson(const LossReport& report, bool per_head) {
  nlohmann::ordered_json json = {
      {"keep_ratio", RatioJson(report.keep_ratio)},
      {"length", report.length},
      {"queries_window", report.queries_window},
      {"output_projection",
       report.has_output_projection ? "given" : "identity"}};
  json["policies"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < report.losses.size(); ++i) {
    const PolicyLoss& loss = report.losses[i];
    nlohmann::ordered_json layers = nlohmann::ordered_json::array();
    for (size_t layer = 0; layer < loss.layers.size(); ++layer) {
      nlohmann::ordered_json row = MeansJson(loss.layers[layer]);
      if (per_head) {
        row["q_heads"] = nlohmann::ordered_json::array();
        for (const LossMeans& means : HeadsOf(report, loss, layer)) {
          row["q_heads"].push_back(MeansJson(means));
        }
      }
      layers.push_back(std::move(row));
    }
    json["policies"].push_back(
        {{"policy", report.policies[i]},
         {"kept_fraction", loss.kept_fraction},
         {"mean_relative_perturbation", MeanRelative(loss)},
         {"layers", std::move(layers)}});
  }
  return json;
}

void AddLossCommand(CLI::App& app, int* exit_status) {
  const auto flags = std::make_shared<LossFlags>();
  CLI::App* command = app.add_subcommand(
      "loss",
      "Run policies on tensors and print how far each moves the output of "
      "attention, beside the bounds of the papers.");
  command->footer(kFooter);
  AddPolicyFlags(*command, &flags->policies);
  command
      ->add_option("--keep-ratio", flags->keep_ratio,
                   "fraction of the entries to keep, a decimal in (0, 1] "
                   "[0.2]; of no use to external budgets")
      ->type_name("RATIO");
  command
      ->add_option("--queries-window", flags->queries_window,
                   "how many of the last queries to measure [32, or all where "
                   "there are fewer]")
      ->type_name("N");
  command->add_flag("--per-head", flags->per_head,
                    "also a row for each query head");
  command->add_flag("--json", flags->json, "print JSON instead of tables");
  AddTensorFlags(*command, &flags->tensors);
  AddContextFlags(*command, flags.get());
  command->callback([flags, exit_status, command] {
    RunLoss(*command, *flags, exit_status);
  });
}

}  // namespace blockmgr
