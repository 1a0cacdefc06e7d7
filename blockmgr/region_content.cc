#include "blockmgr/region_content.h"

#include <algorithm>
#include <utility>

namespace blockmgr {

std::shared_ptr<const RegionContent> RegionContent::Make(
    std::shared_ptr<const RegionContent> before,
    std::span<const int32_t> tokens, absl::string_view history,
    const BlockChain& chain) {
  auto content = std::make_shared<RegionContent>();
  if (before != nullptr && before->Begins(tokens, &history, chain)) {
    content->begin = before->end();
    content->history_begin = before->history_size();
    content->before = std::move(before);
  }
  tokens = tokens.subspan(content->begin);
  content->tokens.assign(tokens.begin(), tokens.end());
  content->media = chain.Media(content->begin, content->end());
  content->history = std::string(history.substr(content->history_begin));
  return content;
}

RegionContent::~RegionContent() {
  std::shared_ptr<const RegionContent> next = std::move(before);
  // The last owner of a part takes out its `before` first, so that no
  // destructors nest.
  while (next != nullptr && next.use_count() == 1) {
    // Another thread may have released its share just now. use_count() does not
    // synchronise with that release. Releasing one more share does.
    std::shared_ptr<const RegionContent>(next).reset();
    next = std::move(const_cast<RegionContent&>(*next).before);
  }
}

bool RegionContent::Begins(std::span<const int32_t> all_tokens,
                           const absl::string_view* whole_history,
                           const BlockChain& chain) const {
  if (end() > std::ssize(all_tokens)) return false;
  if (whole_history != nullptr && history_size() > whole_history->size()) {
    return false;
  }
  for (const RegionContent* part = this; part != nullptr;
       part = part->before.get()) {
    if (whole_history != nullptr &&
        whole_history->substr(part->history_begin, part->history.size()) !=
            part->history) {
      return false;
    }
    const auto own = all_tokens.subspan(part->begin, part->tokens.size());
    if (!std::ranges::equal(part->tokens, own)) return false;
    if (!chain.HasMedia(part->begin, part->end(), part->media)) return false;
  }
  return true;
}

int64_t RegionContent::CountBytes(
    const RegionContent* last,
    absl::flat_hash_set<const RegionContent*>* counted) {
  int64_t bytes = 0;
  // If a part is counted, all parts before it are counted, too.
  for (; last != nullptr && counted->insert(last).second;
       last = last->before.get()) {
    bytes += last->metadata_bytes();
  }
  return bytes;
}

std::string RegionContent::WholeHistory() const {
  std::string whole(history_size(), '\0');
  for (const RegionContent* part = this; part != nullptr;
       part = part->before.get()) {
    whole.replace(part->history_begin, part->history.size(), part->history);
  }
  return whole;
}

}  // namespace blockmgr
