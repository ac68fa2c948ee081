#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
static long shift_s(void) { const char *text = getenv("CLOCK_SHIFT_S"); return text ? atol(text) : 0; }
int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, now);
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += shift_s();
  return result;
}
int gettimeofday(struct timeval *now, void *zone) {
  struct timespec at;
  if (clock_gettime(CLOCK_REALTIME, &at)) return -1;
  now->tv_sec = at.tv_sec; now->tv_usec = at.tv_nsec / 1000; (void)zone;
  return 0;
}
time_t time(time_t *out) { struct timespec at; clock_gettime(CLOCK_REALTIME, &at); if (out) *out = at.tv_sec; return at.tv_sec; }
