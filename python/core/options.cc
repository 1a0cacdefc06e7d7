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

// Reads the option of one name.
struct Reader {
  const absl::string_view wanted;
  nb::object found = {};

  template <typename T, typename... Rest>
  void Number(absl::string_view name, const T& value, const Rest&...) {
    if (name == wanted) found = nb::cast(value);
  }
  void Fraction(absl::string_view name, double value, const char*) {
    if (name == wanted) found = nb::cast(value);
  }
  void Bool(absl::string_view name, bool value, const char*) {
    if (name == wanted) found = nb::cast(value);
  }
  template <typename E>
  void Choice(absl::string_view name, E value, const char*) {
    if (name == wanted) found = nb::cast(std::string(EnumName(value)));
  }
};

// Sets the option of one name.
struct Writer {
  const absl::string_view wanted;
  const nb::handle value;
  bool is_found = false;

  template <typename T>
  void Set(absl::string_view name, const char* type, T* option) {
    if (name != wanted) return;
    is_found = true;
    if (!nb::try_cast(value, *option, true)) {
      throw nb::type_error(absl::StrCat(name, ": expected ", type, ", got ",
                                        nb::repr(value).c_str())
                               .c_str());
    }
  }
  template <typename T, typename... Rest>
  void Number(absl::string_view name, T& option, const Rest&...) {
    Set(name, std::is_same_v<T, double> ? "a number" : "an integer in range",
        &option);
  }
  void Fraction(absl::string_view name, double& option, const char*) {
    Set(name, "a number", &option);
  }
  void Bool(absl::string_view name, bool& option, const char*) {
    Set(name, "a bool", &option);
  }
  template <typename E>
  void Choice(absl::string_view name, E& option, const char*) {
    std::string text;
    Set(name, "a str", &text);
    if (name == wanted && !EnumFromName(text, &option)) {
      ThrowInvalid(name, ": expected one of ",
                   absl::StrJoin(EnumNames<E>(), ", "), ", got '", text, "'");
    }
  }
};

// Calls add(name, type, default, help) for every option.
template <typename Add>
struct Lister {
  Add add;

  template <typename T, typename... Rest>
  void Number(absl::string_view name, const T& value, const Rest&... rest) {
    const char* help = std::get<sizeof...(Rest) - 1>(std::tuple(rest...));
    add(name, std::is_same_v<T, double> ? "float" : "int", absl::StrCat(value),
        help);
  }
  void Fraction(absl::string_view name, double value, const char* help) {
    add(name, "float", absl::StrCat(value), help);
  }
  void Bool(absl::string_view name, bool value, const char* help) {
    add(name, "bool", value ? "True" : "False", help);
  }
  template <typename E>
  void Choice(absl::string_view name, E value, const char* help) {
    add(name, ChoiceType<E>(), absl::StrCat("'", EnumName(value), "'"), help);
  }
};
template <typename Add>
Lister(Add) -> Lister<Add>;

TenantLimits LimitsOf(const std::string& tenant,
                      const std::map<std::string, int64_t>& values) {
  TenantLimits limits;
  for (const auto& [name, value] : values) {
    const nb::object number = nb::cast(value);
    Writer writer{.wanted = name, .value = number};
    VisitTenantLimits(limits, writer);
    if (!writer.is_found) {
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

// Sets an option that has no row in scheduler_options.h. Returns false if there
// is none of this name.
bool SetOther(absl::string_view name, nb::handle value,
              SchedulerOptions* options) {
  if (name == "tenants") {
    SetTenants(CastOption<Tenants>(name, "{tenant: {limit: number}}", value),
               options);
  } else if (name == "query_stats") {
    options->query_stats = CastOption<std::map<std::string, std::string>>(
        name, "{name: fingerprint}", value);
  } else if (name == "sampling_fields") {
    options->sampling.fields =
        FieldsOf(CastOption<std::vector<std::string>>(name, "names", value));
  } else if (name == "vocabulary_size") {
    options->sampling.vocabulary_size =
        CastOption<int32_t>(name, "an integer", value);
  } else if (name == "end_token_ids") {
    options->sampling.end_token_ids =
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
    Writer writer{.wanted = name, .value = value};
    VisitSchedulerOptions(options, writer);
    if (!writer.is_found && !SetOther(name, value, &options)) {
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
  Lister lister{add};
  const SchedulerOptions defaults;
  VisitSchedulerOptions(defaults, lister);
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
      "and "
      "what the\nengine can do. The flags of blockmgrd have the same names and "
      "meanings. Constant.");
  type.def(
      "__init__",
      [](SchedulerOptions* self, const nb::kwargs& values) {
        new (self) SchedulerOptions(MakeOptions(values));
      },
      nb::sig(Keep(Signature())),
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
        [key](const SchedulerOptions& self) {
          Reader reader{.wanted = key};
          VisitSchedulerOptions(self, reader);
          return reader.found;
        },
        nb::sig(Keep(absl::StrCat("def ", key, "(self) -> ", value_type))),
        Keep(WithoutDashes(help)));
  };
  Lister lister{add};
  const SchedulerOptions defaults;
  VisitSchedulerOptions(defaults, lister);
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
