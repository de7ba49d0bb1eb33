/* Calls that only look at files: they see what the job sees. */
#include "guard.h"

#include <dirent.h>
#include <glob.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>

#define LOOK(directory, path, follow)                                          \
    struct place place;                                                        \
    int error = guard_look(&(directory), &(path), follow, &place);             \
    if (error < 0) return (int)guard_result(error)

static int is_own(const char *path, int flags) {
    return (flags & AT_EMPTY_PATH) && (!path || !*path);
}

EXPORT int fstatat(int directory, const char *path, struct stat *out, int flags) {
    if (!is_own(path, flags)) {
        LOOK(directory, path, !(flags & AT_SYMLINK_NOFOLLOW));
        return (int)guard_result(CALL4(SYS_newfstatat, directory, path, out, flags));
    }
    return (int)guard_result(CALL4(SYS_newfstatat, directory, path, out, flags));
}
EXPORT int stat(const char *path, struct stat *out) { return fstatat(AT_FDCWD, path, out, 0); }
EXPORT int lstat(const char *path, struct stat *out) {
    return fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}
/* on x86-64 the 64-bit names have the same structures */
EXPORT int fstatat64(int directory, const char *path, struct stat64 *out, int flags) {
    return fstatat(directory, path, (struct stat *)out, flags);
}
EXPORT int stat64(const char *path, struct stat64 *out) {
    return fstatat(AT_FDCWD, path, (struct stat *)out, 0);
}
EXPORT int lstat64(const char *path, struct stat64 *out) {
    return fstatat(AT_FDCWD, path, (struct stat *)out, AT_SYMLINK_NOFOLLOW);
}
EXPORT int __xstat(int version, const char *path, struct stat *out) {
    return (void)version, stat(path, out);
}
EXPORT int __lxstat(int version, const char *path, struct stat *out) {
    return (void)version, lstat(path, out);
}
EXPORT int __fxstatat(int version, int directory, const char *path, struct stat *out, int flags) {
    return (void)version, fstatat(directory, path, out, flags);
}
EXPORT int __xstat64(int version, const char *path, struct stat64 *out) {
    return (void)version, stat(path, (struct stat *)out);
}
EXPORT int __lxstat64(int version, const char *path, struct stat64 *out) {
    return (void)version, lstat(path, (struct stat *)out);
}
EXPORT int __fxstatat64(int version, int directory, const char *path, struct stat64 *out,
                        int flags) {
    return (void)version, fstatat(directory, path, (struct stat *)out, flags);
}

EXPORT int statx(int directory, const char *path, int flags, unsigned mask, struct statx *out) {
    if (!is_own(path, flags)) {
        LOOK(directory, path, !(flags & AT_SYMLINK_NOFOLLOW));
        return (int)guard_result(CALL5(SYS_statx, directory, path, flags, mask, out));
    }
    return (int)guard_result(CALL5(SYS_statx, directory, path, flags, mask, out));
}

EXPORT int faccessat(int directory, const char *path, int mode, int flags) {
    LOOK(directory, path, !(flags & AT_SYMLINK_NOFOLLOW));
    if (flags == 0) return (int)guard_result(CALL3(SYS_faccessat, directory, path, mode));
    long result = CALL4(SYS_faccessat2, directory, path, mode, flags);
    if (result == -ENOSYS) result = CALL3(SYS_faccessat, directory, path, mode);
    return (int)guard_result(result);
}
EXPORT int access(const char *path, int mode) { return faccessat(AT_FDCWD, path, mode, 0); }
EXPORT int euidaccess(const char *path, int mode) {
    return faccessat(AT_FDCWD, path, mode, AT_EACCESS);
}
EXPORT int eaccess(const char *path, int mode) { return euidaccess(path, mode); }

EXPORT ssize_t readlinkat(int directory, const char *path, char *out, size_t size) {
    char target[PATH_MAX + 1];
    if (path && *path) {
        LOOK(directory, path, 0);
        long length = CALL4(SYS_readlinkat, directory, path, target, PATH_MAX);
        if (length < 0) return guard_result(length);
        target[length] = 0;
        if (guard_redirects && place.kind == OUTSIDE) guard_as_seen(target);
        length = (long)strlen(target);
        if ((size_t)length > size) length = (long)size;
        memcpy(out, target, (size_t)length);
        return length;
    }
    return guard_result(CALL4(SYS_readlinkat, directory, path, out, size));
}
EXPORT ssize_t readlink(const char *path, char *out, size_t size) {
    return readlinkat(AT_FDCWD, path, out, size);
}
EXPORT ssize_t __readlink_chk(const char *path, char *out, size_t size, size_t room) {
    if (size > room) abort();
    return readlinkat(AT_FDCWD, path, out, size);
}
EXPORT ssize_t __readlinkat_chk(int directory, const char *path, char *out, size_t size,
                                size_t room) {
    if (size > room) abort();
    return readlinkat(directory, path, out, size);
}

EXPORT char *realpath(const char *path, char *out) {
    char *(*libc)(const char *, char *) = guard_libc("realpath");
    struct place place;
    if (!guard_redirects || !path) return libc(path, out);
    int error = guard_find(AT_FDCWD, path, 1, &place);
    if (error == 0 && place.kind == MISSING) error = -ENOENT;
    if (error < 0) return guard_result(error), (char *)0;
    if (place.kind == OUTSIDE) {
        out = libc(place.path, out);
        if (out) guard_as_seen(out);
        return out;
    }
    return out ? strcpy(out, place.path) : strdup(place.path);
}
EXPORT char *__realpath_chk(const char *path, char *out, size_t room) {
    (void)room;
    return realpath(path, out);
}
EXPORT char *canonicalize_file_name(const char *path) { return realpath(path, 0); }

/* --- lists of names ----------------------------------------------------------------------------- */

static int add_entry(struct dirent ***list, int *count, int *room, const struct dirent *entry) {
    if (*count == *room) {
        *room = *room ? 2 * *room : 16;
        struct dirent **larger = realloc(*list, sizeof **list * (size_t)*room);
        if (!larger) return -1;
        *list = larger;
    }
    struct dirent *copy = malloc(entry->d_reclen);
    if (!copy) return -1;
    (*list)[(*count)++] = memcpy(copy, entry, entry->d_reclen);
    return 0;
}

static int list_directory(DIR *directory, struct dirent ***names,
                          int (*filter)(const struct dirent *),
                          int (*compare)(const struct dirent **, const struct dirent **)) {
    if (!directory) return -1;
    int count = 0, room = 0;
    *names = 0;
    for (struct dirent *entry; (entry = readdir(directory));)
        if (!filter || filter(entry))
            if (add_entry(names, &count, &room, entry) < 0) break;
    closedir(directory);
    if (compare && count)
        qsort(*names, (size_t)count, sizeof **names, (int (*)(const void *, const void *))compare);
    return count;
}
EXPORT int scandir(const char *path, struct dirent ***names, int (*filter)(const struct dirent *),
                   int (*compare)(const struct dirent **, const struct dirent **)) {
    return list_directory(opendir(path), names, filter, compare);
}
EXPORT int scandirat(int directory, const char *path, struct dirent ***names,
                     int (*filter)(const struct dirent *),
                     int (*compare)(const struct dirent **, const struct dirent **)) {
    int fd = openat(directory, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? -1 : list_directory(fdopendir(fd), names, filter, compare);
}
EXPORT int scandir64(const char *path, struct dirent64 ***names,
                     int (*filter)(const struct dirent64 *),
                     int (*compare)(const struct dirent64 **, const struct dirent64 **)) {
    return scandir(path, (struct dirent ***)names, (int (*)(const struct dirent *))filter,
                   (int (*)(const struct dirent **, const struct dirent **))compare);
}

EXPORT int glob(const char *pattern, int flags, int (*failed)(const char *, int), glob_t *out) {
    int (*libc)(const char *, int, int (*)(const char *, int), glob_t *) = guard_libc("glob");
    if (guard_redirects && !(flags & GLOB_ALTDIRFUNC)) {
        flags |= GLOB_ALTDIRFUNC;
        out->gl_opendir = (void *(*)(const char *))opendir;
        out->gl_readdir = (struct dirent * (*)(void *)) readdir;
        out->gl_closedir = (void (*)(void *))closedir;
        out->gl_stat = stat;
        out->gl_lstat = lstat;
    }
    return libc(pattern, flags, failed, out);
}
EXPORT int glob64(const char *pattern, int flags, int (*failed)(const char *, int),
                  glob64_t *out) {
    return glob(pattern, flags, failed, (glob_t *)out);
}

/* --- attributes, file systems, watches -------------------------------------------------------------- */

EXPORT ssize_t getxattr(const char *path, const char *name, void *value, size_t size) {
    int directory = AT_FDCWD;
    LOOK(directory, path, 1);
    return guard_result(CALL4(SYS_getxattr, path, name, value, size));
}
EXPORT ssize_t lgetxattr(const char *path, const char *name, void *value, size_t size) {
    int directory = AT_FDCWD;
    LOOK(directory, path, 0);
    return guard_result(CALL4(SYS_lgetxattr, path, name, value, size));
}
EXPORT ssize_t listxattr(const char *path, char *list, size_t size) {
    int directory = AT_FDCWD;
    LOOK(directory, path, 1);
    return guard_result(CALL3(SYS_listxattr, path, list, size));
}
EXPORT ssize_t llistxattr(const char *path, char *list, size_t size) {
    int directory = AT_FDCWD;
    LOOK(directory, path, 0);
    return guard_result(CALL3(SYS_llistxattr, path, list, size));
}
EXPORT int statfs(const char *path, struct statfs *out) {
    int directory = AT_FDCWD;
    LOOK(directory, path, 1);
    return (int)guard_result(CALL2(SYS_statfs, path, out));
}
EXPORT int statfs64(const char *path, struct statfs64 *out) {
    return statfs(path, (struct statfs *)out);
}
EXPORT int statvfs(const char *path, struct statvfs *out) {
    int (*libc)(const char *, struct statvfs *) = guard_libc("statvfs");
    int directory = AT_FDCWD;
    LOOK(directory, path, 1);
    return libc(path, out);
}
EXPORT int statvfs64(const char *path, struct statvfs64 *out) {
    return statvfs(path, (struct statvfs *)out);
}
EXPORT int inotify_add_watch(int fd, const char *path, uint32_t mask) {
    int directory = AT_FDCWD;
    LOOK(directory, path, !(mask & IN_DONT_FOLLOW));
    return (int)guard_result(CALL3(SYS_inotify_add_watch, fd, path, mask));
}
