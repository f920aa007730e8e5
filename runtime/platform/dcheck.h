#pragma once

/// Checks an internal invariant in builds with MANYHEAD_DCHECKS; never for input of a caller.
#ifdef MANYHEAD_DCHECKS
#define MANYHEAD_DCHECK(condition)      \
  do {                                  \
    if (!(condition)) __builtin_trap(); \
  } while (false)
#else
#define MANYHEAD_DCHECK(condition) static_cast<void>(0)
#endif
