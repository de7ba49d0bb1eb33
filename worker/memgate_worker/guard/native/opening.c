/* Opening files: open and its family, stdio, temporary files, directories. */
#include "guard.h"

#include <dirent.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

static int writes(int flags) {
    return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0;
}

/* /dev/stdout and its like, for writing: the descriptor that the job got, whose file may be one
 * that it could not open by name. */
static int open_own(const char *path, int flags) {
    const char *digits = 0;
    if (!strcmp(path, "/dev/stdout")) digits = "1";
    if (!strcmp(path, "/dev/stderr")) digits = "2";
    if (!strncmp(path, "/dev/fd/", 8)) digits = path + 8;
    if (!strncmp(path, "/proc/self/fd/", 14)) digits = path + 14;
    struct stat info;
    if (!digits || !*digits || strspn(digits, "0123456789") != strlen(digits)) return -1;
    int fd = atoi(digits);
    if (CALL2(SYS_fstat, fd, &info) < 0 || !S_ISREG(info.st_mode)) return -1;
    return (int)CALL3(SYS_fcntl, fd, flags & O_CLOEXEC ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
}

/* Shared memory is not redirected, but what others had there stays. */
static int is_foreign(const struct place *place) {
    struct stat info;
    if (strncmp(place->path, "/dev/shm/", 9) != 0 || k_lstat(place->path, &info) < 0) return 0;
    return info.st_ctim.tv_sec * 1000000000L + info.st_ctim.tv_nsec < guard_start_ns;
}

int guard_may_change_outside(const struct place *place) { return is_foreign(place) ? -EACCES : 0; }

static int open_outside(const struct place *place, int flags, mode_t mode) {
    if (writes(flags)) {
        int own = open_own(place->path, flags);
        if (own >= 0) return own;
        if (is_foreign(place)) return -EACCES;
    }
    return k_open(place->path, flags, mode);
}

static int open_changing(struct place *place, int flags, mode_t mode) {
    struct stat info;
    int result = 0, exists = place->kind != MISSING;
    if ((flags & O_CREAT) && place->has_slash) return -EISDIR;
    if (!exists && !(flags & O_CREAT)) return -ENOENT;
    if (exists && (flags & O_CREAT) && (flags & O_EXCL)) return -EEXIST;
    if (!exists) {
        result = guard_complete_parent(place);
    } else if (place->kind == IN_LOWER) {
        result = k_lstat(place->path, &info);
        if (result < 0) return result;
        int changes = (flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC);
        if (!changes || !S_ISREG(info.st_mode)) return k_open(place->path, flags & ~O_CREAT, mode);
        result = (int)CALL3(SYS_faccessat, AT_FDCWD, place->path, W_OK);
        if (result == 0) result = guard_copy_up(place, !(flags & O_TRUNC), 0);
    }
    return result < 0 ? result : k_open(place->upper, flags, mode);
}

static int ends_in_slash(const char *path) {
    size_t length = path ? strlen(path) : 0;
    return length > 1 && path[length - 1] == '/';
}

int guard_open(int directory, const char *path, int flags, mode_t mode) {
    struct place place;
    guard_note_path(path);
    if (!guard_redirects) {
        if (path && !strncmp(path, "/dev/", 5) && k_is_gpu_device(path + 5)) return -ENOENT;
        return (int)CALL4(SYS_openat, directory, path, flags, mode);
    }
    if ((flags & O_TMPFILE) == O_TMPFILE) return k_open(guard_work, flags, mode);
    int is_new = (flags & O_CREAT) && (flags & O_EXCL);
    enum follow follow = flags & O_NOFOLLOW ? AS_IT_IS : FOLLOW;
    if (is_new || ((flags & O_CREAT) && ends_in_slash(path))) follow = NAME_ONLY;
    int result = guard_find(directory, path, follow, &place);
    if (result < 0) return result;
    if (place.kind == OUTSIDE) return open_outside(&place, flags, mode);
    if (!writes(flags)) {
        if (place.kind == MISSING) return -ENOENT;
        return k_open(guard_actual(&place), flags, mode);
    }
    if (place.kind == IN_UPPER && !is_new && !place.has_slash)
        return k_open(place.upper, flags, mode);
    int lock = guard_lock();
    if (lock < 0) return lock;
    result = guard_find(directory, path, follow, &place);
    if (result == 0) result = open_changing(&place, flags, mode);
    guard_unlock(lock);
    return result;
}

#define MODE_ARGUMENT(flags, mode)                       \
    mode_t mode = 0;                                     \
    if ((flags) & (O_CREAT | (O_TMPFILE & ~O_DIRECTORY))) { \
        va_list list;                                    \
        va_start(list, flags);                           \
        mode = va_arg(list, mode_t);                     \
        va_end(list);                                    \
    }

EXPORT int open(const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, mode)
    return (int)guard_result(guard_open(AT_FDCWD, path, flags, mode));
}
EXPORT int open64(const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, mode)
    return (int)guard_result(guard_open(AT_FDCWD, path, flags, mode));
}
EXPORT int openat(int directory, const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, mode)
    return (int)guard_result(guard_open(directory, path, flags, mode));
}
EXPORT int openat64(int directory, const char *path, int flags, ...) {
    MODE_ARGUMENT(flags, mode)
    return (int)guard_result(guard_open(directory, path, flags, mode));
}
EXPORT int __open_2(const char *path, int flags) {
    return (int)guard_result(guard_open(AT_FDCWD, path, flags, 0));
}
EXPORT int __open64_2(const char *path, int flags) { return __open_2(path, flags); }
EXPORT int __openat_2(int directory, const char *path, int flags) {
    return (int)guard_result(guard_open(directory, path, flags, 0));
}
EXPORT int __openat64_2(int directory, const char *path, int flags) {
    return __openat_2(directory, path, flags);
}
EXPORT int creat(const char *path, mode_t mode) {
    return (int)guard_result(guard_open(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode));
}
EXPORT int creat64(const char *path, mode_t mode) { return creat(path, mode); }

EXPORT int openat2(int directory, const char *path, const struct open_how *how, size_t size) {
    (void)size;
    return (int)guard_result(guard_open(directory, path, (int)how->flags, (mode_t)how->mode));
}

/* --- stdio --------------------------------------------------------------------------------- */

static int flags_of(const char *mode) {
    int flags = mode[0] == 'r' ? O_RDONLY : O_WRONLY | O_CREAT;
    if (mode[0] == 'w') flags |= O_TRUNC;
    if (mode[0] == 'a') flags |= O_APPEND;
    for (const char *letter = mode + 1; *letter && *letter != ','; letter++) {
        if (*letter == '+') flags = (flags & ~O_ACCMODE) | O_RDWR;
        if (*letter == 'x') flags |= O_EXCL;
        if (*letter == 'e') flags |= O_CLOEXEC;
    }
    return flags;
}

EXPORT FILE *fopen(const char *path, const char *mode) {
    if (!strchr("rwa", mode[0]) || !mode[0]) {
        errno = EINVAL;
        return 0;
    }
    int fd = (int)guard_result(guard_open(AT_FDCWD, path, flags_of(mode), 0666));
    if (fd < 0) return 0;
    FILE *file = fdopen(fd, mode);
    if (!file) k_close(fd);
    return file;
}
EXPORT FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }

EXPORT FILE *freopen(const char *path, const char *mode, FILE *stream) {
    FILE *(*libc)(const char *, const char *, FILE *) = guard_libc("freopen");
    char name[PATH_MAX];
    if (!path || !guard_redirects) return libc(path, mode, stream);
    int fd = (int)guard_result(guard_open(AT_FDCWD, path, flags_of(mode), 0666));
    if (fd < 0) {
        fclose(stream);
        return 0;
    }
    /* the file is there now: libc opens it by its actual name */
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long size = k_readlink(link, name, PATH_MAX - 1);
    name[size > 0 ? size : 0] = 0;
    FILE *file = libc(size > 0 ? name : path, mode, stream);
    k_close(fd);
    return file;
}
EXPORT FILE *freopen64(const char *path, const char *mode, FILE *stream) {
    return freopen(path, mode, stream);
}

/* --- temporary files ------------------------------------------------------------------------- */

static int fill_template(char *template, int suffix) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    size_t length = strlen(template);
    if (suffix < 0 || length < 6 + (size_t)suffix) return -EINVAL;
    char *at = template + length - suffix - 6;
    unsigned char random[6];
    for (int i = 0; i < 6; i++)
        if (at[i] != 'X') return -EINVAL;
    if (CALL3(SYS_getrandom, random, 6, 0) != 6) return -EIO;
    for (int i = 0; i < 6; i++) at[i] = letters[random[i] % 62];
    return 0;
}

EXPORT int mkostemps(char *template, int suffix, int flags) {
    char kept[PATH_MAX];
    if (strlen(template) >= PATH_MAX) return (int)guard_result(-ENAMETOOLONG);
    strcpy(kept, template);
    for (int i = 0; i < 100; i++) {
        strcpy(template, kept);
        long result = fill_template(template, suffix);
        if (result == 0)
            result = guard_open(AT_FDCWD, template, (flags & ~O_ACCMODE) | O_RDWR | O_CREAT | O_EXCL,
                                0600);
        if (result != -EEXIST) return (int)guard_result(result);
    }
    return (int)guard_result(-EEXIST);
}
EXPORT int mkostemps64(char *t, int suffix, int flags) { return mkostemps(t, suffix, flags); }
EXPORT int mkstemps(char *t, int suffix) { return mkostemps(t, suffix, 0); }
EXPORT int mkstemps64(char *t, int suffix) { return mkostemps(t, suffix, 0); }
EXPORT int mkostemp(char *t, int flags) { return mkostemps(t, 0, flags); }
EXPORT int mkostemp64(char *t, int flags) { return mkostemps(t, 0, flags); }
EXPORT int mkstemp(char *t) { return mkostemps(t, 0, 0); }
EXPORT int mkstemp64(char *t) { return mkostemps(t, 0, 0); }

EXPORT char *mkdtemp(char *template) {
    char kept[PATH_MAX];
    if (strlen(template) >= PATH_MAX) return guard_result(-ENAMETOOLONG), (char *)0;
    strcpy(kept, template);
    for (int i = 0; i < 100; i++) {
        strcpy(template, kept);
        long result = fill_template(template, 0);
        if (result < 0) return guard_result(result), (char *)0;
        if (mkdir(template, 0700) == 0) return template;
        if (errno != EEXIST) return 0;
    }
    return 0;
}

EXPORT FILE *tmpfile(void) {
    char template[] = "/tmp/tmpfXXXXXX";
    int fd = mkostemps(template, 0, O_CLOEXEC);
    if (fd < 0) return 0;
    unlink(template);
    return fdopen(fd, "w+");
}
EXPORT FILE *tmpfile64(void) { return tmpfile(); }

/* --- directories ----------------------------------------------------------------------------- */

EXPORT DIR *opendir(const char *path) {
    DIR *(*libc)(int) = guard_libc("fdopendir");
    int flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NONBLOCK;
    int fd = (int)guard_result(guard_open(AT_FDCWD, path, flags, 0));
    if (fd < 0) return 0;
    DIR *directory = libc(fd);
    if (!directory) k_close(fd);
    return directory;
}

/* A descriptor may be older than the changes in its directory: it is replaced by the copy's. */
EXPORT DIR *fdopendir(int fd) {
    DIR *(*libc)(int) = guard_libc("fdopendir");
    struct place place;
    char path[PATH_MAX];
    if (guard_redirects && guard_path_of(fd, path) == 0 && path[0] == '/' &&
        guard_find(AT_FDCWD, path, 0, &place) == 0 && place.kind == IN_UPPER) {
        long flags = CALL2(SYS_fcntl, fd, F_GETFD);
        int copy = k_open(place.upper, O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
        if (copy >= 0) {
            CALL3(SYS_dup3, copy, fd, flags & FD_CLOEXEC ? O_CLOEXEC : 0);
            k_close(copy);
        }
    }
    return libc(fd);
}
