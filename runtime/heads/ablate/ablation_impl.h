#pragma once

#include <span>
#include <string>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/kv_cache.h"
#include "runtime/model/head_edits.h"

namespace manyhead {

using KvHeads = std::vector<std::vector<KvHeadParams>>;  ///< [layer][KV head]

/// `heads` with those off that nobody reads under `ablation`, which CheckAblation accepts.
KvHeads HeadsRead(const ModelConfig& config, const Ablation& ablation, KvHeads heads);

/// `ablation` as the decoder takes it, [layer], over a cache of `heads`: HeadsRead gives them, or
/// nothing where the cache is to hold them all. Empty where nothing changes.
std::vector<HeadEdits> EditsOf(const ModelConfig& config, const Ablation& ablation,
                               const KvHeads& heads);

/// A short text that differs between ablations; empty for none.
std::string AblationKey(const Ablation& ablation);

/// Whether the model has the query head `id`; `what` begins the message of an error.
Status CheckHead(const ModelConfig& config, const std::string& what, const HeadId& id);

}  // namespace manyhead
