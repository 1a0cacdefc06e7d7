// The table of layers: who may include whom.
#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <absl/strings/match.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>
#include <absl/strings/strip.h>

#include "tests/tidy/rules.h"

namespace blockmgr::tidy {
namespace {

// One folder. Files belong to the row with the longest matching folder.
struct Layer {
  std::string folder;
  // Folders (their own files, not those of a nested row) and single headers.
  std::vector<std::string> may_include;
  // Uses of third-party and system headers.
  bool any_library = true;  // else std and Abseil only
  bool grpc = false;
  bool cuda = false;
  bool threads_and_clocks = true;
};

std::vector<std::string> All() {
  return {"blockmgr/base",
          "blockmgr/eviction",
          "blockmgr",
          "kernels",
          "program",
          "scheduler",
          "proto",
          "scheduler/server",
          "wire",
          "engine/tables",
          "engine/gguf",
          "engine/tokenizer",
          "engine/reference",
          "bench/charts",
          "bench/evict",
          "bench",
          "examples",
          "python",
          "tests"};
}

// Where a client finds the daemon, how flags are checked and how a program that
// serves logs is all of the server's that its peers share.
std::vector<std::string> ReferenceEngineIncludes() {
  return {"blockmgr/base",
          "blockmgr/eviction",
          "blockmgr",
          "engine/gguf",
          "engine/tables",
          "engine/tokenizer",
          "kernels",
          "program",
          "proto",
          "wire",
          "scheduler/server/default_address.h",
          "scheduler/server/flag_checks.h",
          "scheduler/server/library_logs.h",
          "scheduler/server/stderr_log.h"};
}

const std::vector<Layer>& Layers() {
  static const auto& layers = *new std::vector<Layer>{
      {.folder = "blockmgr/base",
       .may_include = {},
       .any_library = false,
       .threads_and_clocks = false},
      {.folder = "blockmgr/eviction",
       .may_include = {"blockmgr/base"},
       .threads_and_clocks = false},
      {.folder = "blockmgr",
       .may_include = {"blockmgr/base", "blockmgr/eviction"},
       .threads_and_clocks = false},
      // The emulator, which runs device code where nvcc does not compile it,
      // belongs to the tests.
      {.folder = "kernels",
       .may_include = {"blockmgr/base", "blockmgr/eviction",
                       "tests/kernels/simt/simt_emulator.h"},
       .cuda = true},
      {.folder = "scheduler",
       .may_include = {"blockmgr/base", "blockmgr/eviction", "blockmgr"},
       .threads_and_clocks = false},
      {.folder = "scheduler/server",
       .may_include = {"blockmgr/base", "blockmgr/eviction", "blockmgr",
                       "kernels", "program", "scheduler", "proto", "wire"},
       .grpc = true},
      {.folder = "proto", .may_include = {}},
      {.folder = "program", .may_include = {}},
      // Of the daemon it knows what its commands are.
      {.folder = "wire",
       .may_include = {"blockmgr/base", "blockmgr/eviction", "blockmgr",
                       "proto", "scheduler", "scheduler/server/commands.h"},
       .grpc = true,
       .threads_and_clocks = false},
      {.folder = "engine/tables",
       .may_include = {"blockmgr/base", "blockmgr/eviction", "blockmgr"},
       .threads_and_clocks = false},
      {.folder = "engine/gguf",
       .may_include = {"blockmgr/base"},
       .threads_and_clocks = false},
      {.folder = "engine/tokenizer",
       .may_include = {"blockmgr/base", "engine/gguf"},
       .threads_and_clocks = false},
      {.folder = "engine/reference",
       .may_include = ReferenceEngineIncludes(),
       .grpc = true},
      {.folder = "bench/charts", .may_include = {"blockmgr/base"}},
      {.folder = "bench/evict",
       .may_include = {"bench/charts", "blockmgr/base", "blockmgr/eviction",
                       "blockmgr", "bench/quality/bootstrap.h",
                       "bench/serve/chat_prompt.h", "engine/gguf",
                       "engine/tables", "engine/tokenizer", "engine/reference",
                       "kernels", "program", "proto",
                       "scheduler/server/default_address.h",
                       "scheduler/server/flag_checks.h"},
       .grpc = true},
      {.folder = "examples",
       .may_include = {"blockmgr/base", "blockmgr/eviction", "blockmgr",
                       "engine/tables", "kernels", "scheduler"},
       .cuda = true},
      // The library for Python.
      {.folder = "python",
       .may_include = {"blockmgr/base", "blockmgr/eviction", "blockmgr",
                       "engine/tables", "kernels", "scheduler"}},
      {.folder = "bench", .may_include = All(), .grpc = true, .cuda = true},
      {.folder = "tests", .may_include = All(), .grpc = true, .cuda = true},
  };
  return layers;
}

const Layer* LayerOf(absl::string_view path) {
  const Layer* best = nullptr;
  for (const Layer& layer : Layers()) {
    if (absl::StartsWith(path, absl::StrCat(layer.folder, "/")) &&
        (best == nullptr || layer.folder.size() > best->folder.size())) {
      best = &layer;
    }
  }
  return best;
}

bool IsStandardHeader(absl::string_view header) {
  return !absl::StrContains(header, '/') && !absl::StrContains(header, '.');
}

// blockmgr/ and the core of the scheduler are driven by their caller: what they
// do depends on the calls alone.
bool IsThreadOrClockHeader(absl::string_view header) {
  constexpr std::array<absl::string_view, 11> kHeaders = {
      "thread", "mutex",   "shared_mutex", "condition_variable",
      "future", "chrono",  "random",       "semaphore",
      "latch",  "barrier", "stop_token"};
  return std::find(kHeaders.begin(), kHeaders.end(), header) !=
             kHeaders.end() ||
         absl::StartsWith(header, "absl/synchronization/") ||
         absl::StartsWith(header, "absl/time/") ||
         absl::StartsWith(header, "absl/random/");
}

bool IsGrpcHeader(absl::string_view header) {
  return absl::StartsWith(header, "grpc") ||
         absl::StartsWith(header, "google/protobuf/");
}

bool IsCudaHeader(absl::string_view header) {
  return absl::StartsWith(header, "cuda") || absl::StartsWith(header, "cub/");
}

// Why `layer` may not include the third-party or system header, or "".
std::string WhyNotLibrary(const Layer& layer, absl::string_view header) {
  if (!layer.any_library && !IsStandardHeader(header) &&
      !absl::StartsWith(header, "absl/")) {
    return "uses std and Abseil only";
  }
  if (!layer.grpc && IsGrpcHeader(header)) return "must not know about gRPC";
  if (!layer.cuda && IsCudaHeader(header)) return "must not know about CUDA";
  if (!layer.threads_and_clocks && IsThreadOrClockHeader(header)) {
    return "has no threads, locks, clocks or randomness";
  }
  return "";
}

// Why `layer` may not include the header of ours, or "".
std::string WhyNotOwn(const Layer& layer, absl::string_view header) {
  const Layer* target = LayerOf(header);
  if (target == nullptr) return "is outside every known folder";
  if (target == &layer) return "";
  for (const std::string& allowed : layer.may_include) {
    if (allowed == target->folder || allowed == header) return "";
  }
  return absl::StrCat("is above or beside it (", target->folder, ")");
}

// Why device code in `folder` may not include the header, or "": it sees its
// own folder, and those of all that kernels and their launches are made of.
std::string WhyNotInDeviceCode(absl::string_view folder, bool own,
                               absl::string_view header) {
  const bool allowed =
      own ? header.substr(0, header.rfind('/')) == folder ||
                (absl::StartsWith(header, "kernels/cuda/") &&
                 !absl::StartsWith(header, "kernels/cuda/host/"))
          : IsStandardHeader(header) || IsCudaHeader(header);
  return allowed ? "" : "is not for device code";
}

}  // namespace

std::string LayerFolder(absl::string_view path) {
  const Layer* layer = LayerOf(path);
  return layer == nullptr ? "" : layer->folder;
}

Findings CheckIncludes(absl::string_view path, absl::string_view text) {
  Findings findings;
  const Layer* layer = LayerOf(path);
  if (layer == nullptr) return findings;
  int64_t line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    if (!absl::ConsumePrefix(&line, "#include ") || line.size() < 2) continue;
    const bool own = line.front() == '"';
    const size_t end = line.find(own ? '"' : '>', 1);
    if (end == absl::string_view::npos) continue;
    const absl::string_view header = line.substr(1, end - 1);
    std::string why =
        own ? WhyNotOwn(*layer, header) : WhyNotLibrary(*layer, header);
    if (why.empty() && IsDeviceCode(path)) {
      why = WhyNotInDeviceCode(path.substr(0, path.rfind('/')), own, header);
    }
    if (why.empty()) continue;
    findings.push_back({.path = std::string(path),
                        .line = line_number,
                        .rule = "layers",
                        .detail = own ? absl::StrCat(header, " ", why)
                                      : absl::StrCat(layer->folder, " ", why,
                                                     ": <", header, ">")});
  }
  return findings;
}

}  // namespace blockmgr::tidy
