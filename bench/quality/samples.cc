#include "bench/quality/samples.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/read_file.h"

namespace blockmgr {
namespace {

using Json = nlohmann::ordered_json;

Json OutcomeToJson(const CellOutcome& outcome) {
  Json answers = Json::array();
  for (const AnswerOutcome& answer : outcome.answers) {
    answers.push_back({{"correct", answer.correct},
                       {"token_share", answer.token_share},
                       {"nll", answer.nll},
                       {"kl", answer.kl},
                       {"depth", answer.depth}});
  }
  return {{"kept_share", outcome.kept_share},
          {"held_bytes", outcome.held_bytes},
          {"mean_entries", outcome.mean_entries},
          {"tokens_per_s", outcome.tokens_per_s},
          {"answers", std::move(answers)}};
}

// The library throws where a field is missing or of another type.
CellOutcome OutcomeFromJson(const Json& json) {
  CellOutcome outcome;
  json.at("kept_share").get_to(outcome.kept_share);
  json.at("held_bytes").get_to(outcome.held_bytes);
  json.at("mean_entries").get_to(outcome.mean_entries);
  json.at("tokens_per_s").get_to(outcome.tokens_per_s);
  for (const Json& entry : json.at("answers")) {
    AnswerOutcome& answer = outcome.answers.emplace_back();
    entry.at("correct").get_to(answer.correct);
    entry.at("token_share").get_to(answer.token_share);
    entry.at("nll").get_to(answer.nll);
    entry.at("kl").get_to(answer.kl);
    entry.at("depth").get_to(answer.depth);
  }
  return outcome;
}

absl::Status BrokenLine(const std::string& name, int64_t number,
                        absl::string_view why) {
  return Invalid(name, ", line ", number, ": ", why);
}

// Names the fields in which a configuration is not the one that is expected.
std::string Differences(const Json& expected, const Json& got) {
  std::string text;
  for (const auto& [key, value] : expected.items()) {
    const Json other = got.is_object() ? got.value(key, Json()) : Json();
    if (other == value) continue;
    absl::StrAppend(&text, text.empty() ? "" : "; ", key, ": expected ",
                    value.dump(), ", got ", other.dump());
  }
  return absl::StrCat(text, "; name another --output");
}

}  // namespace

nlohmann::ordered_json SampleToJson(const QualitySample& sample) {
  Json cells = Json::object();
  for (size_t i = 0; i < sample.cells.size(); ++i) {
    cells[sample.cells[i]] = OutcomeToJson(sample.outcomes[i]);
  }
  return {{"task", sample.task},
          {"num_tokens", sample.num_tokens},
          {"index", sample.index},
          {"mode", sample.mode},
          {"cells", std::move(cells)}};
}

absl::StatusOr<QualitySample> SampleFromJson(
    const nlohmann::ordered_json& json) {
  QualitySample sample;
  try {
    json.at("task").get_to(sample.task);
    json.at("num_tokens").get_to(sample.num_tokens);
    json.at("index").get_to(sample.index);
    json.at("mode").get_to(sample.mode);
    for (const auto& [cell, outcome] : json.at("cells").items()) {
      sample.cells.push_back(cell);
      sample.outcomes.push_back(OutcomeFromJson(outcome));
    }
  } catch (const nlohmann::json::exception& error) {
    return Invalid("expected a sample: ", error.what());
  }
  return sample;
}

absl::StatusOr<SampleFile> SampleFile::Open(
    const std::string& name, const nlohmann::ordered_json& configuration) {
  SampleFile file;
  file.name_ = name;
  std::string before;
  if (std::filesystem::exists(name)) {
    absl::StatusOr<std::string> text = ReadFile(name);
    if (!text.ok()) {
      return absl::Status(text.status().code(),
                          absl::StrCat("--output: ", text.status().message()));
    }
    before = *std::move(text);
  }
  size_t begin = 0;  // behind all whole lines
  size_t end = 0;
  // Only the last line may have no end.
  for (int64_t number = 1;
       (end = before.find('\n', begin)) != std::string::npos; ++number) {
    const absl::string_view line =
        absl::string_view(before).substr(begin, end - begin);
    begin = end + 1;
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (number == 1) {
      if (json != configuration) {
        return BrokenLine(name, number, Differences(configuration, json));
      }
    } else {
      absl::StatusOr<QualitySample> sample = SampleFromJson(json);
      if (!sample.ok()) {
        return BrokenLine(name, number, sample.status().message());
      }
      file.samples_.push_back(*std::move(sample));
    }
  }
  // Only an unfinished last line is cut off. Whole lines stay in the file even
  // if this program ends here.
  std::error_code error;
  if (begin < before.size()) std::filesystem::resize_file(name, begin, error);
  file.file_.open(name, std::ios::binary | std::ios::app);
  if (begin == 0) file.file_ << configuration.dump() << "\n" << std::flush;
  if (error || !file.file_) {
    return absl::UnavailableError(
        absl::StrCat("--output: cannot write ", name));
  }
  return file;
}

bool SampleFile::Has(const QualitySample& sample) const {
  return std::ranges::any_of(samples_, [&sample](const QualitySample& other) {
    return other.task == sample.task && other.num_tokens == sample.num_tokens &&
           other.index == sample.index && other.mode == sample.mode;
  });
}

absl::Status SampleFile::Add(QualitySample sample) {
  file_ << SampleToJson(sample).dump() << "\n" << std::flush;
  if (!file_) {
    return absl::UnavailableError(
        absl::StrCat("--output: cannot write ", name_));
  }
  samples_.push_back(std::move(sample));
  return absl::OkStatus();
}

}  // namespace blockmgr
