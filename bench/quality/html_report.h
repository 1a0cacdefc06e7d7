// The report of `blockmgr-bench quality` as one HTML page with pictures in it,
// which fetches nothing and runs nothing.
#ifndef BENCH_QUALITY_HTML_REPORT_H_
#define BENCH_QUALITY_HTML_REPORT_H_

#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "bench/quality/summary.h"

namespace blockmgr {

// Returns a page that needs no other file. Each group gets charts of accuracy
// and KL over the fraction that is kept, with bands of 95 %, a chart of
// accuracy by turn, and a table. Each cell of a task with several lengths or
// depths gets a map of depth and length. `about` says what was measured, as
// names and values.
std::string HtmlReport(std::span<const GroupSummary> groups,
                       const nlohmann::ordered_json& about);

}  // namespace blockmgr

#endif  // BENCH_QUALITY_HTML_REPORT_H_
