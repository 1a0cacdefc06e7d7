#include "bench/evict/calibration_prompts.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>

#include "bench/evict/prefixed.h"
#include "bench/serve/chat_prompt.h"
#include "blockmgr/base/bits.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr absl::string_view kTextTask = "text";
constexpr absl::string_view kSystem = "You are a helpful AI assistant.";
constexpr absl::string_view kInstruction =
    "Here is a text. Some facts are hidden in it. Read it and answer the "
    "question after it.\n\n";
// Stands for the text and the question in a chat message.
constexpr absl::string_view kMarker = "<<text>>";
// A context of which less is text is no text with facts in it.
constexpr int32_t kMinTextTokens = 32;

// One kind of fact: before + subject + between + value + ".". The question is
// question + subject + question_end.
struct FactKind {
  absl::string_view task;
  absl::string_view before;
  absl::string_view between;
  absl::string_view question;
  absl::string_view question_end;
  std::array<absl::string_view, 24> subjects;
  // Empty: the value is a number of so many digits.
  std::array<absl::string_view, 24> values;
  int32_t digits = 0;
};

constexpr std::array<absl::string_view, 24> kNames = {
    "Hannah",  "Omar",   "Ingrid", "Pavel", "Lucia",   "Kenji",
    "Abigail", "Tomas",  "Zainab", "Erik",  "Valeria", "Dmitri",
    "Naomi",   "Felix",  "Yasmin", "Oscar", "Beatrix", "Hugo",
    "Leila",   "Marcus", "Sofia",  "Anton", "Greta",   "Rafael"};
constexpr std::array<absl::string_view, 24> kAnimals = {
    "otter",  "badger", "heron",   "lynx",   "tortoise", "falcon",
    "beaver", "gecko",  "walrus",  "camel",  "hedgehog", "raven",
    "salmon", "zebra",  "octopus", "donkey", "panther",  "goose",
    "rabbit", "whale",  "koala",   "spider", "penguin",  "moose"};
constexpr std::array<absl::string_view, 24> kTeams = {
    "the red team",     "the night shift",  "the library",
    "the garden club",  "the orchestra",    "the second floor",
    "the bakery",       "the harbour",      "the chess club",
    "the workshop",     "the museum",       "the rowing team",
    "the laboratory",   "the print shop",   "the post office",
    "the observatory",  "the blue team",    "the theatre",
    "the kitchen",      "the archive",      "the school choir",
    "the fire station", "the running club", "the greenhouse"};
constexpr std::array<absl::string_view, 24> kThings = {
    "wooden chair", "copper kettle", "green lamp",     "leather bag",
    "garden spade", "silver spoon",  "travel clock",   "wool blanket",
    "glass bowl",   "paper kite",    "brass trumpet",  "rain coat",
    "iron gate",    "straw hat",     "tennis racket",  "clay pot",
    "desk drawer",  "picture frame", "bicycle basket", "silk scarf",
    "oak table",    "tin whistle",   "camping stove",  "velvet curtain"};
constexpr std::array<absl::string_view, 24> kTopics = {
    "recycling", "taxes",     "holidays",  "safety",     "parking",
    "the roof",  "hiring",    "the menu",  "training",   "insurance",
    "the fair",  "transport", "new tools", "cleaning",   "the budget",
    "music",     "heating",   "painting",  "deliveries", "security",
    "the party", "printing",  "lighting",  "exports"};

constexpr std::array<FactKind, 4> kFacts = {{
    {"animals", "The favourite animal of ", " is the ",
     "What is the favourite animal of ", "?", kNames, kAnimals},
    {"codes",
     "The door code of ",
     " is ",
     "What is the door code of ",
     "?",
     kTeams,
     {},
     5},
    {"prices",
     "The ",
     " costs $",
     "How much does the ",
     " cost?",
     kThings,
     {},
     3},
    {"rooms",
     "The meeting about ",
     " takes place in room ",
     "In which room does the meeting about ",
     " take place?",
     kTopics,
     {},
     3},
}};

class Random {
 public:
  explicit Random(uint64_t counter) : counter_(counter) {}
  // Returns a number in [0, n).
  int32_t Below(int32_t n) {
    return static_cast<int32_t>(SplitMix64(++counter_) %
                                static_cast<uint64_t>(n));
  }

 private:
  uint64_t counter_;
};

Random RandomOf(const CalibrationPromptOptions& options, int32_t context) {
  return Random(SplitMix64(options.seed) +
                (static_cast<uint64_t>(context) << 32));
}

void Append(const std::vector<int32_t>& tokens, std::vector<int32_t>* all) {
  all->insert(all->end(), tokens.begin(), tokens.end());
}

// A chat format puts these tokens before the text, and this text after the
// question.
struct ChatFrame {
  std::vector<int32_t> before;
  std::string after;
};

absl::StatusOr<ChatFrame> FrameOf(const Tokenizer& tokenizer) {
  absl::StatusOr<absl::string_view> chat = tokenizer.chat_template();
  if (!chat.ok()) return Prefixed("--model", chat.status());
  absl::StatusOr<std::string> prompt =
      ChatPrompt(*chat, kSystem, absl::StrCat(kInstruction, kMarker));
  if (!prompt.ok()) return Prefixed("--model", prompt.status());
  const size_t at = prompt->find(std::string(kMarker));
  ChatFrame frame;
  if (tokenizer.begin_token().has_value()) {
    frame.before.push_back(*tokenizer.begin_token());
  }
  Append(tokenizer.Encode(prompt->substr(0, at), /*parse_special=*/true),
         &frame.before);
  frame.after = prompt->substr(at + kMarker.size());
  return frame;
}

// Returns `count` different numbers below `n`, in random order.
std::vector<int32_t> Draw(int32_t n, int32_t count, Random* random) {
  std::vector<int32_t> all(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) all[static_cast<size_t>(i)] = i;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t other = i + random->Below(n - i);
    std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(other)]);
  }
  all.resize(static_cast<size_t>(count));
  return all;
}

struct Fact {
  std::string sentence;
  std::string question;
};

std::vector<Fact> DrawFacts(const FactKind& kind, int32_t count,
                            Random* random) {
  const std::vector<int32_t> subjects =
      Draw(static_cast<int32_t>(kind.subjects.size()), count, random);
  const std::vector<int32_t> values =
      Draw(static_cast<int32_t>(kind.values.size()), count, random);
  std::vector<Fact> facts;
  for (size_t i = 0; i < subjects.size(); ++i) {
    const absl::string_view subject =
        kind.subjects[static_cast<size_t>(subjects[i])];
    std::string value(kind.values[static_cast<size_t>(values[i])]);
    for (int32_t digit = 0; digit < kind.digits; ++digit) {
      // No number begins with 0.
      absl::StrAppend(&value,
                      digit == 0 ? 1 + random->Below(9) : random->Below(10));
    }
    facts.push_back(
        {absl::StrCat(kind.before, subject, kind.between, value, "."),
         absl::StrCat(kind.question, subject, kind.question_end)});
  }
  return facts;
}

// Returns where a sentence or a line of the text has ended. If there are fewer
// places than `count`, returns every place.
std::vector<int32_t> Gaps(const Tokenizer& tokenizer,
                          std::span<const int32_t> text, int32_t count) {
  std::vector<int32_t> gaps;
  std::vector<int32_t> all;
  for (size_t i = 0; i < text.size(); ++i) {
    all.push_back(static_cast<int32_t>(i));
    if (i == 0) continue;
    const std::string before = tokenizer.Decode(text.subspan(i - 1, 1));
    if (absl::EndsWith(before, ".") || absl::EndsWith(before, "\n")) {
      gaps.push_back(static_cast<int32_t>(i));
    }
  }
  return static_cast<int32_t>(gaps.size()) < count ? all : gaps;
}

// Returns `size` tokens of the text, from a random place on.
std::span<const int32_t> Cut(std::span<const int32_t> text, int32_t size,
                             Random* random) {
  const auto num_places =
      static_cast<int32_t>(text.size()) - size + 1;  // >= 1, as checked
  return text.subspan(static_cast<size_t>(random->Below(num_places)),
                      static_cast<size_t>(size));
}

class PromptMaker {
 public:
  PromptMaker(const Tokenizer& tokenizer, std::span<const int32_t> text,
              const CalibrationPromptOptions& options)
      : tokenizer_(tokenizer), text_(text), options_(options) {}

  absl::Status Begin() {
    const int64_t needed =
        int64_t{options_.context_tokens} + options_.query_tokens;
    if (std::ssize(text_) < needed) {
      return BadFlag("--text",
                     absl::StrCat("at least ", needed,
                                  " tokens, --context and --query-tokens"),
                     absl::StrCat(text_.size()));
    }
    const auto count = static_cast<int32_t>(kNames.size());
    if (2 * options_.num_queries > count) {
      return BadFlag("--num-queries",
                     absl::StrCat("at most ", count / 2,
                                  ", for there are that many facts"),
                     absl::StrCat(options_.num_queries));
    }
    const bool only_text = std::ranges::all_of(
        options_.tasks,
        [](const std::string& task) { return task == kTextTask; });
    if (only_text) return absl::OkStatus();
    BM_ASSIGN_OR_RETURN(frame_, FrameOf(tokenizer_));
    return absl::OkStatus();
  }

  absl::StatusOr<ContextPrompt> Make(int32_t context) const {
    const std::string& task =
        options_.tasks[static_cast<size_t>(context) % options_.tasks.size()];
    Random random = RandomOf(options_, context);
    if (task == kTextTask) return Continuation(&random);
    const auto* kind = std::ranges::find(kFacts, task, &FactKind::task);
    if (kind != kFacts.end()) return Facts(*kind, &random);
    return BadFlag(
        "--tasks",
        absl::StrCat("names among ", absl::StrJoin(CalibrationTasks(), ", ")),
        absl::StrCat("'", task, "'"));
  }

 private:
  ContextPrompt Continuation(Random* random) const {
    const std::span<const int32_t> cut =
        Cut(text_, options_.context_tokens + options_.query_tokens, random);
    const auto middle = cut.begin() + options_.context_tokens;
    return {.task = std::string(kTextTask),
            .context = {cut.begin(), middle},
            .queries = {{middle, cut.end()}}};
  }

  absl::StatusOr<ContextPrompt> Facts(const FactKind& kind,
                                      Random* random) const {
    const int32_t count = 2 * options_.num_queries;
    const std::vector<Fact> facts = DrawFacts(kind, count, random);
    std::vector<std::vector<int32_t>> sentences;
    auto num_tokens = static_cast<int32_t>(frame_.before.size());
    for (const Fact& fact : facts) {
      sentences.push_back(Encode(absl::StrCat(" ", fact.sentence)));
      num_tokens += static_cast<int32_t>(sentences.back().size());
    }
    const int32_t text_tokens = options_.context_tokens - num_tokens;
    if (text_tokens < kMinTextTokens) {
      return BadFlag(
          "--context",
          absl::StrCat("at least ", num_tokens + kMinTextTokens,
                       ", for instructions, ", count, " facts and some text"),
          absl::StrCat(options_.context_tokens));
    }
    const std::span<const int32_t> text = Cut(text_, text_tokens, random);
    ContextPrompt prompt{.task = std::string(kind.task),
                         .context = frame_.before};
    const std::vector<int32_t> gaps = Gaps(tokenizer_, text, count);
    std::vector<int32_t> places =
        Draw(static_cast<int32_t>(gaps.size()), count, random);
    std::ranges::sort(places);
    size_t begin = 0;
    for (size_t i = 0; i < sentences.size(); ++i) {
      const auto end =
          static_cast<size_t>(gaps[static_cast<size_t>(places[i])]);
      prompt.context.insert(prompt.context.end(),
                            text.begin() + static_cast<int64_t>(begin),
                            text.begin() + static_cast<int64_t>(end));
      Append(sentences[i], &prompt.context);
      begin = end;
    }
    prompt.context.insert(prompt.context.end(),
                          text.begin() + static_cast<int64_t>(begin),
                          text.end());
    for (const int32_t asked : Draw(count, options_.num_queries, random)) {
      const Fact& fact = facts[static_cast<size_t>(asked)];
      prompt.queries.push_back(Encode(
          absl::StrCat("\n\n", fact.question, frame_.after, fact.sentence)));
    }
    return prompt;
  }

  std::vector<int32_t> Encode(const std::string& text) const {
    return tokenizer_.Encode(text, /*parse_special=*/true);
  }

  const Tokenizer& tokenizer_;
  const std::span<const int32_t> text_;
  const CalibrationPromptOptions& options_;
  ChatFrame frame_;
};

}  // namespace

std::vector<std::string> CalibrationTasks() {
  std::vector<std::string> tasks;
  tasks.reserve(kFacts.size() + 1);
  for (const FactKind& kind : kFacts) tasks.emplace_back(kind.task);
  tasks.emplace_back(kTextTask);
  return tasks;
}

absl::StatusOr<std::vector<ContextPrompt>> MakeCalibrationPrompts(
    const Tokenizer& tokenizer, std::span<const int32_t> text,
    const CalibrationPromptOptions& options) {
  if (options.tasks.empty()) return BadFlag("--tasks", "a task", "none");
  PromptMaker maker(tokenizer, text, options);
  BM_RETURN_IF_ERROR(maker.Begin());
  std::vector<ContextPrompt> prompts;
  for (int32_t context = 0; context < options.num_contexts; ++context) {
    BM_ASSIGN_OR_RETURN(prompts.emplace_back(), maker.Make(context));
  }
  return prompts;
}

ContextPrompt MakeRandomPrompt(int32_t vocabulary, int32_t context,
                               const CalibrationPromptOptions& options) {
  Random random = RandomOf(options, context);
  ContextPrompt prompt{.task = "random tokens"};
  for (int32_t i = 0; i < options.context_tokens; ++i) {
    prompt.context.push_back(random.Below(vocabulary));
  }
  const int32_t passage =
      std::min(CeilDiv(options.query_tokens, 2), options.context_tokens);
  prompt.answer_tokens = options.query_tokens - passage;
  for (int32_t i = 0; i < options.num_queries; ++i) {
    const auto begin = prompt.context.begin() +
                       random.Below(options.context_tokens - passage + 1);
    prompt.queries.emplace_back(begin, begin + passage);
  }
  return prompt;
}

}  // namespace blockmgr
