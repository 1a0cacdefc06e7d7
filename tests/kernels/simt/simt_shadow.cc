#include "tests/kernels/simt/simt_shadow.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/string_view.h>

namespace blockmgr::simt::emulator {
namespace {

std::string Unordered(absl::string_view now, absl::string_view earlier,
                      int line) {
  return absl::StrCat(now, " of shared memory without a barrier after the ",
                      earlier, " in line ", line);
}

}  // namespace

SharedShadow::SharedShadow(size_t bytes)
    : granules_((bytes + kGranuleBytes - 1) / kGranuleBytes) {}

bool SharedShadow::Ordered(const Record& record, const Access& access) {
  if (record.block_epoch < access.block_epoch) return true;
  if (record.warps != 1u << access.warp) return false;
  if (record.warp_epoch < access.warp_epoch) return true;
  return !access.whole_warp && record.lane == access.lane;
}

void SharedShadow::Add(const Access& access, Record* record) {
  const uint32_t warp = 1u << access.warp;
  const uint32_t lane = access.whole_warp ? kLanes : access.lane;
  const bool same_moment = record->block_epoch == access.block_epoch &&
                           record->warps == warp &&
                           record->warp_epoch == access.warp_epoch;
  const uint32_t others =
      record->block_epoch == access.block_epoch ? record->warps : 0;
  *record = {.block_epoch = access.block_epoch,
             .warps = others | warp,
             .lane = same_moment && record->lane != lane ? kLanes : lane,
             .warp_epoch = access.warp_epoch,
             .line = access.line};
}

std::string SharedShadow::Read(size_t offset, size_t bytes,
                               const Access& access) {
  const size_t end = (offset + bytes + kGranuleBytes - 1) / kGranuleBytes;
  for (size_t i = offset / kGranuleBytes; i < end; ++i) {
    Granule& granule = granules_[i];
    if (granule.write.block_epoch < first_epoch_) {
      return "read of shared memory that nobody wrote";
    }
    if (granule.pending) {
      return absl::StrCat("read of an asynchronous copy not waited for, of ",
                          "line ", granule.write.line);
    }
    if (!Ordered(granule.write, access)) {
      return Unordered("read", "write", granule.write.line);
    }
    if (!Ordered(granule.atomics, access)) {
      return Unordered("read", "atomic", granule.atomics.line);
    }
    Add(access, &granule.read);
  }
  return "";
}

std::string SharedShadow::CheckWrite(const Granule& granule,
                                     const Access& access) const {
  // A copy of a block before this one never arrives.
  if (granule.pending && granule.write.block_epoch >= first_epoch_) {
    return absl::StrCat("write over an asynchronous copy not waited for, of ",
                        "line ", granule.write.line);
  }
  if (!Ordered(granule.read, access)) {
    return Unordered("write", "read", granule.read.line);
  }
  if (!Ordered(granule.write, access)) {
    return Unordered("write", "write", granule.write.line);
  }
  return "";
}

std::string SharedShadow::WriteAs(size_t offset, size_t bytes,
                                  const Access& access, bool pending) {
  const size_t end = (offset + bytes + kGranuleBytes - 1) / kGranuleBytes;
  for (size_t i = offset / kGranuleBytes; i < end; ++i) {
    Granule& granule = granules_[i];
    std::string error = CheckWrite(granule, access);
    if (!error.empty()) return error;
    if (!Ordered(granule.atomics, access)) {
      return Unordered("write", "atomic", granule.atomics.line);
    }
    // What is ordered before this write is ordered before all that follows it.
    granule = {};
    Add(access, &granule.write);
    granule.pending = pending;
  }
  return "";
}

std::string SharedShadow::Write(size_t offset, size_t bytes,
                                const Access& access) {
  return WriteAs(offset, bytes, access, false);
}

std::string SharedShadow::Atomic(size_t offset, size_t bytes,
                                 const Access& access) {
  const size_t end = (offset + bytes + kGranuleBytes - 1) / kGranuleBytes;
  for (size_t i = offset / kGranuleBytes; i < end; ++i) {
    Granule& granule = granules_[i];
    std::string error = CheckWrite(granule, access);
    if (!error.empty()) return error;
    if (granule.write.block_epoch < first_epoch_) {
      return "atomic on shared memory that nobody wrote";
    }
    Add(access, &granule.atomics);
  }
  return "";
}

std::string SharedShadow::Issue(size_t offset, size_t bytes,
                                const Access& access) {
  return WriteAs(offset, bytes, access, true);
}

void SharedShadow::Deliver(size_t offset, size_t bytes, const Access& access) {
  const size_t end = (offset + bytes + kGranuleBytes - 1) / kGranuleBytes;
  for (size_t i = offset / kGranuleBytes; i < end; ++i) {
    granules_[i] = {};
    Add(access, &granules_[i].write);
  }
}

}  // namespace blockmgr::simt::emulator
