// Checks of flags' values that CLI11 lacks.
#ifndef SCHEDULER_SERVER_FLAG_CHECKS_H_
#define SCHEDULER_SERVER_FLAG_CHECKS_H_

#include <cstddef>
#include <limits>
#include <string>
#include <type_traits>

#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <CLI/CLI.hpp>
#include <boost/locale/utf.hpp>

#include "blockmgr/eviction/policy_fields.h"

namespace blockmgr {

// A check for CLI::Option::transform that accepts the names of an enum's
// values, from `first` on. (CLI::CheckedTransformer prints enums of a byte as
// bytes.)
template <typename Enum>
CLI::Validator NameIn(Enum first = Enum{}) {
  const std::string choices =
      absl::StrJoin(EnumNames<Enum>().subspan(static_cast<size_t>(first)), "|");
  CLI::Validator validator(choices);
  validator.operation([first, choices](std::string& input) {
    Enum value{};
    if (!EnumFromName(input, &value) || value < first) {
      return absl::StrCat("expected ", choices, ", got '", input, "'");
    }
    input = std::to_string(static_cast<int>(value));
    return std::string();
  });
  return validator;
}

// A check for CLI::Option::check that accepts every value of the type. The
// range is checked elsewhere. (CLI11's own message does not say what it
// expects.)
template <typename Number>
CLI::Validator AnyNumber() {
  CLI::Validator validator("");
  validator.operation([](std::string& input) {
    Number number{};
    if constexpr (std::is_integral_v<Number>) {
      if (absl::SimpleAtoi(input, &number)) return std::string();
      return absl::StrCat("expected an integer of at most ",
                          std::numeric_limits<Number>::max(), ", got ", input);
    } else {
      if (absl::SimpleAtod(input, &number)) return std::string();
      return absl::StrCat("expected a number, got ", input);
    }
  });
  return validator;
}

// A check for CLI::Option::check that accepts finite numbers from `least` to
// `most`. (CLI::Range also accepts nan, because every comparison with nan is
// false.)
inline CLI::Validator NumberIn(
    double least, double most = std::numeric_limits<double>::max()) {
  const bool is_bounded = most < std::numeric_limits<double>::max();
  const std::string range = is_bounded
                                ? absl::StrCat("of ", least, " to ", most)
                                : absl::StrCat("of at least ", least);
  CLI::Validator validator("NUMBER " + range);
  validator.operation([least, most, range](std::string& input) {
    double number = std::numeric_limits<double>::quiet_NaN();
    const bool is_in =
        absl::SimpleAtod(input, &number) && number >= least && number <= most;
    return is_in ? std::string()
                 : absl::StrCat("expected a finite number ", range, ", got ",
                                input);
  });
  return validator;
}

// A check for CLI::Option::check that accepts valid UTF-8 only, of at most so
// many bytes. Values that become strings of protobuf messages need it, because
// peers cannot parse a message with other bytes in a string.
inline CLI::Validator Utf8Text(
    size_t max_bytes = std::numeric_limits<size_t>::max()) {
  CLI::Validator validator("");
  validator.operation([max_bytes](std::string& input) {
    if (input.size() > max_bytes) {
      return absl::StrCat("expected at most ", max_bytes, " bytes, got ",
                          input.size());
    }
    using Utf8 = boost::locale::utf::utf_traits<char>;
    for (auto at = input.begin(); at != input.end();) {
      if (!boost::locale::utf::is_valid_codepoint(
              Utf8::decode(at, input.end()))) {
        return absl::StrCat("expected UTF-8, got '", absl::CHexEscape(input),
                            "'");
      }
    }
    return std::string();
  });
  return validator;
}

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_FLAG_CHECKS_H_
