/* Where a path leads: walks it name by name through what the job sees, which is the private copies
 * over the files as they were.
 *
 * The directory of private copies mirrors the machine's paths. A directory in it is either complete,
 * then it has every name that the job sees and nothing else counts, or unchanged (by its mode bits),
 * then its names are those of the original and it only leads to copies further down. A file with
 * those bits stands for the original. Nothing else is remembered, so all processes of a job agree.
 */
#include "guard.h"

#define MAX_DEPTH 256
#define MAX_LINKS 40
#define CACHE_SIZE 8192

/* no copy of the directory, an unchanged one, a whole one, one that the job may not search */
enum level { BARE, LEADS, COMPLETE, CLOSED };

struct walk {
    struct place *place;
    size_t length; /* of place->path */
    int depth;
    enum level levels[MAX_DEPTH];
    int num_links;
    char rest[2 * PATH_MAX]; /* what is still to be walked */
    enum follow follow;
};

/* Original directories that are not links: these never change for the job, unless through copies,
 * and those are looked at first. */
static uint64_t known_directories[CACHE_SIZE];

static uint64_t hash_of(const char *path) {
    uint64_t hash = 1469598103934665603ULL;
    for (; *path; path++) hash = (hash ^ (unsigned char)*path) * 1099511628211ULL;
    return hash | 1;
}

static int is_known(const char *path) {
    uint64_t hash = hash_of(path);
    return __atomic_load_n(&known_directories[hash % CACHE_SIZE], __ATOMIC_RELAXED) == hash;
}

static void remember(const char *path) {
    uint64_t hash = hash_of(path);
    __atomic_store_n(&known_directories[hash % CACHE_SIZE], hash, __ATOMIC_RELAXED);
}

void guard_as_seen(char *path) {
    size_t length = strlen(guard_upper);
    if (!guard_redirects || !k_is_beneath(path, guard_upper)) return;
    if (path[length] == 0) {
        strcpy(path, "/");
    } else {
        memmove(path, path + length, strlen(path + length) + 1);
    }
}

int guard_path_of(int fd, char *path) {
    char link[32] = "/proc/self/fd/", digits[16];
    int at = 0;
    size_t end = strlen(link);
    if (fd < 0) return -EBADF;
    do digits[at++] = (char)('0' + fd % 10);
    while ((fd /= 10) > 0);
    while (at > 0) link[end++] = digits[--at];
    link[end] = 0;
    long size = k_readlink(link, path, PATH_MAX - 1);
    if (size < 0) return size == -ENOENT ? -EBADF : (int)size;
    path[size] = 0;
    guard_as_seen(path);
    return 0;
}

const char *guard_actual(const struct place *place) {
    return place->kind == IN_UPPER || place->kind == MISSING ? place->upper : place->path;
}

/* Directories that are not redirected at all. */
static int is_outside(const char *path) {
    if (path[1] == 'd' || path[1] == 'p' || path[1] == 's')
        if (!strcmp(path, "/dev") || !strcmp(path, "/proc") || !strcmp(path, "/sys")) return 1;
    if (strcmp(path, guard_scratch) == 0) return 1;
    const char *list = guard_writable;
    size_t size = strlen(path);
    while (*list) {
        size_t length = strcspn(list, ":");
        if (length == size && memcmp(list, path, size) == 0) return 1;
        list += length + (list[length] == ':');
    }
    return 0;
}

static int leave(struct walk *walk) {
    struct place *place = walk->place;
    if (strcmp(place->path, "/dev") == 0) {
        char name[NAME_MAX + 1];
        const char *rest = walk->rest + strspn(walk->rest, "/");
        size_t length = strcspn(rest, "/");
        if (length <= NAME_MAX) {
            memcpy(name, rest, length);
            name[length] = 0;
            if (k_is_gpu_device(name)) return -ENOENT;
        }
    }
    place->kind = OUTSIDE;
    if (walk->rest[strspn(walk->rest, "/")] == 0) return 0;
    return k_join(place->path, place->path, walk->rest + strspn(walk->rest, "/"));
}

static int start(struct walk *walk, int directory, const char *path) {
    struct place *place = walk->place;
    size_t size = strlen(path), before = 0;
    if (size == 0) return -ENOENT;
    if (size >= PATH_MAX) return -ENAMETOOLONG;
    if (path[0] != '/') {
        if (directory == AT_FDCWD) {
            long result = CALL2(SYS_getcwd, walk->rest, PATH_MAX);
            if (result < 0) return (int)result;
            guard_as_seen(walk->rest);
        } else {
            int result = guard_path_of(directory, walk->rest);
            if (result < 0) return result;
            if (walk->rest[0] != '/') return -ENOTDIR;
        }
        before = strlen(walk->rest);
        walk->rest[before++] = '/';
    }
    memcpy(walk->rest + before, path, size + 1);
    struct stat info;
    place->path[0] = '/';
    place->path[1] = 0;
    walk->length = 0;
    walk->depth = 0;
    int result = k_lstat(guard_upper, &info);
    walk->levels[0] = result < 0 ? BARE : IS_UNCHANGED(info.st_mode) ? LEADS : COMPLETE;
    return 0;
}

static void go_up(struct walk *walk) {
    char *path = walk->place->path;
    if (walk->depth == 0) return;
    walk->depth--;
    while (path[--walk->length] != '/') {}
    path[walk->length ? walk->length : 1] = 0;
}

static int follow_link(struct walk *walk, const char *actual, const char *rest) {
    char target[PATH_MAX];
    if (++walk->num_links > MAX_LINKS) return -ELOOP;
    long size = k_readlink(actual, target, PATH_MAX - 1);
    if (size < 0) return (int)size;
    size_t more = strlen(rest);
    if (size + more + 1 >= PATH_MAX) return -ENAMETOOLONG;
    memmove(walk->rest + size, rest, more + 1);
    memcpy(walk->rest, target, (size_t)size);
    go_up(walk); /* back to the directory that the link is in */
    if (target[0] == '/')
        while (walk->depth > 0) go_up(walk);
    return 1;
}

/* What the copies say about the name that was just added: sets kind and level, or says that the
 * original decides (0), or gives an error, MISSING as -ENOENT. 1: decided, 2: a link. */
static int look_in_copies(struct walk *walk, mode_t *mode) {
    struct place *place = walk->place;
    enum level above = walk->levels[walk->depth - 1];
    walk->levels[walk->depth] = BARE;
    if (above == BARE) return 0;
    struct stat info;
    int result = k_lstat(place->upper, &info);
    if (result == -ENOENT) return above == COMPLETE ? -ENOENT : 0;
    if (result < 0) return result;
    *mode = info.st_mode;
    if (S_ISDIR(info.st_mode)) {
        int is_closed = !(info.st_mode & 0100) && CALL0(SYS_geteuid) != 0;
        enum level whole = is_closed ? CLOSED : COMPLETE;
        walk->levels[walk->depth] = IS_UNCHANGED(info.st_mode) ? LEADS : whole;
        place->kind = IS_UNCHANGED(info.st_mode) ? IN_LOWER : IN_UPPER;
        return 1;
    }
    if (S_ISREG(info.st_mode) && IS_UNCHANGED(info.st_mode)) return 0;
    place->kind = IN_UPPER;
    return S_ISLNK(info.st_mode) ? 2 : 1;
}

/* What the original is: as above. */
static int look_in_original(struct walk *walk, mode_t *mode, int is_last) {
    struct place *place = walk->place;
    char byte;
    place->kind = IN_LOWER;
    *mode = 0;
    if (is_known(place->path)) {
        *mode = S_IFDIR;
        return 1;
    }
    long result = k_readlink(place->path, &byte, 1);
    if (result >= 0) return 2;
    if (result != -EINVAL) return (int)result;
    if (is_last) return 1; /* of whatever type: the call itself will tell */
    struct stat info;
    result = k_lstat(place->path, &info);
    if (result < 0) return (int)result;
    *mode = info.st_mode;
    if (S_ISDIR(info.st_mode)) remember(place->path);
    return 1;
}

static int add_name(struct walk *walk, const char *name, size_t size) {
    struct place *place = walk->place;
    if (size > NAME_MAX || walk->length + size + 2 + strlen(guard_upper) >= PATH_MAX)
        return -ENAMETOOLONG;
    if (walk->depth + 1 == MAX_DEPTH) return -ENAMETOOLONG;
    place->path[walk->length++] = '/';
    memcpy(place->path + walk->length, name, size);
    walk->length += size;
    place->path[walk->length] = 0;
    walk->depth++;
    size_t upper = strlen(guard_upper);
    memcpy(place->upper, guard_upper, upper);
    memcpy(place->upper + upper, place->path, walk->length + 1);
    return 0;
}

/* One name; 1: go on, 0: the walk is at its end, otherwise an error. */
static int step(struct walk *walk) {
    struct place *place = walk->place;
    char *name = walk->rest + strspn(walk->rest, "/");
    size_t size = strcspn(name, "/");
    char *rest = name + size;
    if (size == 0) {
        place->is_directory = 1;
        return 0;
    }
    if (walk->levels[walk->depth] == CLOSED) return -EACCES;
    int is_dots = size == 2 && name[0] == '.' && name[1] == '.';
    if (is_dots || (size == 1 && name[0] == '.')) {
        if (is_dots) go_up(walk);
        if (rest[strspn(rest, "/")] == 0) place->num_dots = is_dots + 1;
        place->kind = walk->levels[walk->depth] == COMPLETE ? IN_UPPER : IN_LOWER;
        memmove(walk->rest, rest, strlen(rest) + 1);
        return 1;
    }
    int is_last = rest[strspn(rest, "/")] == 0, result = add_name(walk, name, size);
    if (result < 0) return result;
    if (is_last && *rest) place->has_slash = 1;
    mode_t mode = 0;
    result = look_in_copies(walk, &mode);
    if (result == 0) result = look_in_original(walk, &mode, is_last && !*rest);
    if (result == -ENOENT && is_last) {
        place->kind = MISSING;
        return 0;
    }
    if (result < 0) return result;
    int by_slash = *rest && walk->follow != NAME_ONLY;
    if (result == 2 && (!is_last || walk->follow == FOLLOW || by_slash))
        return follow_link(walk, guard_actual(place), rest);
    if (is_last && !by_slash) {
        place->is_directory = S_ISDIR(mode);
        return 0;
    }
    if (!S_ISDIR(mode)) return -ENOTDIR;
    memmove(walk->rest, rest, strlen(rest) + 1);
    return is_outside(place->path) ? leave(walk) : 1;
}

int guard_find(int directory, const char *path, enum follow follow, struct place *place) {
    struct walk walk;
    walk.place = place;
    walk.num_links = 0;
    walk.follow = follow;
    place->is_directory = place->has_slash = place->num_dots = 0;
    if (!path) return -EFAULT;
    int result = start(&walk, directory, path);
    if (result < 0) return result;
    place->kind = walk.levels[0] == COMPLETE ? IN_UPPER : IN_LOWER;
    while ((result = step(&walk)) == 1) {}
    if (result < 0 || place->kind == OUTSIDE) return result;
    if (is_outside(place->path)) place->kind = OUTSIDE;
    /* ".." may have left the copy's path behind */
    return k_join(place->upper, guard_upper, place->path + 1);
}

int guard_look(int *directory, const char **path, enum follow follow, struct place *place) {
    guard_note_path(*path);
    if (!guard_redirects) {
        const char *name = *path;
        return name && !strncmp(name, "/dev/", 5) && k_is_gpu_device(name + 5) ? -ENOENT : 0;
    }
    int result = guard_find(*directory, *path, follow, place);
    if (result < 0) return result;
    if (place->kind == MISSING) return -ENOENT;
    *directory = AT_FDCWD;
    *path = guard_actual(place);
    return 0;
}
