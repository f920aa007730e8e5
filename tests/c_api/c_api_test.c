/* The bundled model, sessions, a cache and a plan, used from C. */
#include "tests/c_api/c_check.h"

int failures = 0;

static const char kPrompt[] = "x7k2qz x7k2qz x7k";
static const char kText[] = "2qz x7k2qz x7k2qz x7k2qz";

typedef struct Stream {
  char text[256];
  size_t bytes;
  size_t limit; /* pieces until it wants no more; 0 = all */
  size_t pieces;
} Stream;

static int Collect(void* user, const char* text, size_t text_bytes) {
  Stream* stream = user;
  if (stream->bytes + text_bytes < sizeof stream->text) {
    memcpy(stream->text + stream->bytes, text, text_bytes);
    stream->bytes += text_bytes;
  }
  return ++stream->pieces == stream->limit;
}

static size_t Encode(mh_model* model, const char* text, int32_t* ids, size_t capacity) {
  size_t count = 0;
  CHECK(mh_model_encode(model, text, strlen(text), 1, 0, ids, capacity, &count) == MH_OK);
  return count;
}

static void CheckTokens(mh_model* model) {
  int32_t ids[64];
  char text[64];
  size_t count = 0, needed = 0, bytes = 0;
  count = Encode(model, kPrompt, ids, 64);
  CHECK(count == 1 + strlen(kPrompt)); /* the begin token, then bytes */

  ids[0] = -7;
  CHECK_ERROR(mh_model_encode(model, kPrompt, strlen(kPrompt), 1, 0, ids, 3, &needed),
              MH_BUFFER_TOO_SMALL, mh_model_message(model), "capacity = 3; needed 18");
  CHECK(needed == count && ids[0] == -7);
  CHECK(mh_model_encode(model, kPrompt, strlen(kPrompt), 1, 0, NULL, 0, &needed) ==
        MH_BUFFER_TOO_SMALL);
  CHECK(mh_model_encode(model, kPrompt, strlen(kPrompt), 0, 0, ids, 64, &needed) == MH_OK);
  CHECK(needed == count - 1);

  CHECK(mh_model_decode(model, ids, needed, text, sizeof text, &bytes) == MH_OK);
  CHECK(bytes == strlen(kPrompt) && memcmp(text, kPrompt, bytes) == 0);
  CHECK(mh_model_decode(model, ids, needed, text, bytes - 1, &bytes) == MH_BUFFER_TOO_SMALL);
  CHECK(bytes == strlen(kPrompt));
}

static void CheckModel(mh_model* model) {
  mh_layer_shape shape;
  int64_t num_heads = 0;
  CHECK(strcmp(mh_model_architecture(model), "llama") == 0);
  CHECK(mh_model_vocab_size(model) > 256 && mh_model_num_layers(model) > 0);
  CHECK(mh_model_context_length(model) > 0 && mh_model_weight_bytes(model) > 500000);
  CHECK(mh_model_layer(model, 0, &shape, &num_heads) == MH_OK);
  CHECK(shape.num_kv_heads > 0 && num_heads % shape.num_kv_heads == 0 && shape.head_dim > 0);
  CHECK(mh_model_is_end_token(model, 2) == 1 && mh_model_is_end_token(model, 70) == 0);
  CheckTokens(model);
}

static void CheckGeneration(const mh_model* model, const int32_t* prompt, size_t count) {
  mh_session* session = NULL;
  mh_message message;
  mh_generate_options options;
  mh_generate_result result;
  Stream stream;
  CHECK(mh_session_create(model, NULL, &session, &message) == MH_OK);
  mh_generate_options_init(&options);
  options.max_tokens = 24;
  options.on_text = Collect;
  memset(&stream, 0, sizeof stream);
  options.user = &stream;
  CHECK(mh_session_generate(session, prompt, count, &options, &result) == MH_OK);
  CHECK(strcmp(result.text, kText) == 0 && result.text_bytes == strlen(kText));
  CHECK(result.stop_reason == MH_STOP_MAX_TOKENS && result.num_ids == 24);
  CHECK(stream.bytes == strlen(kText) && memcmp(stream.text, kText, stream.bytes) == 0);
  CHECK(result.prefill_tokens == (int64_t)count && result.decode_tokens == 23);
  CHECK(result.decode_seconds > 0);

  memset(&stream, 0, sizeof stream);
  stream.limit = 5;
  CHECK(mh_session_generate(session, prompt, count, &options, &result) == MH_OK);
  CHECK(result.stop_reason == MH_STOP_CANCELLED && strcmp(result.text, "2qz x") == 0);

  mh_session_cancel(session); /* ends the next one, and that alone */
  options.on_text = NULL;
  CHECK(mh_session_generate(session, prompt, count, &options, &result) == MH_OK);
  CHECK(result.stop_reason == MH_STOP_CANCELLED);
  CHECK(mh_session_generate(session, prompt, count, &options, &result) == MH_OK);
  CHECK(result.stop_reason == MH_STOP_MAX_TOKENS && strcmp(result.text, kText) == 0);

  {
    const char* stop[] = {"7k"};
    options.stop = stop;
    options.num_stop = 1;
    CHECK(mh_session_generate(session, prompt, count, &options, &result) == MH_OK);
    CHECK(result.stop_reason == MH_STOP_TEXT && strcmp(result.text, "2qz x") == 0);
  }
  mh_session_free(&session);
  CHECK(session == NULL);
  mh_session_free(&session);
}

/* Token by token, by the caller's own arg-max; saved in the middle and gone on with. */
static void CheckSteps(const mh_model* model, const int32_t* prompt, size_t count,
                       const char* file) {
  mh_session *session = NULL, *other = NULL;
  mh_session_options options;
  mh_kv_usage usage;
  const float* logits = NULL;
  float last = 0;
  const int32_t* ids = NULL;
  int32_t next = 0;
  int64_t i = 0;
  size_t step = 0;
  mh_session_options_init(&options);
  options.context = 128;
  options.exact_math = 1;
  options.kv_policy = "sink(4)+recent(64)";
  options.k_type = MH_KV_INT8;
  CHECK(mh_session_create(model, &options, &session, NULL) == MH_OK);
  CHECK(mh_session_create(model, &options, &other, NULL) == MH_OK);
  CHECK(mh_session_context(session) == 128 && mh_session_scratch_bytes(session) > 0);
  CHECK(mh_session_append(session, prompt, count, &logits) == MH_OK);
  for (step = 0; step < 8; ++step) {
    for (i = 0, next = 0; i < mh_model_vocab_size(model); ++i)
      if (logits[i] > logits[next]) next = (int32_t)i;
    CHECK(next == kText[step] + 3); /* bytes follow three control tokens */
    if (step == 4) {
      CHECK(mh_session_save(session, file) == MH_OK);
      CHECK(mh_session_restore(other, file, 0) == MH_OK);
      mh_session_free(&session);
      session = other;
      other = NULL;
    }
    CHECK(mh_session_append(session, &next, 1, &logits) == MH_OK);
  }
  CHECK(mh_session_length(session, &ids) == (int64_t)count + 8 && ids[count] == '2' + 3);
  CHECK(mh_session_get_kv_usage(session, &usage) == MH_OK);
  CHECK(usage.used_bytes > 0 && usage.used_bytes + usage.table_bytes <= usage.capacity_bytes);
  CHECK(mh_session_truncate(session, 5) == MH_OK && mh_session_length(session, NULL) == 5);
  /* Two ids that decode give what two steps of one give. */
  CHECK(mh_session_append(session, prompt, 1, NULL) == MH_OK);
  CHECK(mh_session_append(session, prompt + 1, 1, &logits) == MH_OK);
  last = logits[7];
  CHECK(mh_session_truncate(session, 5) == MH_OK);
  CHECK(mh_session_append_as(session, prompt, 2, MH_ROLE_DECODE, &logits) == MH_OK);
  CHECK(logits[7] == last && mh_session_length(session, NULL) == 7);
  CHECK(mh_session_append_as(session, prompt, 1, (mh_row_role)2, NULL) == MH_INVALID_ARGUMENT);
  CHECK(strstr(mh_session_message(session), "role = 2; expected 0 (prefill) or 1 (decode)"));
  CHECK(mh_session_length(session, NULL) == 7);
  mh_session_free(&session);
}

/* Two sequences that share pages, into another cache. */
static void CheckSnapshot(mh_cache* cache, const mh_cache_params* params, const int32_t* sequences,
                          const char* file) {
  mh_cache* other = NULL;
  mh_kv_usage before, after;
  int32_t restored[2] = {-1, -1};
  float row[32];
  size_t count = 0;
  CHECK(mh_cache_save(cache, file, sequences, 2, "a test") == MH_OK);
  CHECK(mh_cache_create(params, &other, NULL) == MH_OK);
  CHECK(mh_cache_get_usage(other, &before) == MH_OK);
  CHECK_ERROR(mh_cache_restore(other, file, NULL, 0, restored, 2, &count), MH_INVALID_ARGUMENT,
              mh_cache_message(other), "a test");
  CHECK_ERROR(mh_cache_restore(other, file, "a test", 0, restored, 1, &count), MH_BUFFER_TOO_SMALL,
              mh_cache_message(other), "sequences: capacity = 1; needed 2");
  CHECK(count == 2 && restored[0] == -1);
  CHECK(mh_cache_get_usage(other, &after) == MH_OK && after.used_bytes == before.used_bytes);
  CHECK(mh_cache_restore(other, file, "a test", 0, restored, 2, &count) == MH_OK);
  CHECK(mh_cache_length(other, restored[0]) == 3 && mh_cache_length(other, restored[1]) == 3);
  CHECK(mh_cache_read(other, restored[1], 1, 1, 2, NULL, row) == MH_OK && row[0] == 2);
  mh_cache_free(&other);
}

/* Equal values: whatever the weights, attention returns them. */
static void CheckCacheAndPlan(const char* file) {
  enum { H = 6, K = 2, D = 20, kTokens = 3 };
  float q[H * D], k[kTokens * K * D], v[kTokens * K * D], out[H * D], lse[H], row[D];
  const mh_layer_shape layers[2] = {{K, D, 0}, {K, D, 0}};
  mh_cache_params cache_params;
  mh_plan_params plan_params;
  mh_cache* cache = NULL;
  mh_plan* plan = NULL;
  mh_head_usage head;
  mh_kv_usage usage;
  mh_message message;
  const char* text = NULL;
  int32_t sequences[2] = {-1, -1};
  int exact = 0, i = 0;
  for (i = 0; i < H * D; ++i) q[i] = 0.25f * (float)(i % 5);
  for (i = 0; i < kTokens * K * D; ++i) {
    k[i] = 0.5f;
    v[i] = (float)(i / D % K + 1); /* 1 in the first KV head, 2 in the second */
  }
  mh_cache_params_init(&cache_params);
  cache_params.layers = layers;
  cache_params.num_layers = 2;
  cache_params.heads =
      "{\"heads\": [{\"kv_heads\": [1], \"policy\": \"sink(1)+recent(2)+margin(1)\"}]}";
  cache_params.capacity_bytes = 1 << 20;
  cache_params.max_tokens = 64;
  CHECK(mh_cache_create(&cache_params, &cache, &message) == MH_OK);
  CHECK(mh_cache_create_sequence(cache, &sequences[0]) == MH_OK);
  CHECK(mh_cache_reserve(cache, sequences[0], kTokens) == MH_OK);
  CHECK(mh_cache_write(cache, sequences[0], 1, 0, kTokens, k, v) == MH_OK);
  CHECK(mh_cache_fork(cache, sequences[0], &sequences[1]) == MH_OK);
  CHECK(mh_cache_read(cache, sequences[1], 1, 1, 2, NULL, row) == MH_OK && row[D - 1] == 2);
  CHECK(mh_cache_get_head_usage(cache, sequences[0], 1, 1, &head) == MH_OK);
  CHECK(head.tokens == 3 && head.pages == 1);
  CHECK(mh_cache_get_usage(cache, &usage) == MH_OK);
  CHECK(usage.used_bytes == 4 * head.page_bytes); /* shared pages count once */

  mh_plan_params_init(&plan_params);
  plan_params.num_heads = H;
  plan_params.num_kv_heads = K;
  plan_params.head_dim = D;
  plan_params.max_q_len = 2;
  plan_params.max_kv_len = 64;
  plan_params.isa = "scalar";
  CHECK(mh_plan_create(&plan_params, &plan, &message) == MH_OK);
  CHECK(mh_plan_run_cache(plan, cache, 1, &sequences[1], 1, NULL, q, out, lse) == MH_OK);
  for (i = 0; i < H * D; ++i) CHECK(out[i] > (i < H / K * D ? 0.999f : 1.999f) && out[i] < 2.001f);
  CHECK(mh_plan_explain(plan, MH_KV_F16, MH_KV_F16, 1, 64, &text) == MH_OK);
  CHECK(strstr(text, "scalar") != NULL && mh_plan_scratch_bytes(plan) > 0);
  mh_plan_free(&plan);

  CheckSnapshot(cache, &cache_params, sequences, file);
  CHECK(mh_cache_truncate(cache, sequences[0], 2, &exact) == MH_OK && exact == 1);
  CHECK(mh_cache_length(cache, sequences[0]) == 2 && mh_cache_length(cache, sequences[1]) == 3);
  CHECK(mh_cache_rollback(cache, sequences[0], 1) == MH_OK);
  CHECK(mh_cache_length(cache, sequences[0]) == 1);
  CHECK(mh_cache_drop(cache, sequences[1], 0, 1) == MH_OK);
  CHECK(mh_cache_evict(cache, sequences[1]) == MH_OK);
  CHECK(mh_cache_free_sequence(cache, sequences[0]) == MH_OK);
  CHECK_ERROR(mh_cache_free_sequence(cache, sequences[0]), MH_INVALID_ARGUMENT,
              mh_cache_message(cache), "sequence");
  CHECK(mh_cache_length(cache, sequences[0]) == -1 && mh_cache_bytes_per_token(cache) > 0);
  mh_cache_free(&cache);
}

int main(int argc, char** argv) {
  mh_model *model = NULL, *shared = NULL;
  mh_message message;
  int32_t prompt[64];
  size_t count = 0;
  if (argc != 3) return 2;
  CHECK(mh_abi_version() == MH_ABI_VERSION && strchr(mh_version(), '.') != NULL);
  CHECK(strcmp(mh_status_name(MH_OUT_OF_PAGES), "out of pages") == 0);
  CHECK(strcmp(mh_status_name((mh_status)99), "?") == 0 && mh_default_threads() >= 1);
  if (mh_model_load(argv[1], NULL, &model, &message) != MH_OK) {
    printf("%s\n", message.text);
    return 1;
  }
  CHECK(mh_model_share(model, &shared) == MH_OK);
  mh_model_free(&model);
  CheckModel(shared);
  count = Encode(shared, kPrompt, prompt, 64);
  CheckGeneration(shared, prompt, count);
  CheckSteps(shared, prompt, count, argv[2]);
  mh_model_free(&shared);
  CheckCacheAndPlan(argv[2]);
  CheckModelErrors(argv[1]);
  CheckSessionErrors(argv[1]);
  CheckCacheErrors();
  CheckPlanErrors();
  CheckHeads(argv[1]);
  CheckThreads(argv[1]);
  if (failures == 0) printf("the C interface works\n");
  return failures != 0;
}
