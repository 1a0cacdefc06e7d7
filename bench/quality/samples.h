// Samples: what was measured, one line of JSON for each prompt and mode, in a
// file that an interrupted measurement goes on from.
//
// The first line says what is measured (a configuration). A file of another
// configuration is refused. A last line that was cut off is dropped.
#ifndef BENCH_QUALITY_SAMPLES_H_
#define BENCH_QUALITY_SAMPLES_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <nlohmann/json.hpp>

#include "bench/quality/measure.h"

namespace blockmgr {

struct QualitySample {
  std::string task;
  int32_t num_tokens = 0;  // of the context
  uint64_t index = 0;      // of the prompt
  std::string mode;
  // By cell: "full", then the names of the cells (QualityCell::name), each with
  // its outcome.
  std::vector<std::string> cells;
  std::vector<CellOutcome> outcomes;

  friend bool operator==(const QualitySample&, const QualitySample&) = default;
};

nlohmann::ordered_json SampleToJson(const QualitySample& sample);
// Errs if a field is missing or of another type.
absl::StatusOr<QualitySample> SampleFromJson(
    const nlohmann::ordered_json& json);

// A file of samples, open for more. Thread-compatible.
class SampleFile {
 public:
  // Opens or makes the file. Errs if it cannot be read or written, if it is of
  // another configuration, or if a line before the last is broken.
  static absl::StatusOr<SampleFile> Open(
      const std::string& name, const nlohmann::ordered_json& configuration);

  // Returns what the file has had when it was opened, and what was added.
  const std::vector<QualitySample>& samples() const { return samples_; }
  // Returns whether there is a sample of this prompt in this mode.
  bool Has(const QualitySample& sample) const;
  // Writes a line at once.
  absl::Status Add(QualitySample sample);

 private:
  SampleFile() = default;

  std::string name_;
  std::ofstream file_;
  std::vector<QualitySample> samples_;
};

}  // namespace blockmgr

#endif  // BENCH_QUALITY_SAMPLES_H_
