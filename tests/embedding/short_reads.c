/* Loaded before the C library: every read is cut short, and every third one is interrupted. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>

enum { kMost = 1000, kInterrupted = 3 };

static int Interrupts(void) {
  static int calls = 0;
  if (__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % kInterrupted != 0) return 0;
  errno = EINTR;
  return 1;
}

static size_t Least(size_t count) { return count < kMost ? count : kMost; }

ssize_t pread(int file, void* bytes, size_t count, off_t offset) {
  static ssize_t (*real)(int, void*, size_t, off_t) = NULL;
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "pread");
  return Interrupts() ? -1 : real(file, bytes, Least(count), offset);
}

ssize_t pread64(int file, void* bytes, size_t count, off_t offset) {
  return pread(file, bytes, count, offset);
}

ssize_t write(int file, const void* bytes, size_t count) {
  static ssize_t (*real)(int, const void*, size_t) = NULL;
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "write");
  return file > STDERR_FILENO && Interrupts() ? -1 : real(file, bytes, Least(count));
}
