/* Every way to get a call wrong ends in a code and a line; nothing is changed. */
#include <math.h>

#include "tests/c_api/c_check.h"

void CheckModelErrors(const char* path) {
  mh_model *model = (mh_model*)&failures, *other = NULL;
  mh_model_options options;
  mh_layer_shape shape;
  mh_message message;
  size_t count = 0;
  int32_t id = 0;
  CHECK_ERROR(mh_model_load("/nonexistent.gguf", NULL, &model, &message), MH_IO_ERROR, message.text,
              "/nonexistent.gguf");
  CHECK(model == NULL);
  CHECK_ERROR(mh_model_load(NULL, NULL, &model, &message), MH_INVALID_ARGUMENT, message.text,
              "path is NULL");
  CHECK(mh_model_load(NULL, NULL, NULL, NULL) == MH_INVALID_ARGUMENT);
  memset(&options, 0, sizeof options);
  CHECK_ERROR(mh_model_load(path, &options, &model, &message), MH_INVALID_ARGUMENT, message.text,
              "mh_model_options: struct_size = 0; expected");
  mh_model_options_init(&options);
  options.threads = -1;
  CHECK_ERROR(mh_model_load(path, &options, &model, &message), MH_INVALID_ARGUMENT, message.text,
              "-1");

  CHECK(mh_model_vocab_size(NULL) == 0 && mh_model_num_layers(NULL) == 0);
  CHECK(mh_model_context_length(NULL) == 0 && mh_model_weight_bytes(NULL) == 0);
  CHECK(*mh_model_architecture(NULL) == '\0' && mh_model_is_end_token(NULL, 2) == 0);
  CHECK(strcmp(mh_model_message(NULL), "the model is NULL") == 0);
  CHECK(mh_model_share(NULL, &other) == MH_INVALID_ARGUMENT && other == NULL);
  CHECK(mh_model_encode(NULL, "a", 1, 1, 0, &id, 1, &count) == MH_INVALID_ARGUMENT);
  CHECK(mh_model_decode(NULL, &id, 1, NULL, 0, &count) == MH_INVALID_ARGUMENT);
  mh_model_free(NULL);
  mh_model_free(&model);

  mh_model_options_init(&options);
  options.mapped_weights = 1;
  CHECK(mh_model_load(path, &options, &model, NULL) == MH_OK);
  CHECK_ERROR(mh_model_layer(model, 999, &shape, NULL), MH_INVALID_ARGUMENT,
              mh_model_message(model), "layer = 999; expected 0 to");
  CHECK_ERROR(mh_model_layer(model, 0, NULL, NULL), MH_INVALID_ARGUMENT, mh_model_message(model),
              "shape is NULL");
  CHECK_ERROR(mh_model_share(model, NULL), MH_INVALID_ARGUMENT, mh_model_message(model), "NULL");
  CHECK_ERROR(mh_model_encode(model, NULL, 1, 1, 0, &id, 1, &count), MH_INVALID_ARGUMENT,
              mh_model_message(model), "text is NULL; expected 1 elements");
  CHECK_ERROR(mh_model_encode(model, "a", 1, 1, 0, NULL, 1, &count), MH_INVALID_ARGUMENT,
              mh_model_message(model), "ids is NULL");
  CHECK_ERROR(mh_model_encode(model, "a", 1, 1, 0, &id, 1, NULL), MH_INVALID_ARGUMENT,
              mh_model_message(model), "count is NULL");
  CHECK_ERROR(mh_model_encode(model, "a", (size_t)-1, 1, 0, &id, 1, &count), MH_INVALID_ARGUMENT,
              mh_model_message(model), "18446744073709551615 elements; expected at most");
  mh_model_free(&model);
  mh_model_free(&model);
}

static void CheckSessionOptions(const mh_model* model) {
  mh_session* session = NULL;
  mh_session_options options;
  mh_message message;
  CHECK_ERROR(mh_session_create(NULL, NULL, &session, &message), MH_INVALID_ARGUMENT, message.text,
              "model is NULL");
  CHECK(mh_session_create(model, NULL, NULL, NULL) == MH_INVALID_ARGUMENT);
  mh_session_options_init(&options);
  options.k_type = (mh_kv_type)17;
  CHECK_ERROR(mh_session_create(model, &options, &session, &message), MH_INVALID_ARGUMENT,
              message.text, "k_type = 17; expected 0 to 4");
  mh_session_options_init(&options);
  options.isa = "sse9";
  CHECK_ERROR(mh_session_create(model, &options, &session, &message), MH_INVALID_ARGUMENT,
              message.text, "isa = 'sse9'");
  mh_session_options_init(&options);
  options.kv_policy = "window(";
  CHECK_ERROR(mh_session_create(model, &options, &session, &message), MH_INVALID_ARGUMENT,
              message.text, "window(");
  mh_session_options_init(&options);
  options.threads = -4;
  CHECK_ERROR(mh_session_create(model, &options, &session, &message), MH_INVALID_ARGUMENT,
              message.text, "-4");
  mh_session_options_init(&options);
  options.kv_budget_bytes = 10;
  CHECK(mh_session_create(model, &options, &session, &message) != MH_OK && session == NULL);
  CHECK(message.text[0] != '\0');
  CHECK(mh_session_append(NULL, NULL, 0, NULL) == MH_INVALID_ARGUMENT);
  CHECK(mh_session_generate(NULL, NULL, 0, NULL, NULL) == MH_INVALID_ARGUMENT);
  CHECK(mh_session_save(NULL, "x") == MH_INVALID_ARGUMENT && mh_session_length(NULL, NULL) == 0);
  CHECK(mh_session_context(NULL) == 0 && mh_session_scratch_bytes(NULL) == 0);
  CHECK(mh_session_get_kv_usage(NULL, NULL) == MH_INVALID_ARGUMENT);
  mh_session_cancel(NULL);
  mh_session_free(NULL);
}

void CheckSessionErrors(const char* path) {
  mh_model* model = NULL;
  mh_session* session = NULL;
  mh_session_options options;
  mh_generate_options generate;
  int32_t ids[40] = {1, 70, 71};
  CHECK(mh_model_load(path, NULL, &model, NULL) == MH_OK);
  CheckSessionOptions(model);
  mh_session_options_init(&options);
  options.context = 16;
  CHECK(mh_session_create(model, &options, &session, NULL) == MH_OK);
  mh_model_free(&model); /* the session has what it needs */
  CHECK(mh_session_append(session, ids, 3, NULL) == MH_OK);
  CHECK(mh_session_message(session)[0] == '\0');
  CHECK_ERROR(mh_session_append(session, NULL, 1, NULL), MH_INVALID_ARGUMENT,
              mh_session_message(session), "ids is NULL");
  CHECK_ERROR(mh_session_append(session, ids, 0, NULL), MH_INVALID_ARGUMENT,
              mh_session_message(session), "0");
  CHECK_ERROR(mh_session_append(session, ids, 40, NULL), MH_OUT_OF_PAGES,
              mh_session_message(session), "16");
  ids[1] = 1 << 30;
  CHECK_ERROR(mh_session_append(session, ids, 3, NULL), MH_INVALID_ARGUMENT,
              mh_session_message(session), "1073741824");
  CHECK_ERROR(mh_session_truncate(session, 99), MH_INVALID_ARGUMENT, mh_session_message(session),
              "99");
  CHECK(mh_session_length(session, NULL) == 3);
  ids[1] = 70;
  mh_generate_options_init(&generate);
  generate.temperature = NAN;
  CHECK_ERROR(mh_session_generate(session, ids, 3, &generate, NULL), MH_INVALID_ARGUMENT,
              mh_session_message(session), "temperature");
  mh_generate_options_init(&generate);
  generate.num_stop = 1;
  CHECK_ERROR(mh_session_generate(session, ids, 3, &generate, NULL), MH_INVALID_ARGUMENT,
              mh_session_message(session), "stop is NULL");
  CHECK_ERROR(mh_session_generate(session, NULL, 3, NULL, NULL), MH_INVALID_ARGUMENT,
              mh_session_message(session), "prompt is NULL");
  CHECK_ERROR(mh_session_save(session, "/nonexistent/file"), MH_IO_ERROR,
              mh_session_message(session), "/nonexistent/file");
  CHECK_ERROR(mh_session_restore(session, path, 0), MH_IO_ERROR, mh_session_message(session), path);
  CHECK_ERROR(mh_session_restore(session, NULL, 0), MH_INVALID_ARGUMENT,
              mh_session_message(session), "path is NULL");
  CHECK(mh_session_length(session, NULL) == 3);
  CHECK(mh_session_append(session, ids, 3, NULL) == MH_OK);
  mh_session_free(&session);
}

void CheckCacheErrors(void) {
  const mh_layer_shape layer = {1, 8, 0};
  float row[8] = {0};
  mh_cache_params params;
  mh_cache* cache = NULL;
  mh_head_usage usage;
  mh_message message;
  int32_t sequence = 0;
  size_t unused = 0;
  CHECK_ERROR(mh_cache_create(NULL, &cache, &message), MH_INVALID_ARGUMENT, message.text,
              "params is NULL");
  mh_cache_params_init(&params);
  params.num_layers = 1;
  CHECK_ERROR(mh_cache_create(&params, &cache, &message), MH_INVALID_ARGUMENT, message.text,
              "layers is NULL");
  params.layers = &layer;
  params.max_tokens = 16;
  params.capacity_bytes = 8;
  CHECK(mh_cache_create(&params, &cache, &message) != MH_OK && cache == NULL);
  params.capacity_bytes = 1 << 20;
  params.heads = "{\"heads\": 3}";
  CHECK_ERROR(mh_cache_create(&params, &cache, &message), MH_INVALID_ARGUMENT, message.text,
              "heads");
  params.heads = NULL;
  CHECK(mh_cache_create(&params, &cache, NULL) == MH_OK);
  CHECK(mh_cache_create_sequence(cache, NULL) == MH_INVALID_ARGUMENT);
  CHECK(mh_cache_create_sequence(cache, &sequence) == MH_OK);
  CHECK_ERROR(mh_cache_reserve(cache, sequence, 17), MH_OUT_OF_PAGES, mh_cache_message(cache),
              "17");
  CHECK(mh_cache_reserve(cache, sequence, -1) == MH_INVALID_ARGUMENT);
  CHECK(mh_cache_reserve(cache, sequence + 1, 1) == MH_INVALID_ARGUMENT);
  CHECK(mh_cache_reserve(cache, sequence, 2) == MH_OK);
  CHECK(mh_cache_write(cache, sequence, 0, 0, 1, NULL, row) == MH_INVALID_ARGUMENT);
  CHECK(mh_cache_write(cache, sequence, 1, 0, 1, row, row) == MH_INVALID_ARGUMENT);
  CHECK(mh_cache_write(cache, sequence, 0, 2, 1, row, row) == MH_INVALID_ARGUMENT);
  CHECK(mh_cache_read(cache, sequence, 0, 1, 0, row, NULL) == MH_INVALID_ARGUMENT);
  CHECK(mh_cache_fork(cache, sequence, NULL) == MH_INVALID_ARGUMENT);
  CHECK(mh_cache_truncate(cache, sequence, 3, NULL) == MH_INVALID_ARGUMENT);
  CHECK_ERROR(mh_cache_rollback(cache, sequence, 3), MH_INVALID_ARGUMENT, mh_cache_message(cache),
              "count = 3; expected 0..2");
  CHECK(mh_cache_drop(cache, sequence, 1, 9) == MH_INVALID_ARGUMENT);
  CHECK_ERROR(mh_cache_get_head_usage(cache, sequence, 0, 1, &usage), MH_INVALID_ARGUMENT,
              mh_cache_message(cache), "head = 1; expected 0 to 0");
  CHECK_ERROR(mh_cache_get_head_usage(cache, sequence, -1, 0, &usage), MH_INVALID_ARGUMENT,
              mh_cache_message(cache), "layer = -1; expected 0 to 0");
  CHECK(mh_cache_get_usage(cache, NULL) == MH_INVALID_ARGUMENT);
  CHECK(mh_cache_save(cache, NULL, &sequence, 1, NULL) == MH_INVALID_ARGUMENT);
  CHECK(mh_cache_save(cache, "x", NULL, 1, NULL) == MH_INVALID_ARGUMENT);
  CHECK_ERROR(mh_cache_restore(cache, "/nonexistent", NULL, 0, NULL, 0, &unused), MH_IO_ERROR,
              mh_cache_message(cache), "/nonexistent");
  CHECK(mh_cache_restore(cache, "x", NULL, 0, NULL, 0, NULL) == MH_INVALID_ARGUMENT);
  CHECK(mh_cache_length(cache, sequence) == 2);
  CHECK(mh_cache_length(NULL, 0) == -1 && mh_cache_bytes_per_token(NULL) == 0);
  CHECK(mh_cache_create_sequence(NULL, &sequence) == MH_INVALID_ARGUMENT);
  mh_cache_free(&cache);
  mh_cache_free(&cache);
}

void CheckPlanErrors(void) {
  float numbers[8] = {0}, out[8] = {7, 7, 7, 7, 7, 7, 7, 7};
  mh_plan_params params;
  mh_plan* plan = NULL;
  mh_message message;
  const char* text = NULL;
  int32_t sequence = 0;
  mh_plan_params_init(&params);
  CHECK_ERROR(mh_plan_create(&params, &plan, &message), MH_INVALID_ARGUMENT, message.text,
              "num_heads = 0");
  params.num_heads = 7;
  params.num_kv_heads = 2;
  params.head_dim = params.max_q_len = params.max_kv_len = 4;
  CHECK_ERROR(mh_plan_create(&params, &plan, &message), MH_INVALID_ARGUMENT, message.text,
              "num_heads = 7 is not a multiple of num_kv_heads = 2");
  params.num_heads = params.num_kv_heads = 1;
  CHECK(mh_plan_create(&params, NULL, &message) == MH_INVALID_ARGUMENT);
  CHECK(mh_plan_create(&params, &plan, &message) == MH_OK);
  CHECK_ERROR(mh_plan_run(plan, 1, 5, numbers, numbers, numbers, out, NULL), MH_INVALID_ARGUMENT,
              mh_plan_message(plan), "kv_len = 5");
  CHECK(mh_plan_run(plan, 1, 1, NULL, numbers, numbers, out, NULL) == MH_INVALID_ARGUMENT);
  CHECK(mh_plan_run(NULL, 1, 1, numbers, numbers, numbers, out, NULL) == MH_INVALID_ARGUMENT);
  CHECK_ERROR(mh_plan_run_cache(plan, NULL, 0, &sequence, 1, NULL, numbers, out, NULL),
              MH_INVALID_ARGUMENT, mh_plan_message(plan), "cache is NULL");
  CHECK_ERROR(mh_plan_explain(plan, MH_KV_F16, (mh_kv_type)-1, 1, 1, &text), MH_INVALID_ARGUMENT,
              mh_plan_message(plan), "v_type = -1");
  CHECK(mh_plan_explain(plan, MH_KV_F16, MH_KV_F16, 1, 1, NULL) == MH_INVALID_ARGUMENT);
  CHECK(out[0] == 7 && mh_plan_scratch_bytes(NULL) == 0);
  CHECK(mh_plan_run(plan, 1, 1, numbers, numbers, numbers, out, NULL) == MH_OK && out[0] == 0);
  CHECK(strcmp(mh_plan_message(NULL), "the plan is NULL") == 0);
  mh_plan_free(&plan);
  mh_plan_free(NULL);
}
