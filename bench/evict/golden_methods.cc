#include "bench/evict/golden_methods.h"

#include <sstream>

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_format.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/read_file.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

std::string* FieldOf(GoldenMethod& method, absl::string_view word) {
  if (word == "policy") return &method.policy;
  if (word == "evicted") return &method.evicted;
  if (word == "tokens") return &method.tokens;
  if (word == "blocks") return &method.blocks;
  if (word == "past") return &method.past;
  return nullptr;
}

// Writes numbers in place of {keys}.
absl::StatusOr<std::string> Fill(absl::string_view line, absl::string_view text,
                                 const GoldenCase& golden) {
  std::string filled;
  while (true) {
    const size_t open = text.find('{');
    const size_t close = text.find('}', open);
    if (close == absl::string_view::npos) {
      absl::StrAppend(&filled, text);
      return filled;
    }
    const std::string key(text.substr(open + 1, close - open - 1));
    absl::StrAppend(&filled, text.substr(0, open));
    if (const auto integer = golden.integers.find(key);
        integer != golden.integers.end()) {
      absl::StrAppend(&filled, integer->second);
    } else if (const auto number = golden.numbers.find(key);
               number != golden.numbers.end()) {
      absl::StrAppendFormat(&filled, "%.17g", number->second);
    } else {
      return Invalid(line, ": expected a case with '", key,
                     "', got one without");
    }
    text.remove_prefix(close + 1);
  }
}

// A count that a policy, a target or a position can be; 0 for an empty text.
absl::StatusOr<int32_t> FillCount(absl::string_view line,
                                  absl::string_view text,
                                  const GoldenCase& golden) {
  if (text.empty()) return 0;
  BM_ASSIGN_OR_RETURN(const std::string filled, Fill(line, text, golden));
  int32_t count = 0;
  if (absl::SimpleAtoi(filled, &count) && count >= 0) return count;
  return Invalid(line, ": expected a number of at least 0, got '", filled, "'");
}

absl::StatusOr<EvictionTarget> FillTarget(const GoldenMethod& method,
                                          const GoldenCase& golden) {
  EvictionTarget target;
  if (!method.tokens.empty()) {
    target.kind = EvictionTarget::Kind::kTokens;
    BM_ASSIGN_OR_RETURN(target.tokens,
                        FillCount("tokens", method.tokens, golden));
    return target;
  }
  BM_ASSIGN_OR_RETURN(const std::string filled,
                      Fill("evicted", method.evicted, golden));
  double evicted = 0;
  if (!absl::SimpleAtod(filled, &evicted)) {
    return Invalid("evicted: expected a ratio, got '", filled, "'");
  }
  BM_ASSIGN_OR_RETURN(target.ratio, KeepRatio::FromDouble(1.0 - evicted));
  return target;
}

}  // namespace

absl::StatusOr<std::map<std::string, GoldenMethod>> ReadGoldenMethods(
    const std::string& path) {
  BM_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  std::istringstream file(bytes);
  std::map<std::string, GoldenMethod> methods;
  GoldenMethod* method = nullptr;
  int64_t number = 0;
  const auto bad = [&](absl::string_view expected, absl::string_view got) {
    return Invalid(path, ":", number, ": expected ", expected, ", got '", got,
                   "'");
  };
  for (std::string text; std::getline(file, text);) {
    ++number;
    const absl::string_view line = absl::StripAsciiWhitespace(
        absl::string_view(text).substr(0, text.find('#')));
    if (line.empty()) continue;
    const absl::string_view word = line.substr(0, line.find(' '));
    const absl::string_view rest =
        absl::StripAsciiWhitespace(line.substr(word.size()));
    if (rest.empty()) return bad("a word and its value", line);
    if (word == "method") {
      const auto [place, is_new] = methods.try_emplace(std::string(rest));
      if (!is_new) return bad("every method once", rest);
      method = &place->second;
      continue;
    }
    if (method == nullptr) return bad("method", word);
    std::string* field = FieldOf(*method, word);
    if (field == nullptr || !field->empty()) {
      return bad("policy, evicted, tokens, blocks or past, once per method",
                 word);
    }
    *field = std::string(rest);
  }
  for (const auto& [name, entry] : methods) {
    if (entry.policy.empty() || entry.evicted.empty() == entry.tokens.empty()) {
      return Invalid(path, ": method ", name,
                     ": expected policy, and either evicted or tokens");
    }
  }
  return methods;
}

absl::StatusOr<GoldenMethod> FindGoldenMethod(
    const std::map<std::string, GoldenMethod>& methods,
    const std::string& name) {
  const auto method = methods.find(name);
  if (method != methods.end()) return method->second;
  return Invalid("method '", name,
                 "': expected one of the methods file, got an unknown one");
}

absl::StatusOr<GoldenRun> ResolveGoldenMethod(const GoldenMethod& method,
                                              const GoldenCase& golden) {
  GoldenRun run;
  BM_ASSIGN_OR_RETURN(const std::string policy,
                      Fill("policy", method.policy, golden));
  BM_ASSIGN_OR_RETURN(run.policy, ParseParityPolicy(policy));
  BM_ASSIGN_OR_RETURN(run.target, FillTarget(method, golden));
  BM_ASSIGN_OR_RETURN(run.block, FillCount("blocks", method.blocks, golden));
  BM_ASSIGN_OR_RETURN(run.past, FillCount("past", method.past, golden));
  return run;
}

}  // namespace blockmgr
