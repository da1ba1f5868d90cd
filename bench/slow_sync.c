/* Makes every sync of a file take at least SLOW_SYNC_US microseconds, as on a slower disk.

   Loaded with LD_PRELOAD into the benchmark and every server that it starts. The real sync is made
   first. Syncs of different files or threads overlap, as they do on network disks and on NVMe. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long least_ns(void) {
    static long least = -1;
    if (least < 0) {
        const char *text = getenv("SLOW_SYNC_US");
        least = text ? atol(text) * 1000 : 0;
    }
    return least;
}

static int slowly(long call, int file) {
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    int result = (int)syscall(call, file), error = errno;
    end.tv_nsec += least_ns();
    end.tv_sec += end.tv_nsec / 1000000000;
    end.tv_nsec %= 1000000000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &end, NULL) == EINTR)
        ;
    errno = error;
    return result;
}

int fdatasync(int file) { return slowly(SYS_fdatasync, file); }
int fsync(int file) { return slowly(SYS_fsync, file); }
