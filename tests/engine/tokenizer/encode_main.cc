// Encodes texts for compare_tokenizers.py.
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_split.h>
#include <absl/strings/string_view.h>

#include "blockmgr/base/status_macros.h"
#include "engine/gguf/gguf_file.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/tokenizer/tokenizer_data.h"
#include "engine/tokenizer/tokenizer_files.h"
#include "engine/tokenizer/word_splitter.h"

namespace blockmgr {
namespace {

constexpr char kUsage[] =
    "usage: tokenizer_encode MODEL.gguf PRE special|plain|words TEXTS OUT\n"
    "       tokenizer_encode MODEL.gguf PRE files - OUT\n"
    "\n"
    "Encodes each text of the file TEXTS with the vocabulary of the model and "
    "the words\nof PRE. Texts are separated by the byte 0xFF. For each text, "
    "OUT has int32 numbers:\nthe count of what follows, and tokens (with "
    "special tokens, or plain), or the ends\nof the words, in bytes. Prints "
    "the seconds of processor time.\nWith files, OUT is the zip archive of the "
    "files for other programs.\n";

struct Arguments {
  std::string model;
  std::string pre;
  std::string mode;
  std::string texts;
  std::string out;
};

std::vector<int32_t> WordEnds(const WordSplitter& splitter,
                              absl::string_view text) {
  std::vector<absl::string_view> words;
  splitter.Split(text, &words);
  std::vector<int32_t> ends;
  for (const absl::string_view word : words) {
    const auto size = static_cast<int32_t>(word.size());
    ends.push_back(ends.empty() ? size : ends.back() + size);
  }
  return ends;
}

absl::Status WriteFiles(const TokenizerData& data, const std::string& path) {
  BM_ASSIGN_OR_RETURN(const TokenizerFiles files,
                      MakeTokenizerFiles(data, ModelKind()));
  BM_ASSIGN_OR_RETURN(const std::string zip, ZipTokenizerFiles(files));
  std::ofstream output(path, std::ios::binary);
  output << zip;
  output.close();
  return output ? absl::OkStatus() : absl::UnknownError(path);
}

absl::Status Run(const Arguments& arguments) {
  BM_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(arguments.model));
  BM_ASSIGN_OR_RETURN(TokenizerData data, ReadTokenizerData(*file));
  data.pre = arguments.pre;
  if (arguments.mode == "files") return WriteFiles(data, arguments.out);
  BM_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::Create(data));
  BM_ASSIGN_OR_RETURN(const WordSplitter splitter,
                      WordSplitter::Create(data.pre));
  std::ifstream input(arguments.texts, std::ios::binary);
  if (!input) return absl::NotFoundError(arguments.texts);
  const std::string texts{std::istreambuf_iterator<char>(input), {}};
  std::ofstream output(arguments.out, std::ios::binary);
  const auto write = [&output](const int32_t* values, size_t count) {
    output.write(reinterpret_cast<const char*>(values),
                 static_cast<std::streamsize>(count * sizeof(int32_t)));
  };
  std::clock_t ticks = 0;
  for (const absl::string_view text : absl::StrSplit(texts, '\xFF')) {
    const std::clock_t begin = std::clock();
    const std::vector<int32_t> values =
        arguments.mode == "words"
            ? WordEnds(splitter, text)
            : tokenizer.Encode(text, arguments.mode == "special");
    ticks += std::clock() - begin;
    const auto count = static_cast<int32_t>(values.size());
    write(&count, 1);
    write(values.data(), values.size());
  }
  output.close();
  if (!output) return absl::UnknownError(arguments.out);
  std::printf("%.4f\n", static_cast<double>(ticks) / CLOCKS_PER_SEC);
  return absl::OkStatus();
}

}  // namespace
}  // namespace blockmgr

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fputs(blockmgr::kUsage, stderr);
    return 2;
  }
  const absl::Status status = blockmgr::Run({.model = argv[1],
                                             .pre = argv[2],
                                             .mode = argv[3],
                                             .texts = argv[4],
                                             .out = argv[5]});
  if (status.ok()) return 0;
  std::fprintf(stderr, "tokenizer_encode: %s\n", status.ToString().c_str());
  return 1;
}
