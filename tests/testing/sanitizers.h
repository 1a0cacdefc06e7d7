// Which sanitizers this is compiled with, by gcc or clang.
#ifndef TESTS_TESTING_SANITIZERS_H_
#define TESTS_TESTING_SANITIZERS_H_

#if defined(__SANITIZE_ADDRESS__)
#define BLOCKMGR_TEST_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define BLOCKMGR_TEST_ASAN 1
#endif
#endif
#ifndef BLOCKMGR_TEST_ASAN
#define BLOCKMGR_TEST_ASAN 0
#endif

#if defined(__SANITIZE_THREAD__)
#define BLOCKMGR_TEST_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define BLOCKMGR_TEST_TSAN 1
#endif
#endif
#ifndef BLOCKMGR_TEST_TSAN
#define BLOCKMGR_TEST_TSAN 0
#endif

namespace blockmgr {

inline constexpr bool kSanitized =
    BLOCKMGR_TEST_ASAN != 0 || BLOCKMGR_TEST_TSAN != 0;

}  // namespace blockmgr

#endif  // TESTS_TESTING_SANITIZERS_H_
