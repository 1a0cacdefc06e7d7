#include "scheduler/server/eviction_flags.h"

#include <cstdint>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/keep_ratio.h"
#include "blockmgr/eviction/policy.h"
#include "scheduler/server/flag_checks.h"

namespace blockmgr {
namespace {

// The scores of keydiff need no queries, so they suit whatever is asked later;
// docs/eviction.md has figures.
constexpr char kDefaultPolicy[] = "keydiff | adakv | topk";

absl::StatusOr<EvictionTarget> ResolveTarget(const EvictionFlags& flags) {
  EvictionTarget target;
  if (!flags.window_keep_ratio.empty()) {
    const absl::StatusOr<KeepRatio> ratio =
        KeepRatio::Parse(flags.window_keep_ratio);
    if (!ratio.ok()) {
      return Invalid("window-keep-ratio: ", ratio.status().message());
    }
    target.window_keep_ratio = *ratio;
  }
  if (flags.keep_tokens.has_value()) {
    if (!flags.keep_ratio.empty()) {
      return absl::InvalidArgumentError(
          "keep-tokens: expected either this or --keep-ratio, got both");
    }
    target.kind = EvictionTarget::Kind::kTokens;
    target.tokens = *flags.keep_tokens;
    return target;
  }
  const absl::StatusOr<KeepRatio> ratio = KeepRatio::Parse(flags.keep_ratio);
  if (!ratio.ok()) {
    return Invalid("keep-ratio: ", ratio.status().message());
  }
  target.ratio = *ratio;
  return target;
}

absl::StatusOr<EvictionPolicy> ResolvePolicy(const std::string& text) {
  absl::StatusOr<EvictionPolicy> policy =
      ParsePolicy(text.empty() ? std::string(kDefaultPolicy) : text);
  if (!policy.ok()) {
    return Invalid("eviction: ",
                   absl::StripPrefix(policy.status().message(), "policy: "));
  }
  if (policy->scorer.kind == ScorerKind::kExternal ||
      policy->budget.kind == BudgetKind::kExternal) {
    return absl::InvalidArgumentError(
        "eviction: expected a policy that a request can carry, got external "
        "scores or budgets");
  }
  return policy;
}

absl::StatusOr<EvictionMode> ResolveMode(const EvictionFlags& flags) {
  const bool has_interval = flags.eviction.compress_every > 0;
  const EvictionMode mode = flags.mode.value_or(
      has_interval ? EvictionMode::kEveryChunk : EvictionMode::kAfterPrefill);
  const bool needs_interval =
      mode == EvictionMode::kEveryChunk || mode == EvictionMode::kDecode;
  if (needs_interval && !has_interval) {
    return Invalid("eviction-mode: ", EnumName(mode),
                   " needs --compress-every");
  }
  if (has_interval && !needs_interval) {
    return Invalid("compress-every: has no meaning with --eviction-mode ",
                   EnumName(mode));
  }
  return mode;
}

// The flag that asks for something without --keep-ratio or --keep-tokens.
const char* FirstOrphan(const EvictionFlags& flags) {
  if (!flags.policy.empty()) return "eviction";
  if (!flags.window_keep_ratio.empty()) return "window-keep-ratio";
  if (flags.mode.has_value()) return "eviction-mode";
  if (flags.eviction.compress_every > 0) return "compress-every";
  if (flags.eviction.share_prefix) return "share-compressed-prefixes";
  return nullptr;
}

// A visitor of RequestEviction that adds flags.
struct OptionRows {
  CLI::App* app;
  const std::string& group;

  void Number(absl::string_view name, int32_t& value, int32_t min, int32_t max,
              const char* help) const {
    // An interval is not given, or is at least one token.
    if (name == "compress_every") min = 1;
    CLI::Option* const option = app->add_option(FlagOf(name), value, help);
    option->check(CLI::Range(min, max))->group(group);
    if (value >= min) option->capture_default_str();
  }
  void Bool(absl::string_view name, bool& value, const char* help) const {
    app->add_flag(FlagOf(name), value, help)->group(group);
  }
  static std::string FlagOf(absl::string_view name) {
    return EvictionFields().at(absl::StrCat("eviction.", name));
  }
};

}  // namespace

void AddEvictionFlags(CLI::App* app, EvictionFlags* flags,
                      const std::string& group) {
  app->add_option("--keep-ratio", flags->keep_ratio,
                  "Evict, keeping this fraction of the entries, (0, 1] "
                  "[default: no eviction]")
      ->group(group);
  app->add_option("--keep-tokens", flags->keep_tokens,
                  "Evict, keeping so many entries per head on average, instead "
                  "of --keep-ratio")
      ->check(CLI::Range(1, INT32_MAX))
      ->group(group);
  app->add_option("--window-keep-ratio", flags->window_keep_ratio,
                  "Fraction that layers with a sliding window keep of their "
                  "window when the other layers are evicted from [default: "
                  "all]")
      ->group(group);
  app->add_option("--eviction", flags->policy,
                  absl::StrCat("Policy, scorer | budget | selector [default: ",
                               kDefaultPolicy, "]"))
      ->group(group);
  app->add_option("--eviction-mode", flags->mode,
                  "When to evict: once after the prompt (after-prefill), along "
                  "the prompt (every-chunk), after the prompt and along the "
                  "output (decode), or when blocks are short, before a "
                  "request is preempted (pressure) [default: every-chunk with "
                  "--compress-every, else after-prefill]")
      ->transform(NameIn(EvictionMode::kAfterPrefill))
      ->group(group);
  VisitRequestEviction(flags->eviction, OptionRows{app, group});
}

FieldFlags EvictionFields() {
  return {{"policy", "--eviction"},
          {"eviction.policy", "--eviction"},
          {"eviction.mode", "--eviction-mode"},
          {"eviction.compress_every", "--compress-every"},
          {"eviction.share_prefix", "--share-compressed-prefixes"},
          {"eviction.share_multiple", "--share-multiple"},
          {"eviction.target.window_keep_ratio", "--window-keep-ratio"}};
}

absl::StatusOr<RequestEviction> ResolveEviction(const EvictionFlags& flags) {
  RequestEviction eviction = flags.eviction;
  if (eviction.share_multiple > 0 && !eviction.share_prefix) {
    return absl::InvalidArgumentError(
        "share-multiple: needs --share-compressed-prefixes");
  }
  if (flags.keep_ratio.empty() && !flags.keep_tokens.has_value()) {
    const char* orphan = FirstOrphan(flags);
    if (orphan == nullptr) return eviction;
    return Invalid(orphan,
                   ": needs --keep-ratio or --keep-tokens, what to keep");
  }
  BM_ASSIGN_OR_RETURN(eviction.target, ResolveTarget(flags));
  BM_ASSIGN_OR_RETURN(eviction.policy, ResolvePolicy(flags.policy));
  BM_ASSIGN_OR_RETURN(eviction.mode, ResolveMode(flags));
  return eviction;
}

}  // namespace blockmgr
