/* Private copies: made when a job first changes something, under one lock for the whole job, and
 * put in place by a rename, so that a process which looks meanwhile sees all of it or nothing.
 */
#include "guard.h"

#include <sys/file.h>

static int work_name(char *out) {
    static unsigned counter;
    char name[40] = "";
    unsigned long pid = (unsigned long)CALL0(SYS_gettid);
    unsigned long number = pid * 1000003UL + __atomic_add_fetch(&counter, 1, __ATOMIC_RELAXED);
    char *end = name;
    for (unsigned long rest = number; rest; rest /= 26) *end++ = (char)('a' + rest % 26);
    *end = 0;
    int result = k_join(out, guard_work, name);
    struct stat info;
    if (result == 0 && k_lstat(out, &info) == 0) return work_name(out);
    return result;
}

int guard_lock(void) {
    char path[PATH_MAX];
    int result = k_join(path, guard_work, "lock");
    int fd = result < 0 ? result : k_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return fd;
    while (CALL2(SYS_flock, fd, LOCK_EX) == -EINTR) {}
    return fd;
}

void guard_unlock(int lock) {
    /* a process that another thread forked meanwhile has the descriptor too, and would keep it */
    CALL2(SYS_flock, lock, LOCK_UN);
    k_close(lock);
}

static int make_link(const char *from, const char *to, const struct stat *info) {
    char target[PATH_MAX];
    long size = k_readlink(from, target, PATH_MAX - 1);
    if (size < 0) return (int)size;
    target[size] = 0;
    int result = k_symlink(target, to);
    if (result < 0) return result == -EEXIST ? 0 : result;
    struct timespec times[2] = {info->st_atim, info->st_mtim};
    CALL5(SYS_fchownat, AT_FDCWD, to, info->st_uid, info->st_gid, AT_SYMLINK_NOFOLLOW);
    k_utimes(to, times, AT_SYMLINK_NOFOLLOW);
    return 0;
}

static int make_unchanged_directory(const char *to) {
    char work[PATH_MAX];
    int result = work_name(work);
    if (result == 0) result = k_mkdir(work, 0700);
    if (result == 0) result = k_chmod(work, UNCHANGED_BITS | 0700);
    if (result == 0) result = k_rename(work, to, 0);
    if (result < 0) k_unlink(work, AT_REMOVEDIR);
    return result;
}

struct completion {
    const char *from, *to;
};

static int add_name(const char *name, unsigned char type, void *context) {
    struct completion *completion = context;
    char from[PATH_MAX], to[PATH_MAX];
    struct stat info;
    int result = k_join(from, completion->from, name);
    if (result == 0) result = k_join(to, completion->to, name);
    if (result < 0) return result;
    if (k_lstat(to, &info) == 0) return 0;
    if (type == 0 /* not told by this file system */ || type == 10 /* link */) {
        if (k_lstat(from, &info) < 0) return 0;
        if (S_ISLNK(info.st_mode)) return make_link(from, to, &info);
        type = S_ISDIR(info.st_mode) ? 4 : 8;
    }
    if (type == 4) return make_unchanged_directory(to);
    int fd = k_open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0);
    if (fd < 0) return fd;
    result = (int)CALL2(SYS_fchmod, fd, UNCHANGED_BITS);
    k_close(fd);
    return result;
}

/* Makes the directories that lead to the copy of a directory, itself included. */
static int make_lead(const char *path, char *upper) {
    struct stat info;
    int result = k_join(upper, guard_upper, path + 1);
    if (result < 0) return result;
    for (char *slash = upper + strlen(guard_upper); *slash;) {
        slash += 1 + strcspn(slash + 1, "/");
        char kept = *slash;
        *slash = 0;
        if (k_lstat(upper, &info) == -ENOENT) result = make_unchanged_directory(upper);
        *slash = kept;
        if (result < 0) return result;
    }
    return 0;
}

int guard_complete(const char *path) {
    char upper[PATH_MAX];
    struct stat info, original;
    int result = make_lead(path, upper);
    if (result == 0) result = k_lstat(upper, &info);
    if (result < 0 || !IS_UNCHANGED(info.st_mode)) return result;
    result = k_lstat(path, &original);
    if (result < 0) return result;
    struct completion completion = {path, upper};
    result = k_list(path, add_name, &completion);
    if (result < 0) return result;
    struct timespec times[2] = {original.st_atim, original.st_mtim};
    CALL5(SYS_fchownat, AT_FDCWD, upper, original.st_uid, original.st_gid, 0);
    k_utimes(upper, times, 0);
    return k_chmod(upper, original.st_mode & 07777); /* from now on it is complete */
}

int guard_complete_parent(const struct place *place) {
    char parent[PATH_MAX], upper[PATH_MAX];
    strcpy(parent, place->path);
    char *slash = strrchr(parent, '/');
    slash[slash == parent] = 0;
    struct stat info;
    int result = k_join(upper, guard_upper, parent + 1);
    if (result < 0) return result;
    if (k_lstat(upper, &info) < 0 || IS_UNCHANGED(info.st_mode)) {
        result = (int)CALL3(SYS_faccessat, AT_FDCWD, parent, W_OK | X_OK);
        if (result == 0) result = guard_complete(parent);
    }
    return result;
}

static int copy_tree(const char *path);

static int copy_file(struct place *place, const struct stat *info, int with_data) {
    char work[PATH_MAX];
    if (!S_ISREG(info->st_mode)) return -EOPNOTSUPP; /* a pipe or socket of someone else */
    int result = work_name(work);
    if (result == 0) result = k_copy_file(place->path, work, info, with_data);
    if (result == 0) result = k_rename(work, place->upper, 0);
    if (result < 0) k_unlink(work, 0);
    return result;
}

static int copy_below(const char *name, unsigned char type, void *context) {
    (void)type;
    struct place place;
    struct stat info;
    int result = k_join(place.path, context, name);
    if (result == 0) result = k_join(place.upper, guard_upper, place.path + 1);
    if (result == 0) result = k_lstat(place.upper, &info);
    if (result < 0) return result;
    if (S_ISDIR(info.st_mode)) return copy_tree(place.path);
    if (!S_ISREG(info.st_mode) || !IS_UNCHANGED(info.st_mode)) return 0;
    result = k_lstat(place.path, &info);
    return result < 0 ? result : copy_file(&place, &info, 1);
}

static int copy_tree(const char *path) {
    char upper[PATH_MAX];
    struct stat info;
    int result = guard_complete(path);
    if (result == 0) result = k_join(upper, guard_upper, path + 1);
    if (result == 0) result = k_lstat(upper, &info);
    if (result < 0) return result;
    int is_closed = (info.st_mode & 0700) != 0700;
    if (is_closed) k_chmod(upper, (info.st_mode & 07777) | 0700);
    result = k_list(upper, copy_below, (void *)path);
    if (is_closed) k_chmod(upper, info.st_mode & 07777);
    struct timespec times[2] = {info.st_atim, info.st_mtim};
    k_utimes(upper, times, 0); /* which the copying has changed */
    return result;
}

/* The directory of a changed file did not change for the job. */
static void keep_times(const struct place *place, const struct stat *info) {
    char parent[PATH_MAX];
    struct timespec times[2] = {info->st_atim, info->st_mtim};
    strcpy(parent, place->upper);
    *strrchr(parent, '/') = 0;
    k_utimes(parent, times, 0);
}

int guard_copy_up(struct place *place, int with_data, int whole) {
    char parent[PATH_MAX];
    struct stat info, above;
    int result = 0;
    if (place->kind == IN_LOWER) {
        strcpy(parent, place->path);
        char *slash = strrchr(parent, '/');
        slash[slash == parent] = 0;
        result = k_lstat(place->path, &info);
        if (result == 0 && strcmp(place->path, "/") != 0) result = guard_complete(parent);
        if (result < 0) return result;
        if (S_ISDIR(info.st_mode)) {
            place->is_directory = 1;
            result = guard_complete(place->path);
        } else if (!S_ISLNK(info.st_mode)) {
            char upper[PATH_MAX];
            k_join(upper, guard_upper, parent + 1);
            int known = k_lstat(upper, &above);
            result = copy_file(place, &info, with_data);
            if (known == 0) keep_times(place, &above);
        }
        if (result < 0) return result;
        place->kind = IN_UPPER;
    }
    if (!whole || k_lstat(place->upper, &info) < 0 || !S_ISDIR(info.st_mode)) return result;
    return copy_tree(place->path);
}
