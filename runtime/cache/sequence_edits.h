#pragma once

#include <cstdint>

#include "runtime/cache/kv_sequence.h"
#include "runtime/cache/page_store.h"

/// Changes the tokens of one sequence, for all heads at once. Arguments must be in range.

namespace manyhead {

/// Extends the sequence by `count` tokens, whose rows are then to be written; before that, heads
/// evict the tokens that no query from its current length on can see. 0 evicts only.
///
/// Errors   kOutOfPages; `function` begins the message, and nothing has changed.
Status ReserveTokens(PageStore& pages, KvSequence& sequence, std::int64_t count,
                     const char* function);

/// Drops every token from position `length` on; returns whether that was exact.
bool TruncateSequence(PageStore& pages, KvSequence& sequence, std::int64_t length) noexcept;

/// Returns the greatest length up to `length` to which a truncation would be exact.
std::int64_t ExactLengthOf(const CacheHeads& heads, const KvSequence& sequence,
                           std::int64_t length) noexcept;

/// Drops the tokens [begin, end) from every head.
/// Errors   kOutOfPages, with nothing changed.
Status DropTokens(PageStore& pages, KvSequence& sequence, std::int64_t begin, std::int64_t end);

/// Appends the tokens of `from` at the positions [begin, end) to `sequence`, in the same pages;
/// begin must be at least its length.
/// Errors   kOutOfPages, with nothing changed.
Status CopyTokens(PageStore& pages, const KvSequence& from, std::int64_t begin, std::int64_t end,
                  KvSequence& sequence);

/// Copies shared pages so that the rows [position, position + count) of `layer` belong to the
/// sequence alone.
/// Errors   kOutOfPages, with nothing changed.
Status UnshareTokens(PageStore& pages, KvSequence& sequence, std::int64_t layer,
                     std::int64_t position, std::int64_t count);

}  // namespace manyhead
