#include "engine/gguf/gguf_file.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "blockmgr/base/invalid.h"
#include "blockmgr/base/status_macros.h"

namespace blockmgr {
namespace {

// Numbers are copied as they are in the file.
static_assert(std::endian::native == std::endian::little);

constexpr absl::string_view kMagic = "GGUF";
// A file has some dozens of keys and, with hundreds of layers and experts,
// some thousands of tensors.
constexpr uint64_t kMaxKeys = 65536;
constexpr uint64_t kMaxTensors = 65536;
// Limits of the format.
constexpr uint64_t kMaxKeyBytes = 65535;
constexpr uint64_t kMaxTensorNameBytes = 64;
constexpr uint32_t kMaxDimensions = 4;
constexpr absl::string_view kAlignmentKey = "general.alignment";
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMinAlignment = 8;

// The numbers are those of the format.
enum ValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
  kNumValueTypes = 13
};

struct ValueTypeFacts {
  absl::string_view name;
  uint64_t num_bytes;  // 0 if it varies
};

constexpr std::array<ValueTypeFacts, kNumValueTypes> kValueTypes = {
    {{"uint8", 1},
     {"int8", 1},
     {"uint16", 2},
     {"int16", 2},
     {"uint32", 4},
     {"int32", 4},
     {"float32", 4},
     {"bool", 1},
     {"string", 0},
     {"array", 0},
     {"uint64", 8},
     {"int64", 8},
     {"float64", 8}}};

// Sets of types, a bit each.
constexpr uint32_t kIntegerTypes = 1u << kUint8 | 1u << kInt8 | 1u << kUint16 |
                                   1u << kInt16 | 1u << kUint32 | 1u << kInt32 |
                                   1u << kUint64 | 1u << kInt64;
constexpr uint32_t kNumberTypes =
    kIntegerTypes | 1u << kFloat32 | 1u << kFloat64;

// Types of tensors that files have and this program does not, by the numbers of
// the format.
constexpr std::pair<uint32_t, absl::string_view> kUnknownTensorTypes[] = {
    {2, "Q4_0"},    {7, "Q5_1"},     {9, "Q8_1"},    {10, "Q2_K"},
    {11, "Q3_K"},   {13, "Q5_K"},    {15, "Q8_K"},   {16, "IQ2_XXS"},
    {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"},  {20, "IQ4_NL"},
    {21, "IQ3_S"},  {22, "IQ2_S"},   {23, "IQ4_XS"}, {24, "I8"},
    {25, "I16"},    {26, "I32"},     {27, "I64"},    {28, "F64"},
    {29, "IQ1_M"},  {34, "TQ1_0"},   {35, "TQ2_0"},  {39, "MXFP4"},
    {40, "NVFP4"},  {41, "Q1_0"}};

// Returns the name of a type, or its number if it has none.
std::string UnknownTypeName(uint32_t type) {
  for (const auto& [number, name] : kUnknownTensorTypes) {
    if (number == type) return std::string(name);
  }
  return absl::StrCat("number ", type);
}

std::string Quoted(absl::string_view text) {
  constexpr size_t kMaxShown = 100;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kMaxShown)),
                      text.size() > kMaxShown ? ".." : "", "'");
}

std::string KeyName(absl::string_view key) {
  return absl::StrCat("key ", Quoted(key));
}

std::string TensorName(absl::string_view tensor) {
  return absl::StrCat("tensor ", Quoted(tensor));
}

template <typename... Pieces>
absl::Status Bad(absl::string_view what, const Pieces&... pieces) {
  return Invalid(what, ": expected ", pieces...);
}

template <typename T>
T Load(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

// Returns an integer or a bool in two's complement.
uint64_t LoadInteger(uint32_t type, const char* bytes) {
  switch (type) {
    case kInt8:
      return static_cast<uint64_t>(Load<int8_t>(bytes));
    case kUint16:
      return Load<uint16_t>(bytes);
    case kInt16:
      return static_cast<uint64_t>(Load<int16_t>(bytes));
    case kUint32:
      return Load<uint32_t>(bytes);
    case kInt32:
      return static_cast<uint64_t>(Load<int32_t>(bytes));
    case kUint64:
    case kInt64:
      return Load<uint64_t>(bytes);
    default:  // uint8, bool
      return Load<uint8_t>(bytes);
  }
}

double LoadNumber(uint32_t type, const char* bytes) {
  if (type == kFloat32) return Load<float>(bytes);
  if (type == kFloat64) return Load<double>(bytes);
  const uint64_t bits = LoadInteger(type, bytes);
  return type == kUint64 ? static_cast<double>(bits)
                         : static_cast<double>(static_cast<int64_t>(bits));
}

// Reads an integer or a bool, and names the key if it is out of range.
absl::Status ReadInteger(absl::string_view key, uint32_t type,
                         const char* bytes, int64_t* value) {
  const uint64_t bits = LoadInteger(type, bytes);
  if (type == kUint64 && bits > std::numeric_limits<int64_t>::max()) {
    return Bad(KeyName(key), "an integer below 2^63, got ", bits);
  }
  if (type == kBool && bits > 1) {
    return Bad(KeyName(key), "a bool of 0 or 1, got ", bits);
  }
  *value = static_cast<int64_t>(bits);
  return absl::OkStatus();
}

struct Mapping {
  std::shared_ptr<const void> memory;  // null if the file is empty
  size_t num_bytes = 0;
};

absl::StatusOr<Mapping> MapFile(const std::string& path) {
  const auto refused = [&path](absl::string_view why) {
    return absl::NotFoundError(
        absl::StrCat(path, ": expected a readable file, got: ", why));
  };
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return refused(std::generic_category().message(errno));
  struct stat facts = {};
  const bool is_file = fstat(file, &facts) == 0 && S_ISREG(facts.st_mode);
  const auto num_bytes = static_cast<size_t>(facts.st_size);
  // An empty file cannot be mapped, and needs not be.
  void* memory = nullptr;
  if (is_file && num_bytes > 0) {
    memory = mmap(nullptr, num_bytes, PROT_READ, MAP_PRIVATE, file, 0);
  }
  const int error = errno;
  close(file);  // the mapping stays
  if (!is_file) return refused("a folder, a pipe or a device");
  if (memory == MAP_FAILED) {
    return refused(std::generic_category().message(error));
  }
  if (num_bytes == 0) return Mapping{};
  const auto unmap = [num_bytes](void* mapped) { munmap(mapped, num_bytes); };
  return Mapping{std::shared_ptr<void>(memory, unmap), num_bytes};
}

}  // namespace

// Cursor takes bytes from the front of a text, and none behind its end.
class GgufFile::Cursor {
 public:
  explicit Cursor(absl::string_view bytes)
      : rest_(bytes), num_bytes_(bytes.size()) {}

  uint64_t position() const { return num_bytes_ - rest_.size(); }

  // Each function returns false, and moves no further, at the end.
  [[nodiscard]] bool Take(uint64_t num_bytes, absl::string_view* taken) {
    wanted_ = num_bytes;
    if (num_bytes > rest_.size()) return false;
    *taken = rest_.substr(0, num_bytes);
    rest_.remove_prefix(num_bytes);
    return true;
  }
  template <typename T>
  [[nodiscard]] bool Read(T* value) {
    absl::string_view bytes;
    if (!Take(sizeof(T), &bytes)) return false;
    std::memcpy(value, bytes.data(), sizeof(T));
    return true;
  }
  [[nodiscard]] bool ReadString(absl::string_view* text) {
    uint64_t num_bytes = 0;
    return Read(&num_bytes) && Take(num_bytes, text);
  }
  [[nodiscard]] bool TakeArray(uint64_t count, uint64_t element_bytes,
                               absl::string_view* taken) {
    constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();
    return Take(count > kMax / element_bytes ? kMax : count * element_bytes,
                taken);
  }

  // Returns the error of the call that returned false. `item` is what that call
  // should have read.
  absl::Status AtEnd(absl::string_view what, absl::string_view item) const {
    return Bad(what, item, ": ", wanted_, " bytes at offset ", position(),
               ", got ", rest_.size(), " to the end of the file");
  }

 private:
  absl::string_view rest_;
  uint64_t num_bytes_;
  uint64_t wanted_ = 0;
};

// Parser fills a GgufFile from its bytes.
class GgufFile::Parser {
 public:
  Parser(absl::string_view bytes, GgufFile* file)
      : bytes_(bytes), cursor_(bytes), file_(*file) {}

  absl::Status Parse() {
    BM_RETURN_IF_ERROR(ReadHeader());
    for (uint64_t i = 0; i < num_keys_; ++i) BM_RETURN_IF_ERROR(ReadKey(i));
    for (uint64_t i = 0; i < num_tensors_; ++i) {
      BM_RETURN_IF_ERROR(ReadTensor(i));
    }
    BM_RETURN_IF_ERROR(FindData());
    for (size_t i = 0; i < file_.tensors_.size(); ++i) {
      BM_RETURN_IF_ERROR(Place(offsets_[i], &file_.tensors_[i]));
    }
    return CheckOverlaps();
  }

 private:
  absl::Status ReadHeader();
  absl::Status ReadKey(uint64_t index);
  absl::Status ReadValue(absl::string_view key, Value* value);
  absl::Status ReadArray(absl::string_view key, Value* value);
  absl::Status ReadTensor(uint64_t index);
  absl::Status ReadShape(absl::string_view name, std::vector<int64_t>* shape);
  // Finds where the data of tensors begin.
  absl::Status FindData();
  // Sets the data of a tensor.
  absl::Status Place(uint64_t offset, GgufTensor* tensor);
  absl::Status CheckOverlaps() const;

  const absl::string_view bytes_;
  Cursor cursor_;
  GgufFile& file_;
  uint64_t num_keys_ = 0;
  uint64_t num_tensors_ = 0;
  std::vector<uint64_t> offsets_;  // of the tensors' data, in data_
  uint64_t alignment_ = kDefaultAlignment;
  absl::string_view data_;
};

absl::Status GgufFile::Parser::ReadHeader() {
  constexpr absl::string_view kHeader = "header";
  absl::string_view magic;
  uint32_t version = 0;
  if (!cursor_.Take(kMagic.size(), &magic)) {
    return cursor_.AtEnd(kHeader, "the word GGUF");
  }
  if (magic != kMagic) {
    return Bad(kHeader, "the word GGUF, got ", Quoted(magic));
  }
  if (!cursor_.Read(&version)) return cursor_.AtEnd(kHeader, "a version");
  if (version != 2 && version != 3) {
    const bool is_big_endian = version == 2u << 24 || version == 3u << 24;
    return Bad(kHeader, "version 2 or 3, got ", version,
               is_big_endian ? ", as in files in big endian" : "");
  }
  if (!cursor_.Read(&num_tensors_)) {
    return cursor_.AtEnd(kHeader, "the number of tensors");
  }
  if (!cursor_.Read(&num_keys_)) {
    return cursor_.AtEnd(kHeader, "the number of keys");
  }
  if (num_tensors_ > kMaxTensors) {
    return Bad(kHeader, "at most ", kMaxTensors, " tensors, got ",
               num_tensors_);
  }
  if (num_keys_ > kMaxKeys) {
    return Bad(kHeader, "at most ", kMaxKeys, " keys, got ", num_keys_);
  }
  return absl::OkStatus();
}

absl::Status GgufFile::Parser::ReadKey(uint64_t index) {
  absl::string_view key;
  if (!cursor_.ReadString(&key)) {
    return cursor_.AtEnd(
        absl::StrCat("key number ", index + 1, " of ", num_keys_), "a name");
  }
  if (key.size() > kMaxKeyBytes) {
    return Bad(KeyName(key), "a name of at most ", kMaxKeyBytes, " bytes, got ",
               key.size());
  }
  Value value;
  BM_RETURN_IF_ERROR(ReadValue(key, &value));
  if (!file_.values_.emplace(key, value).second) {
    return Bad(KeyName(key), "one value, got a second one");
  }
  return absl::OkStatus();
}

absl::Status GgufFile::Parser::ReadValue(absl::string_view key, Value* value) {
  if (!cursor_.Read(&value->type)) {
    return cursor_.AtEnd(KeyName(key), "the type of a value");
  }
  if (value->type >= kNumValueTypes) {
    return Bad(KeyName(key), "a type of value from 0 to ", kNumValueTypes - 1,
               ", got ", value->type);
  }
  if (value->type == kArray) return ReadArray(key, value);
  const ValueTypeFacts& type = kValueTypes[value->type];
  const bool read = value->type == kString
                        ? cursor_.ReadString(&value->bytes)
                        : cursor_.Take(type.num_bytes, &value->bytes);
  return read ? absl::OkStatus() : cursor_.AtEnd(KeyName(key), type.name);
}

absl::Status GgufFile::Parser::ReadArray(absl::string_view key, Value* value) {
  value->is_array = true;
  if (!cursor_.Read(&value->type) || !cursor_.Read(&value->count)) {
    return cursor_.AtEnd(KeyName(key), "the type and the length of an array");
  }
  if (value->type >= kNumValueTypes || value->type == kArray) {
    return Bad(
        KeyName(key), "an array of scalars or strings, got one of ",
        value->type == kArray ? "arrays" : absl::StrCat("type ", value->type));
  }
  const ValueTypeFacts& type = kValueTypes[value->type];
  const std::string item =
      absl::StrCat("an array of ", value->count, " ", type.name);
  if (value->type != kString) {
    if (cursor_.TakeArray(value->count, type.num_bytes, &value->bytes)) {
      return absl::OkStatus();
    }
    return cursor_.AtEnd(KeyName(key), item);
  }
  const uint64_t begin = cursor_.position();
  for (uint64_t i = 0; i < value->count; ++i) {
    absl::string_view text;
    if (!cursor_.ReadString(&text)) {
      return cursor_.AtEnd(KeyName(key),
                           absl::StrCat(item, ", number ", i + 1));
    }
  }
  value->bytes = bytes_.substr(begin, cursor_.position() - begin);
  return absl::OkStatus();
}

absl::Status GgufFile::Parser::ReadTensor(uint64_t index) {
  absl::string_view name;
  if (!cursor_.ReadString(&name)) {
    return cursor_.AtEnd(
        absl::StrCat("tensor number ", index + 1, " of ", num_tensors_),
        "a name");
  }
  if (name.size() > kMaxTensorNameBytes) {
    return Bad(TensorName(name), "a name of at most ", kMaxTensorNameBytes,
               " bytes, got ", name.size());
  }
  GgufTensor tensor;
  tensor.name = std::string(name);
  BM_RETURN_IF_ERROR(ReadShape(name, &tensor.shape));
  uint32_t type = 0;
  uint64_t offset = 0;
  if (!cursor_.Read(&type) || !cursor_.Read(&offset)) {
    return cursor_.AtEnd(TensorName(name), "a type and an offset");
  }
  if (!IsKnown(type)) {
    const auto append_name = [](std::string* out, TensorType known) {
      absl::StrAppend(out, TensorTypeName(known));
    };
    return Bad(TensorName(name), "one of the types ",
               absl::StrJoin(kTensorTypes, ", ", append_name), "; got ",
               UnknownTypeName(type));
  }
  tensor.type = static_cast<TensorType>(type);
  if (!file_.tensor_indices_.emplace(name, index).second) {
    return Bad(TensorName(name), "one tensor of this name, got a second one");
  }
  offsets_.push_back(offset);
  file_.tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status GgufFile::Parser::ReadShape(absl::string_view name,
                                         std::vector<int64_t>* shape) {
  uint32_t num_dimensions = 0;
  if (!cursor_.Read(&num_dimensions)) {
    return cursor_.AtEnd(TensorName(name), "the number of dimensions");
  }
  if (num_dimensions < 1 || num_dimensions > kMaxDimensions) {
    return Bad(TensorName(name), "1 to ", kMaxDimensions, " dimensions, got ",
               num_dimensions);
  }
  for (uint32_t i = 0; i < num_dimensions; ++i) {
    uint64_t size = 0;
    if (!cursor_.Read(&size)) {
      return cursor_.AtEnd(TensorName(name), "a dimension");
    }
    if (size < 1 || size > std::numeric_limits<int64_t>::max()) {
      return Bad(TensorName(name), "dimension ", i,
                 " to be at least 1 and below 2^63, got ", size);
    }
    shape->push_back(static_cast<int64_t>(size));
  }
  return absl::OkStatus();
}

absl::Status GgufFile::Parser::FindData() {
  if (file_.Has(kAlignmentKey)) {
    BM_ASSIGN_OR_RETURN(const int64_t alignment, file_.Integer(kAlignmentKey));
    alignment_ = static_cast<uint64_t>(alignment);
    if (alignment < 0 || !std::has_single_bit(alignment_) ||
        alignment_ < kMinAlignment) {
      return Bad(KeyName(kAlignmentKey), "a power of two of at least ",
                 kMinAlignment, ", got ", alignment);
    }
  }
  // No sum overflows: a file has fewer than 2^63 bytes.
  const uint64_t begin =
      (cursor_.position() + alignment_ - 1) / alignment_ * alignment_;
  // Without tensors, a file may end before.
  data_ = bytes_.substr(std::min<uint64_t>(begin, bytes_.size()));
  return absl::OkStatus();
}

absl::Status GgufFile::Parser::Place(uint64_t offset, GgufTensor* tensor) {
  const auto block_elements = BlockElements(tensor->type);
  const absl::string_view type = TensorTypeName(tensor->type);
  if (tensor->shape[0] % block_elements != 0) {
    return Bad(TensorName(tensor->name), "rows of a multiple of ",
               block_elements, " elements for ", type, ", got ",
               tensor->shape[0]);
  }
  const std::string shape =
      absl::StrCat("[", absl::StrJoin(tensor->shape, ", "), "]");
  auto num_bytes = static_cast<uint64_t>(BlockBytes(tensor->type));
  for (size_t i = 0; i < tensor->shape.size(); ++i) {
    const auto factor = static_cast<uint64_t>(
        i == 0 ? tensor->shape[0] / block_elements : tensor->shape[i]);
    if (factor > data_.size() / num_bytes) {
      return Bad(TensorName(tensor->name), "a shape that fits the ",
                 data_.size(), " bytes of data in the file, got ", shape,
                 " of ", type);
    }
    num_bytes *= factor;
  }
  if (offset % alignment_ != 0) {
    return Bad(TensorName(tensor->name), "an offset of a multiple of ",
               alignment_, " bytes, got ", offset);
  }
  if (offset > data_.size() - num_bytes) {
    return Bad(TensorName(tensor->name), "data inside the ", data_.size(),
               " bytes of the file, got ", num_bytes, " bytes at offset ",
               offset, " for ", shape, " of ", type);
  }
  const absl::string_view data = data_.substr(offset, num_bytes);
  tensor->data = std::as_bytes(std::span(data.data(), data.size()));
  return absl::OkStatus();
}

absl::Status GgufFile::Parser::CheckOverlaps() const {
  std::vector<const GgufTensor*> ordered;
  ordered.reserve(file_.tensors_.size());
  for (const GgufTensor& tensor : file_.tensors_) ordered.push_back(&tensor);
  std::ranges::stable_sort(ordered, {}, [](const GgufTensor* tensor) {
    return tensor->data.data();
  });
  for (size_t i = 1; i < ordered.size(); ++i) {
    const GgufTensor& before = *ordered[i - 1];
    const GgufTensor& tensor = *ordered[i];
    const auto distance =
        static_cast<size_t>(tensor.data.data() - before.data.data());
    if (distance < before.data.size()) {
      return Bad(TensorName(tensor.name), "data of its own, got ",
                 std::min(before.data.size() - distance, tensor.data.size()),
                 " bytes shared with ", TensorName(before.name));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const GgufFile>> GgufFile::Open(
    const std::string& path) {
  BM_ASSIGN_OR_RETURN(const Mapping mapping, MapFile(path));
  std::shared_ptr<GgufFile> file(new GgufFile);
  file->mapping_ = mapping.memory;
  const absl::string_view bytes(static_cast<const char*>(mapping.memory.get()),
                                mapping.num_bytes);
  const absl::Status status = Parser(bytes, file.get()).Parse();
  if (status.ok()) return std::shared_ptr<const GgufFile>(std::move(file));
  return absl::Status(status.code(),
                      absl::StrCat(path, ": ", status.message()));
}

absl::StatusOr<std::shared_ptr<const GgufFile>> GgufFile::Parse(
    std::span<const std::byte> bytes) {
  const absl::string_view text(reinterpret_cast<const char*>(bytes.data()),
                               bytes.size());
  std::shared_ptr<GgufFile> file(new GgufFile);
  BM_RETURN_IF_ERROR(Parser(text, file.get()).Parse());
  return std::shared_ptr<const GgufFile>(std::move(file));
}

absl::StatusOr<GgufFile::Value> GgufFile::Typed(
    absl::string_view key, bool is_array, uint32_t types,
    absl::string_view expected) const {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return absl::NotFoundError(absl::StrCat(KeyName(key), ": expected ",
                                            expected, ", got no such key"));
  }
  const Value& value = found->second;
  if (value.is_array != is_array || (types >> value.type & 1u) == 0) {
    return Bad(KeyName(key), expected, ", got ",
               value.is_array ? "an array of " : "a value of type ",
               kValueTypes[value.type].name);
  }
  return value;
}

absl::StatusOr<int64_t> GgufFile::Integer(absl::string_view key) const {
  BM_ASSIGN_OR_RETURN(const Value value,
                      Typed(key, false, kIntegerTypes, "an integer"));
  int64_t integer = 0;
  BM_RETURN_IF_ERROR(
      ReadInteger(key, value.type, value.bytes.data(), &integer));
  return integer;
}

absl::StatusOr<double> GgufFile::Number(absl::string_view key) const {
  BM_ASSIGN_OR_RETURN(const Value value,
                      Typed(key, false, kNumberTypes, "a number"));
  return LoadNumber(value.type, value.bytes.data());
}

absl::StatusOr<bool> GgufFile::Boolean(absl::string_view key) const {
  BM_ASSIGN_OR_RETURN(const Value value,
                      Typed(key, false, 1u << kBool, "a bool"));
  int64_t integer = 0;
  BM_RETURN_IF_ERROR(
      ReadInteger(key, value.type, value.bytes.data(), &integer));
  return integer != 0;
}

absl::StatusOr<absl::string_view> GgufFile::String(
    absl::string_view key) const {
  BM_ASSIGN_OR_RETURN(const Value value,
                      Typed(key, false, 1u << kString, "a string"));
  return value.bytes;
}

std::optional<uint64_t> GgufFile::ArrayLength(absl::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end() || !found->second.is_array) return std::nullopt;
  return found->second.count;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::Integers(
    absl::string_view key) const {
  BM_ASSIGN_OR_RETURN(const Value value,
                      Typed(key, true, kIntegerTypes | 1u << kBool,
                            "an array of integers or bools"));
  std::vector<int64_t> integers(value.count);
  const size_t size = kValueTypes[value.type].num_bytes;
  for (size_t i = 0; i < integers.size(); ++i) {
    BM_RETURN_IF_ERROR(ReadInteger(
        key, value.type, value.bytes.data() + i * size, &integers[i]));
  }
  return integers;
}

absl::StatusOr<std::vector<float>> GgufFile::Numbers(
    absl::string_view key) const {
  BM_ASSIGN_OR_RETURN(const Value value,
                      Typed(key, true, kNumberTypes, "an array of numbers"));
  std::vector<float> numbers(value.count);
  const size_t size = kValueTypes[value.type].num_bytes;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const double number = LoadNumber(value.type, value.bytes.data() + i * size);
    // Infinities and NaNs stay what they are.
    if (std::isfinite(number) &&
        std::abs(number) > std::numeric_limits<float>::max()) {
      return Bad(KeyName(key), "numbers in the range of fp32, got ", number);
    }
    numbers[i] = static_cast<float>(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<absl::string_view>> GgufFile::Strings(
    absl::string_view key) const {
  BM_ASSIGN_OR_RETURN(const Value value,
                      Typed(key, true, 1u << kString, "an array of strings"));
  std::vector<absl::string_view> strings(value.count);
  Cursor cursor(value.bytes);
  for (absl::string_view& text : strings) {
    // The parser has read the same strings.
    if (!cursor.ReadString(&text)) {
      return Bad(KeyName(key), "the file to stay as it was when opened");
    }
  }
  return strings;
}

const GgufTensor* GgufFile::Find(absl::string_view tensor) const {
  const auto found = tensor_indices_.find(tensor);
  return found == tensor_indices_.end() ? nullptr : &tensors_[found->second];
}

std::string GgufFile::Describe() const {
  std::string text;
  for (const char* field : {"architecture", "name"}) {
    const auto value = String(absl::StrCat("general.", field));
    absl::StrAppend(&text, field, " ", value.ok() ? Quoted(*value) : "unknown",
                    ", ");
  }
  std::vector<std::string> counts;
  for (const TensorType type : kTensorTypes) {
    const auto count = std::ranges::count(tensors_, type, &GgufTensor::type);
    if (count == 0) continue;
    counts.push_back(absl::StrCat(count, " ", TensorTypeName(type)));
  }
  if (counts.empty()) return absl::StrCat(text, "no tensors");
  size_t num_bytes = 0;
  for (const GgufTensor& tensor : tensors_) num_bytes += tensor.data.size();
  return absl::StrCat(text, "tensors: ", absl::StrJoin(counts, ", "), ", of ",
                      num_bytes, " bytes");
}

}  // namespace blockmgr
