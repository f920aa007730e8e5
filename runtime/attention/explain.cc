#include "runtime/attention/explain.h"

#include <algorithm>
#include <sstream>
#include <string>

#include "runtime/cache/page_layout.h"

namespace manyhead {
namespace {

/// Returns how a tile of `rows` rows reads keys and values of these types.
std::string KernelName(std::int64_t rows, KvType k_type, KvType v_type) {
  const bool in_registers = rows <= kernels::kRowsThatWiden;
  const auto read = [&](KvType type) {
    return std::string(KvTypeName(type))
        .append(type == KvType::kF32 ? " read in place"
                : in_registers       ? " widened in registers"
                                     : " widened once per block");
  };
  return std::string("tiled online softmax; keys ")
      .append(read(k_type))
      .append(", values ")
      .append(read(v_type));
}

}  // namespace

AttentionExplanation ExplainAttention(const AttentionSetup& setup, std::int64_t scratch_bytes,
                                      KvType k_type, KvType v_type, std::int64_t q_len,
                                      std::int64_t kv_len) {
  constexpr std::int64_t kFloatBytes = sizeof(float);
  const AttentionParams& params = setup.params;
  const AttentionPartition& partition = setup.partition;
  const std::int64_t parts_floats = AttentionScratchOf(params).parts_floats;
  const AttentionRequest request = partition.MakeRequest(q_len, kv_len, kv_len - q_len);
  const std::int64_t whole_items = params.num_kv_heads * request.tiles;
  const bool wanted = partition.WantsSplit(whole_items, request);
  const bool split = wanted && partition.PartsFloats(request) <= parts_floats;

  AttentionExplanation result;
  result.isa = *params.isa;
  result.threads = params.threads;
  result.tile_rows = std::min(request.tile_rows, q_len * setup.group());
  result.block_keys = kernels::kAttentionBlock;
  result.split_keys = split ? kernels::kAttentionSplit : 0;
  result.items = split ? whole_items * request.parts : whole_items;
  result.scratch_bytes = scratch_bytes;

  std::int64_t pairs = 0, first = kv_len, end = 0;
  const std::int64_t sinks = std::min(params.num_sink_tokens, kv_len);
  for (std::int64_t t = 0; t < q_len; ++t) {
    const auto [from, to] = partition.KeysSeen(request.position + t, kv_len);
    pairs += to - from + std::min(sinks, from);
    first = std::min(first, from);
    end = std::max(end, to);
  }
  const std::int64_t keys = std::max<std::int64_t>(0, end - first) + std::min(sinks, first);
  const kernels::KvPageLayout layout = MakeKvPageLayout(
      {params.num_kv_heads, params.head_dim, params.head_dim_v}, k_type, v_type, kernels::kKvTile);
  result.bytes =
      params.num_kv_heads * keys * (layout.k_tile_bytes + layout.v_tile_bytes) / kernels::kKvTile;
  result.flops = 2 * params.num_heads * pairs * (params.head_dim + params.head_dim_v);

  result.kernel = KernelName(result.tile_rows, k_type, v_type);

  const Isa best = SupportedIsas().back();
  if (!SameAttention(result.isa, best)) {
    result.refused.push_back(
        std::string(IsaName(best)).append(": the plan was asked for ").append(IsaName(result.isa)));
  }
  if (wanted && !split) {
    std::ostringstream reason;
    reason << "keys split over threads: partial states of "
           << partition.PartsFloats(request) * kFloatBytes << " bytes; scratch has "
           << parts_floats * kFloatBytes;
    result.refused.push_back(reason.str());
  }
  return result;
}

std::string AttentionExplanation::ToString() const {
  std::ostringstream text;
  text << "kernel   " << kernel << "\nisa      " << IsaName(isa) << ", " << threads
       << " threads\ntile     " << tile_rows << " rows, blocks of " << block_keys
       << " keys\nwork     " << items << " items";
  if (split_keys > 0) text << ", keys split every " << split_keys;
  text << "\nscratch  " << scratch_bytes << " bytes\ncost     " << bytes
       << " bytes of keys and values, " << flops << " flops\n";
  for (const std::string& reason : refused) text << "refused  " << reason << "\n";
  return text.str();
}

}  // namespace manyhead
