#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/kv_cache.h"
#include "runtime/model/head_edits.h"

namespace manyhead {

using KvHeads = std::vector<std::vector<KvHeadParams>>;  ///< [layer][KV head]

/// Returns `heads` with those switched off that no query reads under `ablation`, which
/// CheckAblation accepts.
KvHeads HeadsRead(const ModelConfig& config, const Ablation& ablation, KvHeads heads);

/// Returns `ablation` in the decoder's form, [layer], over a cache of `heads`: the result of
/// HeadsRead, or empty where the cache holds all heads. The result is empty where nothing changes.
std::vector<HeadEdits> EditsOf(const ModelConfig& config, const Ablation& ablation,
                               const KvHeads& heads);

/// Returns a short text that differs between ablations; empty for none.
std::string AblationKey(const Ablation& ablation);

/// Reads the heads that one item without an edit names, such as "3.1", "4.*" or "5.k1". `function`
/// begins the message of an error.
Result<std::vector<HeadId>> ParseHeads(const char* function, std::string_view text,
                                       const ModelConfig& config);

/// Checks that the model has the query head `id`; `what` begins the message of an error.
Status CheckHead(const ModelConfig& config, const std::string& what, const HeadId& id);

}  // namespace manyhead
