#pragma once

#include "manyhead/attention.h"

namespace manyhead {

/// Returns `params` with every default filled in: no 0 stands for a default, isa is set.
///
/// Errors   those of AttentionPlan::Create, which names the parameter and both values.
Result<AttentionParams> ResolveAttentionParams(const AttentionParams& params);

}  // namespace manyhead
