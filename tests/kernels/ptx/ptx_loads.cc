// Loads, stores, atomics and addresses: section 9.7.9 and 9.7.13 of the PTX
// ISA.
#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include "tests/kernels/ptx/ptx_machine.h"
#include "tests/kernels/ptx/ptx_operations.h"
#include "tests/kernels/ptx/ptx_rows.h"

namespace blockmgr::ptx {
namespace {

template <typename T>
uint64_t Extend(uint64_t value) {
  return static_cast<uint64_t>(int64_t{static_cast<T>(value)});
}

bool IsSet(LaneMask mask, uint32_t lane) { return (mask >> lane & 1u) != 0; }

// For the counts: addresses of those lanes that take part.
class Addresses {
 public:
  void Add(uint64_t address) { all_[count_++] = address; }
  void Count(Warp& warp, Space space, uint32_t bytes, bool atomic) const {
    if (count_ == 0) return;
    const std::span<const uint64_t> all(all_.data(), count_);
    if (space == Space::kShared || all_[0] >= kSharedWindow) {
      warp.block().counts->CountShared(all, bytes, atomic);
    } else {
      warp.block().counts->CountGlobal(all, bytes);
    }
  }

 private:
  std::array<uint64_t, kLanes> all_ = {};
  std::size_t count_ = 0;
};

uint64_t ReadElement(const std::byte* from, const Instruction& in) {
  uint64_t value = 0;
  switch (in.element_bytes) {
    case 1:
      std::memcpy(&value, from, 1);
      return in.sign_extends ? Extend<int8_t>(value) : value;
    case 2:
      std::memcpy(&value, from, 2);
      return in.sign_extends ? Extend<int16_t>(value) : value;
    case 4:
      std::memcpy(&value, from, 4);
      return in.sign_extends ? Extend<int32_t>(value) : value;
    default:
      std::memcpy(&value, from, 8);
      return value;
  }
}

// A register's value in one lane.
void SetLane(Warp& warp, const Instruction& in, std::size_t operand,
             uint32_t lane, uint64_t value) {
  const uint32_t row = in.rows[operand];
  if (in.bytes[operand] == 2) {
    warp.Row<uint16_t>(row)[lane] = static_cast<uint16_t>(value);
  } else if (in.bytes[operand] == 4) {
    warp.Row<uint32_t>(row)[lane] = static_cast<uint32_t>(value);
  } else {
    warp.Row<uint64_t>(row)[lane] = value;
  }
}

// All lanes have the same parameters, and the compiler the same address.
void LoadParam(Warp& warp, const Instruction& in, LaneMask mask) {
  const std::size_t elements = in.num_elements;
  const auto first = static_cast<uint32_t>(std::countr_zero(mask));
  const uint64_t offset = warp.Address(in, elements, 0, first) - kParamBase;
  const std::size_t bytes = elements * in.element_bytes;
  const std::size_t size = warp.block().kernel->param_bytes;
  if (offset > size || bytes > size - offset) {
    warp.Fail(in, "not a parameter");
    return;
  }
  const std::byte* from = warp.block().params + offset;
  for (std::size_t i = 0; i < elements; ++i) {
    const uint64_t value = ReadElement(from + i * in.element_bytes, in);
    for (uint32_t lane = 0; lane < kLanes; ++lane) {
      if (!IsSet(mask, lane)) continue;
      if (warp.Address(in, elements, 0, lane) - kParamBase != offset) {
        warp.Fail(in, "lanes read different parameters");
        return;
      }
      SetLane(warp, in, i, lane, value);
    }
  }
}

void Load(Warp& warp, const Instruction& in, LaneMask mask) {
  const std::size_t elements = in.num_elements;
  const std::size_t bytes = elements * in.element_bytes;
  Addresses addresses;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!IsSet(mask, lane)) continue;
    const uint64_t address = warp.Address(in, elements, 0, lane);
    const std::byte* from =
        warp.Resolve(in, in.space, address, bytes, lane, Access::kRead);
    if (from == nullptr) return;
    addresses.Add(address);
    for (std::size_t i = 0; i < elements; ++i) {
      SetLane(warp, in, i, lane, ReadElement(from + i * in.element_bytes, in));
    }
  }
  addresses.Count(warp, in.space, static_cast<uint32_t>(bytes), false);
}

void Store(Warp& warp, const Instruction& in, LaneMask mask) {
  const std::size_t elements = in.num_elements;
  const std::size_t bytes = elements * in.element_bytes;
  Addresses addresses;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!IsSet(mask, lane)) continue;
    const uint64_t address = warp.Address(in, 0, 0, lane);
    std::byte* to =
        warp.Resolve(in, in.space, address, bytes, lane, Access::kWrite);
    if (to == nullptr) return;
    addresses.Add(address);
    for (std::size_t i = 0; i < elements; ++i) {
      std::memcpy(to + i * in.element_bytes,
                  warp.Row<std::byte>(in.rows[i + 1]) +
                      std::size_t{lane} * in.bytes[i + 1],
                  in.element_bytes);
    }
  }
  addresses.Count(warp, in.space, static_cast<uint32_t>(bytes), false);
}

// Lanes one after another.
template <typename T, auto kFunction>
void Atomic(Warp& warp, const Instruction& in, LaneMask mask) {
  const T* operand = warp.Row<T>(in.rows[2]);
  T out[kLanes] = {};
  Addresses addresses;
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!IsSet(mask, lane)) continue;
    const uint64_t address = warp.Address(in, 1, 0, lane);
    std::byte* place =
        warp.Resolve(in, in.space, address, sizeof(T), lane, Access::kAtomic);
    if (place == nullptr) return;
    addresses.Add(address);
    std::memcpy(&out[lane], place, sizeof(T));
    const auto next = static_cast<T>(kFunction(out[lane], operand[lane]));
    std::memcpy(place, &next, sizeof(T));
  }
  warp.Store(in.rows[0], out, mask);
  addresses.Count(warp, in.space, sizeof(T), true);
}

template <typename T>
void CompareAndSwap(Warp& warp, const Instruction& in, LaneMask mask) {
  const T* expected = warp.Row<T>(in.rows[2]);
  const T* desired = warp.Row<T>(in.rows[3]);
  T out[kLanes] = {};
  for (uint32_t lane = 0; lane < kLanes; ++lane) {
    if (!IsSet(mask, lane)) continue;
    std::byte* place = warp.Resolve(in, in.space, warp.Address(in, 1, 0, lane),
                                    sizeof(T), lane, Access::kAtomic);
    if (place == nullptr) return;
    std::memcpy(&out[lane], place, sizeof(T));
    if (out[lane] == expected[lane]) {
      std::memcpy(place, &desired[lane], sizeof(T));
    }
  }
  warp.Store(in.rows[0], out, mask);
}

constexpr auto kAdd = [](auto a, auto b) { return a + b; };
constexpr auto kOr = [](auto a, auto b) { return a | b; };
constexpr auto kAnd = [](auto a, auto b) { return a & b; };
constexpr auto kMin = [](auto a, auto b) { return std::min(a, b); };
constexpr auto kMax = [](auto a, auto b) { return std::max(a, b); };
constexpr auto kExchange = [](auto, auto b) { return b; };
constexpr auto kIncrement = [](auto a, auto b) {
  return a >= b ? decltype(a){0} : a + 1;
};

std::optional<Form> FindAtomic(absl::string_view operation, Space space) {
  static const auto* const kAll =
      new Operations{{"add.u32", {Atomic<uint32_t, kAdd>, "waw"}},
                     {"add.s32", {Atomic<uint32_t, kAdd>, "waw"}},
                     {"add.u64", {Atomic<uint64_t, kAdd>, "dad"}},
                     {"inc.u32", {Atomic<uint32_t, kIncrement>, "waw"}},
                     {"max.u32", {Atomic<uint32_t, kMax>, "waw"}},
                     {"max.s32", {Atomic<int32_t, kMax>, "waw"}},
                     {"max.u64", {Atomic<uint64_t, kMax>, "dad"}},
                     {"min.u32", {Atomic<uint32_t, kMin>, "waw"}},
                     {"min.s32", {Atomic<int32_t, kMin>, "waw"}},
                     {"min.u64", {Atomic<uint64_t, kMin>, "dad"}},
                     {"or.b32", {Atomic<uint32_t, kOr>, "waw"}},
                     {"or.b64", {Atomic<uint64_t, kOr>, "dad"}},
                     {"and.b32", {Atomic<uint32_t, kAnd>, "waw"}},
                     {"exch.b32", {Atomic<uint32_t, kExchange>, "waw"}},
                     {"exch.b64", {Atomic<uint64_t, kExchange>, "dad"}},
                     {"cas.b32", {CompareAndSwap<uint32_t>, "waww"}},
                     {"cas.b64", {CompareAndSwap<uint64_t>, "dadd"}}};
  std::optional<Form> form = FindIn(*kAll, operation);
  if (!form.has_value()) return std::nullopt;
  form->pipe = Pipe::kMemory;
  form->space = space;
  return form;
}

// The space that the words after the operation's name begin with, if any.
Space TakeSpace(std::vector<absl::string_view>* words) {
  Space space = Space::kGeneric;
  if (words->empty()) return space;
  if (words->front() == "global") {
    space = Space::kGlobal;
  } else if (words->front() == "shared") {
    space = Space::kShared;
  } else if (words->front() == "param") {
    space = Space::kParam;
  } else {
    return space;
  }
  words->erase(words->begin());
  return space;
}

// "ld.global.cs.v4.u32": what caches are told changes nothing here.
std::optional<Form> FindAccess(bool loads,
                               std::vector<absl::string_view> words) {
  Form form;
  form.pipe = Pipe::kMemory;
  form.space = TakeSpace(&words);
  form.run = !loads ? Store : form.space == Space::kParam ? LoadParam : Load;
  form.num_elements = 1;
  if (!words.empty() && (words[0] == "cs" || words[0] == "nc" ||
                         words[0] == "cg" || words[0] == "ca")) {
    words.erase(words.begin());
  }
  if (!words.empty() && (words[0] == "v2" || words[0] == "v4")) {
    form.num_elements = words[0] == "v2" ? 2 : 4;
    words.erase(words.begin());
  }
  uint32_t bits = 0;
  if (words.size() != 1 || words[0].empty() ||
      !absl::SimpleAtoi(words[0].substr(1), &bits) || bits % 8 != 0) {
    return std::nullopt;
  }
  form.element_bytes = static_cast<uint8_t>(bits / 8);
  form.sign_extends = words[0][0] == 's';
  const std::string values(form.num_elements, 'x');
  form.operands = loads ? values + "a" : "a" + values;
  return form;
}

void Fence(Warp&, const Instruction&, LaneMask) {}

// Launches end before the next one begins here; a warp remembers what it may
// rely on.
void Await(Warp& warp, const Instruction&, LaneMask mask) {
  warp.AwaitEarlier(mask);
}

void LetNextBegin(Warp& warp, const Instruction& in, LaneMask mask) {
  if (warp.HasAwaited(mask)) return;
  warp.Fail(in, "the next launch may begin before griddepcontrol.wait");
}

constexpr auto kSame = [](uint64_t a) { return a; };

}  // namespace

std::optional<Form> FindMemoryOperation(absl::string_view opcode) {
  std::vector<absl::string_view> words = absl::StrSplit(opcode, '.');
  const absl::string_view name = words[0];
  words.erase(words.begin());
  if (name == "ld" || name == "st") return FindAccess(name == "ld", words);
  if (name == "atom") {
    const Space space = TakeSpace(&words);
    if (words.size() != 2) return std::nullopt;
    return FindAtomic(std::string(words[0]) + "." + std::string(words[1]),
                      space);
  }
  if (name == "membar" || name == "fence") return Form{Fence, ""};
  if (opcode == "griddepcontrol.wait") return Form{Await, ""};
  if (opcode == "griddepcontrol.launch_dependents") {
    return Form{LetNextBegin, ""};
  }
  if (opcode == "cvta.to.global.u64" || opcode == "cvta.global.u64") {
    return Form{Unary<uint64_t, uint64_t, kSame>, "dd"};
  }
  if (opcode == "cvta.shared.u64") {
    return Form{
        Unary<uint64_t, uint64_t, [](uint64_t a) { return a + kSharedWindow; }>,
        "dd"};
  }
  if (opcode == "cvta.to.shared.u64") {
    return Form{
        Unary<uint64_t, uint64_t, [](uint64_t a) { return a - kSharedWindow; }>,
        "dd"};
  }
  return std::nullopt;
}

}  // namespace blockmgr::ptx
