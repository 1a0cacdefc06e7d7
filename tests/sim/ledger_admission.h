// Submitted requests: which the scheduler must accept, and which it may not.
#ifndef TESTS_SIM_LEDGER_ADMISSION_H_
#define TESTS_SIM_LEDGER_ADMISSION_H_

#include <absl/status/statusor.h>

#include "scheduler/request.h"
#include "tests/sim/ledger_books.h"

namespace blockmgr::sim {

// Checks what Submit returned, and adds the request if it was accepted.
void TakeSubmit(const Request& request, const absl::StatusOr<RequestId>& id,
                LedgerBooks* books);

// Checks that every tenant is within its quotas.
void CheckQuotas(const LedgerBooks& books);

}  // namespace blockmgr::sim

#endif  // TESTS_SIM_LEDGER_ADMISSION_H_
