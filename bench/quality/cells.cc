#include "bench/quality/cells.h"

#include <algorithm>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/strip.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/keep_ratio.h"
#include "blockmgr/eviction/policy.h"

namespace blockmgr {
namespace {

constexpr absl::string_view kChunkPrefix = "every-chunk=";
constexpr absl::string_view kDecodePrefix = "decode=";

struct NamedTarget {
  std::string name;
  EvictionTarget target;
};

absl::StatusOr<std::vector<NamedTarget>> MakeTargets(const CellFlags& flags) {
  std::vector<NamedTarget> targets;
  for (const std::string& text : flags.keep_ratios) {
    const absl::StatusOr<KeepRatio> ratio = KeepRatio::Parse(text);
    if (!ratio.ok()) {
      return Invalid("--keep-ratios: ", ratio.status().message());
    }
    EvictionTarget target;
    target.ratio = *ratio;
    targets.push_back({ratio->ToString(), target});
  }
  for (const int32_t tokens : flags.keep_tokens) {
    EvictionTarget target;
    target.kind = EvictionTarget::Kind::kTokens;
    target.tokens = tokens;
    if (tokens < 1) {
      return Invalid("--keep-tokens: expected at least 1, got ", tokens);
    }
    targets.push_back({absl::StrCat(tokens, " tokens"), target});
  }
  if (targets.empty()) {
    return absl::InvalidArgumentError(
        "--keep-ratios: expected at least one, or --keep-tokens, got none");
  }
  return targets;
}

EvictionMode ModeOf(const QualityMode& mode) {
  if (mode.kind == QualityMode::Kind::kEveryChunk) {
    return EvictionMode::kEveryChunk;
  }
  if (mode.kind == QualityMode::Kind::kDecode) return EvictionMode::kDecode;
  return EvictionMode::kAfterPrefill;
}

absl::StatusOr<QualityCell> MakeCell(const QualityMode& mode,
                                     const NamedTarget& target,
                                     const std::string& policy,
                                     const BudgetTables& tables) {
  QualityCell cell;
  cell.mode = mode;
  cell.target = target.name;
  absl::StatusOr<EvictionPolicy> parsed = ParsePolicy(policy);
  if (!parsed.ok()) {
    return Invalid("--policy: ",
                   absl::StripPrefix(parsed.status().message(), "policy: "));
  }
  cell.policy = FormatPolicy(*parsed);
  BM_ASSIGN_OR_RETURN(cell.eviction.table, FindBudgetTable(tables, *parsed));
  cell.eviction.mode = ModeOf(mode);
  cell.eviction.policy = *std::move(parsed);
  cell.eviction.target = target.target;
  cell.eviction.compress_every = mode.every;
  return cell;
}

}  // namespace

absl::StatusOr<QualityMode> QualityMode::Parse(absl::string_view text) {
  if (text == "aware") return QualityMode{.kind = Kind::kAware};
  if (text == "agnostic") return QualityMode{.kind = Kind::kAgnostic};
  for (const auto& [prefix, kind] : {std::pair(kChunkPrefix, Kind::kEveryChunk),
                                     std::pair(kDecodePrefix, Kind::kDecode)}) {
    absl::string_view rest = text;
    int32_t every = 0;
    if (absl::ConsumePrefix(&rest, prefix) && absl::SimpleAtoi(rest, &every) &&
        every > 0) {
      return QualityMode{.kind = kind, .every = every};
    }
  }
  return Invalid(
      "--modes: expected aware, agnostic, every-chunk=TOKENS or "
      "decode=TOKENS, got '",
      text, "'");
}

std::string QualityMode::ToString() const {
  if (kind == Kind::kAware) return "aware";
  if (kind == Kind::kAgnostic) return "agnostic";
  return absl::StrCat(kind == Kind::kEveryChunk ? kChunkPrefix : kDecodePrefix,
                      every);
}

std::string QualityCell::name() const {
  return absl::StrCat(mode.ToString(), "/", target, "/", policy);
}

absl::StatusOr<std::vector<QualityCell>> MakeCells(const CellFlags& flags,
                                                   const BudgetTables& tables) {
  BM_ASSIGN_OR_RETURN(const std::vector<NamedTarget> targets,
                      MakeTargets(flags));
  std::vector<QualityCell> cells;
  for (const std::string& text : flags.modes) {
    BM_ASSIGN_OR_RETURN(const QualityMode mode, QualityMode::Parse(text));
    for (const NamedTarget& target : targets) {
      for (const std::string& policy : flags.policies) {
        BM_ASSIGN_OR_RETURN(QualityCell cell,
                            MakeCell(mode, target, policy, tables));
        const std::string name = cell.name();
        if (std::ranges::any_of(cells, [&name](const QualityCell& other) {
              return other.name() == name;
            })) {
          return Invalid("--policy: expected each cell once, got ", name,
                         " twice");
        }
        cells.push_back(std::move(cell));
      }
    }
  }
  if (cells.empty()) {
    return absl::InvalidArgumentError(
        "--modes, --policy: expected at least one of each, got none");
  }
  return cells;
}

}  // namespace blockmgr
