#include "bench/quality/prompts.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <nlohmann/json.hpp>

#include "bench/quality/prompt_words.h"
#include "bench/serve/chat_prompt.h"
#include "blockmgr/base/invalid.h"
#include "blockmgr/base/read_file.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

constexpr int32_t kNumDistractors = 4;
constexpr int32_t kNumValues = 3;
constexpr int32_t kChainLength = 3;
constexpr int32_t kNumCommonWords = 3;
// A short list of random words may have other common words than it should.
constexpr int32_t kMostDraws = 100;

using Tokens = std::vector<int32_t>;

void Append(std::span<const int32_t> from, Tokens* to) {
  to->insert(to->end(), from.begin(), from.end());
}

// Numbers that follow from a key alone, on every machine.
class Draws {
 public:
  explicit Draws(const PromptKey& key) {
    // FNV-1a.
    uint64_t hash = 14695981039346656037u;
    for (const char c : absl::StrCat(key.task, "/", key.num_tokens, "/",
                                     key.index, "/", key.seed)) {
      hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
    }
    random_.seed(hash);
  }

  // Returns a number below `limit`, which is below 2^32.
  size_t Below(size_t limit) { return (random_() >> 32) * limit >> 32; }
  // Returns so many of `words`, none twice.
  std::vector<std::string> Pick(std::span<const char* const> words,
                                size_t count) {
    std::vector<std::string> all(words.begin(), words.end());
    for (size_t i = 0; i < count; ++i) {
      std::swap(all[i], all[i + Below(all.size() - i)]);
    }
    all.resize(count);
    return all;
  }
  std::string Number() { return absl::StrCat(10000 + Below(90000)); }
  std::string Name() {
    return absl::StrCat(kAdjectives[Below(kAdjectives.size())], "-",
                        kNouns[Below(kNouns.size())]);
  }
  // Returns so many names, none twice.
  std::vector<std::string> Names(size_t count) {
    std::vector<std::string> names;
    while (names.size() < count) {
      std::string name = Name();
      if (std::ranges::count(names, name) == 0) {
        names.push_back(std::move(name));
      }
    }
    return names;
  }

 private:
  std::mt19937_64 random_;
};

// Makes one prompt.
class PromptMaker {
 public:
  PromptMaker(const PromptSource& source, const PromptKey& key)
      : source_(source), key_(key), draws_(key) {}

  absl::StatusOr<QualityPrompt> Needle(size_t num_distractors);
  absl::StatusOr<QualityPrompt> Fact();
  absl::StatusOr<QualityPrompt> MultiValue();
  absl::StatusOr<QualityPrompt> Tracking();
  absl::StatusOr<QualityPrompt> CommonWords();
  absl::StatusOr<QualityPrompt> Continuation();

 private:
  struct Question {
    std::string text;
    std::string lead;
    std::string answer;
    size_t sentence = 0;  // which hidden sentence answers it
    bool has_depth = true;
  };

  // Makes a prompt of `intro`, then text with the sentences hidden in it.
  absl::StatusOr<QualityPrompt> Hide(const std::string& intro,
                                     const std::vector<std::string>& sentences,
                                     const std::vector<Question>& questions);
  QualityTurn MakeTurn(const Question& question) const;
  // Returns a list of so many tokens, in which each of the first
  // `kNumCommonWords` words is more frequent than each other one. Returns
  // nullopt if the words that were drawn are not.
  std::optional<Tokens> WordList(const std::vector<std::string>& words,
                                 size_t count);
  // Returns so many tokens of the filler, from a random paragraph on. Sets
  // `starts` to where sentences begin.
  Tokens FillerTokens(size_t count, std::vector<size_t>* starts);

  const PromptSource& source_;
  const PromptKey& key_;
  Draws draws_;
};

Tokens PromptMaker::FillerTokens(size_t count, std::vector<size_t>* starts) {
  const Filler& filler = source_.filler;
  size_t sentence = filler.paragraphs[draws_.Below(filler.paragraphs.size())];
  Tokens tokens;
  while (tokens.size() < count) {
    starts->push_back(tokens.size());
    Append(source_.encode(filler.sentences[sentence]), &tokens);
    sentence = (sentence + 1) % filler.sentences.size();
  }
  tokens.resize(count);
  return tokens;
}

QualityTurn PromptMaker::MakeTurn(const Question& question) const {
  QualityTurn turn;
  turn.question = source_.encode(absl::StrCat("\n\n", question.text));
  Append(source_.chat.close, &turn.question);
  // The answer before it was a part of a sentence.
  turn.follow_up = source_.encode(".");
  Append(source_.chat.next, &turn.follow_up);
  Append(source_.encode(question.text), &turn.follow_up);
  Append(source_.chat.close, &turn.follow_up);
  if (!question.lead.empty()) turn.lead = source_.encode(question.lead);
  turn.answer = source_.encode(question.answer);
  return turn;
}

absl::StatusOr<QualityPrompt> PromptMaker::Hide(
    const std::string& intro, const std::vector<std::string>& sentences,
    const std::vector<Question>& questions) {
  QualityPrompt prompt;
  prompt.context = source_.chat.head;
  Append(source_.encode(intro), &prompt.context);
  std::vector<Tokens> hidden;
  size_t num_fixed = prompt.context.size();
  for (const std::string& sentence : sentences) {
    hidden.push_back(source_.encode(absl::StrCat(" ", sentence)));
    num_fixed += hidden.back().size();
  }
  const auto num_tokens = static_cast<size_t>(key_.num_tokens);
  if (num_fixed >= num_tokens) {
    return Invalid("--lengths: expected more than ", num_fixed,
                   " tokens for task ", key_.task, " with ", key_.num_turns,
                   " questions, got ", num_tokens);
  }
  std::vector<size_t> starts;
  const Tokens filler = FillerTokens(num_tokens - num_fixed, &starts);
  // Each sentence is hidden before the sentence that is at a random token.
  std::vector<std::pair<size_t, size_t>> places;  // start, hidden sentence
  for (size_t i = 0; i < hidden.size(); ++i) {
    const size_t at = draws_.Below(filler.size());
    const auto after = std::ranges::upper_bound(starts, at);
    places.emplace_back(*(after - 1), i);
  }
  std::ranges::sort(places);
  std::vector<double> depths(hidden.size());
  size_t copied = 0;
  for (const auto& place : places) {
    Append(std::span(filler).subspan(copied, place.first - copied),
           &prompt.context);
    copied = place.first;
    depths[place.second] = static_cast<double>(prompt.context.size()) /
                           static_cast<double>(num_tokens);
    Append(hidden[place.second], &prompt.context);
  }
  Append(std::span(filler).subspan(copied), &prompt.context);
  for (const Question& question : questions) {
    prompt.turns.push_back(MakeTurn(question));
    if (question.has_depth) {
      prompt.turns.back().depth = depths[question.sentence];
    }
  }
  return prompt;
}

absl::StatusOr<QualityPrompt> PromptMaker::Needle(size_t num_distractors) {
  const auto num_turns = static_cast<size_t>(key_.num_turns);
  const std::vector<std::string> names =
      draws_.Names(num_turns + num_distractors);
  std::vector<std::string> sentences;
  std::vector<Question> questions;
  for (const std::string& name : names) {
    const std::string number = draws_.Number();
    if (questions.size() < num_turns) {
      questions.push_back(
          {.text = absl::StrCat("What is the special magic number for ", name,
                                " mentioned in the provided text?"),
           .lead = absl::StrCat("The special magic number for ", name,
                                " mentioned in the provided text is:"),
           .answer = absl::StrCat(" ", number),
           .sentence = sentences.size()});
    }
    sentences.push_back(absl::StrCat("The special magic number for ", name,
                                     " is: ", number, "."));
  }
  return Hide(
      "Some special magic numbers are hidden within the following text. Make "
      "sure to memorize them. I will quiz you about the numbers "
      "afterwards.\n",
      sentences, questions);
}

absl::StatusOr<QualityPrompt> PromptMaker::Fact() {
  const auto num_turns = static_cast<size_t>(key_.num_turns);
  const std::vector<std::string> people = draws_.Pick(kPeople, num_turns);
  const std::vector<std::string> cities = draws_.Pick(kCities, num_turns);
  std::vector<std::string> sentences;
  std::vector<Question> questions;
  for (size_t i = 0; i < num_turns; ++i) {
    questions.push_back(
        {.text = absl::StrCat("In which city does ", people[i], " live?"),
         .lead = absl::StrCat(people[i], " lives in"),
         .answer = absl::StrCat(" ", cities[i]),
         .sentence = i});
    sentences.push_back(absl::StrCat(people[i], " lives in ", cities[i],
                                     " and works as a ",
                                     kJobs[draws_.Below(kJobs.size())], "."));
  }
  return Hide("Read the text and answer the question after it.", sentences,
              questions);
}

absl::StatusOr<QualityPrompt> PromptMaker::MultiValue() {
  const std::string name = draws_.Name();
  std::vector<std::string> numbers;
  std::vector<std::string> sentences;
  for (int32_t i = 0; i < kNumValues; ++i) {
    numbers.push_back(draws_.Number());
    sentences.push_back(absl::StrCat("One of the special magic numbers for ",
                                     name, " is: ", numbers.back(), "."));
  }
  // Ascending, so that the order says nothing of the places.
  std::ranges::sort(numbers);
  return Hide(
      "Some special magic numbers are hidden within the following text. Make "
      "sure to memorize them. I will quiz you about the numbers "
      "afterwards.\n",
      sentences,
      {{.text =
            absl::StrCat("What are all the special magic numbers for ", name,
                         " mentioned in the provided text, from the "
                         "smallest to the largest?"),
        .lead = absl::StrCat("The special magic numbers for ", name,
                             " mentioned in the provided text are:"),
        .answer = absl::StrCat(" ", absl::StrJoin(numbers, ", ")),
        .has_depth = false}});
}

absl::StatusOr<QualityPrompt> PromptMaker::Tracking() {
  const std::vector<std::string> names =
      draws_.Pick(kVariables, 2 * static_cast<size_t>(kChainLength));
  std::vector<std::string> sentences;
  std::string value;  // of the chain that is asked for, the first
  for (size_t i = 0; i < names.size(); ++i) {
    const bool is_first = i % kChainLength == 0;
    const std::string number = draws_.Number();
    if (i == 0) value = number;
    sentences.push_back(absl::StrCat(
        "VAR ", names[i], " = ",
        is_first ? number : absl::StrCat("VAR ", names[i - 1]), "."));
  }
  const std::vector<std::string> chain(names.begin(),
                                       names.begin() + kChainLength);
  return Hide(
      "Memorize and track the chains of variable assignments hidden in the "
      "following text.\n",
      sentences,
      {{.text = absl::StrCat("Find all variables that are assigned the value ",
                             value, " in the text above."),
        .lead = absl::StrCat("The variables that are assigned the value ",
                             value, " are:"),
        .answer = absl::StrCat(" ", absl::StrJoin(chain, ", ")),
        .has_depth = false}});
}

std::optional<Tokens> PromptMaker::WordList(
    const std::vector<std::string>& words, size_t count) {
  std::vector<int32_t> repeats(words.size());
  Tokens list;
  while (list.size() < count) {
    const size_t word =
        draws_.Below(2) == 0
            ? draws_.Below(kNumCommonWords)
            : kNumCommonWords + draws_.Below(words.size() - kNumCommonWords);
    Append(source_.encode(absl::StrCat(" ", words[word])), &list);
    // The last word may be cut off.
    if (list.size() <= count) ++repeats[word];
  }
  list.resize(count);
  const auto others = repeats.begin() + kNumCommonWords;
  if (*std::min_element(repeats.begin(), others) <=
      *std::max_element(others, repeats.end())) {
    return std::nullopt;
  }
  return list;
}

absl::StatusOr<QualityPrompt> PromptMaker::CommonWords() {
  std::vector<std::string> words = draws_.Pick(kNouns, kNouns.size());
  QualityPrompt prompt;
  prompt.context = source_.chat.head;
  Append(source_.encode("Below is a list of words. Some of them appear more "
                        "often than the others. Memorize the ones that appear "
                        "most often.\n"),
         &prompt.context);
  const auto num_tokens = static_cast<size_t>(key_.num_tokens);
  if (prompt.context.size() >= num_tokens) {
    return Invalid("--lengths: expected more than ", prompt.context.size(),
                   " tokens for task ", key_.task, ", got ", num_tokens);
  }
  const size_t room = num_tokens - prompt.context.size();
  std::optional<Tokens> list;
  for (int32_t i = 0; i < kMostDraws && !list; ++i) {
    list = WordList(words, room);
  }
  if (!list) {
    return Invalid("--lengths: expected room for a list with ", kNumCommonWords,
                   " common words for task ", key_.task, ", got ", num_tokens);
  }
  Append(*list, &prompt.context);
  words.resize(kNumCommonWords);
  std::ranges::sort(words);
  prompt.turns.push_back(
      MakeTurn({.text = absl::StrCat("What are the ", kNumCommonWords,
                                     " most common words in the above list, in "
                                     "alphabetical order?"),
                .lead = "The most common words are:",
                .answer = absl::StrCat(" ", absl::StrJoin(words, ", "))}));
  return prompt;
}

absl::StatusOr<QualityPrompt> PromptMaker::Continuation() {
  std::vector<size_t> starts;
  const auto num_tokens = static_cast<size_t>(key_.num_tokens);
  // One token is given: the first token that follows the context is computed
  // with the cache as it was before the eviction.
  const Tokens text = FillerTokens(
      num_tokens + 1 + static_cast<size_t>(key_.continuation_tokens), &starts);
  const auto end = text.begin() + key_.num_tokens;
  QualityPrompt prompt;
  prompt.context.assign(text.begin(), end);
  prompt.turns.push_back({.question = {*end},
                          .follow_up = {*end},
                          .lead = {},
                          .answer = {end + 1, text.end()}});
  return prompt;
}

// Reads the lists of one line.
absl::StatusOr<QualityPrompt> PromptOfJson(const PromptSource& source,
                                           const nlohmann::json& line) {
  const auto list =
      [&line](const char* field) -> absl::StatusOr<std::vector<std::string>> {
    const auto found = line.find(field);
    if (found == line.end() || !found->is_array() || found->empty() ||
        !std::ranges::all_of(
            *found, [](const auto& value) { return value.is_string(); })) {
      return Invalid(field, ": expected a list of texts, got ",
                     found == line.end() ? "none" : found->dump());
    }
    return found->get<std::vector<std::string>>();
  };
  if (!line.is_object() || !line.contains("context") ||
      !line["context"].is_string()) {
    return absl::InvalidArgumentError("context: expected a text, got none");
  }
  BM_ASSIGN_OR_RETURN(const std::vector<std::string> questions,
                      list("questions"));
  BM_ASSIGN_OR_RETURN(const std::vector<std::string> answers, list("answers"));
  if (questions.size() != answers.size()) {
    return Invalid("answers: expected ", questions.size(),
                   ", one for each question, got ", answers.size());
  }
  QualityPrompt prompt;
  prompt.context = source.chat.head;
  Append(source.encode(line["context"].get<std::string>()), &prompt.context);
  for (size_t i = 0; i < questions.size(); ++i) {
    QualityTurn turn;
    turn.question = source.encode(absl::StrCat("\n\n", questions[i]));
    Append(source.chat.close, &turn.question);
    turn.follow_up = source.chat.next;
    Append(source.encode(questions[i]), &turn.follow_up);
    Append(source.chat.close, &turn.follow_up);
    turn.answer = source.encode(answers[i]);
    if (turn.answer.empty()) {
      return Invalid("answers[", i, "]: expected a text, got an empty one");
    }
    prompt.turns.push_back(std::move(turn));
  }
  return prompt;
}

}  // namespace

absl::StatusOr<ChatTokens> MakeChatTokens(absl::string_view chat_template,
                                          absl::string_view system,
                                          const TextEncoder& encode) {
  constexpr absl::string_view kUser = "\x01user\x01";
  BM_ASSIGN_OR_RETURN(const std::string with_system,
                      ChatPrompt(chat_template, system, kUser));
  BM_ASSIGN_OR_RETURN(const std::string without,
                      ChatPrompt(chat_template, "", kUser));
  const absl::string_view whole = with_system;
  const absl::string_view head = whole.substr(0, whole.find(kUser));
  const absl::string_view close = whole.substr(head.size() + kUser.size());
  const absl::string_view begin_user = absl::string_view(without).substr(
      0, without.size() - kUser.size() - close.size());
  // One marker ends the user's text and the assistant's text.
  const std::string begin_assistant =
      absl::StrReplaceAll(begin_user, {{"user", "assistant"}});
  const absl::string_view end =
      close.substr(0, close.size() - begin_assistant.size());
  return ChatTokens{.head = encode(head),
                    .close = encode(close),
                    .next = encode(absl::StrCat(end, begin_user))};
}

const std::vector<std::string>& QualityTasks() {
  static const auto& tasks = *new std::vector<std::string>{
      "needle",   "fact",  "multikey",    "multivalue",
      "tracking", "words", "continuation"};
  return tasks;
}

absl::StatusOr<QualityPrompt> MakeQualityPrompt(const PromptSource& source,
                                                const PromptKey& key) {
  PromptMaker maker(source, key);
  if (key.task == "needle") return maker.Needle(0);
  if (key.task == "fact") return maker.Fact();
  if (key.task == "multikey") return maker.Needle(kNumDistractors);
  if (key.task == "multivalue") return maker.MultiValue();
  if (key.task == "tracking") return maker.Tracking();
  if (key.task == "words") return maker.CommonWords();
  if (key.task == "continuation") return maker.Continuation();
  return Invalid("--tasks: expected ", absl::StrJoin(QualityTasks(), ", "),
                 ", got '", key.task, "'");
}

absl::StatusOr<std::vector<QualityPrompt>> ReadQualityPrompts(
    const PromptSource& source, const std::string& name) {
  const absl::StatusOr<std::string> text = ReadFile(name);
  if (!text.ok()) {
    return absl::NotFoundError(absl::StrCat("--prompts: cannot read ", name,
                                            ": ", text.status().message()));
  }
  std::vector<QualityPrompt> prompts;
  int64_t number = 0;
  for (const absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++number;
    if (line.empty()) continue;
    const nlohmann::json json =
        nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    absl::StatusOr<QualityPrompt> prompt = PromptOfJson(source, json);
    if (!prompt.ok()) {
      return Invalid("--prompts ", name, ", line ", number, ": ",
                     prompt.status().message());
    }
    prompts.push_back(*std::move(prompt));
  }
  if (prompts.empty()) {
    return Invalid("--prompts ", name,
                   ": expected a prompt on each line, got none");
  }
  return prompts;
}

}  // namespace blockmgr
