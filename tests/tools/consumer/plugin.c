/* Loads the shared library by name, uses it and lets it go, several times: plugin LIBRARY MODEL */
#include <dirent.h>
#include <dlfcn.h>
#include <manyhead/c_api.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const char kPrompt[] = "x7k2qz x7k2qz x7k", kText[] = "2qz x7k2qz";
static char** arguments;

/* Functions of the library, by their own types. */
#define GET(name) __typeof__(&name) name##_ = (__typeof__(&name))(size_t)dlsym(library, #name)

static const char* Generate(void* library) {
  GET(mh_abi_version);
  GET(mh_model_load);
  GET(mh_model_encode);
  GET(mh_model_free);
  GET(mh_session_options_init);
  GET(mh_session_create);
  GET(mh_session_generate);
  GET(mh_session_free);
  GET(mh_generate_options_init);
  mh_model* model = NULL;
  mh_session* session = NULL;
  mh_session_options options;
  mh_generate_options generate;
  mh_generate_result result;
  int32_t ids[64];
  size_t count = 0;
  int right;
  if (mh_abi_version_ == NULL || mh_abi_version_() != MH_ABI_VERSION) return "another version";
  if (mh_model_load_(arguments[2], NULL, &model, NULL) != MH_OK) return "no model";
  mh_session_options_init_(&options);
  options.threads = 2;
  if (mh_session_create_(model, &options, &session, NULL) != MH_OK) return "no session";
  if (mh_model_encode_(model, kPrompt, strlen(kPrompt), 1, 0, ids, 64, &count) != MH_OK)
    return "no tokens";
  mh_generate_options_init_(&generate);
  generate.max_tokens = 10;
  right = mh_session_generate_(session, ids, count, &generate, &result) == MH_OK &&
          strcmp(result.text, kText) == 0;
  mh_session_free_(&session);
  mh_model_free_(&model);
  return right ? NULL : "another text";
}

static void* UseOnce(void* unused) {
  void* library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  const char* error = library == NULL ? dlerror() : Generate(library);
  (void)unused;
  if (library != NULL && dlclose(library) != 0) error = "dlclose failed";
  return (void*)(size_t)error;
}

static int CountEntries(const char* folder) {
  DIR* entries = opendir(folder);
  int count = 0;
  while (readdir(entries) != NULL) ++count;
  closedir(entries);
  return count;
}

int main(int argc, char** argv) {
  int round, tasks = 0, descriptors = 0;
  if (argc != 3) return 2;
  arguments = argv;
  for (round = 0; round < 4; ++round) {
    /* In a thread that ends and in this one, by turns. */
    void* error = NULL;
    pthread_t thread;
    if (round % 2 == 1) {
      error = UseOnce(NULL);
    } else if (pthread_create(&thread, NULL, UseOnce, NULL) != 0 ||
               pthread_join(thread, &error) != 0) {
      return 3;
    }
    if (error != NULL) {
      printf("round %d: %s\n", round, (const char*)error);
      return 1;
    }
    if (round == 1) {
      tasks = CountEntries("/proc/self/task");
      descriptors = CountEntries("/proc/self/fd");
    }
  }
  if (CountEntries("/proc/self/task") != tasks || CountEntries("/proc/self/fd") != descriptors) {
    printf("threads or descriptors are left over\n");
    return 4;
  }
  printf("loaded and let go %d times\n", round);
  return 0;
}
