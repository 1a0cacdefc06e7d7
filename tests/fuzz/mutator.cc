#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include "tests/fuzz/fuzz_target.h"

namespace blockmgr::fuzz {
namespace {

constexpr int32_t kMaxRun = 24;  // bytes

int32_t SizeOf(const std::string& text) {
  return static_cast<int32_t>(text.size());
}

const std::string& Draw(std::span<const std::string> from, Rng& rng) {
  return from[static_cast<size_t>(
      RandomInt(rng, 0, static_cast<int32_t>(from.size()) - 1))];
}

// Bytes that sizes, signs and ends of varints hang on.
char DrawByte(Rng& rng) {
  constexpr uint8_t kEdges[] = {0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF};
  return static_cast<char>(
      RandomChance(rng, 0.5) ? kEdges[static_cast<size_t>(RandomInt(rng, 0, 6))]
                             : static_cast<uint8_t>(RandomInt(rng, 0, 255)));
}

void ChangeBytes(std::span<const std::string> seeds, Rng& rng,
                 std::string* input) {
  const auto at = static_cast<size_t>(RandomInt(rng, 0, SizeOf(*input)));
  const auto size = std::min(static_cast<size_t>(RandomInt(rng, 1, kMaxRun)),
                             input->size() - at);
  switch (RandomInt(rng, 0, 5)) {
    case 0:
      if (size > 0) {
        const int flipped = (*input)[at] ^ (1 << RandomInt(rng, 0, 7));
        (*input)[at] = static_cast<char>(flipped);
      }
      return;
    case 1:
      if (size > 0) (*input)[at] = DrawByte(rng);
      return;
    case 2:
      input->insert(at, 1, DrawByte(rng));
      return;
    case 3:
      input->erase(at, size);
      return;
    case 4:
      input->insert(at, input->substr(at, size));
      return;
    default:
      break;
  }
  const std::string& other = Draw(seeds, rng);
  const auto from = static_cast<size_t>(RandomInt(rng, 0, SizeOf(other)));
  input->insert(at, other.substr(from, kMaxRun));
}

void ChangeParts(std::span<const std::string> seeds, Rng& rng,
                 std::string* input) {
  std::vector<std::string> parts = absl::StrSplit(*input, kPartEnd);
  const std::string drawn = Draw(parts, rng);
  const auto at =
      parts.begin() + RandomInt(rng, 0, static_cast<int32_t>(parts.size()) - 1);
  switch (RandomInt(rng, 0, 3)) {
    case 0:
      parts.erase(at);
      break;
    case 1:
      parts.insert(at, drawn);
      break;
    case 2:
      *at = drawn;
      break;
    default: {
      const std::vector<std::string> others =
          absl::StrSplit(Draw(seeds, rng), kPartEnd);
      parts.insert(at, Draw(others, rng));
    }
  }
  *input = absl::StrJoin(parts, kPartEnd);
}

}  // namespace

std::string Mutate(std::span<const std::string> seeds, Rng& rng) {
  std::string input = Draw(seeds, rng);
  const int32_t num_changes = RandomInt(rng, 1, 8);
  for (int32_t i = 0; i < num_changes; ++i) {
    if (RandomChance(rng, 0.4)) {
      ChangeParts(seeds, rng, &input);
    } else {
      ChangeBytes(seeds, rng, &input);
    }
  }
  return input;
}

}  // namespace blockmgr::fuzz
