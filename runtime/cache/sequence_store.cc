#include "runtime/cache/sequence_store.h"

#include <memory>
#include <utility>

#include "runtime/cache/sequence_edits.h"
#include "runtime/cache/table_bytes.h"

namespace manyhead {

Result<SequenceId> SequenceStore::Make(const char* function, const KvSequence* like) {
  const CacheHeads& heads = pages_.heads();
  const auto for_each_head = [&](auto&& fn) {
    for (std::size_t head = 0; head < heads.size(); ++head)
      fn(head, like == nullptr ? 0 : like->heads[head].pages.size(),
         like == nullptr ? 0 : like->heads[head].gaps.size());
  };
  CacheChange change = pages_.Begin(function);
  change.table_bytes = SequenceTableBytes(static_cast<std::int64_t>(heads.size()));
  for_each_head([&](std::size_t head, std::int64_t pages, std::int64_t gaps) {
    change.table_bytes += heads[head].NewTableBytes(pages, gaps);
  });
  const Result<std::int64_t> growth = slots_.GrowthFor(1, function);
  if (!growth.ok()) return growth.status();
  change.table_bytes += *growth;
  if (Status status = pages_.Admit(change); !status.ok()) return status;
  KvSequence sequence;
  sequence.heads = std::make_unique<HeadTable[]>(heads.size());
  for_each_head([&](std::size_t head, std::int64_t pages, std::int64_t gaps) {
    sequence.heads[head] = MakeHeadTable(heads[head], pages, gaps);
  });
  slots_.PutRoom(slots_.MakeRoom(1));
  pages_.AddTableBytes(change.table_bytes);
  return slots_.Put(std::move(sequence));
}

Result<SequenceId> SequenceStore::Fork(SequenceId id) {
  const Result<SequenceId> made = Make("KvCache::Fork", Find(id));
  if (!made.ok()) return made.status();
  const KvSequence& from = *Find(id);
  KvSequence& fork = *Find(*made);
  fork.length = from.length;
  fork.first_query = from.first_query;
  for (std::size_t head = 0; head < pages_.heads().size(); ++head) {
    HeadTable& table = fork.heads[head];
    table.pages.Assign(from.heads[head].pages);
    table.scores.Assign(from.heads[head].scores);
    table.gaps.Assign(from.heads[head].gaps);
    for (std::byte* page : table.pages)
      if (page != nullptr) pages_.Share(head, page);
  }
  return *made;
}

void SequenceStore::Free(SequenceId id) noexcept {
  KvSequence& sequence = *Find(id);
  TruncateSequence(pages_, sequence, 0);
  const std::size_t heads = pages_.heads().size();
  std::int64_t bytes = SequenceTableBytes(static_cast<std::int64_t>(heads));
  for (std::size_t head = 0; head < heads; ++head) bytes += sequence.heads[head].bytes();
  pages_.AddTableBytes(-bytes);
  slots_.Remove(id);
}

void SequenceStore::EmptyHead(std::size_t head) noexcept {
  slots_.ForEach([&](KvSequence& sequence) {
    HeadTable& table = sequence.heads[head];
    for (std::byte* page : table.pages)
      if (page != nullptr) pages_.Release(head, page);
    pages_.AddTableBytes(-table.bytes());
    table = HeadTable();
  });
  pages_.ReturnToOs();
}

}  // namespace manyhead
