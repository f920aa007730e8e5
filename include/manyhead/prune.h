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

/// Says how the KV heads to remove are chosen.
struct PruneOptions {
  HeadTextOptions text{};  ///< at least 256 tokens
  /// Largest rise of the loss of the tokens used for the choice, nats, at least 0.
  double max_rise = 0;
  std::int64_t max_kv_heads = 0;  ///< largest number of heads to remove; 0: no limit
  /// Removes the same number from every layer, as files for other programs need it; see
  /// WritePrunedModel.
  bool uniform = false;
};

/// Losses in nats per predicted token.
struct PruneLoss {
  double mean = 0;      ///< mean loss of all tokens
  double fit = 0;       ///< loss of the tokens that the choice was based on
  double held_out = 0;  ///< loss of the held-out tokens, which the choice did not use
};

/// The loss of a text with one KV head switched off.
struct KvHeadEffect {
  KvHeadId kv_head;      ///< the head that is switched off
  double fit_after = 0;  ///< PruneLoss::fit with this KV head alone switched off
};

/// The KV heads whose removal harms a text least.
struct Pruning {
  std::vector<KvHeadId> removed{};  ///< sorted by (layer, KV head)
  /// Effects of all heads that may be removed, the least harmful first.
  std::vector<KvHeadEffect> effects{};
  std::int64_t tokens = 0;           ///< tokens of the text
  std::int64_t held_out_tokens = 0;  ///< predicted tokens that are held out
  PruneLoss before;                  ///< losses with all heads
  PruneLoss after;                   ///< losses with all of `removed` switched off together
  std::int64_t passes = 0;   ///< passes over the whole text that tried several heads together
  bool interrupted = false;  ///< true when `cancel` ended the work: more heads might be removable
};

/// Chooses KV heads, with all their query heads, whose removal raises a text's loss by no more than
/// a limit.
///
/// The effect of each head alone gives an order. In that order heads are removed, as many at once
/// as the sum of their effects allows, and half as many while the loss without all of them exceeds
/// the limit; a single head that exceeds it is kept. Every third run of 64 tokens is held out: it
/// takes no part in the choice. Every layer keeps a KV head.
///
/// Errors   as MeasureHeadEffects; kInvalidArgument where no layer has more than one KV head, or
///          where `uniform` is set and some layer has only one.
Result<Pruning> PruneHeads(const Model& model, std::span<const TokenId> ids,
                           const PruneOptions& options);

/// Returns the policy, for --kv-policy and SessionOptions::kv_policy, that switches the heads
/// `removed` off and names no others.
std::string FormatRemoved(std::span<const KvHeadId> removed);

/// Writes this policy to a file, which appears under `path` when it is complete and on the disk.
/// Errors   kIoError naming `path`.
Status WriteRemoved(std::span<const KvHeadId> removed, const std::string& path);

/// Says how a pruned model is written.
struct PrunedModelOptions {
  /// Stores W_O as F32, without loss, in a layer whose heads end inside a block of its type;
  /// otherwise such a layer is refused.
  bool widen = false;
};

/// Writes the model without some KV heads, their query heads and their columns of W_O, as a GGUF
/// file. It appears under `path` when it is complete and on the disk.
///
/// The logits are those of the model with these heads switched off. Where layers differ afterwards,
/// the file states head counts layer by layer, which this library reads; other programs may only
/// read one count for all layers. Keys other than head counts and lengths stay, weights keep their
/// types and bytes.
///
/// Errors   kInvalidArgument naming the layer: a KV head that it does not have or that is named
///          twice, or a layer without any head left. kUnsupported where W_O would be cut inside a
///          block, or where the model's softmax scale follows from its number of heads. kIoError
///          naming `path`.
Status WritePrunedModel(const Model& model, std::span<const KvHeadId> removed,
                        const std::string& path, const PrunedModelOptions& options = {});

}  // namespace manyhead
