#include <blockmgr/eviction/policy.h>
#include <blockmgr/ragged_region.h>

int main() {
  return blockmgr::ParsePolicy("keydiff | adakv | topk").ok() ? 0 : 1;
}
