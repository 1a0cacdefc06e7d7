#include "tests/kernels/ptx/ptx_parser.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>
#include <utility>

#include <absl/container/flat_hash_map.h>
#include <absl/status/status.h>
#include <absl/strings/ascii.h>
#include <absl/strings/match.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_split.h>
#include <absl/strings/strip.h>

#include "blockmgr/base/status_macros.h"
#include "tests/kernels/ptx/ptx_operations.h"

namespace blockmgr::ptx {
namespace {

std::optional<Form> FindForm(absl::string_view opcode) {
  for (const auto find : {FindIntegerOperation, FindFloatOperation,
                          FindConversion, FindMemoryOperation, FindAsyncCopy,
                          FindWarpOperation, FindTensorOperation}) {
    if (std::optional<Form> form = find(opcode)) return form;
  }
  return std::nullopt;
}

std::optional<SpecialRegister> FindSpecial(absl::string_view name) {
  static const auto* const kNames =
      new absl::flat_hash_map<absl::string_view, SpecialRegister>{
          {"%tid.x", SpecialRegister::kThreadX},
          {"%ctaid.x", SpecialRegister::kBlockX},
          {"%ctaid.y", SpecialRegister::kBlockY},
          {"%ctaid.z", SpecialRegister::kBlockZ},
          {"%ntid.x", SpecialRegister::kBlockThreads},
          {"%nctaid.x", SpecialRegister::kGridX},
          {"%nctaid.y", SpecialRegister::kGridY},
          {"%nctaid.z", SpecialRegister::kGridZ}};
  const auto it = kNames->find(name);
  if (it == kNames->end()) return std::nullopt;
  return it->second;
}

// The bits of an immediate: 12, -1, 0x1F, 0f3F800000, 0d3FF0000000000000.
std::optional<uint64_t> ParseNumber(absl::string_view text) {
  uint64_t bits = 0;
  int64_t value = 0;
  if (absl::StartsWith(text, "0f") || absl::StartsWith(text, "0d")) {
    if (!absl::SimpleHexAtoi(text.substr(2), &bits)) return std::nullopt;
  } else if (absl::StartsWith(text, "0x")) {
    if (!absl::SimpleHexAtoi(text, &bits)) return std::nullopt;
  } else if (absl::SimpleAtoi(text, &value)) {
    bits = static_cast<uint64_t>(value);
  } else if (!absl::SimpleAtoi(text, &bits)) {
    return std::nullopt;
  }
  return bits;
}

std::size_t WidthOf(char letter) {
  switch (letter) {
    case 'h':
      return 2;
    case 'w':
    case 'm':
      return 4;
    default:
      return 8;
  }
}

// Operands, with braces and pairs (d|p) opened: "{%r1, %r2}, [%rd1+4]".
std::vector<absl::string_view> SplitOperands(absl::string_view text) {
  std::vector<absl::string_view> operands;
  for (const absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar(",|{}"), absl::SkipWhitespace())) {
    operands.push_back(absl::StripAsciiWhitespace(part));
  }
  return operands;
}

class Parser {
 public:
  explicit Parser(absl::string_view name) { kernel_.name = std::string(name); }

  absl::StatusOr<Kernel> Parse(absl::string_view text,
                               const SourceFiles& files) {
    const std::size_t body = text.find('{');
    if (body == text.npos) return Unknown("no body");
    BM_RETURN_IF_ERROR(ParseHead(text.substr(0, body)));
    for (const absl::string_view line : absl::StrSplit(text, '\n')) {
      kernel_.lines.emplace_back(absl::StripAsciiWhitespace(line));
    }
    line_ = static_cast<uint32_t>(
        std::count(text.begin(), text.begin() + body, '\n'));
    for (absl::string_view line : absl::StrSplit(text.substr(body + 1), '\n')) {
      BM_RETURN_IF_ERROR(ParseLine(line.substr(0, line.find("//")), files));
      ++line_;
    }
    for (const auto& [instruction, label] : branches_) {
      const auto it = labels_.find(label);
      if (it == labels_.end()) return Unknown(label);
      kernel_.code[instruction].target = it->second;
    }
    return std::move(kernel_);
  }

 private:
  absl::Status Unknown(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(kernel_.name, ", line ", line_ + 1,
                     ": the interpreter does not know \"", what, "\""));
  }

  // Params, and the most threads of a block.
  absl::Status ParseHead(absl::string_view head) {
    for (absl::string_view line : absl::StrSplit(head, '\n')) {
      line = absl::StripAsciiWhitespace(line);
      if (absl::StartsWith(line, ".param")) {
        BM_RETURN_IF_ERROR(ParseParam(absl::StripSuffix(line, ",")));
      } else if (absl::ConsumePrefix(&line, ".maxntid")) {
        const auto sizes = SplitOperands(line);
        if (sizes.empty() ||
            !absl::SimpleAtoi(sizes[0], &kernel_.max_threads)) {
          return Unknown(line);
        }
      }
    }
    return absl::OkStatus();
  }

  // ".param .align 8 .b8 NAME[168]" or ".param .u32 NAME".
  absl::Status ParseParam(absl::string_view line) {
    std::size_t alignment = 0;
    std::size_t element = 0;
    std::size_t count = 1;
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, ' ', absl::SkipWhitespace());
    for (std::size_t i = 1; i + 1 < words.size(); ++i) {
      if (words[i] == ".align" && absl::SimpleAtoi(words[i + 1], &alignment)) {
        ++i;
      } else if (absl::SimpleAtoi(words[i].substr(2), &element)) {
        element /= 8;
      } else {
        return Unknown(line);
      }
    }
    absl::string_view name = words.back();
    if (const std::size_t bracket = name.find('['); bracket != name.npos) {
      const absl::string_view size =
          name.substr(bracket + 1, name.size() - bracket - 2);
      if (!absl::SimpleAtoi(size, &count)) return Unknown(line);
      name = name.substr(0, bracket);
    }
    if (element == 0) return Unknown(line);
    alignment = std::max(alignment, element);
    const std::size_t offset =
        (kernel_.param_bytes + alignment - 1) / alignment * alignment;
    symbols_[std::string(name)] = kParamBase + offset;
    kernel_.param_offsets.push_back(offset);
    kernel_.param_sizes.push_back(element * count);
    kernel_.param_bytes = offset + element * count;
    return absl::OkStatus();
  }

  absl::Status ParseLine(absl::string_view line, const SourceFiles& files) {
    line = absl::StripAsciiWhitespace(line);
    if (absl::StartsWith(line, ".loc")) {
      const std::vector<absl::string_view> words =
          absl::StrSplit(line, absl::ByAnyChar(" \t,"), absl::SkipEmpty());
      const auto it = words.size() < 3 ? files.end() : files.find(words[1]);
      if (it == files.end()) return Unknown(line);
      source_ = absl::StrCat(it->second, ":", words[2]);
      return absl::OkStatus();
    }
    // Braces around a line are scopes of inline assembly, whose registers have
    // one type wherever they have one name.
    while (absl::ConsumePrefix(&line, "{") || absl::ConsumePrefix(&line, "}")) {
      line = absl::StripLeadingAsciiWhitespace(line);
    }
    for (absl::string_view statement : absl::StrSplit(line, ';')) {
      statement = absl::StripAsciiWhitespace(statement);
      if (statement.empty() || statement == "}") continue;
      if (absl::ConsumeSuffix(&statement, ":")) {
        labels_[std::string(statement)] =
            static_cast<uint32_t>(kernel_.code.size());
      } else if (absl::ConsumePrefix(&statement, ".reg")) {
        BM_RETURN_IF_ERROR(ParseRegisters(statement));
      } else if (!absl::StartsWith(statement, ".pragma")) {
        BM_RETURN_IF_ERROR(ParseInstruction(statement));
      }
    }
    return absl::OkStatus();
  }

  // ".b32 %r<49>" or ".u64 %tmp": the names' width. Rows are made when used.
  absl::Status ParseRegisters(absl::string_view text) {
    const std::vector<absl::string_view> words =
        absl::StrSplit(text, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    std::size_t bits = 0;
    if (words.size() != 2 ||
        (words[0] != ".pred" && !absl::SimpleAtoi(words[0].substr(2), &bits))) {
      return Unknown(text);
    }
    widths_[std::string(words[1].substr(0, words[1].find('<')))] = bits / 8;
    return absl::OkStatus();
  }

  absl::Status ParseInstruction(absl::string_view statement) {
    Instruction instruction;
    if (absl::ConsumePrefix(&statement, "@")) {
      instruction.negated = absl::ConsumePrefix(&statement, "!");
      const std::size_t end = statement.find_first_of(" \t");
      std::size_t bytes = 0;
      BM_ASSIGN_OR_RETURN(instruction.guard,
                          RegisterRow(statement.substr(0, end), &bytes));
      statement = absl::StripAsciiWhitespace(statement.substr(end));
    }
    const std::size_t end =
        std::min(statement.find_first_of(" \t"), statement.size());
    const absl::string_view operand_text =
        absl::StripLeadingAsciiWhitespace(statement.substr(end));
    const auto operands = SplitOperands(operand_text);
    std::string opcode(statement.substr(0, end));
    if (absl::StartsWith(opcode, "mov.b") &&
        absl::StrContains(operand_text, "{")) {
      absl::StrAppend(&opcode,
                      absl::StartsWith(operand_text, "{") ? " 2 1" : " 1 2");
    }
    instruction.line = line_;
    kernel_.sources.resize(kernel_.lines.size());
    kernel_.sources[line_] = source_;
    if (opcode == "bra" || opcode == "bra.uni") {
      if (operands.size() != 1) return Unknown(statement);
      instruction.flow = Flow::kBranch;
      instruction.pipe = Pipe::kOther;
      branches_.emplace_back(kernel_.code.size(), operands[0]);
    } else if (opcode == "ret" || opcode == "exit") {
      instruction.flow = Flow::kExit;
      instruction.pipe = Pipe::kOther;
    } else {
      BM_RETURN_IF_ERROR(
          ParseOperands(statement, opcode, operands, &instruction));
    }
    kernel_.code.push_back(instruction);
    return absl::OkStatus();
  }

  absl::Status ParseOperands(absl::string_view statement,
                             absl::string_view opcode,
                             const std::vector<absl::string_view>& operands,
                             Instruction* instruction) {
    const std::optional<Form> form = FindForm(opcode);
    if (!form.has_value() || operands.size() != form->operands.size() ||
        operands.size() > Instruction::kMaxOperands) {
      return Unknown(statement);
    }
    instruction->run = form->run;
    instruction->flow = form->flow;
    instruction->pipe = form->pipe;
    instruction->space = form->space;
    instruction->num_elements = form->num_elements;
    instruction->element_bytes = form->element_bytes;
    instruction->sign_extends = form->sign_extends;
    std::size_t num_addresses = 0;
    for (std::size_t i = 0; i < operands.size(); ++i) {
      const char letter = form->operands[i];
      std::size_t bytes = letter == 'p' ? 0 : WidthOf(letter);
      if (letter == 'i') continue;
      absl::string_view text = operands[i];
      if (letter == 'n') {
        int64_t value = 0;
        if (!absl::SimpleAtoi(text, &value)) return Unknown(statement);
        instruction->offsets[num_addresses++] = value;
        continue;
      }
      if (letter == 'a') {
        if (num_addresses == 2) return Unknown(statement);
        BM_RETURN_IF_ERROR(
            SplitAddress(&text, &instruction->offsets[num_addresses++]));
      }
      BM_ASSIGN_OR_RETURN(instruction->rows[i], OperandRow(text, &bytes));
      if (letter == 'p'
              ? bytes != 0
              : letter != 'x' && letter != 'a' && bytes != WidthOf(letter)) {
        return Unknown(absl::StrCat(statement, " (width of ", text, ")"));
      }
      instruction->bytes[i] = static_cast<uint8_t>(bytes);
      if (letter == 'm') instruction->members = instruction->rows[i];
    }
    return absl::OkStatus();
  }

  // "[%rd1+-8]": the base, and the offset.
  absl::Status SplitAddress(absl::string_view* text, int64_t* offset) const {
    const absl::string_view whole = *text;
    if (!absl::ConsumePrefix(text, "[") || !absl::ConsumeSuffix(text, "]")) {
      return Unknown(whole);
    }
    const std::size_t plus = text->find('+');
    if (plus == text->npos) return absl::OkStatus();
    if (!absl::SimpleAtoi(text->substr(plus + 1), offset)) {
      return Unknown(whole);
    }
    *text = text->substr(0, plus);
    return absl::OkStatus();
  }

  // *bytes: the operand's; of a constant, as wide as it says.
  absl::StatusOr<uint32_t> OperandRow(absl::string_view text,
                                      std::size_t* bytes) {
    if (absl::StartsWith(text, "%")) return RegisterRow(text, bytes);
    if (const auto it = symbols_.find(text); it != symbols_.end()) {
      return ConstantRow(it->second, *bytes);
    }
    if (const std::optional<uint64_t> number = ParseNumber(text)) {
      return ConstantRow(*number, *bytes);
    }
    // What is left is the name of the dynamic shared memory.
    if (absl::StrContains(text, "simt_shared_bytes")) {
      return ConstantRow(kSharedBase, *bytes);
    }
    return Unknown(text);
  }

  absl::StatusOr<uint32_t> RegisterRow(absl::string_view name,
                                       std::size_t* bytes) {
    if (const auto special = FindSpecial(name)) {
      *bytes = 4;
      const auto [it, added] = rows_.try_emplace(std::string(name), 0);
      if (added) {
        it->second = NewRow(4);
        kernel_.special_rows.push_back({*special, it->second});
      }
      return it->second;
    }
    absl::string_view prefix = name;
    while (!prefix.empty() && absl::ascii_isdigit(prefix.back())) {
      prefix.remove_suffix(1);
    }
    const auto width = widths_.find(prefix);
    if (width == widths_.end()) return Unknown(name);
    *bytes = width->second;
    const auto [it, added] = rows_.try_emplace(std::string(name), 0);
    if (added) it->second = NewRow(*bytes);
    return it->second;
  }

  uint32_t NewRow(std::size_t bytes) {
    const auto row = static_cast<uint32_t>(kernel_.rows.size());
    // A predicate's has room for a vector's sake: rows are aligned to 64 bytes.
    const std::size_t size = bytes == 0 ? 64 : bytes * kLanes;
    kernel_.rows.resize(kernel_.rows.size() + size, std::byte{0xFF});
    return row;
  }

  // The same constant has one row.
  uint32_t ConstantRow(uint64_t bits, std::size_t bytes) {
    const auto [it, added] =
        rows_.try_emplace(absl::StrCat(bytes, ":", bits), 0);
    if (added) {
      it->second = NewRow(bytes);
      std::byte* row = kernel_.rows.data() + it->second;
      if (bytes == 0) {
        const LaneMask mask = bits != 0 ? kAllLanes : 0;
        std::memcpy(row, &mask, sizeof(mask));
      }
      for (uint32_t lane = 0; lane < kLanes && bytes > 0; ++lane) {
        std::memcpy(row + lane * bytes, &bits, bytes);
      }
    }
    return it->second;
  }

  Kernel kernel_;
  uint32_t line_ = 0;
  std::string source_;
  absl::flat_hash_map<std::string, std::size_t> widths_;
  absl::flat_hash_map<std::string, uint32_t> rows_;
  absl::flat_hash_map<std::string, uint64_t> symbols_;
  absl::flat_hash_map<std::string, uint32_t> labels_;
  std::vector<std::pair<std::size_t, std::string>> branches_;
};

}  // namespace

absl::StatusOr<Module> ReadModule(absl::string_view text) {
  Module module;
  // "\t.file\t1 \"path\""
  constexpr absl::string_view kFile = ".file\t";
  for (std::size_t at = text.find(kFile); at != text.npos;
       at = text.find(kFile, at + 1)) {
    absl::string_view line = text.substr(at + kFile.size());
    line = line.substr(0, line.find('\n'));
    const std::vector<absl::string_view> words = absl::StrSplit(line, '"');
    if (words.size() < 2) {
      return absl::InvalidArgumentError(absl::StrCat("not a file: ", line));
    }
    const absl::string_view path = words[1];
    const std::size_t folder = path.find_last_of('/');
    module.files[std::string(absl::StripAsciiWhitespace(words[0]))] =
        std::string(folder == path.npos ? path : path.substr(folder + 1));
  }
  constexpr absl::string_view kEntry = ".entry ";
  for (std::size_t at = text.find(kEntry); at != text.npos;) {
    const std::size_t next = text.find(kEntry, at + kEntry.size());
    const absl::string_view kernel = text.substr(at, next - at);
    const std::size_t begin = kEntry.size();
    // A kernel ends with the brace that begins a line.
    const std::size_t end = kernel.find("\n}");
    const std::size_t name_end = kernel.find('(');
    if (end == kernel.npos || name_end == kernel.npos) {
      return absl::InvalidArgumentError("a kernel without an end");
    }
    module.kernels[std::string(kernel.substr(begin, name_end - begin))] =
        std::string(kernel.substr(0, end));
    at = next;
  }
  return module;
}

absl::StatusOr<Kernel> ParseKernel(absl::string_view name,
                                   absl::string_view text,
                                   const SourceFiles& files) {
  return Parser(name).Parse(text, files);
}

}  // namespace blockmgr::ptx
