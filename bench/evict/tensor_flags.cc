#include "bench/evict/tensor_flags.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>

#include "bench/evict/model_file.h"
#include "bench/evict/prefixed.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"
#include "engine/tokenizer/tokenizer.h"
#include "scheduler/server/flag_checks.h"

namespace blockmgr {
namespace {

// Positions of one layer and head that 32-bit page ids can name with room.
constexpr int32_t kMaxSize = 1 << 24;
// 64 GiB of float32: a typing error, not a wish.
constexpr double kMaxSyntheticValues = 1.6e10;
// Tokens of --text that are read where nobody says.
constexpr size_t kDefaultContext = 1024;

absl::StatusOr<SyntheticShape> ParseShape(const std::string& text) {
  SyntheticShape shape;
  const std::array<int32_t*, 5> sizes = {&shape.num_layers, &shape.num_q_heads,
                                         &shape.num_heads, &shape.length,
                                         &shape.head_dim};
  const std::vector<absl::string_view> parts = absl::StrSplit(text, 'x');
  bool valid = parts.size() == sizes.size();
  for (size_t i = 0; valid && i < sizes.size(); ++i) {
    valid = absl::SimpleAtoi(parts[i], sizes[i]) && *sizes[i] >= 1 &&
            *sizes[i] <= kMaxSize;
  }
  if (!valid) {
    return Invalid(
        "--synthetic: expected LAYERSxQ_HEADSxKV_HEADSxLENGTHxDIM such as "
        "4x8x2x1024x64, got '",
        text, "'");
  }
  if (shape.num_q_heads % shape.num_heads != 0) {
    return Invalid("--synthetic: expected query heads in a multiple of the ",
                   shape.num_heads, " KV heads, got ", shape.num_q_heads);
  }
  const double values = 1.0 * shape.num_layers *
                        (shape.num_q_heads + 2 * shape.num_heads) *
                        shape.length * shape.head_dim;
  if (values > kMaxSyntheticValues) {
    return Invalid("--synthetic: expected at most ", kMaxSyntheticValues,
                   " values in all, got ", values);
  }
  return shape;
}

// The model of --model, and what it reads.
struct ModelText {
  ModelFile file;
  Tokenizer tokenizer;
  // --text, with the token that the model wants before it.
  std::vector<int32_t> tokens;
};

absl::StatusOr<ModelText> ReadModelText(const TensorFlags& flags) {
  if (flags.texts.empty()) {
    return BadFlag("--text", "a file of text for --model", "none");
  }
  BM_ASSIGN_OR_RETURN(
      ModelFile file,
      OpenModel(flags.model, flags.num_threads > 0
                                 ? flags.num_threads
                                 : ThreadPool::CountHardwareThreads()));
  BM_RETURN_IF_ERROR(CheckNoWindows("--model", *file.model));
  BM_ASSIGN_OR_RETURN(Tokenizer tokenizer, OpenTokenizer(file));
  BM_ASSIGN_OR_RETURN(const std::vector<int32_t> text,
                      ReadTexts(tokenizer, flags.texts));
  ModelText read{
      .file = std::move(file), .tokenizer = std::move(tokenizer), .tokens = {}};
  if (read.tokenizer.begin_token().has_value()) {
    read.tokens.push_back(*read.tokenizer.begin_token());
  }
  read.tokens.insert(read.tokens.end(), text.begin(), text.end());
  return read;
}

// Returns how many tokens of the text are the context, so that `behind` tokens
// follow it.
absl::StatusOr<size_t> ContextSize(const TensorFlags& flags, size_t num_tokens,
                                   size_t behind) {
  if (num_tokens <= behind) {
    return BadFlag("--text", absl::StrCat("more than ", behind, " tokens"),
                   absl::StrCat(num_tokens));
  }
  const size_t most = num_tokens - behind;
  const size_t context = Unsigned(flags.context);
  if (context > most) {
    return BadFlag("--context",
                   absl::StrCat("at most ", most, ", the tokens of --text",
                                behind > 0 ? " without those behind" : ""),
                   absl::StrCat(flags.context));
  }
  return context > 0 ? context : std::min(most, kDefaultContext);
}

// Sets the scores of the tensors, which are the context's, to KVzip's.
absl::Status AddReplayScores(const ModelText& text,
                             const std::vector<int32_t>& context,
                             Tensors* tensors) {
  const auto encode = [&](const char* prompt) {
    return text.tokenizer.Encode(prompt, /*parse_special=*/false);
  };
  BM_ASSIGN_OR_RETURN(
      std::vector<std::vector<float>> scores,
      MeasureReplayScores(
          *text.file.model, context,
          {.whole = encode("\n\nRepeat the previous context exactly.\n\n"),
           .part = encode("\n\nRepeat the part of the previous context "
                          "exactly, starting with ")},
          text.file.threads.get()));
  for (size_t layer = 0; layer < scores.size(); ++layer) {
    tensors->layers[layer].scores = std::move(scores[layer]);
  }
  return absl::OkStatus();
}

// Computes a context, and what the query behind it needs of it, unless the
// query is empty.
absl::StatusOr<ModelOracle> ComputeContext(const TensorFlags& flags,
                                           const ModelText& text,
                                           const std::vector<int32_t>& context,
                                           std::vector<int32_t> query) {
  const LanguageModel& model = *text.file.model;
  ThreadPool* threads = text.file.threads.get();
  ModelOracle oracle;
  if (query.empty()) {
    BM_ASSIGN_OR_RETURN(oracle.tensors,
                        MeasureTensors(model, context, threads));
  } else {
    BM_ASSIGN_OR_RETURN(oracle, MeasureOracle(model,
                                              {.task = "text",
                                               .context = context,
                                               .queries = {std::move(query)}},
                                              threads));
  }
  if (flags.replay) {
    BM_RETURN_IF_ERROR(AddReplayScores(text, context, &oracle.tensors));
  }
  return oracle;
}

absl::StatusOr<Tensors> ComputeTensors(const TensorFlags& flags) {
  Tensors tensors;
  BM_RETURN_IF_ERROR(VisitContexts(flags, {}, [&](ModelOracle oracle) {
    tensors = std::move(oracle.tensors);
    return absl::OkStatus();
  }));
  return tensors;
}

void AddModelFlags(CLI::App& app, TensorFlags* flags) {
  const char* group = "Tensors of a language model";
  CLI::Option* model =
      app.add_option("--model", flags->model,
                     "instead of files: q, k, v and W_O of this model, which "
                     "reads --text")
          ->type_name("FILE.gguf")
          ->group(group);
  app.add_option("--text", flags->texts, "what it reads; once per file")
      ->allow_extra_args(false)
      ->needs(model)
      ->type_name("FILE")
      ->group(group);
  app.add_option("--context", flags->context,
                 absl::StrCat("how many tokens of it, from its beginning [",
                              kDefaultContext, ", or all]"))
      ->needs(model)
      ->check(CLI::Range(1, kMaxSize))
      ->group(group);
  app.add_flag("--replay-scores", flags->replay,
               "the scores that policy external reads are KVzip's: the "
               "attention of a replay of the text")
      ->needs(model)
      ->group(group);
  app.add_option("--threads", flags->num_threads,
                 "threads of the matrix products [all]")
      ->needs(model)
      ->check(CLI::Range(1, 1024))
      ->group(group);
}

}  // namespace

void AddTensorFlags(CLI::App& app, TensorFlags* flags) {
  const auto file = [&](const char* name, std::string* path,
                        const char* about) {
    app.add_option(name, *path, about)
        ->type_name("FILE.npy")
        ->group("Tensors (floats or integers; [layers,] in front optional)");
  };
  file("--queries", &flags->paths.queries,
       "[layers,] query heads, positions, head dim; after RoPE");
  file("--raw-queries", &flags->paths.raw_queries,
       "the same before RoPE, for expected_attention; without it, --queries");
  file("--keys", &flags->paths.keys,
       "[layers,] KV heads, positions, head dim; after RoPE");
  file("--values", &flags->paths.values,
       "[layers,] KV heads, positions, head dim");
  file("--output-projection", &flags->paths.output_projection,
       "W_O by query head: [layers,] query heads, head dim, model dim");
  file("--scores", &flags->paths.scores,
       "[layers,] KV heads, positions: scores of your own, for external");
  AddModelFlags(app, flags);
  const char* group = "Tensors, made up or in general";
  app.add_option("--synthetic", flags->synthetic,
                 "instead of files: made-up tensors of this shape, with heads "
                 "from flat to sharp and a strong first token")
      ->type_name("LAYERSxQ_HEADSxKV_HEADSxLENGTHxDIM")
      ->group(group);
  app.add_option("--seed", flags->seed, "of the made-up tensors")
      ->needs(app.get_option("--synthetic"))
      ->capture_default_str()
      ->group(group);
  app.add_option("--rope-theta", flags->rope_theta,
                 "base of the rotary embedding, for expected_attention; "
                 "--model has its own")
      ->capture_default_str()
      ->check(NumberIn(1))
      ->group(group);
}

absl::StatusOr<Tensors> ReadTensors(const TensorFlags& flags) {
  const TensorPaths& paths = flags.paths;
  bool any_file = false;
  for (const std::string* path :
       {&paths.queries, &paths.raw_queries, &paths.keys, &paths.values,
        &paths.output_projection, &paths.scores}) {
    any_file = any_file || !path->empty();
  }
  const int num_sources = static_cast<int>(any_file) +
                          static_cast<int>(!flags.model.empty()) +
                          static_cast<int>(!flags.synthetic.empty());
  if (num_sources != 1) {
    return BadFlag("tensors",
                   "one of files (--queries, --keys, ..), --model and "
                   "--synthetic",
                   absl::StrCat(num_sources));
  }
  if (!flags.model.empty()) return ComputeTensors(flags);
  Tensors tensors;
  if (any_file) {
    BM_ASSIGN_OR_RETURN(tensors, LoadTensors(paths));
  } else {
    BM_ASSIGN_OR_RETURN(const SyntheticShape shape,
                        ParseShape(flags.synthetic));
    tensors = MakeSyntheticTensors(shape, flags.seed);
  }
  tensors.rope_theta = flags.rope_theta;
  return tensors;
}

absl::StatusOr<ModelOracle> ReadOracle(const TensorFlags& flags,
                                       int32_t query_tokens) {
  ModelOracle read;
  BM_RETURN_IF_ERROR(VisitContexts(flags, {.query_tokens = query_tokens},
                                   [&](ModelOracle oracle) {
                                     read = std::move(oracle);
                                     return absl::OkStatus();
                                   }));
  return read;
}

absl::Status VisitContexts(
    const TensorFlags& flags, const ContextCut& cut,
    const std::function<absl::Status(ModelOracle)>& visit) {
  if (flags.model.empty()) {
    return BadFlag("--model", "a model, whose text goes on", "none");
  }
  BM_ASSIGN_OR_RETURN(const ModelText text, ReadModelText(flags));
  const size_t behind = Unsigned(cut.query_tokens);
  BM_ASSIGN_OR_RETURN(const size_t context,
                      ContextSize(flags, text.tokens.size(), behind));
  const size_t num_contexts = Unsigned(cut.num_contexts);
  const size_t most = text.tokens.size() / (context + behind);
  if (num_contexts > most) {
    return BadFlag("--num-contexts",
                   absl::StrCat("at most ", most, ", as --text has ",
                                text.tokens.size(), " tokens"),
                   absl::StrCat(num_contexts));
  }
  const size_t stride = text.tokens.size() / num_contexts;
  for (size_t i = 0; i < num_contexts; ++i) {
    const auto begin = text.tokens.begin() + static_cast<int64_t>(i * stride);
    const auto middle = begin + static_cast<int64_t>(context);
    std::vector<int32_t> tokens(begin, middle);
    const std::optional<int32_t> first = text.tokenizer.begin_token();
    if (first.has_value()) tokens.front() = *first;
    BM_ASSIGN_OR_RETURN(ModelOracle oracle,
                        ComputeContext(flags, text, tokens,
                                       {middle, middle + cut.query_tokens}));
    BM_RETURN_IF_ERROR(visit(std::move(oracle)));
  }
  return absl::OkStatus();
}

}  // namespace blockmgr
