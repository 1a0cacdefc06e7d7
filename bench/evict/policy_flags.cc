#include "bench/evict/policy_flags.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <variant>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include "bench/evict/prefixed.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/npy.h"
#include "blockmgr/base/read_file.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// Adds the table of a file, whose content tells its kind, to the list.
absl::Status ReadTable(const std::string& path, PolicyList* list) {
  const absl::StatusOr<std::string> bytes = ReadFile(path);
  if (!bytes.ok()) return Prefixed("--table", bytes.status());
  absl::Status status;
  if (IsQueryStats(*bytes)) {
    absl::StatusOr<QueryStatsTable> table = DecodeQueryStats(*bytes);
    status = table.status();
    if (table.ok()) list->query_stats.push_back(*std::move(table));
  } else {
    absl::StatusOr<BudgetTable> table = DecodeBudgetTable(*bytes);
    status = table.status();
    if (table.ok()) list->tables.push_back(*std::move(table));
  }
  if (status.ok()) return status;
  return Prefixed(absl::StrCat("--table ", path), status);
}

// The only table that the policy's budgets can come from.
absl::StatusOr<const BudgetTable*> FindTable(
    const EvictionPolicy& policy, const std::vector<BudgetTable>& tables) {
  const bool wants_profile = policy.budget.kind == BudgetKind::kLuKv;
  const BudgetTable* found = nullptr;
  int num_found = 0;
  for (const BudgetTable& table : tables) {
    if (std::holds_alternative<LuKvProfile>(table) != wants_profile) continue;
    found = &table;
    ++num_found;
  }
  if (num_found != 1) {
    return Invalid("--table: expected exactly one ",
                   wants_profile ? "LU-KV profile for lukv"
                                 : "file of scores for headkv or duo",
                   ", got ", num_found);
  }
  return found;
}

// Entries per (layer, head), whole and >= 0, of which one is kept.
absl::Status ReadBudgets(const std::string& path, PolicyRunOptions* options) {
  const absl::StatusOr<NpyArray> array = ReadNpy(path);
  if (!array.ok()) return Prefixed("--budgets", array.status());
  const auto bad = [&](absl::string_view expected, absl::string_view got) {
    return Invalid("--budgets ", path, ": expected ", expected, ", got ", got);
  };
  if (array->shape.size() != 2) {
    return bad("[layers, KV heads]", ShapeText(array->shape));
  }
  options->budgets.clear();
  options->budgets_shape = {array->shape[0], array->shape[1]};
  for (const float value : array->values) {
    // Also true for NaN. Larger numbers are more than any head holds.
    if (!(value >= 0.0f) || value != std::floor(value)) {
      return bad("whole numbers of at least 0", absl::StrCat(value));
    }
    options->budgets.push_back(static_cast<int32_t>(std::min(value, 0x1p30f)));
  }
  const auto keeps = [](int32_t budget) { return budget > 0; };
  if (std::none_of(options->budgets.begin(), options->budgets.end(), keeps)) {
    return bad("one above 0", "none");
  }
  return absl::OkStatus();
}

// Files that no policy reads are mistakes.
absl::Status CheckFilesAreRead(const PolicyFlags& flags,
                               const PolicyList& list) {
  const auto reads = [&](auto kind) {
    return std::any_of(list.policies.begin(), list.policies.end(),
                       [kind](const NamedPolicy& named) {
                         return named.policy.budget.kind == kind;
                       });
  };
  for (const BudgetTable& table : list.tables) {
    const bool is_profile = std::holds_alternative<LuKvProfile>(table);
    const bool is_read =
        is_profile ? reads(BudgetKind::kLuKv)
                   : reads(BudgetKind::kHeadKv) || reads(BudgetKind::kDuo);
    if (is_read) continue;
    return Invalid("--table: expected a policy with ",
                   is_profile ? "lukv" : "headkv or duo",
                   " to read it, got none");
  }
  const bool reads_stats = std::any_of(
      list.policies.begin(), list.policies.end(),
      [](const NamedPolicy& n) { return n.policy.needs_query_stats(); });
  if (!list.query_stats.empty() && !reads_stats) {
    return absl::InvalidArgumentError(
        "--table: expected a policy with expected_attention(stats=NAME) to "
        "read it, got none");
  }
  if (flags.budgets.empty() || reads(BudgetKind::kExternal)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--budgets: expected a policy with external budgets, got none");
}

}  // namespace

void AddPolicyFlags(CLI::App& app, PolicyFlags* flags) {
  const char* group = "Policies";
  app.add_option("--policy", flags->policies,
                 "scorer | budget | selector | options, such as "
                 "\"snapkv | adakv | critical\", with the option "
                 "parity(kvpress|released) for published programs; loss and "
                 "plot compare several, each with a --policy of its own")
      ->required()
      ->allow_extra_args(false)
      ->type_name("TEXT")
      ->group(group);
  app.add_option("--table", flags->tables,
                 "budgets for headkv (head scores as JSON, retention counts as "
                 ".npy) or lukv, or query statistics for expected_attention("
                 "stats=NAME) (files of blockmgr-evict profile); at most once "
                 "for each")
      ->allow_extra_args(false)
      ->type_name("FILE")
      ->group(group);
  app.add_option("--budgets", flags->budgets,
                 "entries per head, whole numbers [layers, KV heads], for "
                 "external budgets")
      ->type_name("FILE.npy")
      ->group(group);
  app.add_option("--page-size", flags->page_size,
                 "tokens per page, which round(page) fills")
      ->check(CLI::Range(1, kMaxRunPageSize))
      ->capture_default_str()
      ->group(group);
  app.add_option("--dtype", flags->dtype, "what scorers see K and V stored as")
      ->check(CLI::IsMember(
          std::vector<std::string>(kDTypeNames.begin(), kDTypeNames.end())))
      ->capture_default_str()
      ->group(group);
}

absl::StatusOr<PolicyList> ReadPolicies(const PolicyFlags& flags) {
  PolicyList list;
  for (const std::string& path : flags.tables) {
    BM_RETURN_IF_ERROR(ReadTable(path, &list));
  }
  for (const std::string& text : flags.policies) {
    absl::StatusOr<ParityPolicy> policy = ParseParityPolicy(text);
    if (!policy.ok()) {
      return Invalid("--policy '", text, "': ",
                     absl::StripPrefix(policy.status().message(), "policy: "));
    }
    const bool external = policy->budget.kind == BudgetKind::kExternal;
    if (external && flags.budgets.empty()) {
      return Invalid("--budgets: expected a file for --policy '", text,
                     "', got none");
    }
    NamedPolicy named;
    named.name = FormatParityPolicy(*policy);
    named.policy = *policy;
    named.options.page_size = flags.page_size;
    named.options.dtype = DTypeNamed(flags.dtype);
    if (policy->needs_table()) {
      BM_ASSIGN_OR_RETURN(named.options.table, FindTable(*policy, list.tables));
    }
    if (policy->needs_query_stats()) {
      if (list.query_stats.size() != 1) {
        return Invalid(
            "--table: expected exactly one file of query statistics for "
            "expected_attention(stats=NAME), got ",
            list.query_stats.size());
      }
      named.options.query_stats = &list.query_stats.front();
    }
    if (external) {
      BM_RETURN_IF_ERROR(ReadBudgets(flags.budgets, &named.options));
    }
    list.policies.push_back(std::move(named));
  }
  BM_RETURN_IF_ERROR(CheckFilesAreRead(flags, list));
  return list;
}

absl::StatusOr<EvictionTarget> ParseTarget(const std::string& flag,
                                           const std::string& keep_ratio) {
  absl::StatusOr<KeepRatio> ratio = KeepRatio::Parse(keep_ratio);
  if (!ratio.ok()) {
    return Prefixed(flag, ratio.status());
  }
  EvictionTarget target;
  target.ratio = *ratio;
  return target;
}

bool PolicyList::all_external() const {
  return std::ranges::all_of(policies, [](const NamedPolicy& named) {
    return named.policy.budget.kind == BudgetKind::kExternal;
  });
}

absl::StatusOr<EvictionTarget> ResolveKeepRatio(
    const std::optional<std::string>& keep_ratio, const PolicyList& list) {
  if (keep_ratio.has_value() && list.all_external()) {
    return BadFlag("--keep-ratio", "a policy without external budgets", "none");
  }
  return ParseTarget("--keep-ratio", keep_ratio.value_or("0.2"));
}

std::string KeepText(const std::string& keep_ratio) {
  return keep_ratio.empty() ? "external budgets"
                            : absl::StrCat("keep ratio ", keep_ratio);
}

}  // namespace blockmgr
