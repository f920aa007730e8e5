#include "runtime/c_api/c_handles.h"

using manyhead::Status;
using manyhead::c_api::Call;
using manyhead::c_api::CheckArray;
using manyhead::c_api::CheckPointer;
using manyhead::c_api::CheckSize;
using manyhead::c_api::Outcome;

static_assert(static_cast<int>(manyhead::StopReason::kMaxTokens) == MH_STOP_MAX_TOKENS &&
              static_cast<int>(manyhead::StopReason::kCancelled) == MH_STOP_CANCELLED);
// A signal handler may only use atomics without locks.
static_assert(std::atomic<bool>::is_always_lock_free);

namespace {

std::optional<Outcome> ReadOptions(const mh_session_options& options,
                                   manyhead::SessionOptions& result) {
  if (auto error = CheckSize(options, "mh_session_options")) return error;
  result.context = options.context;
  if (auto error = manyhead::c_api::ReadKvType(options.k_type, "k_type", result.k_type))
    return error;
  if (auto error = manyhead::c_api::ReadKvType(options.v_type, "v_type", result.v_type))
    return error;
  if (options.kv_policy != nullptr) result.kv_policy = options.kv_policy;
  result.kv_budget_bytes = options.kv_budget_bytes;
  result.prefix_bytes = options.prefix_bytes;
  if (options.exact_math != 0) result.math = manyhead::MathMode::kExact;
  result.threads = options.threads;
  result.chunk = options.chunk;
  return manyhead::c_api::ReadIsa(options.isa, result.isa);
}

std::optional<Outcome> ReadOptions(const mh_generate_options& options,
                                   manyhead::GenerateOptions& result) {
  if (auto error = CheckSize(options, "mh_generate_options")) return error;
  if (auto error = CheckArray(options.stop, options.num_stop, "stop")) return error;
  result.max_tokens = options.max_tokens;
  result.sampling = {.temperature = options.temperature,
                     .top_k = options.top_k,
                     .top_p = options.top_p,
                     .min_p = options.min_p,
                     .repeat_penalty = options.repeat_penalty,
                     .repeat_last_n = options.repeat_last_n,
                     .seed = options.seed};
  for (const char* text : std::span(options.stop, options.num_stop)) {
    if (auto error = CheckPointer(text, "a string of stop")) return error;
    result.stop.emplace_back(text);
  }
  return std::nullopt;
}

void ShowResult(const manyhead::GenerateResult& generated, mh_generate_result& result) {
  result = {.stop_reason = static_cast<mh_stop_reason>(generated.stop_reason),
            .ids = generated.ids.data(),
            .num_ids = generated.ids.size(),
            .text = generated.text.c_str(),
            .text_bytes = generated.text.size(),
            .prefill_tokens = generated.timings.prefill_tokens,
            .prefill_seconds = generated.timings.prefill_seconds,
            .decode_tokens = generated.timings.decode_tokens,
            .decode_seconds = generated.timings.decode_seconds,
            .time_to_first_token_seconds = generated.timings.time_to_first_token_seconds};
}

/// Clears a cancellation at the end of its generation, however that ends.
class ClearFlagOnExit {
 public:
  explicit ClearFlagOnExit(std::atomic<bool>& flag) noexcept : flag_(flag) {}
  ClearFlagOnExit(const ClearFlagOnExit&) = delete;
  ClearFlagOnExit& operator=(const ClearFlagOnExit&) = delete;
  ~ClearFlagOnExit() { flag_.store(false, std::memory_order_relaxed); }

 private:
  std::atomic<bool>& flag_;
};

}  // namespace

void mh_session_options_init(mh_session_options* options) {
  if (options == nullptr) return;
  *options = {};
  options->struct_size = sizeof *options;
  options->k_type = options->v_type = MH_KV_F16;
  options->chunk = 512;
}

mh_status mh_session_create(const mh_model* model, const mh_session_options* options,
                            mh_session** session, mh_message* message) {
  return manyhead::c_api::CreateHandle(session, message, [&](mh_session*& place) -> Outcome {
    if (auto error = CheckPointer(model, "model")) return *error;
    manyhead::SessionOptions chosen;
    if (options != nullptr)
      if (auto error = ReadOptions(*options, chosen)) return *error;
    auto created = manyhead::Session::Create(model->model, chosen);
    if (!created.ok()) return created.status();
    place = new mh_session{.model = model->model, .session = std::move(*created)};
    return Status();
  });
}

void mh_session_free(mh_session** session) { manyhead::c_api::FreeHandle(session); }

const char* mh_session_message(const mh_session* session) {
  return session == nullptr ? "the session is NULL" : session->message.text;
}

mh_status mh_session_append(mh_session* session, const int32_t* ids, size_t count,
                            const float** logits) {
  return mh_session_append_as(session, ids, count, count == 1 ? MH_ROLE_DECODE : MH_ROLE_PREFILL,
                              logits);
}

mh_status mh_session_append_as(mh_session* session, const int32_t* ids, size_t count,
                               mh_row_role role, const float** logits) {
  return Call(session, [&]() -> Outcome {
    if (auto error = CheckArray(ids, count, "ids")) return *error;
    if (role != MH_ROLE_PREFILL && role != MH_ROLE_DECODE)
      return Status(manyhead::StatusCode::kInvalidArgument,
                    "role = " + std::to_string(static_cast<int>(role)) +
                        "; expected 0 (prefill) or 1 (decode)");
    const auto appended =
        session->session.Append({ids, count}, role == MH_ROLE_DECODE ? manyhead::RowRole::kDecode
                                                                     : manyhead::RowRole::kPrefill);
    if (!appended.ok()) return appended.status();
    if (logits != nullptr) *logits = appended->data();
    return Status();
  });
}

mh_status mh_session_append_logits(mh_session* session, const int32_t* ids, size_t count,
                                   float* logits) {
  return Call(session, [&]() -> Outcome {
    if (auto error = CheckArray(ids, count, "ids")) return *error;
    if (auto error = CheckPointer(logits, "logits")) return *error;
    const auto vocab = static_cast<size_t>(session->model.config().vocab_size);
    if (auto error = CheckArray(logits, count, "logits")) return *error;
    return session->session.AppendLogits({ids, count}, {logits, count * vocab},
                                         manyhead::RowRole::kPrefill);
  });
}

mh_status mh_session_score(mh_session* session, const int32_t* ids, size_t count, double* losses) {
  return Call(session, [&]() -> Outcome {
    if (auto error = CheckArray(ids, count, "ids")) return *error;
    const size_t scored = count == 0 ? 0 : count - 1;
    if (auto error = CheckArray(losses, scored, "losses")) return *error;
    return session->session.Score({ids, count}, {losses, scored});
  });
}

mh_status mh_session_truncate(mh_session* session, int64_t length) {
  return Call(session, [&]() -> Outcome { return session->session.Truncate(length); });
}

void mh_generate_options_init(mh_generate_options* options) {
  if (options == nullptr) return;
  const manyhead::SamplingParams sampling;
  *options = {};
  options->struct_size = sizeof *options;
  options->max_tokens = manyhead::GenerateOptions().max_tokens;
  options->top_p = sampling.top_p;
  options->repeat_penalty = sampling.repeat_penalty;
  options->repeat_last_n = sampling.repeat_last_n;
}

mh_status mh_session_generate(mh_session* session, const int32_t* prompt, size_t count,
                              const mh_generate_options* options, mh_generate_result* result) {
  return Call(session, [&]() -> Outcome {
    if (auto error = CheckArray(prompt, count, "prompt")) return *error;
    manyhead::GenerateOptions chosen;
    if (options != nullptr) {
      if (auto error = ReadOptions(*options, chosen)) return *error;
      if (options->on_text != nullptr)
        chosen.on_text = [session, options](std::string_view text) {
          if (options->on_text(options->user, text.data(), text.size()) != 0)
            session->cancel.store(true, std::memory_order_relaxed);
        };
    }
    chosen.cancel = &session->cancel;
    const ClearFlagOnExit clear(session->cancel);
    auto generated = session->session.Generate({prompt, count}, chosen);
    if (!generated.ok()) return generated.status();
    session->generated = std::move(*generated);
    if (result != nullptr) ShowResult(session->generated, *result);
    return Status();
  });
}

void mh_session_cancel(mh_session* session) {
  if (session != nullptr) session->cancel.store(true, std::memory_order_relaxed);
}

mh_status mh_session_save(mh_session* session, const char* path) {
  return Call(session, [&]() -> Outcome {
    if (auto error = CheckPointer(path, "path")) return *error;
    return session->session.Save(path);
  });
}

mh_status mh_session_restore(mh_session* session, const char* path, int convert_types) {
  return Call(session, [&]() -> Outcome {
    if (auto error = CheckPointer(path, "path")) return *error;
    return session->session.Restore(path, {.convert_types = convert_types != 0});
  });
}

int64_t mh_session_length(const mh_session* session, const int32_t** ids) {
  if (ids != nullptr) *ids = session == nullptr ? nullptr : session->session.tokens().data();
  return session == nullptr ? 0 : session->session.length();
}

int64_t mh_session_context(const mh_session* session) {
  return session == nullptr ? 0 : session->session.context();
}

mh_status mh_session_get_kv_usage(mh_session* session, mh_kv_usage* usage) {
  return Call(session, [&]() -> Outcome {
    if (auto error = CheckPointer(usage, "usage")) return *error;
    const manyhead::KvUsage held = session->session.cache().usage();
    *usage = {held.capacity_bytes, held.used_bytes, held.table_bytes};
    return Status();
  });
}

int64_t mh_session_scratch_bytes(const mh_session* session) {
  return session == nullptr ? 0 : session->session.scratch_bytes();
}
