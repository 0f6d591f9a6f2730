/* Preloaded into a server: its clock is ours plus an offset in µs, read from a mapped file; with CLOCK_STANDS it is the
   offset alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile long long zero = 0;
static const volatile long long *offset;

static long long shift(void) {
    if (!offset) {
        const char *file = getenv("CLOCK_OFFSET_FILE");
        int fd = file ? open(file, O_RDONLY) : -1;
        void *mapped = fd < 0 ? MAP_FAILED : mmap(0, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
        offset = mapped == MAP_FAILED ? &zero : mapped;
    }
    return *offset;
}

static long long shifted_us(void) {
    static int stands = -1;
    struct timespec real;
    if (stands < 0)
        stands = getenv("CLOCK_STANDS") != 0;
    if (stands)
        return shift();
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    return real.tv_sec * 1000000LL + real.tv_nsec / 1000 + shift();
}

int gettimeofday(struct timeval *tv, void *zone) {
    (void)zone;
    long long us = shifted_us();
    tv->tv_sec = us / 1000000;
    tv->tv_usec = us % 1000000;
    return 0;
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
    if (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)
        return syscall(SYS_clock_gettime, clock, ts);
    long long us = shifted_us();
    ts->tv_sec = us / 1000000;
    ts->tv_nsec = us % 1000000 * 1000;
    return 0;
}

time_t time(time_t *seconds) {
    time_t now = shifted_us() / 1000000;
    if (seconds)
        *seconds = now;
    return now;
}
