/* Counts this process's system calls, and the bytes that they moved, in a file that others read.
 *
 * Preloaded (LD_PRELOAD) into a broker by system_calls.py, so that it sees what is done, by whatever
 * code. KAFKALOG_COUNTED_IN names the file: an entry for each name below, of 24 bytes of name, calls
 * and bytes as int64. Threads and children of the process count together. Calls count when they
 * begin, bytes when it returns them.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RECEIVE, SEND, SENDFILE, READ, WRITE, SYNC, EPOLL_WAIT, EPOLL_CTL, NAMES };

static const char *const names[NAMES] = {
    "receive", "send", "sendfile", "read", "write", "sync", "epoll_wait", "epoll_ctl",
};

struct entry {
    char name[24];
    atomic_long calls;
    atomic_long bytes;
};

static struct entry *entries;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("KAFKALOG_COUNTED_IN");
    size_t size = NAMES * sizeof(struct entry);
    int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file < 0 || ftruncate(file, size))
        return;
    void *mapped = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return;
    entries = mapped;
    for (int i = 0; i < NAMES; i++)
        strncpy(entries[i].name, names[i], sizeof entries[i].name - 1);
}

static void count(int name) {
    if (entries)
        atomic_fetch_add(&entries[name].calls, 1);
}

static void add(int name, long bytes) {
    if (entries && bytes > 0)
        atomic_fetch_add(&entries[name].bytes, bytes);
}

#define CALL(counted_as, result, name, parameters, arguments)            \
    result name parameters {                                             \
        static result(*real) parameters;                                 \
        if (!real)                                                       \
            real = (result(*) parameters)dlsym(RTLD_NEXT, #name);        \
        count(counted_as);                                               \
        result returned = real arguments;                                \
        if (counted_as <= WRITE)                                         \
            add(counted_as, returned);                                   \
        return returned;                                                 \
    }

CALL(RECEIVE, ssize_t, recv, (int s, void *data, size_t n, int flags), (s, data, n, flags))
CALL(RECEIVE, ssize_t, recvfrom, (int s, void *data, size_t n, int flags, struct sockaddr *from, socklen_t *m), (s, data, n, flags, from, m))
CALL(RECEIVE, ssize_t, recvmsg, (int s, struct msghdr *message, int flags), (s, message, flags))
CALL(SEND, ssize_t, send, (int s, const void *data, size_t n, int flags), (s, data, n, flags))
CALL(SEND, ssize_t, sendto, (int s, const void *data, size_t n, int flags, const struct sockaddr *to, socklen_t m), (s, data, n, flags, to, m))
CALL(SEND, ssize_t, sendmsg, (int s, const struct msghdr *message, int flags), (s, message, flags))
CALL(SENDFILE, ssize_t, sendfile, (int s, int file, off_t *at, size_t n), (s, file, at, n))
CALL(SENDFILE, ssize_t, sendfile64, (int s, int file, off64_t *at, size_t n), (s, file, at, n))
CALL(READ, ssize_t, read, (int file, void *data, size_t n), (file, data, n))
CALL(READ, ssize_t, pread, (int file, void *data, size_t n, off_t at), (file, data, n, at))
CALL(READ, ssize_t, pread64, (int file, void *data, size_t n, off64_t at), (file, data, n, at))
CALL(READ, ssize_t, preadv, (int file, const struct iovec *parts, int n, off_t at), (file, parts, n, at))
CALL(READ, ssize_t, preadv64, (int file, const struct iovec *parts, int n, off64_t at), (file, parts, n, at))
CALL(WRITE, ssize_t, write, (int file, const void *data, size_t n), (file, data, n))
CALL(WRITE, ssize_t, pwrite, (int file, const void *data, size_t n, off_t at), (file, data, n, at))
CALL(WRITE, ssize_t, pwrite64, (int file, const void *data, size_t n, off64_t at), (file, data, n, at))
CALL(WRITE, ssize_t, writev, (int file, const struct iovec *parts, int n), (file, parts, n))
CALL(WRITE, ssize_t, pwritev, (int file, const struct iovec *parts, int n, off_t at), (file, parts, n, at))
CALL(WRITE, ssize_t, pwritev64, (int file, const struct iovec *parts, int n, off64_t at), (file, parts, n, at))
CALL(SYNC, int, fsync, (int file), (file))
CALL(SYNC, int, fdatasync, (int file), (file))
CALL(EPOLL_WAIT, int, epoll_wait, (int e, struct epoll_event *events, int n, int ms), (e, events, n, ms))
CALL(EPOLL_CTL, int, epoll_ctl, (int e, int what, int file, struct epoll_event *event), (e, what, file, event))
