#include "kernels/cuda/host/row_error.h"

#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <absl/strings/string_view.h>

#include "kernels/cuda/rows/row_mover.h"

namespace blockmgr {
namespace {

struct NamedError {
  RowError bit;
  absl::string_view name;
};

constexpr NamedError kNames[] = {
    {kSlotOutOfPool, "slots outside the pool"},
    {kBlockOutOfPool, "blocks outside the pool"},
    {kPageOutOfPool, "pages outside the pool"},
    {kPositionOutOfCut, "positions at or behind the cut"},
    {kOffsetsOutOfLists, "more entries than a list has room for"},
    {kTilesOutOfRoom, "more tiles than there is room for"},
};

}  // namespace

std::string RowErrorText(uint32_t error) {
  std::vector<std::string> parts;
  for (const NamedError& named : kNames) {
    if ((error & named.bit) != 0) parts.emplace_back(named.name);
    error &= ~uint32_t{named.bit};
  }
  if (error != 0) parts.push_back(absl::StrCat("unknown bits ", error));
  return absl::StrJoin(parts, ", ");
}

}  // namespace blockmgr
