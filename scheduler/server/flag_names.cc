#include "scheduler/server/flag_names.h"

#include <map>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_replace.h>

namespace blockmgr {
namespace {

// Maps the names of fields to flags. The table comes first: its fields have
// other names than their flags.
std::map<std::string, std::string> FlagsOfFields(const CLI::App& app) {
  std::map<std::string, std::string> flags = {
      {"policy", "--eviction"},
      {"eviction.policy", "--eviction"},
      {"eviction.mode", "--eviction-mode"},
      {"eviction.compress_every", "--compress-every"},
      {"eviction.share_prefix", "--share-compressed-prefixes"},
      {"eviction.share_multiple", "--share-multiple"},
      {"eviction.target.window_keep_ratio", "--window-keep-ratio"},
      {"score_timeout_s", "--score-timeout"},
      {"step_timeout_s", "--step-timeout"}};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.try_emplace(absl::StrReplaceAll(name, {{"-", "_"}}),
                        absl::StrCat("--", name));
    }
  }
  return flags;
}

bool IsInField(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// Returns the end of the field name that begins at `begin`. Names of nested
// members contain points.
size_t EndOfField(const std::string& text, size_t begin) {
  size_t end = begin;
  while (end < text.size() &&
         (IsInField(text[end]) || (text[end] == '.' && end + 1 < text.size() &&
                                   IsInField(text[end + 1])))) {
    ++end;
  }
  return end;
}

}  // namespace

std::string NameFlags(const CLI::App& app, const std::string& error) {
  const std::map<std::string, std::string> flags = FlagsOfFields(app);
  std::string named;
  for (size_t at = 0; at < error.size();) {
    const size_t end = EndOfField(error, at);
    if (end == at) {
      named += error[at++];
      continue;
    }
    const std::string word = error.substr(at, end - at);
    // Words of a language have no such marks; the first names the field.
    const bool is_field = absl::StrContains(word, '_') ||
                          absl::StrContains(word, '.') ||
                          (at == 0 && end < error.size() && error[end] == ':');
    const auto flag = flags.find(word);
    named += is_field && flag != flags.end() ? flag->second : word;
    at = end;
  }
  return named;
}

}  // namespace blockmgr
