/* A team of the program's own threads, in C. */
#include <pthread.h>

#include "tests/c_api/c_check.h"

enum { kMostWorkers = 7 };

typedef struct Worker {
  mh_executor_task task;
  void* task_context;
  int index;
} Worker;

static void* RunWorker(void* worker) {
  const Worker* self = worker;
  self->task(self->task_context, self->index);
  return NULL;
}

/* Threads for the workers from 1 on; the calling one is worker 0. */
static void RunOnThreads(void* context, int num_workers, mh_executor_task task,
                         void* task_context) {
  pthread_t threads[kMostWorkers];
  Worker workers[kMostWorkers];
  int started[kMostWorkers] = {0}, i;
  ++*(int*)context;
  for (i = 1; i < num_workers; ++i) {
    workers[i].task = task;
    workers[i].task_context = task_context;
    workers[i].index = i;
    started[i] = pthread_create(&threads[i], NULL, RunWorker, &workers[i]) == 0;
  }
  task(task_context, 0);
  for (i = 1; i < num_workers; ++i)
    if (started[i]) pthread_join(threads[i], NULL);
}

/* Logits of one token, by three threads. */
static void OneToken(const char* path, float* logits, size_t count) {
  const int32_t id = 70;
  const float* row = NULL;
  mh_model* model = NULL;
  mh_session* session = NULL;
  mh_session_options options;
  mh_session_options_init(&options);
  options.context = 64;
  options.threads = 3;
  CHECK(mh_model_load(path, NULL, &model, NULL) == MH_OK);
  CHECK(mh_session_create(model, &options, &session, NULL) == MH_OK);
  CHECK(mh_session_append(session, &id, 1, &row) == MH_OK);
  if (row != NULL) memcpy(logits, row, count * sizeof *logits);
  mh_session_free(&session);
  mh_model_free(&model);
}

void CheckThreads(const char* path) {
  enum { kLogits = 250 };
  float own[kLogits] = {0}, executor[kLogits] = {0}, openmp[kLogits] = {0};
  int calls = 0;
  mh_message message;
  mh_threads_options options;
  mh_threads_options_init(NULL);
  mh_threads_options_init(&options);
  CHECK(options.team == NULL && options.run == NULL && options.join_timeout_us == 1000);
  CHECK(strcmp(mh_team_name(), "own") == 0);
  OneToken(path, own, kLogits);

  options.team = "executor";
  CHECK_ERROR(mh_set_threads(&options, &message), MH_INVALID_ARGUMENT, message.text, "run is null");
  options.run = RunOnThreads;
  options.context = &calls;
  options.max_workers = -3;
  CHECK_ERROR(mh_set_threads(&options, &message), MH_INVALID_ARGUMENT, message.text,
              "max_workers = -3");
  options.max_workers = kMostWorkers;
  options.struct_size = 3;
  CHECK_ERROR(mh_set_threads(&options, &message), MH_INVALID_ARGUMENT, message.text,
              "mh_threads_options");
  options.struct_size = sizeof options;
  CHECK(strcmp(mh_team_name(), "own") == 0);
  CHECK(mh_set_threads(&options, &message) == MH_OK);
  CHECK(strcmp(mh_team_name(), "executor") == 0);
  OneToken(path, executor, kLogits);
  CHECK(calls > 0);

  mh_threads_options_init(&options);
  options.team = "omp";
  CHECK_ERROR(mh_set_threads(&options, &message), MH_INVALID_ARGUMENT, message.text,
              "team = omp; expected own, openmp or executor");
  options.team = "openmp";
  CHECK(mh_set_threads(&options, NULL) == MH_OK);
  CHECK(strcmp(mh_team_name(), "openmp") == 0);
  OneToken(path, openmp, kLogits);
  CHECK(mh_set_threads(NULL, &message) == MH_OK && message.text[0] == '\0');
  CHECK(strcmp(mh_team_name(), "own") == 0);
  CHECK(memcmp(own, executor, sizeof own) == 0 && memcmp(own, openmp, sizeof own) == 0);
  CHECK(own[1] != 0.0f);
}
