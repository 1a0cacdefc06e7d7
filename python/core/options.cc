// SchedulerOptions and statistics, from their tables (scheduler_options.h,
// scheduler_stats.h).
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <absl/strings/ascii.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "blockmgr/eviction/policy_fields.h"
#include "blockmgr/sampling_params.h"
#include "python/core/core.h"
#include "python/core/errors.h"
#include "scheduler/scheduler_options.h"
#include "scheduler/scheduler_stats.h"

namespace blockmgr::python {
namespace {

// In the order of SamplingField, from 1 on.
constexpr std::array<absl::string_view, kNumSamplingFields> kSamplingFields = {
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "stop"};

using Tenants = std::map<std::string, std::map<std::string, int64_t>>;

// Text that Python keeps pointers to for as long as it runs.
const char* Keep(std::string text) {
  return (new std::string(std::move(text)))->c_str();
}

// The names of flags in a help text, as names of options: --max-num-seqs.
std::string WithoutDashes(absl::string_view help) {
  std::string text;
  bool is_name = false;
  for (size_t i = 0; i < help.size(); ++i) {
    if (help.substr(i, 2) == "--") {
      is_name = true;
      ++i;
    } else if (is_name && help[i] == '-') {
      text += '_';
    } else {
      is_name = is_name && (absl::ascii_isalnum(help[i]) || help[i] == '_');
      text += help[i];
    }
  }
  return text;
}

template <typename E>
std::string ChoiceType() {
  return absl::StrCat("typing.Literal['", absl::StrJoin(EnumNames<E>(), "', '"),
                      "']");
}

// Calls each(name, option, help) for every option.
template <typename Each>
struct OptionVisitor {
  Each each;

  template <typename T, typename... Rest>
  void Number(absl::string_view name, T& option, const Rest&... rest) {
    each(name, option, std::get<sizeof...(Rest) - 1>(std::tuple(rest...)));
  }
  template <typename T>
  void Fraction(absl::string_view name, T& option, const char* help) {
    each(name, option, help);
  }
  template <typename T>
  void Bool(absl::string_view name, T& option, const char* help) {
    each(name, option, help);
  }
  template <typename T>
  void Choice(absl::string_view name, T& option, const char* help) {
    each(name, option, help);
  }
};
template <typename Each>
OptionVisitor(Each) -> OptionVisitor<Each>;

nb::object ReadOption(const SchedulerOptions& options,
                      absl::string_view wanted) {
  nb::object found;
  OptionVisitor visitor{
      [&](absl::string_view name, const auto& option, const char*) {
        if (name != wanted) return;
        if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(option)>>) {
          found = nb::cast(std::string(EnumName(option)));
        } else {
          found = nb::cast(option);
        }
      }};
  VisitSchedulerOptions(options, visitor);
  return found;
}

template <typename T>
T CastOption(absl::string_view name, const char* type, nb::handle value) {
  T result{};
  if (!nb::try_cast(value, result, true)) {
    throw nb::type_error(absl::StrCat(name, ": expected ", type, ", got ",
                                      nb::repr(value).c_str())
                             .c_str());
  }
  return result;
}

// Sets the option of a name. Returns false if there is none. `visit` takes an
// OptionVisitor.
template <typename Visit>
bool SetOption(absl::string_view wanted, nb::handle value, const Visit& visit) {
  bool is_found = false;
  visit(OptionVisitor{[&](absl::string_view name, auto& option, const char*) {
    using T = std::remove_cvref_t<decltype(option)>;
    if (name != wanted) return;
    is_found = true;
    if constexpr (std::is_enum_v<T>) {
      const auto text = CastOption<std::string>(name, "a str", value);
      if (!EnumFromName(text, &option)) {
        ThrowInvalid(name, ": expected one of ",
                     absl::StrJoin(EnumNames<T>(), ", "), ", got '", text, "'");
      }
    } else {
      option =
          CastOption<T>(name,
                        std::is_same_v<T, bool>     ? "a bool"
                        : std::is_same_v<T, double> ? "a number"
                                                    : "an integer in range",
                        value);
    }
  }});
  return is_found;
}

// Calls add(name, type, default, help) for every option.
template <typename Add>
void ListOptions(const Add& add) {
  OptionVisitor visitor{
      [&](absl::string_view name, const auto& option, const char* help) {
        using T = std::remove_cvref_t<decltype(option)>;
        if constexpr (std::is_enum_v<T>) {
          add(name, ChoiceType<T>(), absl::StrCat("'", EnumName(option), "'"),
              help);
        } else if constexpr (std::is_same_v<T, bool>) {
          add(name, "bool", option ? "True" : "False", help);
        } else {
          add(name, std::is_same_v<T, double> ? "float" : "int",
              absl::StrCat(option), help);
        }
      }};
  const SchedulerOptions defaults;
  VisitSchedulerOptions(defaults, visitor);
}

TenantLimits LimitsOf(const std::string& tenant,
                      const std::map<std::string, int64_t>& values) {
  TenantLimits limits;
  for (const auto& [name, value] : values) {
    const nb::object number = nb::cast(value);
    if (!SetOption(name, number,
                   [&](auto visitor) { VisitTenantLimits(limits, visitor); })) {
      ThrowInvalid("tenants['", tenant, "']: there is no limit '", name, "'");
    }
  }
  return limits;
}

void SetTenants(const Tenants& tenants, SchedulerOptions* options) {
  for (const auto& [name, values] : tenants) {
    const TenantLimits limits = LimitsOf(name, values);
    (name == "*" ? options->tenant_limits : options->tenants[name]) = limits;
  }
}

uint32_t FieldsOf(const std::vector<std::string>& names) {
  uint32_t fields = 0;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(kSamplingFields, name);
    if (found == kSamplingFields.end()) {
      ThrowInvalid("sampling_fields: expected some of ",
                   absl::StrJoin(kSamplingFields, ", "), ", got '", name, "'");
    }
    fields |= EngineSampling::BitOf(
        static_cast<SamplingField>(found - kSamplingFields.begin() + 1));
  }
  return fields;
}

// Sets an option that has no row in scheduler_options.h. Returns false if there
// is none of this name.
bool SetOther(absl::string_view name, nb::handle value,
              SchedulerOptions* options) {
  if (name == "tenants") {
    SetTenants(CastOption<Tenants>(name, "{tenant: {limit: number}}", value),
               options);
  } else if (name == "query_stats") {
    options->engine.query_stats =
        CastOption<std::map<std::string, std::string>>(
            name, "{name: fingerprint}", value);
  } else if (name == "sampling_fields") {
    options->engine.sampling.fields =
        FieldsOf(CastOption<std::vector<std::string>>(name, "names", value));
  } else if (name == "vocabulary_size") {
    options->engine.sampling.vocabulary_size =
        CastOption<int32_t>(name, "an integer", value);
  } else if (name == "end_token_ids") {
    options->engine.sampling.end_token_ids =
        CastOption<std::vector<int32_t>>(name, "token ids", value);
  } else if (name == "sampling_seed") {
    options->sampling_seed = CastOption<uint64_t>(name, "an integer", value);
  } else {
    return false;
  }
  return true;
}

SchedulerOptions MakeOptions(const nb::kwargs& values) {
  SchedulerOptions options;
  for (const auto& [key, value] : values) {
    const auto name = nb::cast<std::string>(key);
    const bool is_found = SetOption(name, value, [&](auto visitor) {
      VisitSchedulerOptions(options, visitor);
    });
    if (!is_found && !SetOther(name, value, &options)) {
      throw nb::type_error(
          absl::StrCat("SchedulerOptions: there is no option '", name, "'")
              .c_str());
    }
  }
  ThrowIfError(options.Validate());
  return options;
}

// The signature of the constructor.
std::string Signature() {
  std::string text = "def __init__(self, *";
  const auto add = [&text](absl::string_view name, const std::string& type,
                           const std::string& value, const char* /*help*/) {
    absl::StrAppend(&text, ", ", name, ": ", type, " = ", value);
  };
  ListOptions(add);
  return absl::StrCat(
      text,
      ", tenants: dict[str, dict[str, int]] = {}, query_stats: dict[str, str] "
      "= {}, sampling_fields: collections.abc.Sequence[str] = (), "
      "vocabulary_size: int = 0, end_token_ids: "
      "collections.abc.Sequence[int] = (), sampling_seed: int = 0) -> None");
}

void BindOptionsType(nb::module_& m) {
  nb::class_<SchedulerOptions> type(
      m, "SchedulerOptions",
      "How requests are ordered, admitted and chunked, what tenants may use, "
      "and what the\nengine can do. The flags of blockmgrd have the same names "
      "and "
      "meanings. Constant.");
  type.def(
      "__init__", InitBy(&MakeOptions), nb::sig(Keep(Signature())),
      "tenants: {name: {weight | max_blocks | max_requests | "
      "max_queued_tokens: "
      "number}};\nthe name * means all others. query_stats: {name: "
      "fingerprint} of "
      "the engine's tables.\nsampling_fields: what the engine supports, for "
      "example ('temperature', 'seed').");
  const auto add = [&type](absl::string_view name,
                           const std::string& value_type,
                           const std::string& /*value*/, const char* help) {
    const std::string key(name);
    type.def_prop_ro(
        Keep(key),
        [key](const SchedulerOptions& self) { return ReadOption(self, key); },
        nb::sig(Keep(absl::StrCat("def ", key, "(self) -> ", value_type))),
        Keep(WithoutDashes(help)));
  };
  ListOptions(add);
}

void BindStats(nb::module_& m) {
  nb::class_<TenantUse>(m, "TenantUse",
                        "What a tenant that the options name uses now; * means "
                        "all others together.")
      .def_ro("name", &TenantUse::name)
      .def_ro("num_requests", &TenantUse::num_requests)
      .def_ro("queued_tokens", &TenantUse::queued_tokens)
      .def_ro("reserved_blocks", &TenantUse::reserved_blocks);
  nb::class_<SchedulerStats> type(
      m, "SchedulerStats",
      "Counters since the creation of a scheduler, and "
      "gauges of now.");
  const SchedulerStats none;
  VisitSchedulerStats(none, [&](StatKind, const char* name, auto,
                                const char* /*metric*/, const char* help) {
    const std::string key(name);
    type.def_prop_ro(
        name,
        [key](const SchedulerStats& self) {
          nb::object found;
          VisitSchedulerStats(self, [&](StatKind, const char* stat, auto value,
                                        const char*, const char*) {
            if (key == stat) found = nb::cast(value);
          });
          return found;
        },
        nb::sig(Keep(absl::StrCat("def ", key, "(self) -> int"))), help);
  });
  type.def_ro("tenants", &SchedulerStats::tenants)
      .def(
          "as_dict",
          [](const SchedulerStats& self) {
            std::map<std::string, int64_t> values;
            VisitSchedulerStats(
                self, [&](StatKind, const char* name, auto value, const char*,
                          const char*) {
                  values[name] = static_cast<int64_t>(value);
                });
            return values;
          },
          "All numbers by name.");
}

}  // namespace

void BindOptions(nb::module_& m) {
  BindOptionsType(m);
  BindStats(m);
}

}  // namespace blockmgr::python
