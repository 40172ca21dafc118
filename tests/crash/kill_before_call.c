/* Kills this process before the n-th call that changes a file or talks to a server.
 *
 * Preloaded (LD_PRELOAD) by test_target_crash, so that it sits below every library alike:
 * Rust's (deltalake), Arrow's, SQLite, DuckDB, libpq. Nothing is counted until kafkalog_arm(n);
 * kafkalog_count() tells the calls since then. Threads count together.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static atomic_long armed = -1;
static atomic_long count = 0;

void kafkalog_arm(long step) {
    count = 0;
    armed = step;
}

long kafkalog_count(void) {
    return count;
}

static void before(void) {
    if (armed >= 0 && atomic_fetch_add(&count, 1) + 1 == armed)
        kill(getpid(), SIGKILL);
}

#define CALL(result, name, parameters, arguments)                        \
    result name parameters {                                             \
        static result(*real) parameters;                                 \
        if (!real)                                                       \
            real = (result(*) parameters)dlsym(RTLD_NEXT, #name);        \
        before();                                                        \
        return real arguments;                                           \
    }

CALL(ssize_t, write, (int file, const void *data, size_t size), (file, data, size))
CALL(ssize_t, pwrite, (int file, const void *data, size_t size, off_t at), (file, data, size, at))
CALL(ssize_t, pwrite64, (int file, const void *data, size_t size, off64_t at), (file, data, size, at))
CALL(ssize_t, writev, (int file, const struct iovec *parts, int n), (file, parts, n))
CALL(ssize_t, send, (int file, const void *data, size_t size, int flags), (file, data, size, flags))
CALL(int, fsync, (int file), (file))
CALL(int, fdatasync, (int file), (file))
CALL(int, ftruncate, (int file, off_t size), (file, size))
CALL(int, ftruncate64, (int file, off64_t size), (file, size))
CALL(int, rename, (const char *from, const char *to), (from, to))
CALL(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to))
CALL(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))
CALL(int, link, (const char *from, const char *to), (from, to))
CALL(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
CALL(int, unlink, (const char *path), (path))
CALL(int, unlinkat, (int directory, const char *path, int flags), (directory, path, flags))
CALL(int, rmdir, (const char *path), (path))
CALL(int, mkdir, (const char *path, mode_t mode), (path, mode))
CALL(int, mkdirat, (int directory, const char *path, mode_t mode), (directory, path, mode))

#define OPEN(name, first, rest)                                          \
    {                                                                    \
        static int (*real) first;                                        \
        mode_t mode = 0;                                                 \
        if (!real)                                                       \
            real = (int (*) first)dlsym(RTLD_NEXT, name);                \
        if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {       \
            va_list more;                                                \
            va_start(more, flags);                                       \
            mode = va_arg(more, mode_t);                                 \
            va_end(more);                                                \
        }                                                                \
        if (flags & (O_CREAT | O_TRUNC))                                 \
            before();                                                    \
        return real rest;                                                \
    }

int open(const char *path, int flags, ...)
OPEN("open", (const char *, int, ...), (path, flags, mode))
int open64(const char *path, int flags, ...)
OPEN("open64", (const char *, int, ...), (path, flags, mode))
int openat(int directory, const char *path, int flags, ...)
OPEN("openat", (int, const char *, int, ...), (directory, path, flags, mode))
int openat64(int directory, const char *path, int flags, ...)
OPEN("openat64", (int, const char *, int, ...), (directory, path, flags, mode))
