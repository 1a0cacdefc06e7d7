#include "program/flag_names.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_replace.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

namespace blockmgr {
namespace {

std::string FieldOf(absl::string_view flag) {
  return absl::StrReplaceAll(absl::StripPrefix(flag, "--"), {{"-", "_"}});
}

// Returns the long flags of `app`, of its option groups, and of the subcommand
// that was parsed.
std::vector<std::string> LongFlags(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      flags.push_back(absl::StrCat("--", name));
    }
  }
  const auto is_used = [](const CLI::App* part) {
    return part->get_name().empty() || part->parsed() > 0;  // a group, or run
  };
  for (const CLI::App* part : app.get_subcommands(is_used)) {
    const std::vector<std::string> more = LongFlags(*part);
    flags.insert(flags.end(), more.begin(), more.end());
  }
  return flags;
}

// Adds a field, and its spelling with the unit of a time.
void AddField(const std::string& field, const std::string& flag,
              FieldFlags* fields) {
  fields->try_emplace(field, flag);
  fields->try_emplace(absl::StrCat(field, "_s"), flag);
}

bool IsInField(char c) { return absl::ascii_isalnum(c) || c == '_'; }

// Returns the end of the field name that begins at `begin`. Names of nested
// members contain points.
size_t EndOfField(absl::string_view text, size_t begin) {
  size_t end = begin;
  while (end < text.size() &&
         (IsInField(text[end]) || (text[end] == '.' && end + 1 < text.size() &&
                                   IsInField(text[end + 1])))) {
    ++end;
  }
  return end;
}

// Returns whether a character before a word says that the word is no field, but
// a part of a path, of a flag or of what the user has typed.
bool IsBeforeText(char c) {
  return c == '/' || c == '\'' || c == '"' || c == '-';
}

// Returns the flags of the fields, "a, b", that an error begins with. Returns
// an empty text unless all of them are fields of flags.
std::string FlagsOfHead(absl::string_view head, const FieldFlags& fields) {
  std::vector<std::string> flags;
  for (const absl::string_view word : absl::StrSplit(head, ", ")) {
    const auto flag = fields.find(absl::StrReplaceAll(word, {{"-", "_"}}));
    if (flag == fields.end()) return "";
    flags.push_back(flag->second);
  }
  return absl::StrJoin(flags, ", ");
}

}  // namespace

FieldFlags FieldsBehind(const CLI::App& app, absl::string_view prefix) {
  FieldFlags fields;
  for (const std::string& flag : LongFlags(app)) {
    if (!absl::StartsWith(flag, prefix)) continue;
    const std::string field = FieldOf(flag.substr(prefix.size()));
    AddField(field, flag, &fields);
    AddField(absl::StrCat("num_", field), flag, &fields);
  }
  return fields;
}

std::string NameFlags(const CLI::App& app, absl::string_view error,
                      const FieldFlags& fields) {
  FieldFlags all;
  const std::vector<std::string> flags = LongFlags(app);
  for (const auto& [field, flag] : fields) {
    const bool exists = std::ranges::find(flags, flag) != flags.end();
    if (exists) all.emplace(field, flag);
  }
  for (const std::string& flag : flags) AddField(FieldOf(flag), flag, &all);

  const size_t colon = error.find(':');
  std::string named = colon == absl::string_view::npos
                          ? std::string()
                          : FlagsOfHead(error.substr(0, colon), all);
  size_t at = named.empty() ? 0 : colon;
  while (at < error.size()) {
    const size_t end = EndOfField(error, at);
    if (end == at) {
      named += error[at++];
      continue;
    }
    const std::string word(error.substr(at, end - at));
    // Words of a language have no such marks.
    const bool is_field =
        absl::StrContains(word, '_') || absl::StrContains(word, '.');
    const bool is_text = at > 0 && IsBeforeText(error[at - 1]);
    const auto flag = all.find(word);
    named += is_field && !is_text && flag != all.end() ? flag->second : word;
    at = end;
  }
  return named;
}

void PrintError(const CLI::App& app, absl::string_view error,
                const FieldFlags& fields) {
  std::string name = app.get_name();
  for (const CLI::App* above = app.get_parent(); above != nullptr;
       above = above->get_parent()) {
    name = absl::StrCat(above->get_name(), " ", name);
  }
  std::fprintf(stderr, "%s: %s\n", name.c_str(),
               NameFlags(app, error, fields).c_str());
}

}  // namespace blockmgr
