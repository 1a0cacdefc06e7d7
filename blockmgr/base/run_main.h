#ifndef BLOCKMGR_BASE_RUN_MAIN_H_
#define BLOCKMGR_BASE_RUN_MAIN_H_

#include <cstdio>
#include <exception>

namespace blockmgr {

// Runs `run` and returns its exit status for main. If an exception escapes from
// `run`, prints the exception on standard error and returns 1. If `run`
// succeeds but its standard output cannot be written, says so and returns 1.
inline int RunMain(int (*run)(int, char**), int argc, char** argv) {
  try {
    const int status = run(argc, argv);
    const bool is_written =
        std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
    if (is_written) return status;
    std::fprintf(stderr, "%s: standard output cannot be written\n", argv[0]);
    return status == 0 ? 1 : status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}

}  // namespace blockmgr

#endif  // BLOCKMGR_BASE_RUN_MAIN_H_
