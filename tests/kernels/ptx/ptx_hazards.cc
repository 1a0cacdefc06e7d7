#include "tests/kernels/ptx/ptx_hazards.h"

#include <absl/strings/str_format.h>

namespace blockmgr::ptx {

void Hazards::Begin(std::size_t shared_bytes) {
  words_.resize((shared_bytes + 3) / 4);
  PassBarrier();
}

void Hazards::PassBarrier() { ++barrier_; }

bool Hazards::Note(std::size_t offset, std::size_t bytes, uint32_t warp,
                   uint32_t lane, Access access) {
  const uint32_t thread = warp * 32 + lane + 1;
  for (std::size_t word = offset / 4; word * 4 < offset + bytes; ++word) {
    if (!NoteWord(words_[word], warp, thread, access)) return false;
  }
  return true;
}

bool Hazards::NoteWord(Word& word, uint32_t warp, uint32_t thread,
                       Access access) {
  if (word.barrier != barrier_) {
    word = Word();
    word.barrier = barrier_;
  }
  const bool atomic = access == Access::kAtomic;
  const bool after_write =
      !(atomic && word.atomically) && Conflicts(word.written, warp, thread);
  const bool after_read =
      access != Access::kRead && Conflicts(word.read, warp, thread);
  if (after_write || after_read) {
    const Use& use = after_write ? word.written : word.read;
    last_conflict_ = absl::StrFormat(
        "%s of warp %s, thread %s", after_write ? "a write" : "a read",
        use.warp == kMany ? "(many)" : absl::StrFormat("%d", use.warp),
        use.thread == kMany ? "(many)" : absl::StrFormat("%d", use.thread - 1));
    return false;
  }
  if (access != Access::kRead) {
    word.written = {
        .thread = thread, .warp = warp, .epoch = warp_epochs_[warp]};
    word.atomically = atomic;
    return true;
  }
  const Use& before = word.read;
  const bool first =
      before.thread == kNobody || before.thread == thread ||
      (before.warp == warp && before.epoch != warp_epochs_[warp]);
  word.read = {.thread = first ? thread : kMany,
               .warp = first || before.warp == warp ? warp : kMany,
               .epoch = warp_epochs_[warp]};
  return true;
}

}  // namespace blockmgr::ptx
