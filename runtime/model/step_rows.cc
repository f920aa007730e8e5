#include "runtime/model/step_rows.h"

#include <cstddef>

#include "runtime/platform/errors.h"

namespace manyhead {
namespace {

constexpr const char* kName = "StepBatch";

template <class... Parts>
Status Invalid(const Parts&... parts) {
  return InvalidArgument(kName, parts...);
}

Status CheckShape(const StepBatch& batch, const StepBounds& bounds) {
  const std::int64_t count = std::ssize(batch.sequences), rows = std::ssize(batch.ids);
  if (Status status = CheckRange(kName, "sequences", count, 1, bounds.max_sequences); !status.ok())
    return status;
  if (Status status = CheckRange(kName, "ids", rows, 1, bounds.max_rows); !status.ok())
    return status;
  const auto& indptr = batch.qo_indptr;
  if (std::ssize(indptr) != count + 1)
    return Invalid("qo_indptr has ", indptr.size(),
                   " elements; expected sequences + 1 = ", count + 1);
  if (indptr.front() != 0) return Invalid("qo_indptr[0] = ", indptr.front(), "; expected 0");
  for (std::size_t b = 0; b + 1 < indptr.size(); ++b)
    if (indptr[b + 1] <= indptr[b])
      return Invalid("qo_indptr[", b + 1, "] = ", indptr[b + 1], "; expected more than qo_indptr[",
                     b, "] = ", indptr[b]);
  if (indptr.back() != rows)
    return Invalid("qo_indptr[", count, "] = ", indptr.back(), "; expected ids = ", rows);
  for (std::size_t i = 0; i < batch.ids.size(); ++i)
    if (batch.ids[i] < 0 || batch.ids[i] >= bounds.vocab_size)
      return Invalid("ids[", i, "] = ", batch.ids[i], "; expected 0..", bounds.vocab_size - 1);
  return Status();
}

Status CheckSequence(const StepBatch& batch, std::size_t b, const KvCache& cache,
                     const StepBounds& bounds) {
  const StepSequence& sequence = batch.sequences[b];
  const std::int64_t length = cache.length(sequence.id);
  const std::int64_t rows = batch.qo_indptr[b + 1] - batch.qo_indptr[b];
  if (length < 0)
    return Invalid("sequences[", b, "].id = ", static_cast<std::int64_t>(sequence.id),
                   " is not a sequence of the cache");
  for (std::size_t other = 0; other < b; ++other)
    if (batch.sequences[other].id == sequence.id)
      return Invalid("sequences[", b, "].id = ", static_cast<std::int64_t>(sequence.id),
                     " is that of sequences[", other, "] too");
  if (sequence.position < 0 || sequence.position != length - rows)
    return Invalid("sequences[", b, "].position = ", sequence.position, "; expected ",
                   length - rows, ": the cache holds room for ", length, " tokens, ", rows,
                   " of them in this step");
  if (bounds.num_positions > 0 && length > bounds.num_positions)
    return Invalid("sequences[", b, "] has ", length, " tokens; the model has ",
                   bounds.num_positions, " positions");
  if (sequence.role > RowRole::kDecode)
    return Invalid("sequences[", b, "].role = ", static_cast<int>(sequence.role),
                   "; expected 0 (prefill) or 1 (decode)");
  if (sequence.edits != nullptr && !sequence.edits->empty() &&
      std::ssize(*sequence.edits) != bounds.layers)
    return Invalid("sequences[", b, "].edits has ", sequence.edits->size(), " layers; expected ",
                   bounds.layers);
  if (sequence.attention_tap != nullptr && !bounds.tapped)
    return Invalid("sequences[", b, "] has an attention tap; the decoder has no room for taps");
  return Status();
}

Status CheckWanted(const char* name, std::span<const std::int64_t> wanted, const float* to,
                   std::int64_t rows) {
  if (std::ssize(wanted) > rows)
    return Invalid(name, "_rows has ", wanted.size(), " rows; expected at most ", rows);
  for (std::size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] < 0 || wanted[i] >= rows)
      return Invalid(name, "_rows[", i, "] = ", wanted[i], "; expected 0..", rows - 1);
  if (!wanted.empty() && to == nullptr)
    return Invalid(name, " is null with ", wanted.size(), " rows wanted");
  return Status();
}

}  // namespace

Status CheckBatch(const StepBatch& batch, const KvCache& cache, const StepBounds& bounds) noexcept {
  if (Status status = CheckShape(batch, bounds); !status.ok()) return status;
  for (std::size_t b = 0; b < batch.sequences.size(); ++b)
    if (Status status = CheckSequence(batch, b, cache, bounds); !status.ok()) return status;
  const std::int64_t rows = std::ssize(batch.ids);
  if (Status status = CheckWanted("logit", batch.logit_rows, batch.logits, rows); !status.ok())
    return status;
  return CheckWanted("hidden", batch.hidden_rows, batch.hidden, rows);
}

StepRows::StepRows(std::int64_t max_rows, std::int64_t max_sequences)
    : requests_(static_cast<std::size_t>(max_sequences)),
      sequences_(requests_.size()),
      kv_rows_(requests_.size()),
      indptr_(requests_.size() + 1),
      rows_(static_cast<std::size_t>(max_rows)),
      accurate_(rows_.size()),
      accurate_head_(rows_.size()) {}

std::int64_t StepRows::SizeBytes(std::int64_t max_rows, std::int64_t max_sequences) noexcept {
  return max_sequences * static_cast<std::int64_t>(sizeof(StepRequest) + sizeof(SequenceId) +
                                                   sizeof(KvRows) + sizeof(std::int64_t)) +
         static_cast<std::int64_t>(sizeof(std::int64_t)) +
         max_rows * static_cast<std::int64_t>(sizeof(Row) + 2 * sizeof(std::int64_t));
}

void StepRows::Add(const StepBatch& batch, std::size_t index) noexcept {
  const StepSequence& sequence = batch.sequences[index];
  const std::int64_t first = indptr_[size_], from = batch.qo_indptr[index];
  const std::int64_t rows = batch.qo_indptr[index + 1] - from;
  requests_[size_] = {&sequence, first, rows, from};
  sequences_[size_] = sequence.id;
  kv_rows_[size_] = {sequence.id, sequence.position, rows, first};
  for (std::int64_t i = 0; i < rows; ++i) {
    Row& row = rows_[static_cast<std::size_t>(first + i)];
    row.caller = from + i;
    row.request = static_cast<std::int64_t>(size_);
    row.accurate = IsAccurate(sequence.role, sequence.position + i);
    rows_[static_cast<std::size_t>(from + i)].place = first + i;
  }
  (sequence.role == RowRole::kDecode ? linear_.decode : linear_.prefill) += rows;
  indptr_[++size_] = first + rows;
}

void StepRows::Set(const StepBatch& batch) noexcept {
  size_ = 0;
  linear_ = {};
  for (const RowRole role : {RowRole::kDecode, RowRole::kPrefill})
    for (std::size_t b = 0; b < batch.sequences.size(); ++b)
      if (batch.sequences[b].role == role) Add(batch, b);
  std::size_t accurate = 0;
  for (std::int64_t index = 0; index < count(); ++index)
    if (row(index).accurate) accurate_[accurate++] = index;
  linear_.accurate = {accurate_.data(), accurate};
}

}  // namespace manyhead
