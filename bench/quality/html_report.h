// The report of `blockmgr-bench quality` as one HTML page with pictures in it,
// which fetches nothing and runs nothing.
#ifndef BENCH_QUALITY_HTML_REPORT_H_
#define BENCH_QUALITY_HTML_REPORT_H_

#include <span>
#include <string>

#include <nlohmann/json.hpp>

#include "bench/quality/summary.h"

namespace blockmgr {

// Of every group: accuracy and KL over the fraction that is kept, with bands of
// 95 %, accuracy by turn, and the table. Of every task with several lengths or
// depths: a map of depth and length for each cell. `about` says what was
// measured, as names and values.
std::string HtmlReport(std::span<const GroupSummary> groups,
                       const nlohmann::ordered_json& about);

}  // namespace blockmgr

#endif  // BENCH_QUALITY_HTML_REPORT_H_
