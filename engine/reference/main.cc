// blockmgr-engine: the reference host engine as a program.
#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>
#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include "blockmgr/base/dtype.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/model_layout.h"
#include "blockmgr/base/run_main.h"
#include "blockmgr/base/status_macros.h"
#include "blockmgr/eviction/query_stats_table.h"
#include "blockmgr/served_model.h"
#include "engine/gguf/gguf_file.h"
#include "engine/reference/client.h"
#include "engine/reference/default_blocks.h"
#include "engine/reference/forward_pass.h"
#include "engine/reference/gguf_model.h"
#include "engine/reference/host_memory.h"
#include "engine/reference/sampler.h"
#include "engine/reference/served_gguf.h"
#include "engine/reference/sim_engine.h"
#include "engine/reference/sim_flags.h"
#include "engine/reference/stop_strings.h"
#include "engine/reference/tiny_backends.h"
#include "engine/reference/tiny_engine.h"
#include "engine/reference/tiny_model.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"
#include "program/command_line.h"
#include "program/flag_names.h"
#include "scheduler/server/default_address.h"
#include "scheduler/server/flag_checks.h"
#include "scheduler/server/library_logs.h"
#include "scheduler/server/stderr_log.h"

namespace blockmgr {
namespace {

constexpr char kAbout[] =
    "blockmgr-engine: the reference host engine.\n\n"
    "It attaches a KV pool to a running blockmgrd and executes the steps the "
    "daemon plans.\n\n"
    "  --mode tiny   a small transformer with random weights that really "
    "computes, on the CPU\n"
    "                or on a GPU (--backend cuda)\n"
    "  --mode llama  a language model from a GGUF file: llama, qwen2 or "
    "gemma3, on either\n"
    "  --mode sim    a large model of which only the step times are "
    "modelled\n\n"
    "Examples:\n"
    "  blockmgr-engine --mode tiny --reconnect\n"
    "  blockmgr-engine --mode tiny --backend cuda --cuda-decode balanced\n"
    "  blockmgr-engine --mode llama --model SmolLM2-135M-Instruct.Q4_1.gguf "
    "--threads 4\n"
    "  blockmgr-engine --mode llama --random-weights llama-3.1-8b "
    "--num-blocks 2048\n"
    "  blockmgr-engine --mode sim --time-scale 0.1 --num-blocks 4096\n";

// The smallest that has kernels.
constexpr int32_t kCudaHeadDim = 64;
// In the order of CudaBackendOptions::Decode.
constexpr std::array<absl::string_view, 3> kDecodeNames = {
    "invariant", "balanced", "chunked"};

// 64 MiB of bf16 for the default tiny model.
constexpr int32_t kTinyBlocks = 4096;
// 47 GB: what an 8B model in bf16 leaves of an 80 GB GPU.
constexpr int32_t kSimBlocks = 22528;

// A day. Daemons wait for five minutes by default.
constexpr double kMaxStepSeconds = 86400;

// The headings of flags in --help. A mode refuses the flags of others.
constexpr char kComputedGroup[] = "Models that compute (tiny, llama)";
constexpr char kTinyGroup[] = "Tiny model";
constexpr char kLlamaGroup[] = "Language model";

// Shapes of known models, with random weights.
struct RandomShape {
  absl::string_view name;
  bool tied = false;  // the output matrix is the embedding
  ModelShape shape;
};

std::vector<RandomShape> RandomShapes() {
  return {{.name = "llama-3.1-8b",
           .shape = {.num_layers = 32,
                     .num_q_heads = 32,
                     .num_heads = 8,
                     .head_dim = 128,
                     .hidden = 4096,
                     .mlp = 14336,
                     .vocabulary = 128256,
                     .rotary = {.theta = 500000.0},
                     .context_tokens = 131072}},
          {.name = "smollm2-135m",
           .tied = true,
           .shape = {.num_layers = 30,
                     .num_q_heads = 9,
                     .num_heads = 3,
                     .head_dim = 64,
                     .hidden = 576,
                     .mlp = 1536,
                     .vocabulary = 49152,
                     .rotary = {.theta = 100000.0},
                     .context_tokens = 8192}}};
}

struct Flags {
  std::string mode = "tiny";
  EngineClientOptions client;
  double attach_timeout_s = 0;
  std::optional<int32_t> num_blocks;
  uint64_t seed = 1;
  std::string dtype = "bfloat16";
  int32_t page_size = 16;
  ModelShape tiny;
  std::optional<int32_t> tiny_head_dim;
  std::string backend = "cpu";
  int32_t cuda_device = 0;
  std::string cuda_decode = "chunked";
  std::string cuda_graphs = "on";
  int32_t num_drafts = 0;
  int32_t num_threads = 1;
  std::string model_file;
  std::string served_model_name;
  std::string random_weights;
  SimModel sim;
  double time_scale = 1.0;
  int32_t num_shards = 1;
  TokenTexts token_texts;  // of the model's file; empty: not known
  std::vector<std::string> query_stats;
  QueryStatsTables query_stats_tables;  // that query_stats names
};

void AddTinyFlags(CLI::App* app, Flags* flags) {
  const auto add = [app](const char* flag, int32_t* value, const char* help) {
    app->add_option(flag, *value, help)
        ->check(CLI::Range(1, 1 << 14))
        ->capture_default_str()
        ->group(kTinyGroup);
  };
  add("--tiny-layers", &flags->tiny.num_layers, "Layers");
  add("--tiny-heads", &flags->tiny.num_heads, "KV heads of a layer");
  add("--tiny-q-heads", &flags->tiny.num_q_heads, "Query heads of a layer");
  app->add_option("--tiny-head-dim", flags->tiny_head_dim,
                  "Elements of one row (default: 32, with CUDA 64)")
      ->check(CLI::Range(1, 1 << 14))
      ->group(kTinyGroup);
  add("--tiny-hidden", &flags->tiny.hidden, "Width of the residual stream");
  add("--tiny-mlp", &flags->tiny.mlp, "Width of the MLP");
  add("--tiny-vocabulary", &flags->tiny.vocabulary, "Tokens");
  app->add_option("--tiny-windows", flags->tiny.windows,
                  "Tokens that the layers attend to, 0: all; repeated over the "
                  "layers, as in 64,64,64,0 (default: 0)")
      ->delimiter(',')
      ->check(CLI::Range(0, ModelLayout::kMaxWindow))
      ->group(kTinyGroup);
}

void AddComputedFlags(CLI::App* app, Flags* flags) {
  app->add_option("--dtype", flags->dtype, "Elements of K and V")
      ->check(CLI::IsMember(
          std::vector<std::string>(kDTypeNames.begin(), kDTypeNames.end())))
      ->capture_default_str()
      ->group(kComputedGroup);
  app->add_option("--page-size", flags->page_size, "Tokens of a page")
      ->check(CLI::Range(1, 1 << 14))
      ->capture_default_str()
      ->group(kComputedGroup);
  app->add_option("--threads", flags->num_threads,
                  "Threads that share the work on the CPU")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str()
      ->group(kComputedGroup);
  app->add_option("--drafts", flags->num_drafts,
                  "Drafts proposed after a token, by prompt lookup, for a "
                  "daemon with --num-speculative-tokens")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group(kComputedGroup);
  app->add_option("--query-stats", flags->query_stats,
                  "A table of query statistics of this model, which policies "
                  "name as expected_attention(stats=NAME): a file of "
                  "blockmgr-evict profile; may be repeated")
      ->check(Utf8Text())
      ->type_name("NAME=FILE")
      ->group(kComputedGroup);
  app->add_option("--backend", flags->backend,
                  "What computes. With cuda, the host samples only the "
                  "tokens of requests with top_k, top_p or log-probabilities")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str()
      ->group(kComputedGroup);
  app->add_option("--cuda-device", flags->cuda_device,
                  "The GPU that all shards are on")
      ->check(CLI::Range(0, INT32_MAX))
      ->capture_default_str()
      ->group(kComputedGroup);
  app->add_option(
         "--cuda-decode", flags->cuda_decode,
         "What computes a single query: chunked (bits depend neither on the "
         "batch nor on how tokens were split into steps), invariant "
         "(not on the batch) or balanced (on both; the fastest)")
      ->check(CLI::IsMember(
          std::vector<std::string>(kDecodeNames.begin(), kDecodeNames.end())))
      ->capture_default_str()
      ->group(kComputedGroup);
  app->add_option("--cuda-graphs", flags->cuda_graphs,
                  "Whether steps of one token per sequence are captured in "
                  "CUDA graphs and replayed; off: every kernel is launched by "
                  "the host (vLLM: --enforce-eager)")
      ->check(CLI::IsMember({"on", "off"}))
      ->capture_default_str()
      ->group(kComputedGroup);
}

void AddLlamaFlags(CLI::App* app, Flags* flags) {
  app->add_option("--model", flags->model_file,
                  "A GGUF file of architecture llama, qwen2 or gemma3")
      ->group(kLlamaGroup);
  app->add_option("--served-model-name", flags->served_model_name,
                  "Name of the model for gateways (default: that of the file, "
                  "without .gguf)")
      ->check(Utf8Text(kMaxModelNameBytes))
      ->group(kLlamaGroup);
  std::vector<std::string> names;
  for (const RandomShape& random : RandomShapes()) {
    names.emplace_back(random.name);
  }
  app->add_option("--random-weights", flags->random_weights,
                  "The shape of a model, to measure without its file: weights "
                  "are random, 2 bytes each")
      ->check(CLI::IsMember(names))
      ->group(kLlamaGroup);
}

void AddFlags(CLI::App* app, Flags* flags) {
  app->add_option("--mode", flags->mode, "What executes the steps")
      ->check(CLI::IsMember({"tiny", "llama", "sim"}))
      ->capture_default_str();
  app->add_option("--address", flags->client.address,
                  "Where the daemon listens: unix:PATH or HOST:PORT")
      ->default_str(DefaultAddress());
  app->add_option("--name", flags->client.engine_name,
                  "Name in the daemon's logs (default: blockmgr-engine/MODE)")
      ->check(Utf8Text());
  flags->client.abilities.num_scorer_states = 256;
  app->add_option("--scorer-states", flags->client.abilities.num_scorer_states,
                  "Sequences whose scores are accumulated at a time, for h2o "
                  "without obs_window and expected_attention without stats; "
                  "0: none")
      ->capture_default_str()
      ->check(CLI::Range(0, INT32_MAX));
  AddHostBlocksFlag(app, &flags->client.abilities.num_host_blocks);
  // All modes do.
  flags->client.abilities.supports_window_evictions = true;
  app->add_flag("--replace", flags->client.replace,
                "Take the place of an engine that is attached: what it was "
                "computing is computed again. For the daemon's own user, or "
                "root, over its unix socket");
  app->add_flag("--reconnect", flags->client.reconnect,
                "Attach again when the daemon goes away");
  app->add_option("--attach-timeout", flags->attach_timeout_s,
                  "Seconds to look for a daemon; 0: for ever")
      ->check(NumberIn(0, 1e6))
      ->capture_default_str();
  app->add_option(
         "--num-blocks", flags->num_blocks,
         "Blocks of the pool (default: 4096 for tiny, 22528 for sim, for "
         "llama what 8 sequences of the model's context need; on the CPU at "
         "most half of the memory)")
      ->check(CLI::Range(2, 1 << 30));
  AddShardsFlag(app, &flags->num_shards);
  app->add_option(
         "--seed", flags->seed,
         "Of random weights (tiny, llama), or the drawn budgets and tokens "
         "(sim)")
      ->check(AnyNumber<uint64_t>())
      ->capture_default_str();
  AddTinyFlags(app, flags);
  AddLlamaFlags(app, flags);
  AddComputedFlags(app, flags);
  AddSimModelFlags(app, &flags->sim);
  app->add_option("--time-scale", flags->time_scale,
                  "Seconds slept per modelled second; 0: as fast as possible")
      ->check(NumberIn(0, 1e6))
      ->capture_default_str()
      ->group(kSimModelGroup);
}

bool TakesGroup(absl::string_view mode, absl::string_view group) {
  if (group == kTinyGroup) return mode == "tiny";
  if (group == kLlamaGroup) return mode == "llama";
  if (group == kComputedGroup) return mode != "sim";
  return group != kSimModelGroup || mode == "sim";
}

// Refuses what only another mode, or the other backend, looks at.
absl::Status CheckModeFlags(const CLI::App& app, const Flags& flags) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0) continue;
    const std::string name = option->get_name();
    if (!TakesGroup(flags.mode, option->get_group())) {
      return Invalid(name, ": has no effect with --mode ", flags.mode);
    }
    if (flags.backend != "cuda" && absl::StartsWith(name, "--cuda-")) {
      return Invalid(name, ": has no effect without --backend cuda");
    }
    if (flags.backend == "cuda" && name == "--threads") {
      return Invalid(name, ": has no effect with --backend cuda");
    }
    if (!flags.model_file.empty() && name == "--seed") {
      return Invalid(name, ": has no effect with --model");
    }
  }
  if (flags.mode != "llama") return absl::OkStatus();
  if (flags.model_file.empty() == flags.random_weights.empty()) {
    return Invalid(
        "--model: expected either a GGUF file or --random-weights "
        "with --mode llama, got ",
        flags.model_file.empty() ? "neither" : "both");
  }
  return absl::OkStatus();
}

absl::Status FindDaemon(const CLI::App& app, Flags* flags) {
  absl::StatusOr<std::string> address = app.count("--address") > 0
                                            ? flags->client.address
                                            : DefaultDaemonAddress();
  absl::Status status = address.status();
  if (status.ok()) status = CheckDaemonAddress(*address);
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("--address: ", status.message()));
  }
  flags->client.address = *std::move(address);
  return absl::OkStatus();
}

TinyBackendOptions BackendOptions(const Flags& flags) {
  return {.cuda = flags.backend == "cuda",
          .device = flags.cuda_device,
          .decode = static_cast<CudaBackendOptions::Decode>(
              std::ranges::find(kDecodeNames, flags.cuda_decode) -
              kDecodeNames.begin())};
}

// Reads the tables of --query-stats, which must be for the model's shape, and
// has the client announce them.
absl::Status ReadQueryStats(const ModelShape& shape, Flags* flags) {
  BM_ASSIGN_OR_RETURN(flags->query_stats_tables,
                      LoadQueryStats("--query-stats", flags->query_stats));
  for (const auto& [name, table] : flags->query_stats_tables) {
    const absl::Status status =
        table->CheckShape(shape.num_layers, shape.num_q_heads, shape.head_dim);
    if (!status.ok()) {
      return Invalid("--query-stats ", name, ": ", status.message());
    }
    flags->client.abilities.query_stats[name] = QueryStatsFingerprint(*table);
  }
  return absl::OkStatus();
}

// Returns the model that computes, or null with --mode sim.
absl::StatusOr<std::shared_ptr<const LanguageModel>> MakeModel(
    const Flags& flags) {
  if (flags.mode == "sim") return nullptr;
  if (!flags.model_file.empty()) {
    BM_ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file,
                        GgufFile::Open(flags.model_file));
    absl::StatusOr<std::shared_ptr<const LanguageModel>> model =
        LoadGgufModel(*file);
    if (model.ok()) return model;
    return absl::Status(
        model.status().code(),
        absl::StrCat(flags.model_file, ": ", model.status().message()));
  }
  for (const RandomShape& random : RandomShapes()) {
    if (random.name != flags.random_weights) continue;
    return RandomModel(random.shape, flags.seed, TensorType::kBF16,
                       random.tied);
  }
  ModelShape shape = flags.tiny;
  if (flags.backend == "cuda") shape.head_dim = kCudaHeadDim;
  shape.head_dim = flags.tiny_head_dim.value_or(shape.head_dim);
  if (const absl::Status status = shape.Validate(); !status.ok()) {
    // The shape is that of flags.
    return absl::InvalidArgumentError(
        absl::StripPrefix(status.message(), "model shape: "));
  }
  return RandomModel(shape, flags.seed);
}

// Has the client announce the model of a file, with its tokenizer, and stop
// strings if the texts of its tokens are known.
absl::Status ReadServedModel(Flags* flags) {
  flags->client.model.name = flags->served_model_name;
  if (flags->model_file.empty()) return absl::OkStatus();
  BM_ASSIGN_OR_RETURN(const std::shared_ptr<const GgufFile> file,
                      GgufFile::Open(flags->model_file));
  std::string error;
  BM_ASSIGN_OR_RETURN(flags->client.model,
                      DescribeGguf(*file, flags->model_file, &error));
  if (!flags->served_model_name.empty()) {
    flags->client.model.name = flags->served_model_name;
  }
  if (!error.empty()) {
    spdlog::warn("gateways get no tokenizer of this model: {}", error);
  }
  const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Create(*file);
  if (!tokenizer.ok()) {
    spdlog::warn("stop strings are refused: {}", tokenizer.status().ToString());
    return absl::OkStatus();
  }
  flags->token_texts = tokenizer->TextsWithoutControl();
  flags->client.abilities.sampling.fields |=
      EngineSampling::BitOf(SamplingField::kStop);
  return absl::OkStatus();
}

// Names the flags behind an error of backends.
absl::Status NameBackendFlags(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("--num-blocks: ", status.message()));
  }
  if (absl::IsUnavailable(status)) {
    return absl::UnavailableError(
        absl::StrCat(status.message(), "; --backend cpu needs none"));
  }
  return status;
}

absl::Status ServeModel(const Flags& flags,
                        const std::shared_ptr<const LanguageModel>& model,
                        EngineClient* client) {
  const DType dtype = DTypeNamed(flags.dtype);
  // This process does not know how much memory a GPU has.
  const int64_t memory_bytes = flags.backend == "cpu"
                                   ? MemoryBytes()
                                   : std::numeric_limits<int64_t>::max();
  const int32_t default_blocks =
      flags.mode == "tiny"
          ? kTinyBlocks
          : DefaultBlocks(model->shape(), flags.page_size, dtype, memory_bytes);
  ModelLayout layout = MakeLayout(model->shape(), flags.page_size, dtype,
                                  flags.num_blocks.value_or(default_blocks));
  layout.num_shards = flags.num_shards;
  absl::StatusOr<std::vector<std::unique_ptr<Backend>>> backends =
      CreateTinyBackends(layout, BackendOptions(flags));
  BM_RETURN_IF_ERROR(NameBackendFlags(backends.status()));
  const int64_t pool_bytes = flags.backend == "cpu" ? layout.pool_bytes() : 0;
  BM_RETURN_IF_ERROR(
      CheckHostBlocks(layout, flags.client.abilities.num_host_blocks,
                      MemoryBytes(), ResidentBytes() + pool_bytes));
  absl::StatusOr<std::unique_ptr<ForwardPass>> forward =
      CreateTinyForward(model.get(), layout, *backends);
  BM_RETURN_IF_ERROR(NameBackendFlags(forward.status()));
  if (*forward != nullptr) {
    spdlog::info("matrix products: {}", (*forward)->device()->products());
  }
  TinyEngine engine(model, layout, *std::move(backends),
                    {.max_sequences = kMaxSequenceSlots,
                     .num_host_blocks = flags.client.abilities.num_host_blocks,
                     .max_drafts = flags.num_drafts,
                     .num_threads = flags.num_threads,
                     .query_stats = flags.query_stats_tables,
                     .token_texts = flags.token_texts,
                     .captures_graphs = flags.cuda_graphs == "on"},
                    *std::move(forward));
  bool captures = true;
  absl::Status served = client->Serve(
      layout,
      {.reset =
           [&] {
             engine.Reset();
             captures = engine.graphs().error().ok();
           },
       .run = [&](const StepPlan& plan, StepResult* result) -> absl::Status {
         BM_RETURN_IF_ERROR(engine.Run(plan, result));
         const absl::Status& error = engine.decode_error().ok()
                                         ? engine.graphs().error()
                                         : engine.decode_error();
         if (captures && !error.ok()) {
           captures = false;
           spdlog::warn(
               "no step was lost, but the host launches the kernels of "
               "decode steps one by one from now on: {}",
               error.ToString());
         }
         return absl::OkStatus();
       }});
  for (const std::string& line : engine.step_times().Lines()) {
    spdlog::info("{}", line);
  }
  if (flags.backend == "cuda") {
    spdlog::info("CUDA graphs: {} captured, replayed {} times",
                 engine.graphs().num_captures(), engine.graphs().num_replays());
  }
  return served;
}

// Waits until a step that began then has taken its time.
absl::Status Pace(std::chrono::steady_clock::time_point begin, double seconds,
                  EngineClient* client) {
  if (seconds > kMaxStepSeconds) {
    return Invalid(
        "a step would take ", seconds, " s: expected at most ", kMaxStepSeconds,
        " with --sim-layer-params, --sim-output-params, --sim-flops, "
        "--sim-bandwidth, --sim-attention-flops, --sim-attention-bandwidth, "
        "--sim-host-bandwidth, --sim-step-overhead and --time-scale");
  }
  const auto duration =
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(
          std::chrono::duration<double>(seconds));
  if (client->WaitUntil(begin + duration)) return absl::OkStatus();
  return absl::CancelledError("stopped");
}

absl::Status ServeSim(const Flags& flags, EngineClient* client) {
  SimModel model = flags.sim;
  model.num_shards = flags.num_shards;
  const ModelLayout layout =
      MakeLayout(model, flags.num_blocks.value_or(kSimBlocks));
  BM_RETURN_IF_ERROR(flags.sim.Validate());
  BM_RETURN_IF_ERROR(layout.Validate());
  SimEngine engine(layout, model, flags.seed,
                   flags.client.abilities.num_host_blocks);
  return client->Serve(
      layout,
      {.reset = [&] { engine.Reset(); },
       .run = [&](const StepPlan& plan, StepResult* result) -> absl::Status {
         const auto begin = std::chrono::steady_clock::now();
         BM_ASSIGN_OR_RETURN(const double seconds, engine.TryRun(plan, result));
         return Pace(begin, seconds * flags.time_scale, client);
       }});
}

// Stops the client at the first of `signals`, which every thread blocks. The
// client computes the step under way to its end, which may take minutes. From
// then on this thread no longer blocks them: a second one ends the process.
void WatchSignals(const std::stop_token& stop, const sigset_t& signals,
                  EngineClient* client) {
  const timespec period{.tv_sec = 0, .tv_nsec = 100'000'000};
  int signal = 0;
  while (!stop.stop_requested() && signal <= 0) {
    signal = sigtimedwait(&signals, nullptr, &period);
  }
  if (signal <= 0) return;
  spdlog::info("signal {}, detaching after this step; a second one ends it",
               signal);
  client->Stop();
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  while (!stop.stop_requested()) nanosleep(&period, nullptr);
}

// Returns the fields of the model that flags set in a mode. The daemon names
// them as members of "layout".
FieldFlags ModelFields(const CLI::App& app, const std::string& mode) {
  FieldFlags fields = {{"device", "--cuda-device"},
                       {"engine_name", "--name"},
                       {"model.name", "--served-model-name"}};
  if (mode == "sim") fields.merge(FieldsBehind(app, "--sim-"));
  if (mode == "tiny") {
    fields.merge(FieldsBehind(app, "--tiny-"));
    fields.emplace("group_windows", "--tiny-windows");
  }
  for (const auto& [field, flag] : FieldsBehind(app, "--")) {
    fields.try_emplace(field, flag);
  }
  for (const auto& [field, flag] : FieldFlags(fields)) {
    fields.try_emplace(absl::StrCat("layout.", field), flag);
  }
  return fields;
}

// Logs an error with the flags named, and returns the exit status.
int Fail(const CLI::App& app, const Flags& flags, const absl::Status& error) {
  const std::string named =
      NameFlags(app, error.message(), ModelFields(app, flags.mode));
  spdlog::error("{}", absl::Status(error.code(), named).ToString());
  return 1;
}

int Main(int argc, char** argv) {
  LogToStderr("blockmgr-engine");
  RouteLibraryLogs();
  Flags flags;
  flags.client.engine_name.clear();
  CLI::App app(kAbout, "blockmgr-engine");
  AddFlags(&app, &flags);
  if (const std::optional<int> status = ParseCommandLine(&app, argc, argv)) {
    return *status;
  }
  spdlog::info("{}", ProgramVersion("blockmgr-engine"));
  absl::Status valid = CheckModeFlags(app, flags);
  if (valid.ok()) valid = FindDaemon(app, &flags);
  if (!valid.ok()) return Fail(app, flags, valid);
  if (flags.client.engine_name.empty()) {
    flags.client.engine_name = "blockmgr-engine/" + flags.mode;
  }
  // Rounded up: no milliseconds are for ever.
  flags.client.attach_timeout = std::chrono::ceil<std::chrono::milliseconds>(
      std::chrono::duration<double>(flags.attach_timeout_s));

  // Takes a while, so before signals are blocked.
  const absl::StatusOr<std::shared_ptr<const LanguageModel>> model =
      MakeModel(flags);
  absl::Status ready = model.status();
  if (ready.ok() && *model != nullptr) {
    const ModelShape& shape = (*model)->shape();
    ready = ReadQueryStats(shape, &flags);
    flags.client.abilities.sampling = {.fields = Sampler::kFields,
                                       .vocabulary_size = shape.vocabulary,
                                       .end_token_ids = shape.end_tokens};
  }
  if (ready.ok()) ready = ReadServedModel(&flags);
  if (!ready.ok()) return Fail(app, flags, ready);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  // Before any thread exists, so that all inherit it.
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  EngineClient client(flags.client);
  const std::jthread watcher(WatchSignals, signals, &client);
  absl::Status status;
  try {
    status = flags.mode == "sim" ? ServeSim(flags, &client)
                                 : ServeModel(flags, *model, &client);
  } catch (const std::exception& error) {
    status = absl::InternalError(error.what());
  }
  if (!status.ok()) return Fail(app, flags, status);
  spdlog::info("detached");
  return 0;
}

}  // namespace
}  // namespace blockmgr

int main(int argc, char** argv) {
  return blockmgr::RunMain(&blockmgr::Main, argc, argv);
}
