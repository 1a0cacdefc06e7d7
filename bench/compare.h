// Two reports side by side: what eviction (or anything else) changed.
#ifndef BENCH_COMPARE_H_
#define BENCH_COMPARE_H_

#include <string>

#include <absl/status/statusor.h>
#include <nlohmann/json_fwd.hpp>

namespace blockmgr {

// Reads a report saved by --save-result or --json. Errors name the file.
absl::StatusOr<nlohmann::ordered_json> ReadReport(const std::string& path);

// One line per number: A, B and B / A, "-" where there is none. The names head
// the columns.
std::string FormatComparison(const std::string& name_a,
                             const nlohmann::ordered_json& a,
                             const std::string& name_b,
                             const nlohmann::ordered_json& b);

}  // namespace blockmgr

#endif  // BENCH_COMPARE_H_
