// Functions that tell whether live requests can go on with another engine than
// the one that they were scheduled for.
//
// Every function returns a text that names the first field that does not fit,
// what live requests need there, and what the other engine has. The text is
// empty if everything fits. An engine that can do more than requests need fits.
//
// Pure functions. Cost: O(tables of query statistics + window groups).
#ifndef SCHEDULER_SERVER_ENGINE_FIT_H_
#define SCHEDULER_SERVER_ENGINE_FIT_H_

#include <string>

#include "blockmgr/base/model_layout.h"
#include "blockmgr/engine_abilities.h"
#include "blockmgr/served_model.h"

namespace blockmgr {

// Compares the geometry and the abilities of two engines. Live requests were
// scheduled for an engine with `want` and `had`. The other engine has `got` and
// `has`.
std::string DescribeDifference(const ModelLayout& want,
                               const EngineAbilities& had,
                               const ModelLayout& got,
                               const EngineAbilities& has);

// Compares the model that live requests need with the model of the other
// engine. `has` is null if that engine tells nothing of its model. A field that
// one of the models leaves unset is not compared.
std::string DescribeOtherModel(const ServedModel& needed,
                               const ServedModel* has);

}  // namespace blockmgr

#endif  // SCHEDULER_SERVER_ENGINE_FIT_H_
