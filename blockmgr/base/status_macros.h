// Early returns for absl::Status and absl::StatusOr, and BM_CHECK_OK.
#ifndef BLOCKMGR_BASE_STATUS_MACROS_H_
#define BLOCKMGR_BASE_STATUS_MACROS_H_

#include <utility>

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include "blockmgr/base/check.h"

// Returns the status from the enclosing function unless it is OK.
#define BM_RETURN_IF_ERROR(expression)       \
  do {                                       \
    absl::Status bm_status_ = (expression);  \
    if (!bm_status_.ok()) return bm_status_; \
  } while (false)

#define BM_STATUS_CONCAT_INNER_(a, b) a##b
#define BM_STATUS_CONCAT_(a, b) BM_STATUS_CONCAT_INNER_(a, b)

// BM_ASSIGN_OR_RETURN(auto value, Expression()) assigns the value, or returns
// the error from the enclosing function.
#define BM_ASSIGN_OR_RETURN(lhs, expression) \
  BM_ASSIGN_OR_RETURN_(BM_STATUS_CONCAT_(bm_or_, __LINE__), lhs, expression)
#define BM_ASSIGN_OR_RETURN_(result, lhs, expression)  \
  auto result = (expression);                          \
  if (!result.ok()) return std::move(result).status(); \
  lhs = *std::move(result)

// BM_CHECK_OK aborts with the text of the status unless the status is OK. It is
// for failures from which no recovery is possible, for example a device that
// fails.
#define BM_CHECK_OK(expression)                                         \
  do {                                                                  \
    const absl::Status& bm_status_ = (expression);                      \
    if (!bm_status_.ok()) [[unlikely]] {                                \
      ::blockmgr::internal::CheckFailed(__FILE__, __LINE__,             \
                                        bm_status_.ToString().c_str()); \
    }                                                                   \
  } while (false)

#endif  // BLOCKMGR_BASE_STATUS_MACROS_H_
