"""blockmgr owns the paged KV cache of LLM serving engines.

In a process: Scheduler, EngineTables, and the pure functions of evictions (select,
lay_out, place_survivors), on numpy arrays and on tensors of other libraries by
DLPack. Beside a daemon: blockmgr.client, and the messages blockmgr.v1.

docs/python.md begins with an example. An object may be used by several threads, one
call after another; select, lay_out, index_entries and place_survivors let other
threads run.
"""
import typing

from blockmgr.address import default_daemon_address
from blockmgr.errors import (AbortedError, AlreadyExistsError, Error,
                             FailedPreconditionError, InternalError,
                             InvalidArgumentError, NotFoundError,
                             ResourceExhaustedError, StalePlanError,
                             UnavailableError)

try:
    from blockmgr._core import (BudgetTable, CpuKernels, Effects, EngineTables, Entries,
                                Eviction, EvictionEffect, EvictionOrder,
                                EvictionOutcome, FinishEffect, KeepSets,
                                KvLayout, LogProbsEffect, MediaItem, Placement,
                                Policy, Region, RegionLists, RequestInfo,
                                RetentionWish, RunLogProbs, SamplingParams,
                                Scheduler, SchedulerOptions, SchedulerStats,
                                SequenceStart, StepInputs, StepPlan,
                                StepResult, Target, TenantUse, TokenLogProbs,
                                index_entries, lay_out, place_survivors,
                                select)
except ModuleNotFoundError as _error:
    # An installation of the programs has the messages and the client alone.
    if _error.name != "blockmgr._core":
        raise

if not typing.TYPE_CHECKING:

    def __getattr__(name):
        if name.startswith("_") or name not in __all__:
            raise AttributeError(f"module 'blockmgr' has no attribute '{name}'")
        raise AttributeError(
            f"blockmgr.{name} is compiled, and this installation has the "
            "messages and the client alone: install the wheel (docs/python.md)")


__all__ = [
    "AbortedError", "AlreadyExistsError", "BudgetTable", "CpuKernels", "Effects",
    "EngineTables", "Entries", "Error", "Eviction", "EvictionEffect",
    "EvictionOrder", "EvictionOutcome", "FailedPreconditionError",
    "FinishEffect", "InternalError", "InvalidArgumentError", "KeepSets",
    "KvLayout", "LogProbsEffect", "MediaItem", "NotFoundError", "Placement",
    "Policy", "Region", "RegionLists", "RequestInfo", "ResourceExhaustedError",
    "RetentionWish", "RunLogProbs", "SamplingParams", "Scheduler",
    "SchedulerOptions", "SchedulerStats", "SequenceStart", "StalePlanError",
    "StepInputs", "StepPlan", "StepResult", "Target", "TenantUse",
    "TokenLogProbs", "UnavailableError", "default_daemon_address",
    "index_entries", "lay_out", "place_survivors", "select"
]
