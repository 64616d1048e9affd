/* Faults at the system's own border: the n-th write, fsync, rename, unlink or truncation below a folder fails, is cut
 * short, or kills the process. Preloaded into a test process, which arms it in a child that it forks.
 *
 *   cc -shared -fPIC -O1 -o shim.so shim.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum kind { NONE, FAIL_EIO, FAIL_ENOSPC, SHORT, KILL_BEFORE, KILL_AFTER, FULL };

static char folder[4096];
static atomic_long count, fault_at;
static atomic_int kind, fired;

/* Count operations below `path`; the one with number `at` (from 1) gets the fault. 0 only counts. */
void fault_arm(const char *path, long at, int what) {
    snprintf(folder, sizeof folder, "%s", path);
    atomic_store(&count, 0);
    atomic_store(&fired, 0);
    atomic_store(&kind, what);
    atomic_store(&fault_at, at);
}

long fault_count(void) { return atomic_load(&count); }
int fault_fired(void) { return atomic_load(&fired); }

static int below(const char *path) { return folder[0] && strncmp(path, folder, strlen(folder)) == 0; }

static int watched(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    if (n <= 0) return 0;
    path[n] = 0;
    return below(path);
}

/* What to do with this operation. */
static enum kind due(int relevant) {
    if (!relevant) return NONE;
    long at = atomic_load(&fault_at), now = atomic_fetch_add(&count, 1) + 1;
    int what = atomic_load(&kind);
    if (!at || now < at || (now > at && what != FULL)) return NONE;
    atomic_store(&fired, 1);
    if (what == KILL_BEFORE) raise(SIGKILL);
    return what;
}

static void after(enum kind what) { if (what == KILL_AFTER) raise(SIGKILL); }

static int fails(enum kind what) {
    if (what == FAIL_EIO) { errno = EIO; return 1; }
    if (what == FAIL_ENOSPC || what == FULL) { errno = ENOSPC; return 1; }
    return 0;
}

#define REAL(name) static __typeof__(&name) real; if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define WRITE(NAME, PARAMS, ARGS, CUT)                                                       \
    ssize_t NAME PARAMS {                                                                    \
        REAL(NAME);                                                                          \
        enum kind what = due(watched(fd));                                                   \
        if (what == SHORT || what == FULL) { if (n > 1) return real CUT; what = FAIL_ENOSPC; } \
        if (fails(what)) return -1;                                                          \
        ssize_t done = real ARGS;                                                            \
        after(what);                                                                         \
        return done;                                                                         \
    }

WRITE(write, (int fd, const void *p, size_t n), (fd, p, n), (fd, p, n / 2))
WRITE(pwrite, (int fd, const void *p, size_t n, off_t o), (fd, p, n, o), (fd, p, n / 2, o))
WRITE(pwrite64, (int fd, const void *p, size_t n, off64_t o), (fd, p, n, o), (fd, p, n / 2, o))

#define PLAIN(NAME, PARAMS, ARGS, RELEVANT, FAILS)                                           \
    int NAME PARAMS {                                                                        \
        REAL(NAME);                                                                          \
        enum kind what = due(RELEVANT);                                                      \
        if (FAILS && fails(what == SHORT ? FAIL_EIO : what)) return -1;                      \
        int done = real ARGS;                                                                \
        after(what);                                                                         \
        return done;                                                                         \
    }

PLAIN(fsync, (int fd), (fd), watched(fd), what != FULL)
PLAIN(fdatasync, (int fd), (fd), watched(fd), what != FULL)
PLAIN(rename, (const char *a, const char *b), (a, b), below(b), 1)
PLAIN(unlink, (const char *a), (a), below(a), what != FULL)
PLAIN(ftruncate, (int fd, off_t n), (fd, n), watched(fd), what != FULL)
PLAIN(ftruncate64, (int fd, off64_t n), (fd, n), watched(fd), what != FULL)
