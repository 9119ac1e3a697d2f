/* A disk that can lose power and be full, for the files of one folder: preloaded before libc.
 *
 * DISK_FOLDER  absolute path of the folder it is about
 * DISK_SHADOW  where each file is copied to, as it is when it is synced; names follow at once.
 *              What is there when the process is killed is what a disk would have.
 * DISK_FAULT   a file: while it is there, whatever writes fails with the number in it (an errno).
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define LONGEST 4096

static int real_open(const char *path, int flags, mode_t mode) {
    return REAL(open)(path, flags, mode);
}

/* ---- whose files */

static const char *within(const char *path) {
    const char *folder = getenv("DISK_FOLDER");
    size_t length = folder ? strlen(folder) : 0;
    if (!length || strncmp(path, folder, length) || (path[length] && path[length] != '/'))
        return NULL;
    return path + length;
}

static const char *path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, LONGEST - 1);
    if (length < 0)
        return NULL;
    path[length] = 0;
    return within(path);
}

/* ---- faults */

static int fault(void) {
    const char *path = getenv("DISK_FAULT");
    char text[16] = {0};
    if (!path || access(path, F_OK))
        return 0;
    int fd = real_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    return length > 0 ? atoi(text) : 0;
}

static int refused(const char *path) {
    int saved = errno, code = path && within(path) ? fault() : 0;
    errno = code ? code : saved;
    return code != 0;
}

static int refused_fd(int fd) {
    char path[LONGEST];
    int saved = errno, code = fault();
    if (code && path_of(fd, path)) {
        errno = code;
        return 1;
    }
    errno = saved;
    return 0;
}

ssize_t write(int fd, const void *data, size_t size) {
    return refused_fd(fd) ? -1 : REAL(write)(fd, data, size);
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    return refused_fd(fd) ? -1 : REAL(writev)(fd, parts, count);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return refused_fd(fd) ? -1 : REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return refused_fd(fd) ? -1 : REAL(pwrite64)(fd, data, size, at);
}
ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    return refused_fd(fd) ? -1 : REAL(pwritev)(fd, parts, count, at);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    return refused_fd(fd) ? -1 : REAL(pwritev64)(fd, parts, count, at);
}
int posix_fallocate(int fd, off_t at, off_t size) {
    return refused_fd(fd) ? errno : REAL(posix_fallocate)(fd, at, size);
}
int mkdir(const char *path, mode_t mode) { return refused(path) ? -1 : REAL(mkdir)(path, mode); }

/* A whole disk still gives what it has: only new names are refused. */
static int opens(int folder, const char *path, int flags) {
    if (!(flags & (O_CREAT | O_TRUNC)) && (flags & O_ACCMODE) == O_RDONLY)
        return 0;
    if (path[0] != '/' && folder != AT_FDCWD)
        return 0;
    if (fault() == ENOSPC && !access(path, F_OK))
        return 0;
    return refused(path);
}

#define MODE(flags)                                   \
    mode_t mode = 0;                                  \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {          \
        va_list rest;                                 \
        va_start(rest, flags);                        \
        mode = va_arg(rest, mode_t);                  \
        va_end(rest);                                 \
    }

int open(const char *path, int flags, ...) {
    MODE(flags)
    return opens(AT_FDCWD, path, flags) ? -1 : REAL(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags)
    return opens(AT_FDCWD, path, flags) ? -1 : REAL(open64)(path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return opens(folder, path, flags) ? -1 : REAL(openat)(folder, path, flags, mode);
}

/* ---- the shadow */

static int shadow_of(const char *rest, char *path) {
    const char *shadow = getenv("DISK_SHADOW");
    if (!shadow || !rest)
        return 0;
    snprintf(path, LONGEST, "%s%s", shadow, rest);
    for (char *at = path + strlen(shadow) + 1; (at = strchr(at, '/')); at++) {
        *at = 0;
        REAL(mkdir)(path, 0700);
        *at = '/';
    }
    return 1;
}

/* Never by another descriptor where this one can be read: to close one frees the locks of SQLite. */
static void copy(int fd) {
    char path[LONGEST], to[LONGEST], half[LONGEST + 16], block[65536];
    struct stat what;
    int saved = errno;
    if (!getenv("DISK_SHADOW") || fstat(fd, &what) || !S_ISREG(what.st_mode))
        return;
    const char *rest = path_of(fd, path);
    if (rest && !strstr(path, " (deleted)") && shadow_of(rest, to)) {
        int from = fd;
        if ((fcntl(fd, F_GETFL) & O_ACCMODE) == O_WRONLY)
            from = real_open(path, O_RDONLY | O_CLOEXEC, 0);
        snprintf(half, sizeof half, "%s.copying%d", to, (int)gettid());
        int out = real_open(half, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        off_t at = 0;
        ssize_t size;
        while (from >= 0 && out >= 0 && (size = pread(from, block, sizeof block, at)) > 0) {
            if (REAL(write)(out, block, size) != size)
                abort();
            at += size;
        }
        if (out >= 0)
            close(out);
        if (from >= 0 && from != fd)
            close(from);
        REAL(rename)(half, to);
    }
    errno = saved;
}

int fsync(int fd) {
    int result = REAL(fsync)(fd);
    if (!result)
        copy(fd);
    return result;
}
int fdatasync(int fd) {
    int result = REAL(fdatasync)(fd);
    if (!result)
        copy(fd);
    return result;
}
int rename(const char *from, const char *to) {
    char old[LONGEST], new[LONGEST];
    if (fault() != ENOSPC && refused(from))
        return -1;
    int result = REAL(rename)(from, to), saved = errno;
    if (!result && shadow_of(within(from), old) && shadow_of(within(to), new))
        REAL(rename)(old, new);
    errno = saved;
    return result;
}
int unlink(const char *path) {
    char there[LONGEST];
    if (fault() != ENOSPC && refused(path))
        return -1;
    int result = REAL(unlink)(path), saved = errno;
    if (!result && shadow_of(within(path), there))
        REAL(unlink)(there);
    errno = saved;
    return result;
}
