#ifndef MANYHEAD_TESTS_C_API_C_CHECK_H_
#define MANYHEAD_TESTS_C_API_C_CHECK_H_

#include <stdio.h>
#include <string.h>

#include "manyhead/c_api.h"

/* Counted over all files of the test. */
extern int failures;

#define CHECK(condition) \
  ((condition) ? (void)0 \
               : (void)(++failures, printf("%s:%d: %s\n", __FILE__, __LINE__, #condition)))

/* That `call` is refused with a message that holds `part`. */
#define CHECK_ERROR(call, code, message, part)                                          \
  do {                                                                                  \
    const mh_status status_ = (call);                                                   \
    const char* text_ = (message);                                                      \
    if (status_ != (code) || strstr(text_, (part)) == NULL) {                           \
      ++failures;                                                                       \
      printf("%s:%d: %s gave %s: '%s'; expected %s: '%s'\n", __FILE__, __LINE__, #call, \
             mh_status_name(status_), text_, mh_status_name(code), (part));             \
    }                                                                                   \
  } while (0)

/* Every way to get a call wrong; see c_api_errors.c. */
void CheckModelErrors(const char* path);
void CheckSessionErrors(const char* path);
void CheckCacheErrors(void);
void CheckPlanErrors(void);
/* Heads profiled, captured and switched off; see c_api_heads.c. */
void CheckHeads(const char* path);
/* Whose threads work; see c_api_threads.c. */
void CheckThreads(const char* path);

#endif
