/* Calls by number: through libc's syscall(), or made by an instruction of the program's own, as
 * libraries in Rust do (safetensors renames its files so). The filter of `confine.c` turns the
 * latter, where they would change a file, into a signal, and its handler here does them as the named
 * functions do. A program without our library is ended by that signal.
 */
#include "guard.h"

#include <linux/openat2.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/statfs.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <ucontext.h>
#include <utime.h>

struct arguments {
    long at[6];
};

typedef const char *path_t;

#define A(index) (call->at[index])
#define P(index) ((path_t)call->at[index])

static long change_metadata(long number, const struct arguments *call, int *is_known) {
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

static long change(long number, const struct arguments *call, int *is_known) {
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

static long look(long number, const struct arguments *call, int *is_known) {
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
        case SYS_execve: return execve(P(0), (char **)A(1), (char **)A(2));
        default: *is_known = 0; return 0;
    }
}

EXPORT long syscall(long number, ...) {
    struct arguments arguments;
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) arguments.at[i] = va_arg(list, long);
    va_end(list);
    int is_known = 1;
    long result = change(number, &arguments, &is_known);
    if (is_known) return result;
    is_known = 1;
    result = look(number, &arguments, &is_known);
    if (is_known) return result;
    register long r10 __asm__("r10") = arguments.at[3];
    register long r8 __asm__("r8") = arguments.at[4];
    register long r9 __asm__("r9") = arguments.at[5];
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(arguments.at[0]), "S"(arguments.at[1]),
                       "d"(arguments.at[2]), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return guard_result(result);
}

static void do_instead(int signal, siginfo_t *info, void *context) {
    (void)signal;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    struct arguments arguments = {{registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                                   registers[REG_R10], registers[REG_R8], registers[REG_R9]}};
    int kept = errno, is_known = 1;
    long result = change(info->si_syscall, &arguments, &is_known);
    if (!is_known) {
        result = -EPERM;
    } else if (result < 0) {
        result = -errno;
    }
    registers[REG_RAX] = result;
    errno = kept;
}

void guard_handle_calls(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = do_instead;
    action.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART;
    sigaction(SIGSYS, &action, 0);
}
