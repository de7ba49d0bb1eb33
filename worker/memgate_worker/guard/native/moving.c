/* rename() of a directory under an overlay: the kernel refuses it (EXDEV) for directories that the
 * job did not make, so the directory is copied, then the original removed. Programs rarely expect
 * the refusal between two names in one directory.
 */
#include "guard.h"

#include <stdio.h>

struct pair {
    const char *from, *to;
};

static int copy_any(const char *from, const char *to);

static int copy_name(const char *name, unsigned char type, void *context) {
    (void)type;
    struct pair *pair = context;
    char from[PATH_MAX], to[PATH_MAX];
    int result = k_join(from, pair->from, name);
    if (result == 0) result = k_join(to, pair->to, name);
    return result < 0 ? result : copy_any(from, to);
}

static int copy_link(const char *from, const char *to, const struct timespec times[2]) {
    char target[PATH_MAX];
    long size = k_readlink(from, target, PATH_MAX - 1);
    if (size < 0) return (int)size;
    target[size] = 0;
    int result = k_symlink(target, to);
    if (result == 0) k_utimes(to, times, AT_SYMLINK_NOFOLLOW);
    return result;
}

static int copy_any(const char *from, const char *to) {
    struct stat info;
    int result = k_lstat(from, &info);
    if (result < 0) return result;
    struct timespec times[2] = {info.st_atim, info.st_mtim};
    if (S_ISREG(info.st_mode)) return k_copy_file(from, to, &info, 1);
    if (S_ISLNK(info.st_mode)) return copy_link(from, to, times);
    if (!S_ISDIR(info.st_mode))
        return (int)CALL4(SYS_mknodat, AT_FDCWD, to, info.st_mode, info.st_rdev);
    struct pair pair = {from, to};
    if ((info.st_mode & 0700) != 0700) k_chmod(from, 0700); /* it is about to be removed */
    result = k_mkdir(to, 0700);
    if (result == 0) result = k_list(from, copy_name, &pair);
    CALL3(SYS_chown, to, info.st_uid, info.st_gid); /* allowed to root only */
    k_chmod(to, info.st_mode & 07777);
    k_utimes(to, times, 0);
    return result;
}

static int remove_any(const char *path);

static int remove_name(const char *name, unsigned char type, void *context) {
    (void)type;
    char path[PATH_MAX];
    int result = k_join(path, context, name);
    return result < 0 ? result : remove_any(path);
}

static int remove_any(const char *path) {
    int result = k_unlink(path, 0);
    if (result != -EISDIR) return result;
    result = k_list(path, remove_name, (void *)path);
    return result < 0 ? result : k_unlink(path, AT_REMOVEDIR);
}

static int absolute(int directory, const char *path, char *out) {
    if (path[0] == '/' || directory == AT_FDCWD)
        return strlen(path) < PATH_MAX ? (strcpy(out, path), 0) : -ENAMETOOLONG;
    int result = guard_path_of(directory, out);
    return result < 0 ? result : k_join(out, out, path);
}

int guard_move(int from_dir, const char *from, int to_dir, const char *to) {
    char source[PATH_MAX], target[PATH_MAX], beside[PATH_MAX];
    struct stat info;
    if (strcmp(guard_setting("MEMGATE_GUARD_WAY"), "overlay") != 0) return -EXDEV;
    int result = absolute(from_dir, from, source);
    if (result == 0) result = absolute(to_dir, to, target);
    for (size_t end = strlen(target); end > 1 && target[end - 1] == '/';) target[--end] = 0;
    if (result == 0 && strlen(target) + 40 > PATH_MAX) result = -ENAMETOOLONG;
    if (result == 0) result = k_lstat(source, &info);
    if (result < 0 || !S_ISDIR(info.st_mode)) return result < 0 ? result : -EXDEV;
    /* what rename says before it asks the file system; an empty target may be replaced */
    result = k_unlink(target, AT_REMOVEDIR);
    if (result < 0 && result != -ENOENT) return result;
    snprintf(beside, sizeof beside, "%s.memgate-%ld", target, CALL0(SYS_gettid));
    result = copy_any(source, beside);
    if (result == 0) result = k_rename(beside, target, 0);
    if (result == 0) return remove_any(source);
    remove_any(beside);
    return result;
}
