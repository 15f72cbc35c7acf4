// A preloaded library (LD_PRELOAD) whose functions fail or delay depending on path and host names.
// All other calls are forwarded to the C library.
//
//   .../write-N/...        call number N that changes files below fails once with EIO
//   .../read-N/...         read number N below fails once with EIO
//   .../slow/...           each read takes 700 ms
//   .../blocked/...        each read waits for ever
//   fails-P-S.test         P % of the lookups fail, drawn from seed S; the others return 127.0.0.1
//   first-N-fail.test      the first N lookups fail
//
// With SPDL_FAULTY_CLOCK set, the wall clock is a day late, correct, or a day early, in turn.
// With SPDL_CLOCK_FACTOR=N, the monotonic clock runs N times as fast, so that time-outs end soon.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/futex.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define CASES 1000
static atomic_int writes[CASES], reads[CASES], lookups[CASES], clock_calls;

static long long clock_factor = 1, clock_start;

static long long nanoseconds(const struct timespec *time) {
    return time->tv_sec * 1000000000ll + time->tv_nsec;
}

static struct timespec time_of(long long nanoseconds) {
    return (struct timespec){nanoseconds / 1000000000, nanoseconds % 1000000000};
}

__attribute__((constructor)) static void start_clock(void) {
    struct timespec now;
    const char *factor = getenv("SPDL_CLOCK_FACTOR");
    if (!factor || clock_gettime(CLOCK_MONOTONIC, &now)) return;
    clock_start = nanoseconds(&now);
    clock_factor = atoll(factor);
}

// The standard library of Rust waits until a time of the monotonic clock.
long syscall(long number, ...) {
    static long (*real)(long, ...);
    if (!real) real = dlsym(RTLD_NEXT, "syscall");
    va_list list;
    long a[6];
    va_start(list, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(list, long);
    va_end(list);
    int waits_until = number == SYS_futex && (a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT_BITSET &&
                      !(a[1] & FUTEX_CLOCK_REALTIME) && a[3];
    struct timespec until;
    if (waits_until && clock_factor > 1) {
        long long after = nanoseconds((struct timespec *)a[3]) - clock_start;
        until = time_of(clock_start + (after > 0 ? after / clock_factor : after));
        a[3] = (long)&until;
    }
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// Returns whether this call for the path is the one that fails.
static int fails(const char *path, const char *mark, atomic_int *counts) {
    const char *place = path ? strstr(path, mark) : NULL;
    int number = 0, length = 0;
    if (!place || sscanf(place + strlen(mark), "%d%n", &number, &length) != 1) return 0;
    if (place[strlen(mark) + length] != '/' || number < 0 || number >= CASES) return 0;
    if (atomic_fetch_add(&counts[number], 1) + 1 != number) return 0;
    errno = EIO;
    return 1;
}

static const char *path_of(int file, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlink, link, path, size - 1);
    if (length < 0) return NULL;
    path[length] = 0;
    return path;
}

static int write_fails(int file) {
    char path[4096];
    return fails(path_of(file, path, sizeof path), "/write-", writes);
}

ssize_t read(int file, void *bytes, size_t count) {
    char space[4096];
    const char *path = path_of(file, space, sizeof space);
    if (fails(path, "/read-", reads)) return -1;
    if (path && strstr(path, "/slow/")) usleep(700000);
    while (path && strstr(path, "/blocked/")) pause();
    return syscall(SYS_read, file, bytes, count);
}

ssize_t write(int file, const void *bytes, size_t count) {
    return write_fails(file) ? -1 : syscall(SYS_write, file, bytes, count);
}

int fsync(int file) { return write_fails(file) ? -1 : syscall(SYS_fsync, file); }

int fdatasync(int file) { return write_fails(file) ? -1 : syscall(SYS_fdatasync, file); }

int rename(const char *from, const char *to) {
    if (fails(to, "/write-", writes)) return -1;
    return syscall(SYS_renameat2, -100, from, -100, to, 0);
}

int unlink(const char *path) {
    return fails(path, "/write-", writes) ? -1 : syscall(SYS_unlinkat, -100, path, 0);
}

int mkdir(const char *path, mode_t mode) {
    return fails(path, "/write-", writes) ? -1 : syscall(SYS_mkdirat, -100, path, mode);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int done = syscall(SYS_clock_gettime, clock, time);
    if (done == 0 && clock == CLOCK_REALTIME && getenv("SPDL_FAULTY_CLOCK"))
        time->tv_sec += 86400 * (atomic_fetch_add(&clock_calls, 1) % 3 - 1);
    if (done == 0 && clock == CLOCK_MONOTONIC && clock_factor > 1)
        *time = time_of(clock_start + (nanoseconds(time) - clock_start) * clock_factor);
    return done;
}

int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                struct addrinfo **found) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
        dlsym(RTLD_NEXT, "getaddrinfo");
    int share = 0, number = 0;
    if (host && sscanf(host, "fails-%d-%d.test", &share, &number) == 2 && number >= 0) {
        unsigned long bits = number * 7919ul + atomic_fetch_add(&lookups[number % CASES], 1);
        bits = (bits + 1) * 0x9e3779b97f4a7c15ul;
        bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ul;
        if ((int)((bits >> 33) % 100) < share) return bits & 1 << 20 ? EAI_AGAIN : EAI_NONAME;
        return real("127.0.0.1", port, hints, found);
    }
    if (host && sscanf(host, "first-%d-fail.test", &number) == 1 && number >= 0) {
        int call = atomic_fetch_add(&lookups[number % CASES], 1);
        if (call < number) return call % 2 ? EAI_NONAME : EAI_AGAIN;
        return real("127.0.0.1", port, hints, found);
    }
    return real(host, port, hints, found);
}
