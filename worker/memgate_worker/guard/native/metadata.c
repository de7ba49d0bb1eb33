/* Modes, owners, times, sizes and attributes: a file gets its private copy first. */
#include "guard.h"

#include <sys/time.h>
#include <utime.h>

/* Brings up what is to be changed and gives the path for the change; -errno if it cannot. */
static int prepare(int directory, const char *path, int follow, int with_data, struct place *place) {
    int lock = guard_lock();
    if (lock < 0) return lock;
    int result = guard_find(directory, path, follow, place);
    if (result == 0 && place->kind == MISSING) result = -ENOENT;
    if (result == 0 && place->kind == OUTSIDE) result = guard_may_change_outside(place);
    struct stat info;
    if (result == 0 && place->kind == IN_LOWER) {
        result = k_lstat(place->path, &info);
        long user = CALL0(SYS_geteuid);
        int is_allowed = user == 0 || (long)info.st_uid == user ||
                         CALL3(SYS_faccessat, AT_FDCWD, place->path, W_OK) == 0;
        if (result == 0 && !is_allowed) result = -EPERM;
        if (result == 0) result = guard_copy_up(place, with_data, 0);
    }
    guard_unlock(lock);
    return result;
}

/* Is the descriptor open on a file that was there before the job? Then gives its path. A copy that
 * was made since does not help: the descriptor is still on the original. */
static int is_original(int fd, char *path) {
    char link[PATH_MAX], own[PATH_MAX];
    struct stat info;
    if (!guard_redirects || CALL2(SYS_fstat, fd, &info) < 0) return 0;
    if (!S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return 0;
    if (guard_path_of(fd, path) < 0 || path[0] != '/') return 0;
    k_join(link, guard_upper, path + 1);
    struct stat copy;
    if (k_lstat(link, &copy) == 0 && copy.st_ino == info.st_ino && copy.st_dev == info.st_dev)
        return 0;
    strcpy(own, path);
    return !k_is_beneath(own, guard_scratch) && !k_is_beneath(own, "/dev") &&
           !(info.st_nlink == 0);
}

#define CHANGE(directory, path, follow, with_data, redirected, direct)                     \
    do {                                                                                   \
        struct place place;                                                                \
        if (!guard_redirects) return (int)guard_result(direct);                            \
        int error = prepare(directory, path, follow, with_data, &place);                   \
        if (error < 0) return (int)guard_result(error);                                    \
        const char *actual = guard_actual(&place);                                         \
        return (int)guard_result(redirected);                                              \
    } while (0)

EXPORT int fchmodat(int directory, const char *path, mode_t mode, int flags) {
    if (flags & AT_SYMLINK_NOFOLLOW) { /* the kernel has no such call before 6.6 */
        struct stat info;
        struct place place;
        int where = directory;
        const char *what = path;
        int error = guard_look(&where, &what, 0, &place);
        if (error == 0) error = (int)CALL4(SYS_newfstatat, where, what, &info, AT_SYMLINK_NOFOLLOW);
        if (error == 0 && S_ISLNK(info.st_mode)) error = -EOPNOTSUPP;
        if (error < 0) return (int)guard_result(error);
    }
    CHANGE(directory, path, 1, 1, k_chmod(actual, (int)mode),
           CALL3(SYS_fchmodat, directory, path, mode));
}
EXPORT int chmod(const char *path, mode_t mode) { return fchmodat(AT_FDCWD, path, mode, 0); }
EXPORT int lchmod(const char *path, mode_t mode) {
    return fchmodat(AT_FDCWD, path, mode, AT_SYMLINK_NOFOLLOW);
}
EXPORT int fchmod(int fd, mode_t mode) {
    char path[PATH_MAX];
    if (is_original(fd, path)) return chmod(path, mode);
    return (int)guard_result(CALL2(SYS_fchmod, fd, mode));
}

EXPORT int fchownat(int directory, const char *path, uid_t user, gid_t group, int flags) {
    if ((flags & AT_EMPTY_PATH) && path && !*path) return fchown(directory, user, group);
    CHANGE(directory, path, !(flags & AT_SYMLINK_NOFOLLOW), 1,
           CALL5(SYS_fchownat, AT_FDCWD, actual, user, group, flags),
           CALL5(SYS_fchownat, directory, path, user, group, flags));
}
EXPORT int chown(const char *path, uid_t user, gid_t group) {
    return fchownat(AT_FDCWD, path, user, group, 0);
}
EXPORT int lchown(const char *path, uid_t user, gid_t group) {
    return fchownat(AT_FDCWD, path, user, group, AT_SYMLINK_NOFOLLOW);
}
EXPORT int fchown(int fd, uid_t user, gid_t group) {
    char path[PATH_MAX];
    if (is_original(fd, path)) return chown(path, user, group);
    return (int)guard_result(CALL3(SYS_fchown, fd, user, group));
}

EXPORT int futimens(int fd, const struct timespec times[2]) {
    char path[PATH_MAX];
    if (is_original(fd, path)) return utimensat(AT_FDCWD, path, times, 0);
    return (int)guard_result(CALL4(SYS_utimensat, fd, 0, times, 0));
}
EXPORT int utimensat(int directory, const char *path, const struct timespec times[2], int flags) {
    if (!path) return futimens(directory, times);
    CHANGE(directory, path, !(flags & AT_SYMLINK_NOFOLLOW), 1, k_utimes(actual, times, flags),
           CALL4(SYS_utimensat, directory, path, times, flags));
}

static const struct timespec *from_micro(const struct timeval in[2], struct timespec out[2]) {
    if (!in) return 0;
    for (int i = 0; i < 2; i++) out[i] = (struct timespec){in[i].tv_sec, in[i].tv_usec * 1000};
    return out;
}
EXPORT int utimes(const char *path, const struct timeval times[2]) {
    struct timespec exact[2];
    return utimensat(AT_FDCWD, path, from_micro(times, exact), 0);
}
EXPORT int lutimes(const char *path, const struct timeval times[2]) {
    struct timespec exact[2];
    return utimensat(AT_FDCWD, path, from_micro(times, exact), AT_SYMLINK_NOFOLLOW);
}
EXPORT int futimes(int fd, const struct timeval times[2]) {
    struct timespec exact[2];
    return futimens(fd, from_micro(times, exact));
}
EXPORT int futimesat(int directory, const char *path, const struct timeval times[2]) {
    struct timespec exact[2];
    return utimensat(directory, path, from_micro(times, exact), 0);
}
EXPORT int utime(const char *path, const struct utimbuf *times) {
    if (!times) return utimensat(AT_FDCWD, path, 0, 0);
    struct timespec exact[2] = {{times->actime, 0}, {times->modtime, 0}};
    return utimensat(AT_FDCWD, path, exact, 0);
}

EXPORT int truncate(const char *path, off_t size) {
    struct stat info;
    struct place place;
    int where = AT_FDCWD;
    const char *what = path;
    int error = guard_look(&where, &what, 1, &place);
    if (error == 0 && guard_redirects) { /* what the kernel would say, before anything is copied */
        error = k_stat(what, &info);
        if (error == 0 && S_ISDIR(info.st_mode)) error = -EISDIR;
        if (error == 0) error = (int)CALL3(SYS_faccessat, AT_FDCWD, what, W_OK);
    }
    if (error < 0) return (int)guard_result(error);
    CHANGE(AT_FDCWD, path, 1, size > 0, CALL2(SYS_truncate, actual, size),
           CALL2(SYS_truncate, path, size));
}
EXPORT int truncate64(const char *path, off64_t size) { return truncate(path, size); }

/* --- extended attributes ------------------------------------------------------------------------ */

EXPORT int setxattr(const char *path, const char *name, const void *value, size_t size, int flags) {
    CHANGE(AT_FDCWD, path, 1, 1, CALL5(SYS_setxattr, actual, name, value, size, flags),
           CALL5(SYS_setxattr, path, name, value, size, flags));
}
EXPORT int lsetxattr(const char *path, const char *name, const void *value, size_t size,
                     int flags) {
    CHANGE(AT_FDCWD, path, 0, 1, CALL5(SYS_lsetxattr, actual, name, value, size, flags),
           CALL5(SYS_lsetxattr, path, name, value, size, flags));
}
EXPORT int fsetxattr(int fd, const char *name, const void *value, size_t size, int flags) {
    char path[PATH_MAX];
    if (is_original(fd, path)) return setxattr(path, name, value, size, flags);
    return (int)guard_result(CALL5(SYS_fsetxattr, fd, name, value, size, flags));
}
EXPORT int removexattr(const char *path, const char *name) {
    CHANGE(AT_FDCWD, path, 1, 1, CALL2(SYS_removexattr, actual, name),
           CALL2(SYS_removexattr, path, name));
}
EXPORT int lremovexattr(const char *path, const char *name) {
    CHANGE(AT_FDCWD, path, 0, 1, CALL2(SYS_lremovexattr, actual, name),
           CALL2(SYS_lremovexattr, path, name));
}
EXPORT int fremovexattr(int fd, const char *name) {
    char path[PATH_MAX];
    if (is_original(fd, path)) return removexattr(path, name);
    return (int)guard_result(CALL2(SYS_fremovexattr, fd, name));
}
