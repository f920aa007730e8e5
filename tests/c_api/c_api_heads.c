/* Heads profiled, captured and switched off from C. */
#include <math.h>
#include <stdlib.h>

#include "tests/c_api/c_check.h"

enum { kTokens = 40 };

typedef struct Rows {
  int64_t count, last_layer, last_head, last_position;
  double worst_sum; /* largest distance of a row's weights from 1 */
  double first_weight;
} Rows;

static void AddRow(void* user, const mh_captured_row* row) {
  Rows* rows = user;
  double sum = row->sink_share;
  int64_t i;
  for (i = 0; i <= row->position; ++i) sum += row->weights[i];
  if (fabs(sum - 1) > rows->worst_sum) rows->worst_sum = fabs(sum - 1);
  ++rows->count;
  rows->last_layer = row->layer;
  rows->last_head = row->head;
  rows->last_position = row->position;
  rows->first_weight = row->weights[0];
}

static void CheckProfile(mh_session* session, const int32_t* ids) {
  mh_head_stats stats, other;
  CHECK_ERROR(mh_session_get_head_stats(session, 0, 0, &stats), MH_INVALID_ARGUMENT,
              mh_session_message(session), "no profile");
  CHECK_ERROR(mh_session_profile_heads(session, -1), MH_INVALID_ARGUMENT,
              mh_session_message(session), "-1");
  CHECK(mh_session_profile_heads(session, 4) == MH_OK);
  CHECK(mh_session_append(session, ids, kTokens, NULL) == MH_OK);
  CHECK(mh_session_get_head_stats(session, 0, 0, &stats) == MH_OK);
  CHECK(stats.rows == kTokens / 4 && stats.seconds > 0 && stats.kv_bytes > 0);
  CHECK(stats.max_weight > 0 && stats.max_weight <= 1 && stats.output_norm > 0);
  CHECK(stats.entropy < log(kTokens) && stats.recent_mass > 0.99);
  CHECK(mh_session_get_head_stats(session, 1, 3, &other) == MH_OK);
  CHECK(other.entropy != stats.entropy);
  CHECK_ERROR(mh_session_get_head_stats(session, 4, 0, &stats), MH_INVALID_ARGUMENT,
              mh_session_message(session), "layer = 4; expected 0 to 3");
  CHECK_ERROR(mh_session_get_head_stats(session, 0, 4, &stats), MH_INVALID_ARGUMENT,
              mh_session_message(session), "head = 4; expected 0 to 3");
  CHECK_ERROR(mh_session_get_head_stats(session, 0, 0, NULL), MH_INVALID_ARGUMENT,
              mh_session_message(session), "stats is NULL");
  CHECK(mh_session_profile_heads(session, 0) == MH_OK);
  CHECK(mh_session_get_head_stats(session, 0, 0, &stats) == MH_INVALID_ARGUMENT);
  CHECK(mh_session_profile_heads(NULL, 1) == MH_INVALID_ARGUMENT);
}

static void CheckCapture(mh_session* session, const int32_t* ids) {
  mh_capture_options options;
  Rows rows;
  memset(&rows, 0, sizeof rows);
  memset(&options, 0, sizeof options);
  CHECK_ERROR(mh_session_capture(session, &options), MH_INVALID_ARGUMENT,
              mh_session_message(session), "mh_capture_options: struct_size = 0");
  mh_capture_options_init(&options);
  mh_capture_options_init(NULL);
  CHECK_ERROR(mh_session_capture(session, &options), MH_INVALID_ARGUMENT,
              mh_session_message(session), "on_row is NULL");
  options.on_row = AddRow;
  options.user = &rows;
  options.head = 1;
  CHECK_ERROR(mh_session_capture(session, &options), MH_INVALID_ARGUMENT,
              mh_session_message(session), "head = 1 without a layer");
  options.layer = 4;
  CHECK_ERROR(mh_session_capture(session, &options), MH_INVALID_ARGUMENT,
              mh_session_message(session), "layer = 4; expected 0 to 3");
  options.layer = 1;
  options.every = 0;
  CHECK_ERROR(mh_session_capture(session, &options), MH_INVALID_ARGUMENT,
              mh_session_message(session), "every");
  options.every = 3;
  CHECK(mh_session_capture(session, &options) == MH_OK);
  CHECK(mh_session_truncate(session, 0) == MH_OK);
  CHECK(mh_session_append(session, ids, kTokens, NULL) == MH_OK);
  CHECK(rows.count == (kTokens + 2) / 3 && rows.last_layer == 1 && rows.last_head == 1);
  CHECK(rows.last_position == kTokens - 1 && rows.worst_sum < 1e-4);

  memset(&rows, 0, sizeof rows);
  mh_capture_options_init(&options);
  options.on_row = AddRow;
  options.user = &rows;
  options.layer = 0;
  CHECK(mh_session_capture(session, &options) == MH_OK);
  CHECK(mh_session_truncate(session, 0) == MH_OK);
  CHECK(mh_session_append(session, ids, 1, NULL) == MH_OK);
  CHECK(rows.count == 4 && rows.last_head == 3 && rows.first_weight > 0.999);
  options.layer = -1;
  CHECK(mh_session_capture(session, &options) == MH_OK);
  CHECK(mh_session_append(session, ids + 1, 1, NULL) == MH_OK);
  CHECK(rows.count == 4 + 16);
  mh_capture_options_init(&options);
  memset(&rows, 0, sizeof rows);
  options.on_row = AddRow;
  options.user = &rows;
  options.first = 20;
  options.every = INT64_MAX; /* once its sum with `first` overflowed */
  CHECK(mh_session_capture(session, &options) == MH_OK);
  CHECK(mh_session_truncate(session, 0) == MH_OK);
  CHECK(mh_session_append(session, ids, kTokens, NULL) == MH_OK);
  CHECK(rows.count == 16 && rows.last_position == 20 && rows.worst_sum < 1e-4);
  rows.count = 20;
  CHECK(mh_session_truncate(session, 2) == MH_OK);
  CHECK(mh_session_capture(session, NULL) == MH_OK);
  CHECK(mh_session_append(session, ids + 2, 1, NULL) == MH_OK);
  CHECK(rows.count == 20);
}

static void CheckAblation(mh_session* session, const int32_t* ids) {
  const float* logits = NULL;
  float plain, without;
  CHECK(mh_session_truncate(session, 0) == MH_OK);
  CHECK(mh_session_append(session, ids, kTokens, &logits) == MH_OK);
  plain = logits[ids[1]];
  CHECK_ERROR(mh_session_ablate(session, "4.0"), MH_INVALID_ARGUMENT, mh_session_message(session),
              "4");
  CHECK_ERROR(mh_session_ablate(session, "1.0=mean"), MH_INVALID_ARGUMENT,
              mh_session_message(session), "means");
  CHECK(mh_session_append(session, ids, 1, &logits) == MH_OK);
  CHECK(mh_session_truncate(session, kTokens - 1) == MH_OK);
  CHECK(mh_session_ablate(session, "1.0") == MH_OK);
  CHECK(mh_session_append(session, ids + kTokens - 1, 1, &logits) == MH_OK);
  without = logits[ids[1]];
  CHECK(fabsf(without - plain) > 1e-3f);
  CHECK(mh_session_truncate(session, 0) == MH_OK);
  CHECK(mh_session_ablate(session, NULL) == MH_OK);
  CHECK(mh_session_append(session, ids, kTokens, &logits) == MH_OK && logits[ids[1]] == plain);
}

typedef struct Outputs {
  float values[kTokens * 64]; /* of one head */
  int64_t width;
} Outputs;

static void KeepOutput(void* user, const mh_captured_row* row) {
  Outputs* outputs = user;
  outputs->width = row->head_dim_v;
  if (row->head_dim_v <= 64 && row->position < kTokens)
    memcpy(outputs->values + row->position * row->head_dim_v, row->output,
           (size_t)row->head_dim_v * sizeof(float));
}

/* What head 1.2 gives in one text plus 1, patched into it. */
static void CheckPatch(mh_session* session, const int32_t* ids) {
  static Outputs outputs, again;
  mh_capture_options options;
  mh_head_patch patch = {1, 2, 3, 4, outputs.values};
  const float* logits = NULL;
  float plain;
  size_t i;
  mh_capture_options_init(&options);
  options.on_row = KeepOutput;
  options.user = &outputs;
  options.layer = 1;
  options.head = 2;
  CHECK(mh_session_capture(session, &options) == MH_OK);
  CHECK(mh_session_truncate(session, 0) == MH_OK);
  CHECK(mh_session_append(session, ids, kTokens, &logits) == MH_OK);
  plain = logits[ids[1]];
  CHECK(outputs.width > 0 && outputs.width <= 64);
  for (i = 0; i < (size_t)(4 * outputs.width); ++i) outputs.values[i] += 1;
  CHECK_ERROR(mh_session_patch(session, NULL, 1), MH_INVALID_ARGUMENT, mh_session_message(session),
              "patches is NULL");
  patch.count = 0;
  CHECK_ERROR(mh_session_patch(session, &patch, 1), MH_INVALID_ARGUMENT,
              mh_session_message(session), "count = 0 of a patch; expected 1 to");
  patch.count = 4;
  patch.layer = 4;
  CHECK_ERROR(mh_session_patch(session, &patch, 1), MH_INVALID_ARGUMENT,
              mh_session_message(session), "layer = 4; expected 0 to 3");
  patch.layer = 1;
  patch.head = 4;
  CHECK_ERROR(mh_session_patch(session, &patch, 1), MH_INVALID_ARGUMENT,
              mh_session_message(session), "head = 4 of layer 1");
  patch.head = 2;
  patch.values = NULL;
  CHECK_ERROR(mh_session_patch(session, &patch, 1), MH_INVALID_ARGUMENT,
              mh_session_message(session), "the values of a patch is NULL");
  patch.values = outputs.values;
  options.user = &again;
  CHECK(mh_session_capture(session, &options) == MH_OK);
  CHECK(mh_session_patch(session, &patch, 1) == MH_OK); /* evaluates the tokens again */
  CHECK(memcmp(again.values + 3 * outputs.width, outputs.values,
               (size_t)(4 * outputs.width) * sizeof(float)) == 0);
  CHECK(mh_session_ablate(session, "0.0=0.9") == MH_OK); /* the patch stays */
  CHECK(memcmp(again.values + 3 * outputs.width, outputs.values,
               (size_t)(4 * outputs.width) * sizeof(float)) == 0);
  CHECK(mh_session_ablate(session, NULL) == MH_OK);
  CHECK(mh_session_truncate(session, kTokens - 1) == MH_OK);
  CHECK(mh_session_append(session, ids + kTokens - 1, 1, &logits) == MH_OK);
  CHECK(fabsf(logits[ids[1]] - plain) > 1e-4f);
  CHECK(mh_session_patch(session, NULL, 0) == MH_OK);
  CHECK(mh_session_capture(session, NULL) == MH_OK);
  CHECK(mh_session_truncate(session, 0) == MH_OK);
  CHECK(mh_session_append(session, ids, kTokens, &logits) == MH_OK && logits[ids[1]] == plain);
}

/* Logits after every token, and the losses that follow from them. */
static void CheckLogits(mh_session* session, const int32_t* ids, size_t vocab) {
  float* rows = malloc(4 * vocab * sizeof(float));
  const float* logits = NULL;
  double losses[3], sum = 0;
  size_t i;
  CHECK(rows != NULL);
  CHECK(mh_session_truncate(session, 0) == MH_OK);
  CHECK_ERROR(mh_session_append_logits(session, ids, 4, NULL), MH_INVALID_ARGUMENT,
              mh_session_message(session), "logits is NULL");
  CHECK(mh_session_append_logits(session, ids, 4, rows) == MH_OK);
  CHECK(mh_session_truncate(session, 0) == MH_OK);
  CHECK(mh_session_append_as(session, ids, 2, MH_ROLE_PREFILL, &logits) == MH_OK);
  CHECK(memcmp(logits, rows + vocab, vocab * sizeof(float)) == 0);
  for (i = 0; i < vocab; ++i) sum += exp((double)rows[vocab + i]);
  CHECK(mh_session_truncate(session, 0) == MH_OK);
  CHECK_ERROR(mh_session_score(session, ids, 4, NULL), MH_INVALID_ARGUMENT,
              mh_session_message(session), "losses is NULL");
  CHECK(mh_session_score(session, ids, 4, losses) == MH_OK);
  CHECK(fabs(losses[1] - (log(sum) - (double)rows[vocab + (size_t)ids[2]])) < 1e-4);
  CHECK(mh_session_score(session, ids, 0, NULL) == MH_INVALID_ARGUMENT);
  free(rows);
}

void CheckHeads(const char* path) {
  static const char kPrompt[] = "x7k2qz x7k2qz x7k2qz x7k2qz x7k2qz x7k2qz";
  mh_model* model = NULL;
  mh_session* session = NULL;
  int32_t ids[64];
  size_t count = 0;
  CHECK(mh_model_load(path, NULL, &model, NULL) == MH_OK);
  CHECK(mh_model_encode(model, kPrompt, strlen(kPrompt), 1, 0, ids, 64, &count) == MH_OK);
  CHECK(count >= kTokens);
  CHECK(mh_session_create(model, NULL, &session, NULL) == MH_OK);
  CheckProfile(session, ids);
  CheckCapture(session, ids);
  CheckAblation(session, ids);
  CheckPatch(session, ids);
  CheckLogits(session, ids, (size_t)mh_model_vocab_size(model));
  mh_session_free(&session);
  mh_model_free(&model);
}
