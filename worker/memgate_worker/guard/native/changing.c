/* Names: made, removed, renamed, linked. */
#include "guard.h"

#include <stdio.h>

/* Finds a place under the lock; the caller unlocks if the result is not negative. */
static int begin(int directory, const char *path, enum follow follow, struct place *place) {
    int lock = guard_lock();
    if (lock < 0) return lock;
    int result = guard_find(directory, path, follow, place);
    if (result == 0 && place->kind == OUTSIDE) result = guard_may_change_outside(place);
    if (result == 0) return lock;
    guard_unlock(lock);
    return result;
}

static int count_name(const char *name, unsigned char type, void *context) {
    (void)name, (void)type, (void)context;
    return -ENOTEMPTY;
}

static int remove_place(struct place *place, int flags) {
    struct stat info;
    if (place->num_dots && !(flags & AT_REMOVEDIR)) return -EISDIR;
    if (place->num_dots) return place->num_dots == 1 ? -EINVAL : -ENOTEMPTY;
    if (place->kind == MISSING) return -ENOENT;
    int result = k_lstat(guard_actual(place), &info);
    if (result < 0) return result;
    int is_directory = S_ISDIR(info.st_mode);
    if (is_directory != !!(flags & AT_REMOVEDIR)) return is_directory ? -EISDIR : -ENOTDIR;
    if (place->has_slash && !is_directory) return -ENOTDIR;
    if (strcmp(place->path, "/") == 0) return -EBUSY;
    if (place->kind == IN_LOWER && is_directory) result = k_list(place->path, count_name, 0);
    if (result == 0) result = guard_complete_parent(place);
    return result < 0 ? result : k_unlink(place->upper, flags);
}

int guard_unlink(int directory, const char *path, int flags) {
    struct place place;
    if (!guard_redirects) return (int)CALL3(SYS_unlinkat, directory, path, flags);
    int lock = begin(directory, path, NAME_ONLY, &place);
    if (lock < 0) return lock;
    int result = place.kind == OUTSIDE ? k_unlink(place.path, flags) : remove_place(&place, flags);
    guard_unlock(lock);
    return result;
}

/* For what makes a new name: the kernel's path for it, or an error. */
static int begin_new(int directory, const char *path, int is_directory, struct place *place) {
    int lock = begin(directory, path, NAME_ONLY, place);
    if (lock < 0) return lock;
    int result = 0;
    if (place->kind == MISSING && place->has_slash && !is_directory) result = -ENOENT;
    if (place->kind == IN_LOWER || place->kind == IN_UPPER) result = -EEXIST;
    if (place->kind == MISSING && result == 0) result = guard_complete_parent(place);
    if (result == 0) return lock;
    guard_unlock(lock);
    return result;
}

int guard_mkdir(int directory, const char *path, mode_t mode) {
    struct place place;
    if (!guard_redirects) return (int)CALL3(SYS_mkdirat, directory, path, mode);
    int lock = begin_new(directory, path, 1, &place);
    if (lock < 0) return lock;
    int result = k_mkdir(guard_actual(&place), mode & ~(mode_t)UNCHANGED_BITS);
    guard_unlock(lock);
    return result;
}

static int guard_symlink(const char *target, int directory, const char *path) {
    struct place place;
    if (!guard_redirects) return (int)CALL3(SYS_symlinkat, target, directory, path);
    int lock = begin_new(directory, path, 0, &place);
    if (lock < 0) return lock;
    int result = k_symlink(target, guard_actual(&place));
    guard_unlock(lock);
    return result;
}

static int guard_mknod(int directory, const char *path, mode_t mode, dev_t device) {
    struct place place;
    if (!guard_redirects) return (int)CALL4(SYS_mknodat, directory, path, mode, device);
    int lock = begin_new(directory, path, 0, &place);
    if (lock < 0) return lock;
    int result = (int)CALL4(SYS_mknodat, AT_FDCWD, guard_actual(&place), mode, device);
    guard_unlock(lock);
    return result;
}

/* --- two paths ------------------------------------------------------------------------------- */

/* What the kernel finds wrong with two names, in its order. */
static int check_rename(const struct place *from, const struct place *to, unsigned flags) {
    struct stat info;
    if (from->num_dots || to->num_dots) return -EBUSY;
    if (from->kind == MISSING) return -ENOENT;
    if (to->kind != MISSING && (flags & RENAME_NOREPLACE)) return -EEXIST;
    int result = k_lstat(guard_actual(from), &info);
    if (result < 0) return result;
    if (!S_ISDIR(info.st_mode) && (from->has_slash || to->has_slash)) return -ENOTDIR;
    if (strcmp(to->path, from->path) == 0) return 0;
    if (k_is_beneath(to->path, from->path)) return -EINVAL;
    if (k_is_beneath(from->path, to->path)) return -ENOTEMPTY;
    int is_directory = S_ISDIR(info.st_mode);
    if (to->kind == MISSING || (flags & RENAME_EXCHANGE)) return 0;
    result = k_lstat(guard_actual(to), &info);
    if (result < 0 || is_directory == S_ISDIR(info.st_mode)) return result;
    return is_directory ? -ENOTDIR : -EISDIR;
}

static int rename_places(struct place *from, struct place *to, unsigned flags) {
    if (from->kind == OUTSIDE && to->kind == OUTSIDE)
        return k_rename(from->path, to->path, (int)flags);
    if (from->kind == OUTSIDE || to->kind == OUTSIDE) return -EXDEV;
    int result = check_rename(from, to, flags);
    if (result == 0) result = guard_complete_parent(from);
    if (result == 0) result = guard_complete_parent(to);
    if (result == 0) result = guard_copy_up(from, 1, 1);
    struct stat info;
    int to_is_directory = to->kind == IN_LOWER && k_lstat(to->path, &info) == 0 &&
                          S_ISDIR(info.st_mode);
    int exchanges = !!(flags & RENAME_EXCHANGE);
    if (result == 0 && (to_is_directory || exchanges)) result = guard_copy_up(to, 1, exchanges);
    return result < 0 ? result : k_rename(from->upper, to->upper, (int)flags);
}

int guard_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    struct place source, target;
    if (!guard_redirects) {
        int result = (int)CALL5(SYS_renameat2, from_dir, from, to_dir, to, flags);
        if (result == -EXDEV && flags == 0) return guard_move(from_dir, from, to_dir, to);
        return result;
    }
    int lock = begin(from_dir, from, NAME_ONLY, &source);
    if (lock < 0) return lock;
    int result = guard_find(to_dir, to, NAME_ONLY, &target);
    if (result == 0 && target.kind == OUTSIDE) result = guard_may_change_outside(&target);
    if (result == 0) result = rename_places(&source, &target, flags);
    guard_unlock(lock);
    return result;
}

static int link_places(struct place *from, struct place *to) {
    if (from->kind == MISSING) return -ENOENT;
    if (to->kind == IN_LOWER || to->kind == IN_UPPER) return -EEXIST;
    if (to->has_slash) return -ENOENT;
    int result = to->kind == MISSING ? guard_complete_parent(to) : guard_may_change_outside(to);
    struct stat info;
    if (result == 0) result = k_lstat(guard_actual(from), &info);
    if (result == 0 && S_ISDIR(info.st_mode)) result = -EPERM;
    if (result == 0) result = guard_copy_up(from, 1, 0);
    /* a file without a name is linked by its descriptor's path */
    int flags = strncmp(from->path, "/proc/", 6) == 0 ? AT_SYMLINK_FOLLOW : 0;
    if (result < 0) return result;
    return (int)CALL5(SYS_linkat, AT_FDCWD, guard_actual(from), AT_FDCWD, guard_actual(to), flags);
}

static int guard_link(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    struct place source, target;
    if (!guard_redirects) return (int)CALL5(SYS_linkat, from_dir, from, to_dir, to, flags);
    char own[32];
    if (from && *from == 0 && (flags & AT_EMPTY_PATH)) {
        snprintf(own, sizeof own, "/proc/self/fd/%d", from_dir);
        from = own;
    }
    enum follow follow = flags & AT_SYMLINK_FOLLOW ? FOLLOW : AS_IT_IS;
    int lock = begin(from_dir, from, follow, &source);
    if (lock < 0) return lock;
    int result = source.kind == MISSING ? -ENOENT : guard_find(to_dir, to, NAME_ONLY, &target);
    if (result == 0) result = link_places(&source, &target);
    guard_unlock(lock);
    return result;
}

/* --- the functions of libc --------------------------------------------------------------------- */

EXPORT int unlink(const char *path) { return (int)guard_result(guard_unlink(AT_FDCWD, path, 0)); }
EXPORT int unlinkat(int directory, const char *path, int flags) {
    return (int)guard_result(guard_unlink(directory, path, flags));
}
EXPORT int rmdir(const char *path) {
    return (int)guard_result(guard_unlink(AT_FDCWD, path, AT_REMOVEDIR));
}
EXPORT int remove(const char *path) {
    int result = guard_unlink(AT_FDCWD, path, 0);
    if (result == -EISDIR) result = guard_unlink(AT_FDCWD, path, AT_REMOVEDIR);
    return (int)guard_result(result);
}
EXPORT int mkdir(const char *path, mode_t mode) {
    return (int)guard_result(guard_mkdir(AT_FDCWD, path, mode));
}
EXPORT int mkdirat(int directory, const char *path, mode_t mode) {
    return (int)guard_result(guard_mkdir(directory, path, mode));
}
EXPORT int symlink(const char *target, const char *path) {
    return (int)guard_result(guard_symlink(target, AT_FDCWD, path));
}
EXPORT int symlinkat(const char *target, int directory, const char *path) {
    return (int)guard_result(guard_symlink(target, directory, path));
}
EXPORT int mknod(const char *path, mode_t mode, dev_t device) {
    return (int)guard_result(guard_mknod(AT_FDCWD, path, mode, device));
}
EXPORT int mknodat(int directory, const char *path, mode_t mode, dev_t device) {
    return (int)guard_result(guard_mknod(directory, path, mode, device));
}
EXPORT int __xmknod(int version, const char *path, mode_t mode, dev_t *device) {
    (void)version;
    return mknod(path, mode, *device);
}
EXPORT int __xmknodat(int version, int directory, const char *path, mode_t mode, dev_t *device) {
    (void)version;
    return mknodat(directory, path, mode, *device);
}
EXPORT int mkfifo(const char *path, mode_t mode) { return mknod(path, S_IFIFO | mode, 0); }
EXPORT int mkfifoat(int directory, const char *path, mode_t mode) {
    return mknodat(directory, path, S_IFIFO | mode, 0);
}
EXPORT int link(const char *from, const char *to) {
    return (int)guard_result(guard_link(AT_FDCWD, from, AT_FDCWD, to, 0));
}
EXPORT int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    return (int)guard_result(guard_link(from_dir, from, to_dir, to, flags));
}
EXPORT int rename(const char *from, const char *to) {
    return (int)guard_result(guard_rename(AT_FDCWD, from, AT_FDCWD, to, 0));
}
EXPORT int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return (int)guard_result(guard_rename(from_dir, from, to_dir, to, 0));
}
EXPORT int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return (int)guard_result(guard_rename(from_dir, from, to_dir, to, flags));
}
