#include "bench/quality/html_report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include "bench/charts/curve_chart.h"
#include "bench/charts/heat_map.h"
#include "bench/charts/svg.h"

namespace blockmgr {
namespace {

constexpr absl::string_view kXmlHead =
    "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
constexpr absl::string_view kHead =
    "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n"
    "<title>What eviction costs in answers</title>\n"
    "<style>body{font-family:Helvetica,Arial,sans-serif;margin:2em auto;"
    "max-width:60em;color:#222}table{border-collapse:collapse;font-size:.85em}"
    "th,td{border:1px solid #ddd;padding:.25em .5em;text-align:left}"
    "svg{max-width:100%;height:auto}</style>\n"
    "<h1>What eviction costs in answers</h1>\n";

// A page holds pictures without their XML declarations.
std::string Inline(const std::string& svg) {
  return std::string(absl::StripPrefix(svg, kXmlHead));
}

// The policies of a group, in the order of its cells, without the full cache.
std::vector<std::string> PoliciesOf(const GroupSummary& group) {
  std::vector<std::string> policies;
  for (const CellSummary& cell : group.cells) {
    if (cell.policy != "full" &&
        std::ranges::count(policies, cell.policy) == 0) {
      policies.push_back(cell.policy);
    }
  }
  return policies;
}

// A curve for each policy over the fraction that is kept. All go through the
// full cache, which keeps everything.
std::string DrawOverRatio(const GroupSummary& group, const std::string& title,
                          const std::string& label, bool log_y,
                          Interval CellSummary::*value) {
  CurveChart chart = {.title = title,
                      .x_label = "entries that are kept, measured",
                      .y_label = label,
                      .log_y = log_y,
                      .curves = {}};
  for (const std::string& policy : PoliciesOf(group)) {
    Curve curve = {.name = policy, .samples = {}};
    for (const CellSummary& cell : group.cells) {
      if (cell.policy != policy && cell.policy != "full") continue;
      const Interval& interval = cell.*value;
      curve.samples.push_back({cell.kept_share, interval.mean,
                               std::pair(interval.low, interval.high)});
    }
    chart.curves.push_back(std::move(curve));
  }
  return Inline(DrawCurves(chart));
}

// Accuracy by turn of all cells with one target.
std::string DrawByTurn(const GroupSummary& group, const std::string& target) {
  CurveChart chart = {
      .title = absl::StrCat("Accuracy by turn, ", target, " kept"),
      .x_label = "turn",
      .y_label = "accuracy",
      .curves = {}};
  for (const CellSummary& cell : group.cells) {
    if (cell.target != target && cell.policy != "full") continue;
    Curve curve = {.name = cell.policy, .samples = {}};
    for (size_t turn = 0; turn < cell.by_turn.size(); ++turn) {
      curve.samples.push_back(
          {static_cast<double>(turn + 1), cell.by_turn[turn].accuracy});
    }
    chart.curves.push_back(std::move(curve));
  }
  return Inline(DrawCurves(chart));
}

std::vector<std::string> TargetsOf(const GroupSummary& group) {
  std::vector<std::string> targets;
  for (const CellSummary& cell : group.cells) {
    if (cell.policy != "full" &&
        std::ranges::count(targets, cell.target) == 0) {
      targets.push_back(cell.target);
    }
  }
  return targets;
}

// Accuracy in per cent, by depth (rows) and length (columns), for each cell of
// groups that differ in their lengths only. REQUIRES: at least one group.
std::string DrawDepths(const std::vector<const GroupSummary*>& groups) {
  const GroupSummary& first = *groups.front();
  std::string lengths;
  for (const GroupSummary* group : groups) {
    absl::StrAppend(&lengths, lengths.empty() ? "" : ", ", group->num_tokens);
  }
  HeatMap map = {.title = absl::StrCat("Right answers in per cent: ",
                                       first.task, ", ", first.mode),
                 .row_name = "depth, in fifths",
                 .column_name = absl::StrCat("length: ", lengths, " tokens"),
                 .value_name = "%",
                 .num_rows = kNumDepths,
                 .num_columns = static_cast<int32_t>(groups.size()),
                 .panels = {}};
  for (size_t i = 0; i < first.cells.size(); ++i) {
    HeatMap::Panel panel = {.title = absl::StrCat(first.cells[i].target, ": ",
                                                  first.cells[i].policy),
                            .values = {}};
    for (size_t depth = 0; depth < kNumDepths; ++depth) {
      for (const GroupSummary* group : groups) {
        panel.values.push_back(static_cast<int32_t>(
            std::lround(100.0 * group->cells[i].by_depth[depth].accuracy)));
      }
    }
    map.panels.push_back(std::move(panel));
  }
  return Inline(DrawHeatMap(map));
}

bool HasDepths(const GroupSummary& group) {
  return std::ranges::all_of(
      group.cells.front().by_depth,
      [](const AnswerShare& share) { return share.num_answers > 0; });
}

// Returns a map for each task and mode with depths.
std::string DepthMaps(std::span<const GroupSummary> groups) {
  std::string html;
  std::vector<std::vector<const GroupSummary*>> maps;
  for (const GroupSummary& group : groups) {
    if (!HasDepths(group)) continue;
    const auto found = std::ranges::find_if(maps, [&group](const auto& map) {
      const GroupSummary& first = *map.front();
      return first.task == group.task && first.mode == group.mode &&
             first.cells.size() == group.cells.size();
    });
    if (found == maps.end()) {
      maps.push_back({&group});
    } else {
      found->push_back(&group);
    }
  }
  for (const auto& map : maps) absl::StrAppend(&html, DrawDepths(map));
  return html;
}

std::string TableOf(const GroupSummary& group) {
  std::string html =
      "<table><tr><th>keep<th>policy<th>accuracy<th>of the full cache's"
      "<th>KL<th>NLL<th>entries<th>KiB<th>mean entries<th>tokens/s<th>against "
      "the first "
      "policy\n";
  for (const CellSummary& cell : group.cells) {
    absl::StrAppendFormat(
        &html,
        "<tr><td>%s<td>%s<td>%s<td>%s<td>%s<td>%.3f<td>%.3f<td>%.0f<td>%.1f<td>"
        "%.0f"
        "<td>%s\n",
        EscapeXml(cell.target), EscapeXml(cell.policy), TextOf(cell.accuracy),
        TextOf(cell.accuracy_of_full), TextOf(cell.kl), cell.nll.mean,
        cell.kept_share, cell.held_bytes / 1024.0, cell.mean_entries,
        cell.tokens_per_s, cell.verdict.empty() ? "-" : cell.verdict);
  }
  return absl::StrCat(html, "</table>\n");
}

std::string SectionOf(const GroupSummary& group) {
  std::string html = absl::StrFormat(
      "<h2>%s, %d tokens, %s</h2>\n<p>%d contexts, %d answers. Intervals are "
      "of 95 %%, over contexts.</p>\n",
      EscapeXml(group.task), group.num_tokens, EscapeXml(group.mode),
      group.num_contexts, group.num_answers);
  absl::StrAppend(&html, TableOf(group),
                  DrawOverRatio(group, "Accuracy", "share of right answers",
                                /*log_y=*/false, &CellSummary::accuracy),
                  DrawOverRatio(group, "KL to the full cache's distribution",
                                "KL, nats for each token of the answer",
                                /*log_y=*/true, &CellSummary::kl));
  if (group.cells.front().by_turn.size() > 1) {
    for (const std::string& target : TargetsOf(group)) {
      absl::StrAppend(&html, DrawByTurn(group, target));
    }
  }
  return html;
}

}  // namespace

std::string HtmlReport(std::span<const GroupSummary> groups,
                       const nlohmann::ordered_json& about) {
  std::string html(kHead);
  absl::StrAppend(&html, "<table>");
  for (const auto& [name, value] : about.items()) {
    absl::StrAppend(
        &html, "<tr><th>", EscapeXml(name), "<td>",
        EscapeXml(value.is_string() ? value.get<std::string>() : value.dump()),
        "\n");
  }
  absl::StrAppend(&html, "</table>\n");
  for (const GroupSummary& group : groups) {
    absl::StrAppend(&html, SectionOf(group));
  }
  absl::StrAppend(&html, DepthMaps(groups), "</html>\n");
  return html;
}

}  // namespace blockmgr
