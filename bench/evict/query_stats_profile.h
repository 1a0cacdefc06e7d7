// blockmgr-evict profile --query-stats: measures the table of query statistics
// that expected_attention(stats=NAME) reads.
#ifndef BENCH_EVICT_QUERY_STATS_PROFILE_H_
#define BENCH_EVICT_QUERY_STATS_PROFILE_H_

#include <string>

#include <absl/status/statusor.h>

#include "bench/evict/profile.h"
#include "blockmgr/eviction/query_stats_table.h"

namespace blockmgr {

// Returns the statistics of the queries of --raw-queries, or of the model of
// --model or --tiny on its texts. The first --sinks positions of every text are
// left out; the default is n_sink of expected_attention. Errors name the flag
// or file, expected and got.
absl::StatusOr<QueryStatsTable> MeasureQueryStats(const ProfileFlags& flags);

// Returns a table for people: for each head how much of the mean square of its
// queries is the square of their mean. The nearer to 100 %, the more alike the
// queries are. REQUIRES: valid.
std::string QueryStatsText(const QueryStatsTable& table);

// Measures the table, writes it to --query-stats and returns its text.
absl::StatusOr<std::string> RunQueryStats(const ProfileFlags& flags);

}  // namespace blockmgr

#endif  // BENCH_EVICT_QUERY_STATS_PROFILE_H_
