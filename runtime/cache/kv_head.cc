#include "runtime/cache/kv_head.h"

#include "runtime/cache/page_layout.h"

namespace manyhead {

KvHead MakeKvHead(const KvLayerShape& shape, const KvHeadParams& params,
                  std::int64_t page_size) noexcept {
  KvHead head;
  head.params = params;
  const KvPolicy& policy = params.policy;
  // Small groups of tokens compete for a budget; other heads gain from large pages.
  head.layout = MakeKvPageLayout(shape, params.k_type, params.v_type,
                                 head.scored() ? kernels::kKvTile : page_size);
  switch (policy.kind) {
    case KvPolicyKind::kWindow:
    case KvPolicyKind::kSinkRecent:
      head.recent = policy.recent;
      head.kept = policy.recent + policy.margin;
      head.sink = policy.kind == KvPolicyKind::kSinkRecent ? policy.sink : 0;
      break;
    case KvPolicyKind::kOff:
      head.recent = head.kept = 0;
      break;
    case KvPolicyKind::kFull:
    case KvPolicyKind::kBudget:
      break;
  }
  return head;
}

std::int64_t KvRowBytes(const KvHead& head, std::int64_t page_size) noexcept {
  return head.off() ? 0 : page_size / head.layout.page_size * head.layout.page_bytes;
}

}  // namespace manyhead
