#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "manyhead/ablation.h"
#include "manyhead/export.h"
#include "manyhead/head_id.h"
#include "manyhead/model.h"
#include "manyhead/status.h"
#include "manyhead/types.h"

namespace MANYHEAD_API manyhead {

/// How KV heads are chosen to be removed.
struct PruneOptions {
  HeadTextOptions text{};         ///< at least 256 tokens
  double max_rise = 0;            ///< of the loss of the tokens to choose by, nats, at least 0
  std::int64_t max_kv_heads = 0;  ///< most to remove; 0: no limit
  /// The same number from every layer, as files for other programs need it; see WritePrunedModel.
  bool uniform = false;
};

/// Nats per predicted token.
struct PruneLoss {
  double mean = 0;      ///< of all tokens
  double fit = 0;       ///< of those that the choice was made by
  double held_out = 0;  ///< of those it never saw
};

/// What one KV head does to a text.
struct KvHeadEffect {
  KvHeadId kv_head;      ///< the one that is off
  double fit_after = 0;  ///< PruneLoss::fit with this KV head alone off
};

/// The KV heads that a text misses least.
struct Pruning {
  std::vector<KvHeadId> removed{};      ///< by (layer, KV head)
  std::vector<KvHeadEffect> effects{};  ///< of all that could go, the least harmful first
  std::int64_t tokens = 0;              ///< of the text
  std::int64_t held_out_tokens = 0;     ///< of those predicted
  PruneLoss before;                     ///< with all heads
  PruneLoss after;                      ///< with all of `removed` off together
  std::int64_t passes = 0;              ///< over the whole text, to try heads together
  bool interrupted = false;             ///< by `cancel`: more might be removed
};

/// Chooses KV heads, with all their query heads, whose removal raises a text's loss by no more than
/// a limit.
///
/// Each head's effect alone gives an order. In that order heads are taken, as many at once as their
/// effects leave room for, and half as many while the loss with all of them off exceeds the limit;
/// a head with which it still does stays. Every third run of 64 tokens is held out: it takes no
/// part in the choice. Every layer keeps a KV head.
///
/// Errors   as MeasureHeadEffects; kInvalidArgument where no layer has more than one KV head, or
///          `uniform` and some layer has not.
Result<Pruning> PruneHeads(const Model& model, std::span<const TokenId> ids,
                           const PruneOptions& options);

/// What --kv-policy and SessionOptions::kv_policy read: `removed` off, nothing else named.
std::string FormatRemoved(std::span<const KvHeadId> removed);

/// Writes such a text to a file, which appears under `path` when it is whole and on the disk.
/// Errors   kIoError naming `path`.
Status WriteRemoved(std::span<const KvHeadId> removed, const std::string& path);

/// How a pruned model is written.
struct PrunedModelOptions {
  /// W_O of a layer whose heads end inside a block of its type is stored as F32, which keeps its
  /// numbers; without it such a layer is refused.
  bool widen = false;
};

/// Writes the model without some KV heads, their query heads and their columns of W_O, as a GGUF
/// file. It appears under `path` when it is whole and on the disk.
///
/// The logits are those of the model with these heads off. Where layers differ afterwards, the file
/// gives head counts layer by layer, which this library reads; others may read one count for all
/// layers only. Keys other than head counts and lengths stay, weights keep their types and bytes.
///
/// Errors   kInvalidArgument naming the layer: a KV head that it does not have or that is named
///          twice, none left. kUnsupported where W_O would be cut inside a block, or where the
///          model's softmax scale follows from its number of heads. kIoError naming `path`.
Status WritePrunedModel(const Model& model, std::span<const KvHeadId> removed,
                        const std::string& path, const PrunedModelOptions& options = {});

}  // namespace manyhead
