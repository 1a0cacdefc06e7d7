// The file of a model: what it says of itself is what can be read.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <absl/status/status.h>
#include <absl/strings/str_cat.h>

#include "engine/gguf/gguf_file.h"
#include "engine/gguf/tensor_type.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/testing/gguf_writer.h"

namespace blockmgr::fuzz {
namespace {

// Those of the seeds. What others have is skipped by the same code.
constexpr const char* kKeys[] = {"general.alignment",
                                 "u8",
                                 "i8",
                                 "u16",
                                 "i16",
                                 "u32",
                                 "i32",
                                 "u64",
                                 "i64",
                                 "f32",
                                 "f64",
                                 "bool",
                                 "text",
                                 "strings",
                                 "integers",
                                 "bools",
                                 "numbers"};

bool IsInside(absl::string_view part, absl::string_view whole) {
  return part.data() >= whole.data() &&
         part.data() + part.size() <= whole.data() + whole.size();
}

void AskFor(const GgufFile& file, const char* key, absl::string_view input) {
  const auto integer = file.Integer(key);
  const auto number = file.Number(key);
  const auto integers = file.Integers(key);
  const auto numbers = file.Numbers(key);
  const auto strings = file.Strings(key);
  const int num_kinds = number.ok() + file.Boolean(key).ok() +
                        file.String(key).ok() +
                        (integers.ok() || numbers.ok()) + strings.ok();
  Require(num_kinds <= 1, absl::StrCat("a value of two kinds: ", key));
  Require(absl::IsNotFound(integer.status()) != file.Has(key),
          absl::StrCat("there and not there: ", key));
  if (integer.ok()) {
    Require(number.ok() && *number == static_cast<double>(*integer),
            absl::StrCat("an integer that is no number: ", key));
  }
  if (integers.ok() && numbers.ok()) {
    Require(integers->size() == numbers->size(),
            absl::StrCat("an array of two lengths: ", key));
  }
  if (strings.ok()) {
    for (const absl::string_view text : *strings) {
      Require(IsInside(text, input), "a string of somebody else");
    }
  }
}

void CheckTensor(const GgufFile& file, const GgufTensor& tensor,
                 absl::string_view input) {
  Require(file.Find(tensor.name) == &tensor, "a tensor that is not found");
  Require(!tensor.shape.empty(), "a tensor without a shape");
  int64_t num_rows = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) num_rows *= tensor.shape[i];
  const int64_t row_bytes = RowBytes(tensor.type, tensor.shape[0]);
  Require(static_cast<int64_t>(tensor.data.size()) == row_bytes * num_rows,
          "not the bytes of the shape");
  const absl::string_view data(
      reinterpret_cast<const char*>(tensor.data.data()), tensor.data.size());
  Require(IsInside(data, input), "data of somebody else");
  std::vector<float> row(static_cast<size_t>(tensor.shape[0]));
  for (const int64_t i : {int64_t{0}, num_rows - 1}) {
    DequantizeRow(tensor.type,
                  tensor.data.subspan(static_cast<size_t>(i * row_bytes),
                                      static_cast<size_t>(row_bytes)),
                  row);
  }
}

}  // namespace

void RunGguf(absl::string_view input) {
  const auto file =
      GgufFile::Parse(std::as_bytes(std::span(input.data(), input.size())));
  if (!file.ok()) {
    Require(absl::IsInvalidArgument(file.status()) &&
                file.status().message().size() < 1000,
            "an error that does not say it");
    return;
  }
  Require(!(*file)->Describe().empty(), "a file without a description");
  for (const char* key : kKeys) AskFor(**file, key, input);
  for (const GgufTensor& tensor : (*file)->tensors()) {
    CheckTensor(**file, tensor, input);
  }
}

namespace {

void AddKeys(GgufWriter* writer) {
  writer->Add("u8", uint8_t{200});
  writer->Add("i8", int8_t{-100});
  writer->Add("u16", uint16_t{50000});
  writer->Add("i16", int16_t{-20000});
  writer->Add("u32", uint32_t{4000000000});
  writer->Add("i32", int32_t{-2000000000});
  writer->Add("u64", ~uint64_t{0});
  writer->Add("i64", int64_t{-1} << 62);
  writer->Add("f32", 0.5f);
  writer->Add("f64", 1e300);
  writer->Add("bool", true);
  writer->Add("text", "llama");
  writer->Add("strings", std::vector<std::string>{"a", "", "bcd"});
  writer->Add("integers", std::vector<int32_t>{1, -2, 3});
  writer->Add("bools", std::vector<bool>{true, false});
  writer->Add("numbers", std::vector<double>{1, -1e38});
}

void AddTensor(TensorType type, GgufWriter* writer) {
  std::vector<float> values(512);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(i % 31) / 16 - 1;
  }
  writer->AddTensor(TensorTypeName(type), type, {256, 2},
                    QuantizeRow(type, values));
}

}  // namespace

std::vector<std::string> MakeGguf() {
  std::vector<std::string> seeds;
  GgufWriter keys(2);
  AddKeys(&keys);
  seeds.push_back(keys.Finish());
  GgufWriter all;
  all.SetAlignment(8);
  AddKeys(&all);
  for (const TensorType type : kTensorTypes) {
    GgufWriter one;
    AddTensor(type, &one);
    seeds.push_back(one.Finish());
    AddTensor(type, &all);
  }
  seeds.push_back(all.Finish());
  return seeds;
}

}  // namespace blockmgr::fuzz
