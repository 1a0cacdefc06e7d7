// Bugs that tests plant in kernels, to see that the suite and the emulator
// catch them. Only the emulator's builds, which are tests, know them; for nvcc
// every switch is the constant false.
#ifndef KERNELS_CUDA_PLANTED_BUGS_H_
#define KERNELS_CUDA_PLANTED_BUGS_H_

#if defined(__CUDACC__)
#define BM_PLANTED(bug) false
#else
#define BM_PLANTED(bug) (::blockmgr::planted_bug == ::blockmgr::PlantedBug::bug)

namespace blockmgr {

enum class PlantedBug {
  kNone,
  // Decode attention.
  kTooFewWaits,             // one copy group too many left pending
  kNoBarrierAfterWait,      // other lanes' copies are not published
  kNoBarrierBeforeReuse,    // the next copy overwrites a stage still read
  kWrongSwizzle,            // rows are read at other places than written
  kWrongPage,               // the page before the right one
  kPageOffsetLost,          // the second half of a page reads the first
  kLengthOffByOne,          // one dead row counts as live
  kMaskLost,                // dead rows get weight
  kDeadValuesNotZeroed,     // 0 * NaN
  kSlotCollision,           // first and last part of a CTA share a slot
  kMergeIgnoresMax,         // partial results added without their maxima
  kMergeSkipsLast,          // the last part of a cut list is lost
  kNoBarrierBeforeCombine,  // warps read each other's results too early
  kNoBarrierAfterCombine,   // and overwrite them too early
  kNoBarrierBeforeMerge,    // the same where parts are merged
  kNoBarrierAfterMerge,
  kChunkBoundaryLost,     // chunks depend on the CTA's range
  kTailWindowOffByOne,    // the row before the window counts as live
  kRegionWindowMaskLost,  // rows of a region never leave the window
  kDecodeIgnoresRoom,
  // Chunk attention.
  kCausalOffByOne,
  kNoBarrierBetweenTiles,
  kRegionMaskLost,
  kTailWindowMaskLost,  // rows see what the CTA's first one sees
  // Scores.
  kNoBarrierAfterAddresses,
  kWindowMaskLost,
  kStatsOfOneSplit,
  kPoolingReach,
  kSumsIgnoreTiles,  // that there are too many
  kSumsIgnoreRoom,   // of a list
  kAnchorLosesSplit,
  kMedianIsTheUpper,  // of the middle two
  kMedianForgetsNan,
  kMedianNoBarrierBeforeCount,
  kMedianNoBarrierBeforePick,
  kNormLosesColumns,
  kNoBarrierBeforeSlab,
  kExpectedSecondPartLost,  // of covariances
  kExpectedPaysSinks,
  kExpectedNoBarrierBeforeMerge,
  kTovaLosesPosition,  // the first of a tile
  kTovaNoBarrierBetweenHeads,
  // Copies of rows.
  kMoveDropsLastRow,
  kMoveSkipsValueRow,
  kMoveLosesPosition,
  kMoveIgnoresDeviceCount,
  kMoveRepeatsPairs,  // the first of a turn, for those in flight later
  kAppendHidesError,
  kAppendTruncates,
  kStageSwapsStrides,
  // Selection.
  kSelectOrdersNanBySign,
  kSelectSplitsZeros,
  kSelectForgetsPrefix,
  kSelectForgetsUncached,
  kSelectNoBarrierAfterClear,
  kSelectNoBarrierAfterFill,
  kSelectNoBarrierBeforePick,
  kSelectPicksEarly,
  kSelectNoBarrierAfterPick,
  kSelectNoBarrierAfterSum,
  kSelectNoBarrierAfterCut,
  kSelectForgetsEarlierTies,
  kSelectTakesTiesEarly,
  kSelectTiesToHigher,
  kSelectIgnoresEarlierWarps,
  kSelectFloorCountsTwice,
  kSelectFractionTiesToHigher,
  kSelectForgetsProtection,
  kSelectForgetsCut,
  kSelectNoBarrierAfterSearch,
  kSelectNoBarrierAfterBegin,
  kApportionNoBarrierAfterSum,
  kApportionNoBarrierAfterClear,
  kApportionNoBarrierAfterPick,
  kPrefixNoBarrier,
  kApportionForgetsTurns,  // heads before the last 256
  // Plans of moves.
  kMovesOffByOnePage,
  kMovesNoBarrierAfterWords,
  kMovesForgetEarlierTurns,
  kMovesLosePosition,
  kUnstageIgnoresSource,
  // Lists of entries.
  kIndexForgetsHead,
  kIndexForgetsEarlierWords,
  kIndexNoBarrierAfterMarks,
  kIndexNoBarrierAfterWords,
};

inline PlantedBug planted_bug = PlantedBug::kNone;

}  // namespace blockmgr
#endif

#endif  // KERNELS_CUDA_PLANTED_BUGS_H_
