/* Streams the text that a model generates: stream_text_c MODEL.gguf PROMPT */
#include <manyhead/c_api.h>
#include <stdio.h>
#include <string.h>

static int Print(void* user, const char* text, size_t text_bytes) {
  (void)user;
  fwrite(text, 1, text_bytes, stdout);
  return fflush(stdout); /* not 0, and the text ends */
}

static int Fail(const char* message) {
  fprintf(stderr, "%s\n", message);
  return 1;
}

int main(int argc, char** argv) {
  mh_model* model = NULL;
  mh_session* session = NULL;
  mh_message message;
  mh_generate_options options;
  mh_generate_result result;
  int32_t ids[1024];
  size_t count;
  int failed;
  if (argc != 3) return 2;
  if (mh_model_load(argv[1], NULL, &model, &message) != MH_OK) return Fail(message.text);
  if (mh_session_create(model, NULL, &session, &message) != MH_OK) return Fail(message.text);
  if (mh_model_encode(model, argv[2], strlen(argv[2]), 1, 0, ids, 1024, &count) != MH_OK)
    return Fail(mh_model_message(model));

  mh_generate_options_init(&options);
  options.max_tokens = 32;
  options.on_text = Print;
  failed = mh_session_generate(session, ids, count, &options, &result) != MH_OK;
  if (failed)
    Fail(mh_session_message(session));
  else
    printf("\n%.1f tokens/s\n", (double)result.decode_tokens / result.decode_seconds);
  mh_session_free(&session);
  mh_model_free(&model);
  return failed;
}
