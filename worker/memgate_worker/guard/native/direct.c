/* Calls by number: through libc's syscall(), or made by an instruction of the program's own, as
 * libraries in Rust do (safetensors renames its files so). The filters of `confine.c` and
 * `unaware.c` turn the latter into a signal, and what its handler (`trapped.c`) asks for is done
 * here as the named functions do it.
 */
#include "guard.h"

#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>

typedef const char *path_t;

#define A(index) (call[index])
#define P(index) ((path_t)call[index])

static long change_metadata(long number, const long *call, int *is_known) {
    switch (number) {
        case SYS_chmod: return chmod(P(0), (mode_t)A(1));
        case SYS_fchmod: return fchmod((int)A(0), (mode_t)A(1));
        case SYS_fchmodat: return fchmodat((int)A(0), P(1), (mode_t)A(2), 0);
        case 452: return fchmodat((int)A(0), P(1), (mode_t)A(2), (int)A(3)); /* fchmodat2 */
        case SYS_chown: return chown(P(0), (uid_t)A(1), (gid_t)A(2));
        case SYS_lchown: return lchown(P(0), (uid_t)A(1), (gid_t)A(2));
        case SYS_fchown: return fchown((int)A(0), (uid_t)A(1), (gid_t)A(2));
        case SYS_fchownat:
            return fchownat((int)A(0), P(1), (uid_t)A(2), (gid_t)A(3), (int)A(4));
        case SYS_utimensat: return utimensat((int)A(0), P(1), (const void *)A(2), (int)A(3));
        case SYS_utime: return utime(P(0), (const void *)A(1));
        case SYS_utimes: return utimes(P(0), (const void *)A(1));
        case SYS_futimesat: return futimesat((int)A(0), P(1), (const void *)A(2));
        case SYS_setxattr: return setxattr(P(0), P(1), P(2), (size_t)A(3), (int)A(4));
        case SYS_lsetxattr: return lsetxattr(P(0), P(1), P(2), (size_t)A(3), (int)A(4));
        case SYS_fsetxattr: return fsetxattr((int)A(0), P(1), P(2), (size_t)A(3), (int)A(4));
        case SYS_removexattr: return removexattr(P(0), P(1));
        case SYS_lremovexattr: return lremovexattr(P(0), P(1));
        case SYS_fremovexattr: return fremovexattr((int)A(0), P(1));
        default: *is_known = 0; return 0;
    }
}

static long change(long number, const long *call, int *is_known) {
    switch (number) {
        case SYS_open: return open(P(0), (int)A(1), (mode_t)A(2));
        case SYS_openat: return openat((int)A(0), P(1), (int)A(2), (mode_t)A(3));
        case SYS_openat2: {
            const struct open_how *how = (const void *)A(2);
            return openat((int)A(0), P(1), (int)how->flags, (mode_t)how->mode);
        }
        case SYS_creat: return creat(P(0), (mode_t)A(1));
        case SYS_unlink: return unlink(P(0));
        case SYS_unlinkat: return unlinkat((int)A(0), P(1), (int)A(2));
        case SYS_rmdir: return rmdir(P(0));
        case SYS_mkdir: return mkdir(P(0), (mode_t)A(1));
        case SYS_mkdirat: return mkdirat((int)A(0), P(1), (mode_t)A(2));
        case SYS_rename: return rename(P(0), P(1));
        case SYS_renameat: return renameat((int)A(0), P(1), (int)A(2), P(3));
        case SYS_renameat2: return renameat2((int)A(0), P(1), (int)A(2), P(3), (unsigned)A(4));
        case SYS_link: return link(P(0), P(1));
        case SYS_linkat: return linkat((int)A(0), P(1), (int)A(2), P(3), (int)A(4));
        case SYS_symlink: return symlink(P(0), P(1));
        case SYS_symlinkat: return symlinkat(P(0), (int)A(1), P(2));
        case SYS_truncate: return truncate(P(0), A(1));
        case SYS_mknod: return mknod(P(0), (mode_t)A(1), (dev_t)A(2));
        case SYS_mknodat: return mknodat((int)A(0), P(1), (mode_t)A(2), (dev_t)A(3));
        default: return change_metadata(number, call, is_known);
    }
}

static long look(long number, const long *call, int *is_known) {
    switch (number) {
        case SYS_stat: return stat(P(0), (void *)A(1));
        case SYS_lstat: return lstat(P(0), (void *)A(1));
        case SYS_newfstatat: return fstatat((int)A(0), P(1), (void *)A(2), (int)A(3));
        case SYS_statx: return statx((int)A(0), P(1), (int)A(2), (unsigned)A(3), (void *)A(4));
        case SYS_statfs: return statfs(P(0), (void *)A(1));
        case SYS_access: return access(P(0), (int)A(1));
        case SYS_faccessat: return faccessat((int)A(0), P(1), (int)A(2), 0);
        case SYS_faccessat2: return faccessat((int)A(0), P(1), (int)A(2), (int)A(3));
        case SYS_readlink: return readlink(P(0), (char *)A(1), (size_t)A(2));
        case SYS_readlinkat: return readlinkat((int)A(0), P(1), (char *)A(2), (size_t)A(3));
        case SYS_chdir: return chdir(P(0));
        case SYS_getcwd: return getcwd((char *)A(0), (size_t)A(1)) ? (long)strlen(P(0)) + 1 : -1;
        case SYS_bind: return bind((int)A(0), (const void *)A(1), (socklen_t)A(2));
        case SYS_connect: return connect((int)A(0), (const void *)A(1), (socklen_t)A(2));
        case SYS_execve: return execve(P(0), (char **)A(1), (char **)A(2));
        default: *is_known = 0; return 0;
    }
}

int guard_do(long number, const long *given, long *result) {
    int is_known = 1;
    *result = change(number, given, &is_known);
    if (is_known) return 1;
    is_known = 1;
    *result = look(number, given, &is_known);
    return is_known;
}

EXPORT long syscall(long number, ...) {
    long at[6], result;
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) at[i] = va_arg(list, long);
    va_end(list);
    if (guard_do(number, at, &result)) return result;
    register long r10 __asm__("r10") = at[3];
    register long r8 __asm__("r8") = at[4];
    register long r9 __asm__("r9") = at[5];
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(at[0]), "S"(at[1]), "d"(at[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return guard_result(result);
}
