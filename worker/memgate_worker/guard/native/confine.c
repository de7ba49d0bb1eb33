/* The second line of the preload way: what does not go through our library does not write.
 *
 * Landlock decides by place: only the scratch directory, directories named writable, /proc and
 * ordinary devices can be written. A filter looks at calls that change files. With the key that our
 * library gives (`kernel.h`) they pass; without it they become a signal, on which the library does
 * them (`trapped.c`), and which ends a program that does not have it. Landlock does not know modes,
 * owners and times; the filter does not know paths, and lets a plain open for writing pass where
 * Landlock is there to judge it: programs open /dev/null so.
 */
#include "filter.h"
#include "kernel.h"
#include "launcher.h"

#include <linux/audit.h>
#include <linux/landlock.h>
#include <signal.h>
#include <sys/prctl.h>

/* Since version 3 files can be renamed between directories, and truncating is seen. */
#define LANDLOCK_VERSION 3
#define LANDLOCK_WRITES 0x7ff2L /* all rights of version 3 but reading and executing */
#define LANDLOCK_FILE_WRITES 0x4002L

static const char *const DEVICES[] = {"/dev/null", "/dev/zero",    "/dev/full", "/dev/random",
                                      "/dev/tty",  "/dev/urandom", "/dev/ptmx", "/dev/console",
                                      "/dev/pts",  "/dev/shm",     "/dev/mqueue", "/proc", 0};

static void allow(int rules, const char *path, int must_exist) {
    struct stat info;
    int fd = k_open(path, O_PATH | O_CLOEXEC, 0);
    if (fd < 0) {
        if (must_exist) stop("cannot open", path, fd);
        return;
    }
    k_stat(path, &info);
    struct landlock_path_beneath_attr rule;
    memset(&rule, 0, sizeof rule);
    rule.parent_fd = fd;
    rule.allowed_access = S_ISDIR(info.st_mode) ? LANDLOCK_WRITES : LANDLOCK_FILE_WRITES;
    long result = CALL4(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    if (result < 0) stop("Landlock refuses a rule for", path, result);
    k_close(fd);
}

static int confine_places(const struct request *request) {
    long version = CALL3(SYS_landlock_create_ruleset, 0, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < LANDLOCK_VERSION || request->without_landlock) return 0;
    struct landlock_ruleset_attr attributes;
    memset(&attributes, 0, sizeof attributes);
    attributes.handled_access_fs = LANDLOCK_WRITES;
    int rules = (int)CALL3(SYS_landlock_create_ruleset, &attributes, 8, 0);
    if (rules < 0) stop("Landlock gives no", "set of rules", rules);
    allow(rules, request->scratch, 1);
    for (int i = 0; i < request->num_writable; i++) allow(rules, request->writable[i], 1);
    for (int i = 0; DEVICES[i]; i++) allow(rules, DEVICES[i], 0);
    long result = CALL2(SYS_landlock_restrict_self, rules, 0);
    if (result < 0) stop("Landlock cannot be", "entered", result);
    k_close(rules);
    return 1;
}

/* io_uring opens files without a system call; a mount or a file handle leads around paths */
static const int REFUSED[] = {SYS_io_uring_setup, SYS_io_uring_enter, SYS_io_uring_register,
                              SYS_mount,          SYS_umount2,        SYS_pivot_root,
                              SYS_open_by_handle_at, SYS_move_mount,  SYS_fsopen, SYS_open_tree};
static const int METADATA[] = {SYS_chmod,     SYS_fchmod,       SYS_fchmodat,     SYS_chown,
                               SYS_lchown,    SYS_fchown,       SYS_fchownat,     SYS_utime,
                               SYS_utimes,    SYS_utimensat,    SYS_futimesat,    SYS_setxattr,
                               SYS_lsetxattr, SYS_fsetxattr,    SYS_removexattr,  SYS_lremovexattr,
                               SYS_fremovexattr, 452 /* fchmodat2 */, 463 /* setxattrat */,
                               466 /* removexattrat */, 469 /* file_setattr */};
static const int CHANGES[] = {SYS_creat,   SYS_openat2,  SYS_truncate, SYS_rename,  SYS_renameat,
                              SYS_renameat2, SYS_unlink, SYS_unlinkat, SYS_mkdir,   SYS_mkdirat,
                              SYS_rmdir,   SYS_link,     SYS_linkat,   SYS_symlink, SYS_symlinkat,
                              SYS_mknod,   SYS_mknodat};

static void trap_open(struct filter *filter, int number, int flags_index, unsigned flags) {
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, KEY_LENGTH + 3, (unsigned)number);
    filter_load(filter, LOW(flags_index));
    filter_add(filter, BPF_JMP | BPF_JSET | BPF_K, 0, KEY_LENGTH, flags);
    filter_want_key(filter);
    filter_give(filter, SECCOMP_RET_ALLOW);
}

/* The handler of the signal stays ours: a program that sets its own (Go's do) is told that it has.
 * To ask which one there is, is allowed. */
static void keep_handler(struct filter *filter) {
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, 10, SYS_rt_sigaction);
    filter_load(filter, LOW(0));
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, 7, SIGSYS);
    filter_load(filter, LOW(1));
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, 2, 0);
    filter_load(filter, LOW(1) + 4);
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, 3, 0, 0);
    filter_load(filter, LOW(5));
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, (unsigned)GUARD_KEY);
    filter_give(filter, SECCOMP_RET_ERRNO);
    filter_give(filter, SECCOMP_RET_ALLOW);
}

static void confine_calls(int places_are_confined) {
    static struct filter filter;
    filter_load(&filter, FIELD(arch));
    filter_add(&filter, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, AUDIT_ARCH_X86_64);
    filter_give(&filter, SECCOMP_RET_ERRNO | ENOSYS);
    filter_load(&filter, FIELD(nr));
    filter_add(&filter, BPF_JMP | BPF_JGE | BPF_K, 0, 1, 0x40000000); /* the x32 calls */
    filter_give(&filter, SECCOMP_RET_ERRNO | ENOSYS);
    filter_refuse(&filter, REFUSED, COUNT(REFUSED));
    keep_handler(&filter);
    filter_trap(&filter, METADATA, COUNT(METADATA));
    filter_trap(&filter, CHANGES, COUNT(CHANGES));
    unsigned flags = O_CREAT | O_TRUNC | (places_are_confined ? 0 : O_WRONLY | O_RDWR);
    trap_open(&filter, SYS_open, 1, flags);
    trap_open(&filter, SYS_openat, 2, flags);
    filter_give(&filter, SECCOMP_RET_ALLOW);
    long result = filter_enter(&filter);
    if (result < 0) stop("the kernel takes no", "filter of system calls", result);
}

void confine(const struct request *request) {
    CALL5(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    confine_calls(confine_places(request));
}
