// Counts per row and column as an SVG picture.
#ifndef BENCH_CHARTS_HEAT_MAP_H_
#define BENCH_CHARTS_HEAT_MAP_H_

#include <cstdint>
#include <string>
#include <vector>

namespace blockmgr {

// From white over blue to almost black; `share` in [0, 1] is clamped.
std::string HeatColor(double share);

// One grid of counts per panel, above each other, on one scale of colours from
// 0 to the greatest count.
struct HeatMap {
  struct Panel {
    std::string title;
    std::vector<int32_t> values;  // [num_rows, num_columns]
  };
  std::string title;
  std::string row_name;     // of one: "layer"
  std::string column_name;  // "KV head"
  std::string value_name;   // of many: "entries"
  int32_t num_rows = 0;
  int32_t num_columns = 0;
  std::vector<Panel> panels;
};
// REQUIRES: rows, columns and panels; values fit them and are >= 0.
std::string DrawHeatMap(const HeatMap& map);

}  // namespace blockmgr

#endif  // BENCH_CHARTS_HEAT_MAP_H_
