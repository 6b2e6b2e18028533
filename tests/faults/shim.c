/* Fails or delays the n-th operation of a kind, in the process that preloads it.
 *
 * The plan is a file mapped by the process under test and by its test (`FAULT_PLAN`), so that faults
 * begin and end while the process runs. Operations on files count if their path begins with
 * `FAULT_DIR`; allocations always count. If `FAULT_DIR` is a file, reads and writes of that file count through any
 * link, but not those of a file that replaces it. System calls that bypass libc are not counted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

/* The order is that of `Op` in plan.rs. */
enum { WRITE, SYNC, OPEN, RENAME, REMOVE, TRUNCATE, READ, MMAP, ALLOC, OPS };

struct plan {
    _Atomic uint32_t op;       /* failing operation; OPS for none */
    _Atomic uint32_t error;    /* errno, 0 for a delay only */
    _Atomic uint64_t from;     /* first failing one, counted from 0 at the creation of the plan */
    _Atomic uint64_t times;    /* number of failures */
    _Atomic uint32_t delay_ms; /* delay before each operation */
    uint32_t unused;
    _Atomic uint64_t seen[OPS];
    _Atomic uint64_t failed;
};

#define MAX_FD 4096

static struct plan *plan;
static char dir[4096];
static size_t dir_length;
static struct stat file_of_plan; /* file of `FAULT_DIR`, if it is not a folder */
static int is_file;
static _Atomic unsigned char ours[MAX_FD];

__attribute__((constructor)) static void begin(void) {
    const char *file = getenv("FAULT_PLAN"), *folder = getenv("FAULT_DIR");
    if (!file || !folder || strlen(folder) >= sizeof dir) return;
    strcpy(dir, folder);
    dir_length = strlen(dir);
    /* Stays open, so that its number is not given to another file. */
    int named = open(dir, O_PATH | O_CLOEXEC);
    is_file = named >= 0 && fstat(named, &file_of_plan) == 0 && S_ISREG(file_of_plan.st_mode);
    if (named >= 0 && !is_file) close(named);
    int fd = open(file, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof *plan, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) plan = map;
}

/* Returns whether this operation must fail, and then sets errno. */
static int fails(int op) {
    if (!plan) return 0;
    uint64_t n = atomic_fetch_add(&plan->seen[op], 1);
    if (atomic_load(&plan->op) != (uint32_t)op) return 0;
    uint64_t from = atomic_load(&plan->from);
    if (n < from || n - from >= atomic_load(&plan->times)) return 0;
    uint32_t delay = atomic_load(&plan->delay_ms);
    if (delay) {
        struct timespec time = {delay / 1000, (delay % 1000) * 1000000L};
        nanosleep(&time, NULL);
    }
    uint32_t error = atomic_load(&plan->error);
    if (!error) return 0;
    atomic_fetch_add(&plan->failed, 1);
    errno = (int)error;
    return 1;
}

static int path_is_ours(const char *path) {
    return path && dir_length && strncmp(path, dir, dir_length) == 0;
}

static int fd_is_ours(int fd) { return fd >= 0 && fd < MAX_FD && atomic_load(&ours[fd]); }

static int opened(int fd, const char *path) {
    if (fd < 0 || fd >= MAX_FD) return fd;
    int is_ours = path_is_ours(path), error = errno;
    struct stat found;
    if (is_file)
        is_ours = fstat(fd, &found) == 0 && found.st_dev == file_of_plan.st_dev &&
                  found.st_ino == file_of_plan.st_ino;
    errno = error;
    atomic_store(&ours[fd], is_ours);
    return fd;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPEN_LIKE(name, parameters, arguments) \
    int name parameters { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        if (path_is_ours(path) && fails(OPEN)) return -1; \
        return opened(real arguments, path); \
    }

OPEN_LIKE(open, (const char *path, int flags, ...), (path, flags, mode))
OPEN_LIKE(open64, (const char *path, int flags, ...), (path, flags, mode))
OPEN_LIKE(openat, (int at, const char *path, int flags, ...), (at, path, flags, mode))
OPEN_LIKE(openat64, (int at, const char *path, int flags, ...), (at, path, flags, mode))

/* Writes the part that fits, as the kernel does; only the next write fails. */
ssize_t write(int fd, const void *bytes, size_t count) {
    REAL(write);
    static _Atomic int owed;
    if (!fd_is_ours(fd)) return real(fd, bytes, count);
    int error = atomic_exchange(&owed, 0);
    if (error) {
        errno = error;
        return -1;
    }
    if (!fails(WRITE)) return real(fd, bytes, count);
    if (errno != ENOSPC || count < 2) return -1;
    atomic_store(&owed, ENOSPC);
    return real(fd, bytes, count / 2);
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(writev);
    return fd_is_ours(fd) && fails(WRITE) ? -1 : real(fd, parts, count);
}

ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    REAL(pwrite64);
    return fd_is_ours(fd) && fails(WRITE) ? -1 : real(fd, bytes, count, at);
}

ssize_t read(int fd, void *bytes, size_t count) {
    REAL(read);
    return fd_is_ours(fd) && fails(READ) ? -1 : real(fd, bytes, count);
}

ssize_t pread64(int fd, void *bytes, size_t count, off64_t at) {
    REAL(pread64);
    return fd_is_ours(fd) && fails(READ) ? -1 : real(fd, bytes, count, at);
}

int fsync(int fd) {
    REAL(fsync);
    return fd_is_ours(fd) && fails(SYNC) ? -1 : real(fd);
}

int fdatasync(int fd) {
    REAL(fdatasync);
    return fd_is_ours(fd) && fails(SYNC) ? -1 : real(fd);
}

int ftruncate64(int fd, off64_t length) {
    REAL(ftruncate64);
    return fd_is_ours(fd) && fails(TRUNCATE) ? -1 : real(fd, length);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return path_is_ours(to) && fails(RENAME) ? -1 : real(from, to);
}

int unlink(const char *path) {
    REAL(unlink);
    return path_is_ours(path) && fails(REMOVE) ? -1 : real(path);
}

void *mmap(void *at, size_t length, int protection, int flags, int fd, off_t offset) {
    REAL(mmap);
    return fd_is_ours(fd) && fails(MMAP) ? MAP_FAILED : real(at, length, protection, flags, fd, offset);
}

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

void *malloc(size_t size) { return fails(ALLOC) ? NULL : __libc_malloc(size); }

void *calloc(size_t count, size_t size) { return fails(ALLOC) ? NULL : __libc_calloc(count, size); }

void *realloc(void *old, size_t size) { return fails(ALLOC) ? NULL : __libc_realloc(old, size); }
