#include "bench/quality/quality.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <span>
#include <utility>

#include <absl/strings/escaping.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>

#include "bench/quality/html_report.h"
#include "bench/quality/measure.h"
#include "bench/quality/model_line.h"
#include "bench/quality/samples.h"
#include "bench/quality/summary.h"
#include "blockmgr/base/dtype.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "blockmgr/eviction/table_bytes.h"
#include "engine/gguf/gguf_file.h"
#include "engine/reference/gguf_model.h"
#include "engine/tokenizer/tokenizer.h"
#include "program/command_line.h"
#include "program/output_file.h"
#include "program/progress.h"
#include "scheduler/server/flag_checks.h"

namespace blockmgr {
namespace {

using Json = nlohmann::ordered_json;

constexpr int32_t kPageTokens = 16;
constexpr int64_t kDefaultNumPrompts = 20;  // of each task and length
// Questions and answers behind a context, at most, unless the prompts are the
// user's.
constexpr int64_t kMostTurnTokens = 4096;

// All prompts of one task and length, and the cells of one mode.
struct Job {
  std::string task;
  int32_t length = 0;  // of contexts; 0: the user's prompts
  std::vector<QualityCell> cells;

  QualitySample Sample(uint64_t index) const {
    return {.task = task,
            .num_tokens = length,
            .index = index,
            .mode = cells.front().mode.ToString(),
            .cells = {},
            .outcomes = {}};
  }
  std::string CellName(const QualityCell& cell) const {
    return absl::StrCat(task, "/", length, "/", cell.name());
  }
};

// Leaves out the cells that --cells does not name, and jobs without cells.
absl::Status KeepCells(const std::string& only, std::vector<Job>* jobs) {
  for (Job& job : *jobs) {
    std::erase_if(job.cells, [&](const QualityCell& cell) {
      return !absl::StrContains(job.CellName(cell), only);
    });
  }
  const std::string example = jobs->empty() ? "" : jobs->front().task;
  std::erase_if(*jobs, [](const Job& job) { return job.cells.empty(); });
  if (!jobs->empty()) return absl::OkStatus();
  return Invalid("--cells: expected a part of the name of a cell, as in ",
                 example, "/512/agnostic/0.2/keydiff, got '", only, "'");
}

absl::StatusOr<std::vector<Job>> MakeJobs(
    const QualityOptions& options, const std::vector<QualityCell>& cells) {
  std::vector<Job> of_modes;
  for (const QualityCell& cell : cells) {
    if (of_modes.empty() || of_modes.back().cells.back().mode != cell.mode) {
      of_modes.emplace_back();
    }
    of_modes.back().cells.push_back(cell);
  }
  std::vector<Job> jobs;
  const auto add = [&](const std::string& task, int32_t length) {
    for (const Job& mode : of_modes) {
      jobs.push_back({.task = task, .length = length, .cells = mode.cells});
    }
  };
  if (!options.prompts.empty()) {
    add("prompts", 0);
  } else {
    for (const int32_t length : options.lengths) {
      // The context has whole pages and a token (PromptOf).
      if (length % kPageTokens == 0) continue;
      return Invalid("--lengths: expected multiples of ", kPageTokens, ", got ",
                     length);
    }
    for (const std::string& task : options.tasks) {
      for (const int32_t length : options.lengths) add(task, length);
    }
  }
  BM_RETURN_IF_ERROR(KeepCells(options.only, &jobs));
  return jobs;
}

std::string FingerprintOf(const std::vector<QualityPrompt>& prompts) {
  std::string all;
  const auto add = [&all](const std::vector<int32_t>& tokens) {
    absl::StrAppend(&all, ContentHash({std::as_bytes(std::span(tokens))}));
  };
  for (const QualityPrompt& prompt : prompts) {
    add(prompt.context);
    for (const QualityTurn& turn : prompt.turns) {
      for (const auto* tokens :
           {&turn.question, &turn.follow_up, &turn.lead, &turn.answer}) {
        add(*tokens);
      }
    }
  }
  return ContentHash({std::as_bytes(std::span(all))});
}

std::string FingerprintOf(std::span<const GgufTensor> tensors) {
  std::string all;
  for (const GgufTensor& tensor : tensors) {
    absl::StrAppend(&all, tensor.name, " ", ContentHash({tensor.data}), "\n");
  }
  return ContentHash({std::as_bytes(std::span(all))});
}

// All that a sample depends on, besides its own key: its times depend on the
// build and the threads, too.
Json ConfigurationOf(const QualityOptions& options,
                     const QualitySubject& subject,
                     const std::vector<QualityPrompt>& prompts,
                     const std::vector<QualityCell>& cells,
                     const QueryStatsTables& query_stats) {
  Json names = Json::array();
  Json tables = Json::object();
  for (const QualityCell& cell : cells) {
    names.push_back(cell.name());
    if (cell.eviction.table != nullptr) {
      tables[cell.policy] = TableFingerprint(*cell.eviction.table);
    }
  }
  for (const auto& [name, table] : query_stats) {
    tables[name] = QueryStatsFingerprint(*table);
  }
  // Fingerprints are bytes.
  for (auto& [name, fingerprint] : tables.items()) {
    fingerprint = absl::BytesToHexString(fingerprint.get<std::string>());
  }
  return {{"version", ProgramVersion("blockmgr-bench")},
          {"threads", options.num_threads},
          {"model", subject.model_name},
          {"weights", subject.model_fingerprint},
          {"filler", subject.source.filler.fingerprint},
          {"prompts", options.prompts},
          {"prompts_content", FingerprintOf(prompts)},
          {"system", options.system},
          {"seed", options.seed},
          {"turns", options.turns},
          {"continuation_tokens", options.continuation_tokens},
          {"dtype", options.dtype},
          {"only", options.only},
          {"cells", std::move(names)},
          {"tables", std::move(tables)}};
}

// Measures all jobs, prompt by prompt, so that all cells have as many samples
// if it is interrupted.
class QualityRun {
 public:
  static absl::StatusOr<std::unique_ptr<QualityRun>> Create(
      const QualityOptions& options, const QualitySubject& subject);

  absl::Status Measure();
  // Returns the report, and writes it as a page.
  absl::StatusOr<Json> Report(double seconds) const;

 private:
  QualityRun(const QualityOptions& options, const QualitySubject& subject)
      : options_(options), subject_(subject) {}

  absl::Status MakeLine(const QueryStatsTables& query_stats);
  absl::StatusOr<QualityPrompt> PromptOf(const Job& job, uint64_t index) const;
  absl::Status MeasureSample(const Job& job, uint64_t index,
                             Progress* progress);
  int64_t num_prompts() const {
    return options_.num_prompts.value_or(
        prompts_.empty() ? kDefaultNumPrompts : std::ssize(prompts_));
  }

  const QualityOptions& options_;
  const QualitySubject& subject_;
  std::vector<QualityPrompt> prompts_;  // the user's
  std::vector<Job> jobs_;
  std::unique_ptr<ModelLine> line_;
  std::unique_ptr<SampleFile> file_;
  Json configuration_;
  int64_t num_done_ = 0;  // cells
};

absl::Status QualityRun::MakeLine(const QueryStatsTables& query_stats) {
  int64_t most = 0;
  for (const int32_t length : options_.lengths) {
    most = std::max<int64_t>(most, length);
  }
  most += kMostTurnTokens;
  for (const QualityPrompt& prompt : prompts_) {
    auto num_tokens = std::ssize(prompt.context);
    for (const QualityTurn& turn : prompt.turns) {
      num_tokens += std::ssize(turn.question) + std::ssize(turn.follow_up) +
                    std::ssize(turn.lead) + std::ssize(turn.answer);
    }
    most = std::max<int64_t>(most, num_tokens);
  }
  // The full cache, what is being compressed, and the result.
  const int64_t num_blocks = 3 * (most / kPageTokens + 2) + 1;
  BM_ASSIGN_OR_RETURN(
      line_, ModelLine::Create({.model = subject_.model,
                                .dtype = DTypeNamed(options_.dtype),
                                .page_size = kPageTokens,
                                .num_blocks = static_cast<int32_t>(num_blocks),
                                .num_threads = options_.num_threads,
                                .query_stats = query_stats}));
  for (const Job& job : jobs_) {
    for (const QualityCell& cell : job.cells) {
      const absl::Status valid = line_->ValidateEviction(cell.eviction);
      if (!valid.ok()) {
        return Invalid(cell.name(), ": ", valid.message());
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<QualityRun>> QualityRun::Create(
    const QualityOptions& options, const QualitySubject& subject) {
  // The constructor is private.
  std::unique_ptr<QualityRun> run(new QualityRun(options, subject));
  BM_ASSIGN_OR_RETURN(const BudgetTables tables,
                      LoadBudgetTables(options.budget_tables));
  BM_ASSIGN_OR_RETURN(const QueryStatsTables query_stats,
                      LoadQueryStats("--query-stats", options.query_stats));
  const ModelShape& shape = subject.model->shape();
  for (const auto& [name, table] : query_stats) {
    const absl::Status valid =
        table->CheckShape(shape.num_layers, shape.num_q_heads, shape.head_dim);
    if (!valid.ok()) {
      return Invalid("--query-stats ", name, ": ", valid.message());
    }
  }
  BM_ASSIGN_OR_RETURN(const std::vector<QualityCell> cells,
                      MakeCells(options.cells, tables));
  if (!options.prompts.empty()) {
    BM_ASSIGN_OR_RETURN(run->prompts_,
                        ReadQualityPrompts(subject.source, options.prompts));
    if (run->num_prompts() > std::ssize(run->prompts_)) {
      return Invalid("--num-prompts: expected at most ", run->prompts_.size(),
                     ", the prompts of ", options.prompts, ", got ",
                     run->num_prompts());
    }
  }
  BM_ASSIGN_OR_RETURN(run->jobs_, MakeJobs(options, cells));
  BM_RETURN_IF_ERROR(run->MakeLine(query_stats));
  // A task or a length that does not work must show before hours of work.
  for (const Job& job : run->jobs_) {
    BM_RETURN_IF_ERROR(run->PromptOf(job, 0).status());
  }
  run->configuration_ =
      ConfigurationOf(options, subject, run->prompts_, cells, query_stats);
  BM_ASSIGN_OR_RETURN(
      SampleFile file,
      SampleFile::Open(absl::StrCat(options.output, "/samples.jsonl"),
                       run->configuration_));
  run->file_ = std::make_unique<SampleFile>(std::move(file));
  return run;
}

absl::StatusOr<QualityPrompt> QualityRun::PromptOf(const Job& job,
                                                   uint64_t index) const {
  if (!prompts_.empty()) return prompts_[index];
  // A compression leaves the last token, and what does not fill a page, as it
  // is. So contexts have one token more than whole pages.
  return MakeQualityPrompt(subject_.source,
                           {.task = job.task,
                            .num_tokens = job.length + 1,
                            .num_turns = options_.turns,
                            .continuation_tokens = options_.continuation_tokens,
                            .index = index,
                            .seed = options_.seed});
}

absl::Status QualityRun::MeasureSample(const Job& job, uint64_t index,
                                       Progress* progress) {
  BM_ASSIGN_OR_RETURN(const QualityPrompt prompt, PromptOf(job, index));
  QualitySample sample = job.Sample(index);
  sample.cells = {"full"};
  for (const QualityCell& cell : job.cells) sample.cells.push_back(cell.name());
  absl::StatusOr<std::vector<CellOutcome>> outcomes =
      MeasurePrompt(prompt, job.cells, line_.get(),
                    [&] { progress->Update(++num_done_, 0); });
  if (!outcomes.ok()) {
    return absl::Status(outcomes.status().code(),
                        absl::StrCat(job.task, ", prompt ", index, ": ",
                                     outcomes.status().message()));
  }
  sample.outcomes = *std::move(outcomes);
  return file_->Add(std::move(sample));
}

absl::Status QualityRun::Measure() {
  // Samples that are there already do not count, so that the time left is
  // right.
  int64_t num_cells = 0;
  for (const Job& job : jobs_) {
    for (int64_t i = 0; i < num_prompts(); ++i) {
      if (file_->Has(job.Sample(static_cast<uint64_t>(i)))) continue;
      num_cells += std::ssize(job.cells);
    }
  }
  Progress progress(num_cells, !options_.disable_tqdm, "cell");
  for (int64_t i = 0; i < num_prompts(); ++i) {
    for (const Job& job : jobs_) {
      const auto index = static_cast<uint64_t>(i);
      if (file_->Has(job.Sample(index))) continue;
      BM_RETURN_IF_ERROR(MeasureSample(job, index, &progress));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Json> QualityRun::Report(double seconds) const {
  Json about = {{"version", ProgramVersion("blockmgr-bench")},
                {"configuration", configuration_},
                {"num_threads", options_.num_threads},
                {"seconds", seconds}};
  const std::vector<GroupSummary> groups = Summarize(file_->samples());
  BM_RETURN_IF_ERROR(WriteOutputFiles(
      {{"--output", absl::StrCat(options_.output, "/report.html"),
        HtmlReport(groups, about)}}));
  Json report = std::move(about);
  report["groups"] = SummaryToJson(groups);
  report["table"] = SummaryTable(groups);
  return report;
}

// The flags of the model and of what policies read.
void AddModelFlags(CLI::App* app, QualityOptions* options) {
  app->add_option("--query-stats", options->query_stats,
                  "A table of query statistics, which policies name as "
                  "expected_attention(stats=NAME); may be repeated")
      ->type_name("NAME=FILE");
  app->add_option("--budget-table", options->budget_tables,
                  "A table that headkv or lukv names; may be repeated")
      ->type_name("NAME=FILE");
  app->add_option("--dtype", options->dtype, "Elements of K and V")
      ->check(CLI::IsMember(
          std::vector<std::string>(kDTypeNames.begin(), kDTypeNames.end())))
      ->capture_default_str();
  app->add_option("--threads", options->num_threads,
                  "Threads of the matrix products")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

}  // namespace

void AddQualityFlags(CLI::App* app, QualityOptions* options) {
  app->add_option("--model", options->model,
                  "A GGUF file of architecture llama, qwen2 or gemma3")
      ->required();
  const auto list = [app](const char* flag, auto* values, const char* help) {
    return app->add_option(flag, *values, help)
        ->delimiter(',')
        ->capture_default_str();
  };
  list("--tasks", &options->tasks, "What is asked, separated by commas")
      ->check(CLI::IsMember(QualityTasks()));
  list("--lengths", &options->lengths, "Tokens of the contexts")
      ->check(CLI::Range(32, 1 << 20));
  list(
      "--modes", &options->cells.modes,
      "When the cache is compressed: at the end of the prompt with the "
      "question (aware), or of the context (agnostic); also every-chunk=TOKENS "
      "and decode=TOKENS");
  app->add_option("--policy", options->cells.policies,
                  "What is kept; repeated: the others are compared with the "
                  "first")
      ->capture_default_str();
  list("--keep-ratios", &options->cells.keep_ratios, "Fractions to keep");
  list("--keep-tokens", &options->cells.keep_tokens,
       "Tokens per head to keep, besides the fractions");
  app->add_option("--cells", options->only,
                  "Only cells whose name has this text, as "
                  "fact/512/agnostic/0.2");
  CLI::Option* const prompts =
      app->add_option("--prompts", options->prompts,
                      "Prompts of your own instead of --tasks: lines of JSON "
                      "with context, questions and answers")
          ->type_name("FILE.jsonl");
  app->add_option("--num-prompts", options->num_prompts,
                  absl::StrCat("Prompts of each task and length [default: ",
                               kDefaultNumPrompts,
                               "], or the first ones of --prompts [default: "
                               "all]"))
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  app->add_option("--turns", options->turns,
                  "Questions about each context, one after the other, with "
                  "needle, fact and multikey")
      ->check(CLI::Range(1, 16))
      ->capture_default_str();
  app->add_option("--continuation-tokens", options->continuation_tokens,
                  "Tokens that follow a context, with continuation")
      ->check(CLI::Range(1, static_cast<int32_t>(kMostTurnTokens) - 1))
      ->capture_default_str();
  app->add_option("--seed", options->seed, "Of the prompts")
      ->check(AnyNumber<uint64_t>())
      ->capture_default_str();
  app->add_option("--system", options->system, "The system text of chats")
      ->capture_default_str();
  app->add_option("--filler", options->filler,
                  "Files with the text around what is asked for (default: "
                  "documentation of this machine's packages)");
  app->add_option("--output", options->output,
                  "A folder for samples.jsonl, from which an interrupted "
                  "measurement goes on, report.json and report.html")
      ->capture_default_str();
  app->add_flag("--disable-tqdm", options->disable_tqdm, "No progress bar");
  app->add_flag("--json", options->json, "Print the report as JSON");
  AddModelFlags(app, options);
  // These flags shape the prompts that this program makes. A file of prompts
  // leaves them without effect.
  for (const char* flag : {"--tasks", "--lengths", "--turns",
                           "--continuation-tokens", "--seed", "--filler"}) {
    prompts->excludes(app->get_option(flag));
  }
}

absl::StatusOr<nlohmann::ordered_json> MeasureQuality(
    const QualityOptions& options, const QualitySubject& subject) {
  const auto begin = std::chrono::steady_clock::now();
  for (const char* name : {"samples.jsonl", "report.html", "report.json"}) {
    BM_RETURN_IF_ERROR(
        PrepareOutputFile("--output", absl::StrCat(options.output, "/", name)));
  }
  BM_ASSIGN_OR_RETURN(const std::unique_ptr<QualityRun> run,
                      QualityRun::Create(options, subject));
  BM_RETURN_IF_ERROR(run->Measure());
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - begin;
  BM_ASSIGN_OR_RETURN(Json report, run->Report(took.count()));
  BM_RETURN_IF_ERROR(WriteOutputFiles(
      {{"--output", absl::StrCat(options.output, "/report.json"),
        report.dump(1)}}));
  return report;
}

absl::Status RunQuality(const QualityOptions& options) {
  BM_ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file,
                      GgufFile::Open(options.model));
  absl::StatusOr<std::shared_ptr<const LanguageModel>> model =
      LoadGgufModel(*file);
  if (!model.ok()) {
    return absl::Status(
        model.status().code(),
        absl::StrCat(options.model, ": ", model.status().message()));
  }
  BM_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Create(*file));
  BM_ASSIGN_OR_RETURN(const absl::string_view chat_template,
                      tokenizer.chat_template());
  QualitySubject subject;
  subject.model_name = std::filesystem::path(options.model).filename().string();
  subject.model_fingerprint = FingerprintOf(file->tensors());
  subject.model = *std::move(model);
  subject.source.encode = [&tokenizer](absl::string_view text) {
    return tokenizer.Encode(text, /*parse_special=*/false);
  };
  BM_ASSIGN_OR_RETURN(subject.source.chat,
                      MakeChatTokens(chat_template, options.system,
                                     [&tokenizer](absl::string_view text) {
                                       return tokenizer.Encode(
                                           text, /*parse_special=*/true);
                                     }));
  if (options.prompts.empty()) {
    BM_ASSIGN_OR_RETURN(subject.source.filler,
                        ReadFiller(options.filler.empty() ? DocumentationFiles()
                                                          : options.filler));
  }
  BM_ASSIGN_OR_RETURN(const Json report, MeasureQuality(options, subject));
  absl::PrintF("%s\n", options.json ? report.dump(1)
                                    : report["table"].get<std::string>());
  return absl::OkStatus();
}

}  // namespace blockmgr
