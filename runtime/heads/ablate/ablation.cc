#include "manyhead/ablation.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <set>
#include <sstream>
#include <utility>

#include "runtime/heads/ablate/ablation_impl.h"
#include "runtime/platform/checksum.h"
#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

std::size_t Index(std::int64_t i) { return static_cast<std::size_t>(i); }

std::string Name(const HeadId& id) {
  return std::to_string(id.layer) + "." + std::to_string(id.head);
}

Status CheckEdit(const ModelConfig& config, const Ablation& ablation, const HeadEdit& edit) {
  if (edit.kind > HeadEditKind::kMean)
    return InvalidArgument("Ablation", "kind = ", static_cast<int>(edit.kind), " of head ",
                           Name(edit.head), "; expected 0..1 (scale, mean)");
  if (edit.kind == HeadEditKind::kScale) {
    if (std::isfinite(edit.scale)) return Status();
    return InvalidArgument("Ablation", "scale = ", edit.scale, " of head ", Name(edit.head),
                           "; expected a finite number");
  }
  const LayerConfig& layer = config.layers[Index(edit.head.layer)];
  const std::int64_t wanted = layer.num_heads * layer.head_dim_v;
  const std::size_t l = Index(edit.head.layer);
  const std::int64_t given = l < ablation.means.size() ? std::ssize(ablation.means[l]) : 0;
  if (given == wanted) return Status();
  return InvalidArgument("Ablation", "head ", Name(edit.head), " is to give its mean; means[", l,
                         "] has ", given, " numbers, expected ", wanted);
}

/// Checks that every layer keeps a head.
Status CheckLayersKeepHeads(const ModelConfig& config, const Ablation& ablation) {
  std::vector<std::int64_t> off(config.layers.size());
  for (const HeadEdit& edit : ablation.edits)
    off[Index(edit.head.layer)] += edit.kind == HeadEditKind::kScale && edit.scale == 0;
  for (std::size_t l = 0; l < off.size(); ++l)
    if (off[l] == config.layers[l].num_heads)
      return InvalidArgument("Ablation", "layer ", l, " would have ", off[l], " of its ",
                             config.layers[l].num_heads, " heads off; expected at most ",
                             config.layers[l].num_heads - 1);
  return Status();
}

Status CheckPatch(const ModelConfig& config, const HeadPatch& patch) {
  constexpr std::int64_t kMostPositions = std::int64_t{1} << 31;
  if (Status status = CheckHead(config, "Ablation: patch", patch.head); !status.ok()) return status;
  const auto refuse = [&](const auto&... parts) {
    return InvalidArgument("Ablation", "the patch of head ", Name(patch.head), " ", parts...);
  };
  const std::int64_t width = config.layers[Index(patch.head.layer)].head_dim_v;
  const std::int64_t size = std::ssize(patch.values);
  if (size == 0 || size % width != 0)
    return refuse("has ", size, " values; expected a multiple of head_dim_v = ", width);
  if (patch.position < 0 || patch.position > kMostPositions - size / width)
    return refuse("begins at position ", patch.position, "; expected 0..",
                  kMostPositions - size / width);
  const auto bad = std::find_if(patch.values.begin(), patch.values.end(),
                                [](float value) { return !std::isfinite(value); });
  if (bad == patch.values.end()) return Status();
  return refuse("has values[", bad - patch.values.begin(), "] = ", *bad,
                "; expected a finite number");
}

/// Checks that no two patches are of one head and position.
Status CheckPatchesApart(const ModelConfig& config, const std::vector<HeadPatch>& patches) {
  std::vector<const HeadPatch*> sorted;
  for (const HeadPatch& patch : patches) sorted.push_back(&patch);
  std::sort(sorted.begin(), sorted.end(), [](const HeadPatch* a, const HeadPatch* b) {
    return std::pair(a->head, a->position) < std::pair(b->head, b->position);
  });
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const HeadPatch &before = *sorted[i - 1], &patch = *sorted[i];
    const std::int64_t width = config.layers[Index(before.head.layer)].head_dim_v;
    if (patch.head == before.head &&
        patch.position < before.position + std::ssize(before.values) / width)
      return InvalidArgument("Ablation", "head ", Name(patch.head),
                             " is patched twice at position ", patch.position, "; expected once");
  }
  return Status();
}

}  // namespace

Status CheckHead(const ModelConfig& config, const std::string& what, const HeadId& id) {
  const auto layers = static_cast<std::int64_t>(config.layers.size());
  if (id.layer < 0 || id.layer >= layers)
    return InvalidArgument(what, "layer = ", id.layer, "; expected 0..", layers - 1);
  const std::int64_t heads = config.layers[Index(id.layer)].num_heads;
  if (id.head < 0 || id.head >= heads)
    return InvalidArgument(what, "head = ", id.head, " of layer ", id.layer, "; expected 0..",
                           heads - 1);
  return Status();
}

Status CheckAblation(const ModelConfig& config, const Ablation& ablation) {
  std::set<HeadId> seen;
  for (const HeadEdit& edit : ablation.edits) {
    if (Status status = CheckHead(config, "Ablation", edit.head); !status.ok()) return status;
    if (!seen.insert(edit.head).second)
      return InvalidArgument("Ablation", "head ", Name(edit.head),
                             " is edited twice; expected once");
    if (Status status = CheckEdit(config, ablation, edit); !status.ok()) return status;
  }
  for (const HeadPatch& patch : ablation.patches)
    if (Status status = CheckPatch(config, patch); !status.ok()) return status;
  if (Status status = CheckPatchesApart(config, ablation.patches); !status.ok()) return status;
  return CheckLayersKeepHeads(config, ablation);
}

Result<Ablation> KeepOnly(const ModelConfig& config, std::span<const HeadId> heads) {
  std::set<HeadId> kept;
  std::set<std::int64_t> layers;
  for (const HeadId& id : heads) {
    if (Status status = CheckHead(config, "KeepOnly", id); !status.ok()) return status;
    kept.insert(id);
    layers.insert(id.layer);
  }
  Ablation ablation;
  for (const std::int64_t layer : layers)
    for (std::int64_t head = 0; head < config.layers[Index(layer)].num_heads; ++head)
      if (!kept.contains({layer, head})) ablation.edits.push_back({{layer, head}});
  return ablation;
}

bool NeedsMeans(const Ablation& ablation) noexcept {
  return std::any_of(ablation.edits.begin(), ablation.edits.end(),
                     [](const HeadEdit& edit) { return edit.kind == HeadEditKind::kMean; });
}

std::vector<std::vector<bool>> UnreadKvHeads(const ModelConfig& config, const Ablation& ablation) {
  std::vector<std::vector<std::int64_t>> readers;  // [layer][KV head]
  for (const LayerConfig& layer : config.layers)
    readers.emplace_back(Index(layer.num_kv_heads), layer.num_heads / layer.num_kv_heads);
  for (const HeadEdit& edit : ablation.edits) {
    const LayerConfig& layer = config.layers[Index(edit.head.layer)];
    if (edit.kind == HeadEditKind::kScale && edit.scale != 0) continue;
    const std::int64_t group = layer.num_heads / layer.num_kv_heads;
    --readers[Index(edit.head.layer)][Index(edit.head.head / group)];
  }
  std::vector<std::vector<bool>> unread;
  for (const std::vector<std::int64_t>& layer : readers) {
    unread.emplace_back();
    for (const std::int64_t count : layer) unread.back().push_back(count == 0);
  }
  return unread;
}

KvHeads HeadsRead(const ModelConfig& config, const Ablation& ablation, KvHeads heads) {
  const std::vector<std::vector<bool>> unread = UnreadKvHeads(config, ablation);
  for (std::size_t l = 0; l < heads.size(); ++l)
    for (std::size_t h = 0; h < heads[l].size(); ++h)
      if (unread[l][h]) heads[l][h].policy = KvPolicy::Off();
  return heads;
}

std::vector<HeadEdits> EditsOf(const ModelConfig& config, const Ablation& ablation,
                               const KvHeads& heads) {
  std::vector<HeadEdits> layers(config.layers.size());
  bool changed = !ablation.edits.empty() || !ablation.patches.empty();
  for (std::size_t l = 0; l < heads.size(); ++l)
    for (const KvHeadParams& head : heads[l]) {
      layers[l].unread.push_back(head.policy.kind == KvPolicyKind::kOff);
      changed |= layers[l].unread.back();
    }
  if (!changed) return {};
  for (const HeadEdit& edit : ablation.edits) {
    const std::size_t l = Index(edit.head.layer);
    const std::int64_t width = config.layers[l].head_dim_v;
    HeadEdits::Edit made = {edit.head.head * width, width, edit.scale, {}};
    if (edit.kind == HeadEditKind::kMean) {
      const auto mean = ablation.means[l].begin() + made.begin;
      made.mean.assign(mean, mean + width);
    }
    layers[l].edits.push_back(std::move(made));
  }
  for (const HeadPatch& patch : ablation.patches) {
    const std::size_t l = Index(patch.head.layer);
    const std::int64_t width = config.layers[l].head_dim_v;
    layers[l].patches.push_back({patch.head.head * width, width, patch.position, patch.values});
  }
  return layers;
}

std::string AblationKey(const Ablation& ablation) {
  if (ablation.edits.empty() && ablation.patches.empty()) return "";
  Checksum sum;
  sum.Add(FormatAblation(ablation));
  for (const HeadPatch& patch : ablation.patches) {
    const std::int64_t place[] = {patch.head.layer, patch.head.head, patch.position,
                                  std::ssize(patch.values)};
    sum.Add(std::as_bytes(std::span(place)));
    sum.Add(std::as_bytes(std::span(patch.values)));
  }
  if (NeedsMeans(ablation))
    for (const std::vector<float>& layer : ablation.means) sum.Add(std::as_bytes(std::span(layer)));
  std::ostringstream text;
  text << "ablation " << std::hex << std::setw(16) << std::setfill('0') << sum.value();
  return text.str();
}

}  // namespace manyhead
