// The rules on small examples: each finds what it must and nothing else.
#include "tests/tidy/rules.h"

#include <cstdint>
#include <string>

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace blockmgr::tidy {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

auto At(int64_t line, const std::string& detail) {
  return AllOf(Field("line", &Finding::line, line),
               Field("detail", &Finding::detail, HasSubstr(detail)));
}

auto About(const std::string& path, const std::string& detail) {
  return AllOf(Field("path", &Finding::path, path),
               Field("detail", &Finding::detail, HasSubstr(detail)));
}

std::string Include(absl::string_view header) {
  return absl::StrCat("#include \"", header, "\"\n");
}

std::string IncludeLibrary(absl::string_view header) {
  return absl::StrCat("#include <", header, ">\n");
}

std::string Repeat(absl::string_view line, int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) absl::StrAppend(&text, line, "\n");
  return text;
}

TEST(FindingTest, NamesFileLineAndRule) {
  const Finding finding = {
      .path = "a/b.cc", .line = 7, .rule = "layers", .detail = "no"};
  EXPECT_EQ(finding.ToString(), "a/b.cc:7: layers: no");
}

struct Edge {
  const char* from;
  const char* to;
};

TEST(IncludesTest, DownwardIsAllowed) {
  constexpr Edge kEdges[] = {{"blockmgr/base/a.h", "blockmgr/base/b.h"},
                             {"blockmgr/eviction/a.cc", "blockmgr/base/b.h"},
                             {"blockmgr/a.cc", "blockmgr/eviction/b.h"},
                             {"kernels/cpu/a.cc", "kernels/backend.h"},
                             {"kernels/cpu/a.cc", "blockmgr/eviction/b.h"},
                             {"scheduler/a.cc", "blockmgr/b.h"},
                             {"scheduler/server/a.cc", "scheduler/b.h"},
                             {"scheduler/server/a.cc", "proto/v1/b.pb.h"},
                             {"engine/reference/a.cc", "kernels/cpu/b.h"},
                             {"bench/evict/a.cc", "engine/reference/b.h"},
                             {"bench/a.cc", "scheduler/server/b.h"},
                             {"tests/scheduler/a.cc", "engine/reference/b.h"}};
  for (const Edge& edge : kEdges) {
    EXPECT_THAT(CheckIncludes(edge.from, Include(edge.to)), IsEmpty())
        << edge.from << " -> " << edge.to;
  }
}

TEST(IncludesTest, UpwardAndSidewardAreRefused) {
  constexpr Edge kEdges[] = {{"blockmgr/base/a.h", "blockmgr/eviction/b.h"},
                             {"blockmgr/base/a.h", "blockmgr/b.h"},
                             {"blockmgr/eviction/a.cc", "blockmgr/b.h"},
                             {"blockmgr/a.cc", "kernels/backend.h"},
                             {"scheduler/a.cc", "kernels/backend.h"},
                             {"blockmgr/a.cc", "scheduler/b.h"},
                             {"kernels/a.cc", "blockmgr/b.h"},
                             {"kernels/a.cc", "scheduler/b.h"},
                             {"scheduler/a.cc", "kernels/cpu/b.h"},
                             {"scheduler/a.cc", "scheduler/server/b.h"},
                             {"scheduler/a.cc", "proto/v1/b.pb.h"},
                             {"engine/reference/a.cc", "scheduler/b.h"},
                             {"engine/reference/a.cc", "bench/b.h"},
                             {"bench/evict/a.cc", "scheduler/b.h"},
                             {"examples/a.cc", "engine/reference/b.h"},
                             {"kernels/a.cc", "tests/testing/b.h"},
                             {"scheduler/server/a.cc", "engine/reference/b.h"},
                             {"blockmgr/a.cc", "somewhere/else.h"}};
  for (const Edge& edge : kEdges) {
    EXPECT_THAT(CheckIncludes(edge.from, absl::StrCat("\n", Include(edge.to))),
                ElementsAre(At(2, edge.to)))
        << edge.from << " -> " << edge.to;
  }
}

TEST(IncludesTest, BaseUsesStdAndAbseilOnly) {
  EXPECT_THAT(CheckIncludes("blockmgr/base/a.h",
                            IncludeLibrary("vector") +
                                IncludeLibrary("absl/status/status.h")),
              IsEmpty());
  for (const char* header : {"boost/x.hpp", "xxhash.h", "unistd.h"}) {
    EXPECT_THAT(CheckIncludes("blockmgr/base/a.h", IncludeLibrary(header)),
                ElementsAre(At(1, "std and Abseil")));
  }
  EXPECT_THAT(CheckIncludes("blockmgr/a.cc", IncludeLibrary("xxhash.h")),
              IsEmpty());
}

TEST(IncludesTest, GrpcStaysWithTheServerAndThePrograms) {
  for (const char* header : {"grpcpp/grpcpp.h", "google/protobuf/message.h"}) {
    const std::string text = IncludeLibrary(header);
    for (const char* path :
         {"blockmgr/a.cc", "kernels/a.cc", "scheduler/a.cc"}) {
      EXPECT_THAT(CheckIncludes(path, text), ElementsAre(At(1, "gRPC")));
    }
    for (const char* path : {"scheduler/server/a.cc", "bench/a.cc",
                             "engine/reference/a.cc", "tests/e2e/a.cc"}) {
      EXPECT_THAT(CheckIncludes(path, text), IsEmpty());
    }
  }
}

TEST(IncludesTest, CudaStaysWithTheKernels) {
  const std::string text = IncludeLibrary("cuda_runtime.h");
  EXPECT_THAT(CheckIncludes("kernels/cuda/a.cc", text), IsEmpty());
  for (const char* path :
       {"blockmgr/a.cc", "scheduler/a.cc", "engine/reference/a.cc"}) {
    EXPECT_THAT(CheckIncludes(path, text), ElementsAre(At(1, "CUDA")));
  }
}

TEST(IncludesTest, CoreHasNoThreadsOrClocks) {
  for (const char* header :
       {"mutex", "thread", "chrono", "random", "absl/time/clock.h"}) {
    const std::string text = IncludeLibrary(header);
    for (const char* path : {"blockmgr/base/a.h", "blockmgr/eviction/a.cc",
                             "blockmgr/a.cc", "scheduler/a.cc"}) {
      EXPECT_THAT(CheckIncludes(path, text), ElementsAre(At(1, "threads")));
    }
    EXPECT_THAT(CheckIncludes("scheduler/server/a.cc", text), IsEmpty());
    EXPECT_THAT(CheckIncludes("kernels/cpu/a.cc", text), IsEmpty());
  }
}

TEST(IncludesTest, DeviceCodeSeesCudaAndTheKernels) {
  const std::string allowed =
      IncludeLibrary("cuda_bf16.h") + IncludeLibrary("cstdint") +
      Include("kernels/cuda/simt.h") + Include("kernels/cuda/rows/a.cuh");
  const std::string refused = IncludeLibrary("absl/strings/str_cat.h") +
                              Include("blockmgr/base/ids.h") +
                              Include("kernels/backend.h") +
                              Include("kernels/cuda/host/a.h") +
                              IncludeLibrary("boost/context/fiber.hpp");
  for (const char* path :
       {"kernels/cuda/a.cu", "kernels/cuda/a.cuh", "bench/a.cu"}) {
    EXPECT_THAT(CheckIncludes(path, allowed), IsEmpty());
    EXPECT_THAT(CheckIncludes(path, refused),
                ElementsAre(At(1, "device"), At(2, "device"), At(3, "device"),
                            At(4, "device"), At(5, "device")));
  }
  // Host code beside it may.
  EXPECT_THAT(CheckIncludes("kernels/cuda/a.cc", refused), IsEmpty());
}

TEST(LineLengthsTest, FindsTheFirstColumnTooMuch) {
  const std::string longest(kMaxColumns, 'x');
  EXPECT_THAT(CheckLineLengths("a.cc", longest + "\n"), IsEmpty());
  EXPECT_THAT(CheckLineLengths("a.cc", longest + "\n" + longest + "x\n"),
              ElementsAre(At(2, "81")));
}

TEST(LineLengthsTest, CountsCharactersNotBytes) {
  std::string text;
  for (int64_t i = 0; i < kMaxColumns; ++i) text += "é";
  EXPECT_THAT(CheckLineLengths("a.cc", text), IsEmpty());
  EXPECT_THAT(CheckLineLengths("a.cc", text + "é"), ElementsAre(At(1, "81")));
}

TEST(LineLengthsTest, ExemptsWhatCannotBeBroken) {
  const std::string filler(kMaxColumns, 'x');
  EXPECT_THAT(CheckLineLengths("a.cc", absl::StrCat("// https://", filler)),
              IsEmpty());
  EXPECT_THAT(CheckLineLengths("a.cc", Include(filler)), IsEmpty());
  EXPECT_THAT(
      CheckLineLengths(
          filler + ".h",
          absl::StrCat("#ifndef ", std::string(kMaxColumns, 'X'), "_H_\n")),
      IsEmpty());
}

// A function of `length` lines in all.
std::string Function(int64_t length, const std::string& indent) {
  return absl::StrCat(indent, "int F(int a,\n", indent, "      int b) {\n",
                      Repeat(absl::StrCat(indent, "  ++a;"), length - 3),
                      indent, "}\n");
}

TEST(SizesTest, FindsTheFunctionOneLineTooLong) {
  for (const char* indent : {"", "  "}) {
    const std::string before = "class A;\n};\n\n";
    EXPECT_THAT(CheckSizes("a.cc", before + Function(70, indent)), IsEmpty());
    EXPECT_THAT(CheckSizes("a.cc", before + Function(71, indent)),
                ElementsAre(At(4, "71")));
  }
}

TEST(SizesTest, ManyShortFunctionsAreNotOneLong) {
  std::string text;
  for (int i = 0; i < 9; ++i) absl::StrAppend(&text, Function(50, ""), "\n");
  EXPECT_THAT(CheckSizes("a.cc", text), IsEmpty());
}

TEST(SizesTest, FindsTheFileOneLineTooLong) {
  EXPECT_THAT(CheckSizes("a.cc", Repeat("x", kMaxFileLines)), IsEmpty());
  EXPECT_THAT(CheckSizes("a.cc", Repeat("x", kMaxFileLines + 1)),
              ElementsAre(At(801, "801")));
}

std::string Guarded(const std::string& guard) {
  return absl::StrCat("// About.\n#ifndef ", guard, "\n#define ", guard,
                      "\nint x;\n#endif  // ", guard, "\n");
}

TEST(IncludeGuardTest, SpellsThePath) {
  EXPECT_THAT(CheckIncludeGuard("blockmgr/base/bits.h",
                                Guarded("BLOCKMGR_BASE_BITS_H_")),
              IsEmpty());
  EXPECT_THAT(
      CheckIncludeGuard("kernels/backend.h", Guarded("KERNELS_BACKEND_H_")),
      IsEmpty());
}

TEST(IncludeGuardTest, OtherGuardsAndNoneAreFound) {
  EXPECT_THAT(
      CheckIncludeGuard("kernels/backend.h", Guarded("KERNELS_BACK_H_")),
      ElementsAre(At(2, "KERNELS_BACKEND_H_")));
  EXPECT_THAT(
      CheckIncludeGuard("kernels/cuda/a.cuh", Guarded("KERNELS_CUDA_A_H_")),
      ElementsAre(At(2, "KERNELS_CUDA_A_CUH_")));
  EXPECT_THAT(CheckIncludeGuard("kernels/backend.h", "#pragma once\nint x;\n"),
              ElementsAre(At(1, "KERNELS_BACKEND_H_")));
  EXPECT_THAT(CheckIncludeGuard("kernels/backend.h", "int x;\n"),
              ElementsAre(At(1, "KERNELS_BACKEND_H_")));
}

// Spelled in two parts, for this file obeys the rules too.
std::string Word(const char* head, const char* tail) {
  return absl::StrCat(head, tail);
}

TEST(LeftoversTest, FindsWorkLeftForLater) {
  for (const std::string& word : {Word("TO", "DO"), Word("FIX", "ME"),
                                  Word("X", "XX"), Word("HA", "CK")}) {
    EXPECT_THAT(
        CheckLeftovers("a.cc", absl::StrCat("int x;\n// ", word, ": later\n")),
        ElementsAre(At(2, word)));
    EXPECT_THAT(
        CheckLeftovers("CMakeLists.txt", absl::StrCat("# ", word, "(me)\n")),
        ElementsAre(At(1, word)));
    EXPECT_THAT(CheckLeftovers("a.cc", absl::StrCat("k", word, "L = 1;\n")),
                IsEmpty());
  }
}

TEST(LeftoversTest, FindsTestsThatDoNotRun) {
  EXPECT_THAT(CheckLeftovers("a.cc", Word("TEST(A, DISABLED", "_B) {\n")),
              ElementsAre(At(1, "disabled")));
  EXPECT_THAT(CheckLeftovers("a.cc", "// TEST(A, B) {\n"),
              ElementsAre(At(1, "commented out")));
  EXPECT_THAT(CheckLeftovers("CMakeLists.txt", "#bm_test_suite(x\n"),
              ElementsAre(At(1, "commented out")));
  EXPECT_THAT(CheckLeftovers("a.cc", Word("#if", " 0\n")),
              ElementsAre(At(1, "cut out")));
}

TEST(LeftoversTest, OnlyMissingHardwareExcusesASkip) {
  const std::string skip = Word("  GTEST", "_SKIP() << ");
  EXPECT_THAT(CheckLeftovers("a.cc", skip + "\"no GPU\";\n"), IsEmpty());
  EXPECT_THAT(CheckLeftovers("a.cc", skip + "\n      \"no GPU\";\n"),
              IsEmpty());
  EXPECT_THAT(CheckLeftovers("a.cc", skip + "\"not on this machine\";\n"),
              IsEmpty());
  EXPECT_THAT(CheckLeftovers("a.cc", skip + "\"flaky\";\n"),
              ElementsAre(At(1, "GPU")));
}

TEST(IncludesExistTest, FindsWrongPathsAndKnowsGeneratedHeaders) {
  const SourceTree tree = {
      {"proto/v1/a.proto", ""},
      {"kernels/a.h", ""},
      {"kernels/a.cc", Include("kernels/a.h") + Include("a.h")},
      {"bench/b.cc", Include("proto/v1/a.pb.h") +
                         Include("proto/v1/a.grpc.pb.h") +
                         Include("proto/v1/b.pb.h")}};
  EXPECT_THAT(CheckIncludesExist(tree),
              ElementsAre(At(3, "proto/v1/b.pb.h"), At(2, "a.h")));
}

constexpr char kOneTest[] = "#include <x>\nTEST(A, B) {}\n";

TEST(TestsMirrorSourcesTest, AcceptsTestsThatAreBuilt) {
  const SourceTree tree = {
      {"kernels/cpu/a.cc", ""},
      {"kernels/cpu/main.cc", ""},
      {"tests/kernels/cpu/a_test.cc", kOneTest},
      {"tests/kernels/CMakeLists.txt", "bm_test_suite(x SRCS cpu/a_test.cc)"}};
  EXPECT_THAT(CheckTestsMirrorSources(tree, {}), IsEmpty());
}

TEST(TestsMirrorSourcesTest, AcceptsTheLayersTestFolder) {
  const SourceTree tree = {{"kernels/cpu/a.cc", ""},
                           {"tests/kernels/a_test.cc", kOneTest},
                           {"tests/kernels/CMakeLists.txt", "f(a_test.cc)"}};
  EXPECT_THAT(CheckTestsMirrorSources(tree, {}), IsEmpty());
  // Eviction is a layer of its own.
  const SourceTree other = {{"blockmgr/eviction/a.cc", ""},
                            {"tests/blockmgr/a_test.cc", kOneTest},
                            {"tests/blockmgr/CMakeLists.txt", "f(a_test.cc)"}};
  EXPECT_THAT(CheckTestsMirrorSources(other, {}),
              ElementsAre(About("blockmgr/eviction/a.cc",
                                "tests/blockmgr/eviction/a_test.cc")));
}

TEST(TestsMirrorSourcesTest, PartsAreTestedWithTheirHeader) {
  SourceTree tree = {{"kernels/a.h", ""},
                     {"kernels/a_copy.cc", ""},
                     {"tests/kernels/a_test.cc", kOneTest},
                     {"tests/kernels/CMakeLists.txt", "f(a_test.cc)"}};
  EXPECT_THAT(CheckTestsMirrorSources(tree, {}), IsEmpty());
  tree["kernels/a_copy.h"] = "";
  EXPECT_THAT(
      CheckTestsMirrorSources(tree, {}),
      ElementsAre(About("kernels/a_copy.cc", "tests/kernels/a_copy_test.cc")));
}

TEST(TestsMirrorSourcesTest, FindsMissingEmptyAndUnbuiltTests) {
  const SourceTree tree = {
      {"kernels/empty.cc", ""},
      {"kernels/missing.cc", ""},
      {"kernels/unbuilt.cc", ""},
      {"tests/kernels/empty_test.cc", "int x;\n"},
      {"tests/kernels/unbuilt_test.cc", kOneTest},
      {"tests/kernels/CMakeLists.txt", "f(empty_test.cc # unbuilt_test.cc\n)"}};
  EXPECT_THAT(
      CheckTestsMirrorSources(tree, {}),
      ElementsAre(About("kernels/empty.cc", "contains no test"),
                  About("kernels/missing.cc", "tests/kernels/missing_test.cc"),
                  About("kernels/unbuilt.cc", "no CMakeLists.txt")));
}

TEST(TestsMirrorSourcesTest, ExceptionsStandInAndMustBeNeeded) {
  SourceTree tree = {{"kernels/a.cc", ""},
                     {"tests/scheduler/b_test.cc", kOneTest},
                     {"tests/scheduler/CMakeLists.txt", "f(b_test.cc)"}};
  EXPECT_THAT(CheckTestsMirrorSources(
                  tree, {{"kernels/a.cc", "tests/scheduler/b_test.cc"}}),
              IsEmpty());
  EXPECT_THAT(CheckTestsMirrorSources(
                  tree, {{"kernels/a.cc", "tests/scheduler/b_test.cc"},
                         {"kernels/gone.cc", "tests/x_test.cc"}}),
              ElementsAre(About("kernels/gone.cc", "no longer needed")));
  tree["tests/kernels/a_test.cc"] = kOneTest;
  EXPECT_THAT(CheckTestsMirrorSources(
                  tree, {{"kernels/a.cc", "tests/scheduler/b_test.cc"}}),
              ElementsAre(About("kernels/a.cc", "no longer needed")));
}

TEST(FilesAreBuiltTest, AcceptsFilesNamedAnywhere) {
  const SourceTree tree = {
      {"CMakeLists.txt", "foreach(f kernels tests)\n"},
      {"kernels/CMakeLists.txt",
       "bm_library(kernels SRCS a.cc cpu/b.cc)\n"
       "f(${PROJECT_SOURCE_DIR}/blockmgr/c.h)\n"
       "f(${CMAKE_CURRENT_SOURCE_DIR}/d.cc)\n"},
      {"kernels/a.cc", ""},
      {"kernels/cpu/b.cc", ""},
      {"blockmgr/c.h", ""},
      {"kernels/d.cc", ""},
      {"tests/CMakeLists.txt", "f(../bench/e.cc)"},
      {"bench/e.cc", "#include \"tests/f.h\"\n"},
      {"tests/f.h", ""},
      {"kernels/consumer/CMakeLists.txt", "project(consumer)\n"}};
  EXPECT_THAT(CheckFilesAreBuilt(tree), IsEmpty());
}

TEST(FilesAreBuiltTest, FindsDeadFilesAndDeadFolders) {
  const SourceTree tree = {
      {"CMakeLists.txt", "add_subdirectory(kernels) # scheduler"},
      {"kernels/CMakeLists.txt", "bm_library(kernels SRCS a.cc # b.cc\n)"},
      {"kernels/a.cc", ""},
      {"kernels/b.cc", "#include \"kernels/b.h\"\n"},
      {"kernels/b.h", ""},
      {"kernels/cpu/a.cc", ""},
      {"scheduler/CMakeLists.txt", ""}};
  EXPECT_THAT(CheckFilesAreBuilt(tree),
              ElementsAre(About("kernels/b.cc", ""), About("kernels/b.h", ""),
                          About("kernels/cpu/a.cc", ""),
                          About("scheduler/CMakeLists.txt", "")));
}

}  // namespace
}  // namespace blockmgr::tidy
