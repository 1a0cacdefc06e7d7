// What a request may ask for besides tokens: eviction, sampling, media,
// retention.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "blockmgr/block_hash.h"
#include "blockmgr/sampling_params.h"
#include "python/core/core.h"
#include "python/core/errors.h"
#include "scheduler/request.h"

namespace blockmgr::python {
namespace {

EvictionMode ModeNamed(const std::string& name) {
  EvictionMode mode{};
  if (EnumFromName(name, &mode)) return mode;
  ThrowInvalid("mode: expected one of ",
               absl::StrJoin(EnumNames<EvictionMode>(), ", "), ", got '", name,
               "'");
}

void BindRequestEviction(nb::module_& m) {
  nb::class_<RequestEviction>(
      m, "Eviction", "When and how a request is evicted from (compressed).")
      .def(
          "__init__",
          [](RequestEviction* self, PolicyArgument policy,
             TargetArgument target, const std::string& mode,
             int32_t compress_every, const PyBudgetTable* table,
             bool share_prefix, int32_t share_multiple) {
            new (self) RequestEviction{.mode = ModeNamed(mode),
                                       .policy = PolicyOf(policy),
                                       .target = TargetOf(target),
                                       .compress_every = compress_every,
                                       .table = TableOf(table),
                                       .share_prefix = share_prefix,
                                       .share_multiple = share_multiple};
          },
          nb::arg("policy"), nb::arg("target"),
          nb::arg("mode") = "after-prefill", nb::kw_only(),
          nb::arg("compress_every") = 0, nb::arg("table").none() = nb::none(),
          nb::arg("share_prefix") = false, nb::arg("share_multiple") = 0,
          "mode is after-prefill, every-chunk (compress_every tokens of the "
          "prompt), decode\n(after the prompt, and every compress_every tokens "
          "of output) or pressure (only if\nblocks are short). With "
          "share_prefix, "
          "requests share compressed prefixes, cut at\nmultiples of "
          "share_multiple tokens (0: page_size).")
      .def_prop_ro("mode",
                   [](const RequestEviction& self) {
                     return std::string(EnumName(self.mode));
                   })
      .def_ro("policy", &RequestEviction::policy)
      .def_ro("target", &RequestEviction::target)
      .def_ro("compress_every", &RequestEviction::compress_every)
      .def_ro("share_prefix", &RequestEviction::share_prefix)
      .def_ro("share_multiple", &RequestEviction::share_multiple);
}

std::map<int32_t, double> BiasOf(const SamplingParams& params) {
  std::map<int32_t, double> values;
  for (const LogitBias& bias : params.logit_bias) {
    values[bias.token] = bias.bias;
  }
  return values;
}

SamplingParams MakeSampling(double temperature, int32_t top_k, double top_p,
                            double min_p, double repetition_penalty,
                            double presence_penalty, double frequency_penalty,
                            const std::map<int32_t, double>& logit_bias,
                            std::optional<int64_t> seed, int32_t min_tokens,
                            bool ignore_eos, std::optional<int32_t> logprobs,
                            std::optional<int32_t> prompt_logprobs,
                            std::vector<std::string> stop) {
  SamplingParams params = {.temperature = temperature,
                           .top_k = top_k,
                           .top_p = top_p,
                           .min_p = min_p,
                           .repetition_penalty = repetition_penalty,
                           .presence_penalty = presence_penalty,
                           .frequency_penalty = frequency_penalty,
                           .seed = seed,
                           .min_tokens = min_tokens,
                           .ignore_eos = ignore_eos,
                           .logprobs = logprobs,
                           .prompt_logprobs = prompt_logprobs,
                           .stop = std::move(stop)};
  for (const auto& [token, bias] : logit_bias) {
    params.logit_bias.push_back({token, bias});
  }
  return params;
}

void BindSampling(nb::module_& m) {
  nb::class_<SamplingParams>(
      m, "SamplingParams",
      "How the tokens of a request are chosen. The fields mean what they mean "
      "in vLLM\n(proto/blockmgr/v1/common.proto has ranges and the order). "
      "Without SamplingParams a\nrequest is decoded greedily.")
      .def(
          "__init__", InitBy(&MakeSampling), nb::kw_only(),
          nb::arg("temperature") = 1.0, nb::arg("top_k") = 0,
          nb::arg("top_p") = 1.0, nb::arg("min_p") = 0.0,
          nb::arg("repetition_penalty") = 1.0,
          nb::arg("presence_penalty") = 0.0, nb::arg("frequency_penalty") = 0.0,
          nb::arg("logit_bias") = nb::dict(), nb::arg("seed") = nb::none(),
          nb::arg("min_tokens") = 0, nb::arg("ignore_eos") = false,
          nb::arg("logprobs") = nb::none(),
          nb::arg("prompt_logprobs") = nb::none(), nb::arg("stop") = nb::list())
      .def_ro("temperature", &SamplingParams::temperature)
      .def_ro("top_k", &SamplingParams::top_k)
      .def_ro("top_p", &SamplingParams::top_p)
      .def_ro("min_p", &SamplingParams::min_p)
      .def_ro("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_ro("presence_penalty", &SamplingParams::presence_penalty)
      .def_ro("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_prop_ro("logit_bias", &BiasOf)
      .def_ro("seed", &SamplingParams::seed)
      .def_ro("min_tokens", &SamplingParams::min_tokens)
      .def_ro("ignore_eos", &SamplingParams::ignore_eos)
      .def_ro("logprobs", &SamplingParams::logprobs)
      .def_ro("prompt_logprobs", &SamplingParams::prompt_logprobs)
      .def_ro("stop", &SamplingParams::stop)
      .def("__eq__", &IsEqual<SamplingParams>, nb::arg("other").none());
}

}  // namespace

void BindRequest(nb::module_& m) {
  BindRequestEviction(m);
  BindSampling(m);
  nb::class_<MediaItem>(m, "MediaItem",
                        "Tokens [begin, begin + length) of a prompt stand for "
                        "an image or another "
                        "input with\nthis hash (1 to 64 bytes).")
      .def(
          "__init__",
          [](MediaItem* self, int32_t begin, int32_t length, nb::bytes hash) {
            new (self) MediaItem{.begin = begin,
                                 .length = length,
                                 .hash = {hash.c_str(), hash.size()}};
          },
          nb::arg("begin"), nb::arg("length"), nb::arg("hash"))
      .def_ro("begin", &MediaItem::begin)
      .def_ro("length", &MediaItem::length)
      .def_prop_ro("hash", [](const MediaItem& self) {
        return nb::bytes(self.hash.data(), self.hash.size());
      });
  nb::class_<RetentionWish>(
      m, "RetentionWish",
      "Asks the prefix cache to keep the blocks of tokens [begin, end) longer.")
      .def(
          "__init__",
          [](RetentionWish* self, int32_t begin, int32_t end, int32_t priority,
             int64_t duration_ms) {
            new (self) RetentionWish{.begin = begin,
                                     .end = end,
                                     .priority = priority,
                                     .duration_ms = duration_ms};
          },
          nb::arg("begin") = 0, nb::arg("end") = 0,
          nb::arg("priority") = kDefaultPriority, nb::arg("duration_ms") = 0,
          "end 0: all tokens from begin on. priority: 0 to 100, higher stays "
          "longer.\nduration_ms 0: without end.")
      .def_ro("begin", &RetentionWish::begin)
      .def_ro("end", &RetentionWish::end)
      .def_ro("priority", &RetentionWish::priority)
      .def_ro("duration_ms", &RetentionWish::duration_ms);
}

}  // namespace blockmgr::python
