// How the prompts of one step share its tokens.
#ifndef SCHEDULER_CHUNKING_H_
#define SCHEDULER_CHUNKING_H_

#include <cstdint>
#include <vector>

namespace blockmgr {

// The most that each prompt may take so that all get equal shares of `budget`
// tokens, where one that needs less leaves its rest to the others. Whole units
// (pages), and at least one. `gaps`: the tokens each lacks; sorted in place.
// O(n log n).
int32_t EqualShare(int32_t budget, int32_t unit, std::vector<int32_t>* gaps);

}  // namespace blockmgr

#endif  // SCHEDULER_CHUNKING_H_
