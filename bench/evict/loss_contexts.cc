#include "bench/evict/loss_contexts.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "bench/evict/key_volume.h"
#include "bench/evict/model_oracle.h"
#include "bench/evict/perturbation.h"
#include "bench/evict/policy_runner.h"
#include "blockmgr/base/status_macros.h"
#include "program/progress.h"

namespace blockmgr {
namespace {

// Ada-KV calls a head concentrated if few entries have so much of its
// attention (2407.11550, figure 2).
constexpr double kMostAttention = 0.95;

ContextLoss ContextLossOf(const PolicyLoss& loss) {
  ContextLoss context;
  for (const LossMeans& layer : loss.layers) {
    context.kept_mass += layer.kept_mass;
  }
  context.kept_mass /= static_cast<double>(loss.layers.size());
  const auto num_kept = std::ranges::count_if(
      loss.q_heads,
      [](const LossMeans& head) { return head.kept_mass >= kMostAttention; });
  context.heads_kept =
      static_cast<double>(num_kept) / static_cast<double>(loss.q_heads.size());
  context.relative = MeanRelative(loss);
  context.kept_fraction = loss.kept_fraction;
  return context;
}

// Adds the losses of the policies on one context.
absl::Status AddContext(const LossFlags& flags, const PolicyList& list,
                        const EvictionTarget& target, const ModelOracle& oracle,
                        ContextsLoss* all) {
  const Tensors& tensors = oracle.tensors;
  BM_ASSIGN_OR_RETURN(
      const MeasuredPolicies measured,
      MeasurePolicies(list, target, flags.queries_window, tensors));
  for (size_t i = 0; i < measured.losses.size(); ++i) {
    ContextLoss context = ContextLossOf(measured.losses[i]);
    context.key_volume = MeanKeyLogDeterminant(measured.keep[i], tensors);
    if (!oracle.importances.empty()) {
      context.needed_kept = KeptImportance(measured.keep[i], oracle);
    }
    all->losses[i].push_back(context);
  }
  all->queries_window = measured.queries_window;
  all->length = tensors.length;
  return absl::OkStatus();
}

std::vector<double> ValuesOf(const std::vector<ContextLoss>& contexts,
                             double ContextLoss::*member) {
  std::vector<double> values;
  values.reserve(contexts.size());
  for (const ContextLoss& context : contexts) {
    values.push_back(context.*member);
  }
  return values;
}

nlohmann::ordered_json ToJson(const Interval& interval) {
  return {
      {"mean", interval.mean}, {"low", interval.low}, {"high", interval.high}};
}

}  // namespace

absl::StatusOr<ContextsLoss> ComputeContextsLoss(const LossFlags& flags) {
  BM_ASSIGN_OR_RETURN(const PolicyList list, ReadPolicies(flags.policies));
  BM_ASSIGN_OR_RETURN(const EvictionTarget target,
                      ResolveKeepRatio(flags.keep_ratio, list));
  ContextsLoss all;
  if (!list.all_external()) all.keep_ratio = target.ratio.ToString();
  all.query_tokens = flags.query_tokens;
  all.num_contexts = flags.num_contexts;
  for (const NamedPolicy& policy : list.policies) {
    all.policies.push_back(policy.name);
  }
  all.losses.resize(list.policies.size());
  Progress progress(flags.num_contexts, true, "contexts", "loss ");
  BM_RETURN_IF_ERROR(VisitContexts(
      flags.tensors,
      {.num_contexts = flags.num_contexts, .query_tokens = flags.query_tokens},
      [&](const ModelOracle& oracle) {
        absl::Status added = AddContext(flags, list, target, oracle, &all);
        progress.Step();
        return added;
      }));
  return all;
}

ContextsSummary SummarizeContexts(const ContextsLoss& loss, size_t policy) {
  const std::vector<ContextLoss>& contexts = loss.losses[policy];
  const std::vector<ContextLoss>& first = loss.losses.front();
  const std::vector<double> relative =
      ValuesOf(contexts, &ContextLoss::relative);
  const std::vector<double> first_relative =
      ValuesOf(first, &ContextLoss::relative);
  std::vector<double> is_less;
  is_less.reserve(relative.size());
  for (size_t i = 0; i < relative.size(); ++i) {
    is_less.push_back(relative[i] < first_relative[i] ? 1.0 : 0.0);
  }
  const std::vector<double> volumes =
      ValuesOf(contexts, &ContextLoss::key_volume);
  const std::vector<double> needed =
      ValuesOf(contexts, &ContextLoss::needed_kept);
  return {
      .kept_fraction =
          BootstrapMean(ValuesOf(contexts, &ContextLoss::kept_fraction)).mean,
      .kept_mass = BootstrapMean(ValuesOf(contexts, &ContextLoss::kept_mass)),
      .heads_kept = BootstrapMean(ValuesOf(contexts, &ContextLoss::heads_kept)),
      .relative = BootstrapMean(relative),
      .of_first = BootstrapRatio(relative, first_relative),
      .less_often = BootstrapMean(is_less),
      .key_volume = BootstrapMean(volumes),
      .key_volume_gain = BootstrapDifference(
          volumes, ValuesOf(first, &ContextLoss::key_volume)),
      .needed_kept = BootstrapMean(needed),
      .needed_gain = BootstrapDifference(
          needed, ValuesOf(first, &ContextLoss::needed_kept))};
}

std::string FormatContextsLoss(const ContextsLoss& loss) {
  std::string text = absl::StrFormat(
      "%s of %d positions, last %d queries, %d contexts; means and "
      "95 %% intervals\n\n"
      "| policy | kept mass | heads that keep 95 %% | relative perturbation | "
      "of the first's | less than the first | log-determinant of the keys | "
      "more than the first |",
      KeepText(loss.keep_ratio), loss.length, loss.queries_window,
      loss.num_contexts);
  const bool has_needs = loss.query_tokens > 0;
  if (has_needs) {
    absl::StrAppend(&text, " kept of what ", loss.query_tokens,
                    " tokens need | more than the first |");
  }
  absl::StrAppend(&text, "\n|---|---|---|---|---|---|---|---|",
                  has_needs ? "---|---|" : "", "\n");
  std::string kept = "\nkept fractions of the entries:";
  for (size_t i = 0; i < loss.policies.size(); ++i) {
    const ContextsSummary summary = SummarizeContexts(loss, i);
    absl::StrAppendFormat(&kept, " %.5f", summary.kept_fraction);
    absl::StrAppend(&text, "| ",
                    absl::StrJoin(absl::StrSplit(loss.policies[i], '|'), "\\|"),
                    " | ", TextOf(summary.kept_mass), " | ",
                    TextOf(summary.heads_kept), " | ", TextOf(summary.relative),
                    " | ");
    absl::StrAppend(&text, TextOf(summary.of_first), " | ",
                    TextOf(summary.less_often), " | ",
                    TextOf(summary.key_volume), " | ",
                    TextOf(summary.key_volume_gain), " |");
    if (has_needs) {
      absl::StrAppend(&text, " ", TextOf(summary.needed_kept), " | ",
                      TextOf(summary.needed_gain), " |");
    }
    text.push_back('\n');
  }
  return absl::StrCat(text, kept, "\n");
}

nlohmann::ordered_json ContextsLossJson(const ContextsLoss& loss) {
  nlohmann::ordered_json json = {{"keep_ratio", RatioJson(loss.keep_ratio)},
                                 {"length", loss.length},
                                 {"queries_window", loss.queries_window},
                                 {"query_tokens", loss.query_tokens},
                                 {"num_contexts", loss.num_contexts}};
  json["policies"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < loss.policies.size(); ++i) {
    const ContextsSummary summary = SummarizeContexts(loss, i);
    nlohmann::ordered_json policy = {
        {"policy", loss.policies[i]},
        {"kept_fraction", summary.kept_fraction},
        {"kept_mass", ToJson(summary.kept_mass)},
        {"heads_kept", ToJson(summary.heads_kept)},
        {"relative_perturbation", ToJson(summary.relative)},
        {"of_first", ToJson(summary.of_first)},
        {"less_often", ToJson(summary.less_often)},
        {"key_log_determinant", ToJson(summary.key_volume)},
        {"key_log_determinant_gain", ToJson(summary.key_volume_gain)}};
    if (loss.query_tokens > 0) {
      policy["needed_kept"] = ToJson(summary.needed_kept);
      policy["needed_gain"] = ToJson(summary.needed_gain);
    }
    json["policies"].push_back(std::move(policy));
  }
  return json;
}

}  // namespace blockmgr
