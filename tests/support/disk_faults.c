/* Lets the disk of one process fail as a file says. Preload this library with LD_PRELOAD, and name the file in
   ROCKETSIM_DISK_FAULTS. Without the file no call fails.

   The file has two or three words, `CALL OUTCOME [PART]`. CALL is write (pwrite, posix_fallocate, open with O_CREAT), sync
   (fdatasync, fsync) or read (pread; preadv2, which does not wait, then finds nothing in memory, and mincore fails).
   OUTCOME is EIO, ENOSPC, or drop: the call does nothing and succeeds. Calls fail only on files whose path contains
   `/store/`, and PART if it is given. mincore has no path, so all its calls fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { NOTHING = 0, DROP = -1 };

/* `path` is NULL for a call without a path. */
static int ordered(const char *call, const char *path) {
    const char *control = getenv("ROCKETSIM_DISK_FAULTS");
    if (control == NULL || (path != NULL && strstr(path, "/store/") == NULL) || access(control, R_OK) != 0) return NOTHING;
    FILE *file = fopen(control, "r");
    if (file == NULL) return NOTHING;
    char which[16] = "", outcome[16] = "", part[128] = "";
    int words = fscanf(file, "%15s %15s %127s", which, outcome, part);
    fclose(file);
    if (words < 2 || strcmp(which, call) != 0 || (words == 3 && path != NULL && strstr(path, part) == NULL)) return NOTHING;
    if (strcmp(outcome, "drop") == 0) return DROP;
    return strcmp(outcome, "ENOSPC") == 0 ? ENOSPC : EIO;
}

static int ordered_for(const char *call, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return NOTHING;
    path[size] = 0;
    return ordered(call, path);
}

/* Calls with and without 64 in their name have 64-bit offsets here. */
#define WRITES(name)                                                               \
    ssize_t name(int fd, const void *data, size_t size, off_t offset) {            \
        int order = ordered_for("write", fd);                                      \
        if (order == NOTHING) return REAL(name)(fd, data, size, offset);           \
        if (order == DROP) return (ssize_t)size;                                   \
        errno = order;                                                             \
        return -1;                                                                 \
    }
#define READS(name)                                                                \
    ssize_t name(int fd, void *data, size_t size, off_t offset) {                  \
        int order = ordered_for("read", fd);                                       \
        if (order == NOTHING) return REAL(name)(fd, data, size, offset);           \
        errno = EIO;                                                               \
        return -1;                                                                 \
    }
#define LOOKS(name)                                                                \
    ssize_t name(int fd, const struct iovec *into, int count, off_t offset, int flags) { \
        int order = ordered_for("read", fd);                                       \
        if (order == NOTHING) return REAL(name)(fd, into, count, offset, flags);   \
        errno = EAGAIN;                                                            \
        return -1;                                                                 \
    }
#define ALLOCATES(name)                                                            \
    int name(int fd, off_t offset, off_t size) {                                   \
        int order = ordered_for("write", fd);                                      \
        return order > NOTHING ? order : REAL(name)(fd, offset, size);             \
    }
#define SYNCS(name)                                                                \
    int name(int fd) {                                                             \
        int order = ordered_for("sync", fd);                                       \
        if (order == NOTHING) return REAL(name)(fd);                               \
        if (order == DROP) return 0;                                               \
        errno = order;                                                             \
        return -1;                                                                 \
    }
#define OPENS(name)                                                                \
    int name(const char *path, int flags, ...) {                                   \
        va_list rest;                                                              \
        va_start(rest, flags);                                                     \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                  \
        va_end(rest);                                                              \
        int order = flags & O_CREAT && access(path, F_OK) != 0 ? ordered("write", path) : NOTHING; \
        if (order <= NOTHING) return REAL(name)(path, flags, mode);                \
        errno = order;                                                             \
        return -1;                                                                 \
    }

WRITES(pwrite)
WRITES(pwrite64)
READS(pread)
READS(pread64)
LOOKS(preadv2)
LOOKS(preadv64v2)
int mincore(void *at, size_t size, unsigned char *pages) {
    if (ordered("read", NULL) == NOTHING) return REAL(mincore)(at, size, pages);
    errno = ENOSYS;
    return -1;
}
ALLOCATES(posix_fallocate)
ALLOCATES(posix_fallocate64)
SYNCS(fdatasync)
SYNCS(fsync)
OPENS(open)
OPENS(open64)
