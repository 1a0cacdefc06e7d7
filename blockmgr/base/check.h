// BM_CHECK aborts with a message if its condition is false, in every build.
//
// Use BM_CHECK for a condition that only a bug can make false: a bug in this
// library, or in a caller that broke a REQUIRES. Bad input from outside gets an
// absl::Status instead. A BM_CHECK must be O(1). BM_DCHECK is for checks that
// cost more. It is compiled in unless NDEBUG is defined.
#ifndef BLOCKMGR_BASE_CHECK_H_
#define BLOCKMGR_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

namespace blockmgr::internal {

[[noreturn]] inline void CheckFailed(const char* file, int line,
                                     const char* condition) {
  std::fprintf(stderr, "%s:%d: check failed: %s\n", file, line, condition);
  std::abort();
}

}  // namespace blockmgr::internal

#define BM_CHECK(condition)                                              \
  do {                                                                   \
    if (!(condition)) [[unlikely]] {                                     \
      ::blockmgr::internal::CheckFailed(__FILE__, __LINE__, #condition); \
    }                                                                    \
  } while (false)

#ifdef NDEBUG
#define BM_DCHECK(condition) \
  do {                       \
  } while (false && (condition))
#else
#define BM_DCHECK(condition) BM_CHECK(condition)
#endif

#endif  // BLOCKMGR_BASE_CHECK_H_
