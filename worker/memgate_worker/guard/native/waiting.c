/* Waiting for a child: one that was ended by our filter is reported, since it has no library of ours
 * that could have done it, and its parent seldom says why it failed.
 *
 * The child is looked at before it is taken: after that, its name is gone.
 */
#include "guard.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

static void name_of(pid_t pid, char *name, size_t size) {
    char path[32] = "/proc/", digits[16];
    int at = 0;
    size_t end = strlen(path);
    do digits[at++] = (char)('0' + pid % 10);
    while ((pid /= 10) > 0);
    while (at > 0) path[end++] = digits[--at];
    strcpy(path + end, "/comm");
    int fd = k_open(path, O_RDONLY | O_CLOEXEC, 0);
    long length = fd < 0 ? 0 : CALL3(SYS_read, fd, name, size - 1);
    if (fd >= 0) k_close(fd);
    name[length > 1 ? length - 1 : 0] = 0; /* without the end of the line */
}

/* Waits without taking the child, as long as the caller would; 0, or -EINTR. */
static int look(idtype_t type, id_t id, int options) {
    const int others = WSTOPPED | WCONTINUED;
    siginfo_t info;
    char name[64];
    if (!guard_redirects) return 0;
    /* to wait here for the end of a child would miss that one is stopped or goes on */
    if (options & others) options |= WNOHANG;
    info.si_pid = 0;
    long error = CALL5(SYS_waitid, type, id, &info, (options & ~others) | WEXITED | WNOWAIT, 0);
    int is_killed = info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED;
    if (error == 0 && info.si_pid > 0 && is_killed && info.si_status == SIGSYS) {
        name_of(info.si_pid, name, sizeof name);
        guard_report("PROGRAM_ENDED", "program", name);
    }
    return error == -EINTR ? -EINTR : 0;
}

static int look_as_wait4(pid_t pid, int options) {
    if (pid > 0) return look(P_PID, (id_t)pid, options);
    if (pid == -1) return look(P_ALL, 0, options);
    return pid == 0 ? look(P_PGID, (id_t)getpgid(0), options) : look(P_PGID, (id_t)-pid, options);
}

EXPORT pid_t wait4(pid_t pid, int *status, int options, struct rusage *usage) {
    int error = look_as_wait4(pid, options);
    return (pid_t)guard_result(error ? error : CALL4(SYS_wait4, pid, status, options, usage));
}
EXPORT pid_t wait3(int *status, int options, struct rusage *usage) {
    return wait4(-1, status, options, usage);
}
EXPORT pid_t waitpid(pid_t pid, int *status, int options) { return wait4(pid, status, options, 0); }
EXPORT pid_t wait(int *status) { return wait4(-1, status, 0, 0); }

EXPORT int waitid(idtype_t type, id_t id, siginfo_t *info, int options) {
    int error = options & WEXITED ? look(type, id, options) : 0;
    return (int)guard_result(error ? error : CALL5(SYS_waitid, type, id, info, options, 0));
}
