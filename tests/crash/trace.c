/* Records every change of the files in one folder, for a power cut to be replayed from it.

   Loaded with LD_PRELOAD into each process under test. Each process appends to a log of its own;
   one counter in memory shared by all of them orders the records. An operation has two numbers,
   taken before and after the system call: at a cut in between, it may or may not have happened.

   TRACE_FOLDER    the folder whose files are recorded, an absolute path
   TRACE_LOGS      the folder of the logs and of the shared counter, which must be there
   TRACE_SYNC_US   a sync takes a random time up to this; the real one is left out, because the
                   replay decides what is on the disk */

#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, WRITE, TRUNCATE, SYNC, DATASYNC, UNLINK, RENAME, NOTE, LINK };

struct record {
    uint64_t start, end;
    uint64_t handle; /* the number of the record that opened the file */
    int64_t offset;  /* of a write; the new size; or whether a file was created */
    uint32_t kind, size;
};

struct shared {
    _Atomic uint64_t order;
    _Atomic uint32_t names; /* held while the folder changes: its changes are totally ordered */
};

#define FILES 4096
static struct shared *shared;
static const char *folder;
static size_t folder_length;
static int log_fd = -1;
static unsigned sync_us;
static _Atomic uint64_t handles[FILES];

static int real_open(const char *path, int flags, mode_t mode) {
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

__attribute__((constructor)) static void start(void) {
    const char *logs = getenv("TRACE_LOGS"), *us = getenv("TRACE_SYNC_US");
    char path[PATH_MAX];
    folder = getenv("TRACE_FOLDER");
    if (!folder || !logs) return;
    folder_length = strlen(folder);
    sync_us = us ? (unsigned)atoi(us) : 0;
    snprintf(path, sizeof path, "%s/order", logs);
    int fd = real_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || syscall(SYS_ftruncate, fd, (off_t)sizeof *shared)) abort();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    snprintf(path, sizeof path, "%s/%d.log", logs, (int)getpid());
    log_fd = real_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (shared == MAP_FAILED || log_fd < 0) abort();
}

static uint64_t tick(void) { return atomic_fetch_add(&shared->order, 1); }

static void keep(struct record r, const void *data) {
    struct iovec parts[] = {{&r, sizeof r}, {(void *)data, r.size}};
    if (syscall(SYS_writev, log_fd, parts, 2) != (long)(sizeof r + r.size)) abort();
}

static void lock_names(void) {
    while (atomic_exchange(&shared->names, 1)) sched_yield();
}

static void unlock_names(void) { atomic_store(&shared->names, 0); }

static int is_traced(const char *path) {
    if (log_fd < 0 || strncmp(path, folder, folder_length)) return 0;
    return path[folder_length] == '/' || path[folder_length] == 0;
}

static uint64_t handle_of(int fd) {
    return log_fd >= 0 && fd >= 0 && fd < FILES ? atomic_load(&handles[fd]) : 0;
}

static void set_handle(int fd, uint64_t handle) {
    if (fd >= 0 && fd < FILES) atomic_store(&handles[fd], handle);
}

/* What the workload was promised, in the order of the writes and syncs. */
void trace_note(const char *text, uint32_t size) {
    uint64_t at = tick();
    keep((struct record){at, at, 0, 0, NOTE, size}, text);
}

static int traced_open(const char *path, int flags, mode_t mode) {
    if (!is_traced(path)) {
        int fd = real_open(path, flags, mode);
        set_handle(fd, 0);
        return fd;
    }
    lock_names();
    uint64_t start = tick() + 1; /* 0 is no handle */
    struct stat before;
    int created = (flags & O_CREAT) && stat(path, &before) != 0;
    int fd = real_open(path, flags & ~O_TRUNC, mode);
    if (fd >= FILES) abort();
    if (fd >= 0) {
        set_handle(fd, start);
        keep((struct record){start - 1, tick(), start, created, OPEN, (uint32_t)strlen(path)}, path);
    }
    unlock_names();
    if (fd >= 0 && (flags & O_TRUNC) && ftruncate(fd, 0)) abort();
    return fd;
}

#define WITH_MODE(call)                        \
    {                                          \
        mode_t mode = 0;                       \
        if (flags & O_CREAT) {                 \
            va_list rest;                      \
            va_start(rest, flags);             \
            mode = va_arg(rest, mode_t);       \
            va_end(rest);                      \
        }                                      \
        return call;                           \
    }

int open(const char *path, int flags, ...) WITH_MODE(traced_open(path, flags, mode))
int open64(const char *path, int flags, ...) WITH_MODE(traced_open(path, flags, mode))

static int traced_openat(int at, const char *path, int flags, mode_t mode) {
    if (is_traced(path)) return traced_open(path, flags, mode);
    int fd = (int)syscall(SYS_openat, at, path, flags | O_LARGEFILE, mode);
    set_handle(fd, 0);
    return fd;
}

int openat(int at, const char *path, int flags, ...) WITH_MODE(traced_openat(at, path, flags, mode))
int openat64(int at, const char *path, int flags, ...)
    WITH_MODE(traced_openat(at, path, flags, mode))

int close(int fd) {
    set_handle(fd, 0);
    return (int)syscall(SYS_close, fd);
}

ssize_t write(int fd, const void *data, size_t size) {
    uint64_t handle = handle_of(fd);
    if (!handle) return syscall(SYS_write, fd, data, size);
    uint64_t start = tick();
    ssize_t written = syscall(SYS_write, fd, data, size);
    uint64_t end = tick();
    int64_t offset = lseek(fd, 0, SEEK_CUR) - written;
    if (written > 0)
        keep((struct record){start, end, handle, offset, WRITE, (uint32_t)written}, data);
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    uint64_t handle = handle_of(fd);
    if (!handle) return syscall(SYS_pwrite64, fd, data, size, offset);
    uint64_t start = tick();
    ssize_t written = syscall(SYS_pwrite64, fd, data, size, offset);
    uint64_t end = tick();
    if (written > 0)
        keep((struct record){start, end, handle, offset, WRITE, (uint32_t)written}, data);
    return written;
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    return pwrite(fd, data, size, offset);
}

int ftruncate(int fd, off_t size) {
    uint64_t handle = handle_of(fd);
    if (!handle) return (int)syscall(SYS_ftruncate, fd, size);
    lock_names();
    uint64_t start = tick();
    int failed = (int)syscall(SYS_ftruncate, fd, size);
    if (!failed) keep((struct record){start, tick(), handle, size, TRUNCATE, 0}, "");
    unlock_names();
    return failed;
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

static int traced_sync(int fd, uint32_t kind) {
    uint64_t handle = handle_of(fd);
    if (!handle) return (int)syscall(kind == SYNC ? SYS_fsync : SYS_fdatasync, fd);
    uint64_t start = tick();
    if (sync_us) usleep((unsigned)(start * 2654435761u >> 7) % sync_us);
    keep((struct record){start, tick(), handle, 0, kind, 0}, "");
    return 0;
}

int fsync(int fd) { return traced_sync(fd, SYNC); }
int fdatasync(int fd) { return traced_sync(fd, DATASYNC); }

int unlink(const char *path) {
    if (!is_traced(path)) return (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    lock_names();
    uint64_t start = tick();
    int failed = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
    if (!failed)
        keep((struct record){start, tick(), 0, 0, UNLINK, (uint32_t)strlen(path)}, path);
    unlock_names();
    return failed;
}

static int traced_name(const char *from, const char *to, uint32_t kind) {
    char both[2 * PATH_MAX];
    int traced = is_traced(to);
    uint64_t start = 0;
    if (traced) {
        lock_names();
        start = tick();
    }
    int failed = kind == LINK ? (int)syscall(SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0)
                              : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
    if (traced) {
        int size = snprintf(both, sizeof both, "%s\n%s", from, to);
        if (!failed) keep((struct record){start, tick(), 0, 0, kind, (uint32_t)size}, both);
        unlock_names();
    }
    return failed;
}

int rename(const char *from, const char *to) { return traced_name(from, to, RENAME); }
int link(const char *from, const char *to) { return traced_name(from, to, LINK); }
