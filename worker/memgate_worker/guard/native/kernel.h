/* System calls made directly, without libc: the same code runs in the preloaded library, whose job
 * it is to stand in for libc's functions, and in the launcher. Results are as the kernel gives
 * them: negative numbers are errors.
 */
#ifndef MEMGATE_KERNEL_H
#define MEMGATE_KERNEL_H

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#ifndef __x86_64__
#error "the guard knows the system calls of x86-64 only"
#endif

/* Sixth argument of every call made here. The filter of confine.c lets calls that change files
 * pass only with it, so that what bypasses our functions fails instead of writing. */
#define GUARD_KEY 0x6d656d6761746521L

static inline long guard_call(long number, long a, long b, long c, long d, long e) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = GUARD_KEY;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}

#define CALL5(n, a, b, c, d, e) \
    guard_call(n, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e))
#define CALL4(n, a, b, c, d) CALL5(n, a, b, c, d, 0)
#define CALL3(n, a, b, c) CALL5(n, a, b, c, 0, 0)
#define CALL2(n, a, b) CALL5(n, a, b, 0, 0, 0)
#define CALL1(n, a) CALL5(n, a, 0, 0, 0, 0)
#define CALL0(n) CALL5(n, 0, 0, 0, 0, 0)

static inline int k_open(const char *path, int flags, int mode) {
    return (int)CALL4(SYS_openat, AT_FDCWD, path, flags, mode);
}
static inline void k_close(int fd) { CALL1(SYS_close, fd); }
static inline int k_lstat(const char *path, struct stat *out) {
    return (int)CALL4(SYS_newfstatat, AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
static inline int k_stat(const char *path, struct stat *out) {
    return (int)CALL4(SYS_newfstatat, AT_FDCWD, path, out, 0);
}
static inline long k_readlink(const char *path, char *buffer, size_t size) {
    return CALL4(SYS_readlinkat, AT_FDCWD, path, buffer, size);
}
static inline int k_mkdir(const char *path, int mode) {
    return (int)CALL3(SYS_mkdirat, AT_FDCWD, path, mode);
}
static inline int k_chmod(const char *path, int mode) {
    return (int)CALL3(SYS_fchmodat, AT_FDCWD, path, mode);
}
static inline int k_unlink(const char *path, int flags) {
    return (int)CALL3(SYS_unlinkat, AT_FDCWD, path, flags);
}
static inline int k_rename(const char *from, const char *to, int flags) {
    return (int)CALL5(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, flags);
}
static inline int k_symlink(const char *target, const char *path) {
    return (int)CALL3(SYS_symlinkat, target, AT_FDCWD, path);
}
static inline int k_utimes(const char *path, const struct timespec times[2], int flags) {
    return (int)CALL4(SYS_utimensat, AT_FDCWD, path, times, flags);
}

/* Calls `each` for the names of a directory, without "." and ".."; ends at the first result that
 * is not 0 and returns it. */
typedef int (*k_name_fn)(const char *name, unsigned char type, void *context);
int k_list(const char *path, k_name_fn each, void *context);

/* Copies data, mode, times and, where it is allowed, the owner. `with_data` 0: an empty file. */
int k_copy_file(const char *from, const char *to, const struct stat *info, int with_data);

/* "a" + "/" + "b" into a buffer of PATH_MAX; 0 or -ENAMETOOLONG. */
int k_join(char *out, const char *directory, const char *name);

/* Is `path` the directory `prefix` or beneath it? "/" and "" are above everything. */
int k_is_beneath(const char *path, const char *prefix);

/* Device files by which a GPU is reached; `name` is the name in /dev. */
int k_is_gpu_device(const char *name);

#endif
