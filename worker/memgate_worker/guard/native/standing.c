/* Where a process stands, and how it is reached: the working directory, sockets with a name,
 * shared memory and semaphores.
 */
#include "guard.h"

#include <semaphore.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

EXPORT int chdir(const char *path) {
    struct place place;
    int directory = AT_FDCWD;
    int error = guard_look(&directory, &path, 1, &place);
    return (int)guard_result(error < 0 ? error : CALL1(SYS_chdir, path));
}

EXPORT char *getcwd(char *out, size_t size) {
    char path[PATH_MAX];
    long result = CALL2(SYS_getcwd, path, sizeof path);
    if (result < 0) return guard_result(result), (char *)0;
    guard_as_seen(path);
    size_t needed = strlen(path) + 1;
    if (!out) {
        if (size == 0) size = needed;
        out = size < needed ? 0 : malloc(size);
    }
    if (!out || size < needed) return guard_result(-ERANGE), (char *)0;
    return memcpy(out, path, needed);
}
EXPORT char *__getcwd_chk(char *out, size_t size, size_t room) {
    if (size > room) abort();
    return getcwd(out, size);
}
EXPORT char *get_current_dir_name(void) { return getcwd(0, 0); }
EXPORT char *getwd(char *out) { return getcwd(out, PATH_MAX); }

/* --- sockets ------------------------------------------------------------------------------------ */

static int is_named(const struct sockaddr *address, socklen_t size) {
    const struct sockaddr_un *unix_address = (const void *)address;
    return guard_redirects && address && size > offsetof(struct sockaddr_un, sun_path) &&
           address->sa_family == AF_UNIX && unix_address->sun_path[0];
}

static void path_of_address(const struct sockaddr *address, socklen_t size, char *path) {
    size_t length = size - offsetof(struct sockaddr_un, sun_path);
    memcpy(path, ((const struct sockaddr_un *)(const void *)address)->sun_path, length);
    path[length] = 0;
}

/* A path in the scratch directory may be too long for an address: then its directory is opened, and
 * the name given relative to that. */
static long with_actual_path(long call, int fd, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char parent[PATH_MAX];
    if (strlen(path) < sizeof address.sun_path) {
        strcpy(address.sun_path, path);
        return CALL3(call, fd, &address, sizeof address);
    }
    strcpy(parent, path);
    char *name = strrchr(parent, '/');
    *name++ = 0;
    int directory = k_open(*parent ? parent : "/", O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
    if (directory < 0) return directory;
    int length = snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s",
                          directory, name);
    long result = length < (int)sizeof address.sun_path
                      ? CALL3(call, fd, &address, sizeof address)
                      : -ENAMETOOLONG;
    k_close(directory);
    return result;
}

EXPORT int bind(int fd, const struct sockaddr *address, socklen_t size) {
    struct place place;
    char path[PATH_MAX];
    if (!is_named(address, size)) return (int)guard_result(CALL3(SYS_bind, fd, address, size));
    path_of_address(address, size, path);
    int lock = guard_lock();
    if (lock < 0) return (int)guard_result(lock);
    long result = guard_find(AT_FDCWD, path, 0, &place);
    if (result == 0 && place.kind == OUTSIDE) {
        result = CALL3(SYS_bind, fd, address, size);
    } else if (result == 0) {
        result = place.kind == MISSING ? guard_complete_parent(&place) : -EADDRINUSE;
        if (result == 0) result = with_actual_path(SYS_bind, fd, place.upper);
    }
    guard_unlock(lock);
    return (int)guard_result(result);
}

EXPORT int connect(int fd, const struct sockaddr *address, socklen_t size) {
    struct place place;
    char path[PATH_MAX];
    if (!is_named(address, size)) return (int)guard_result(CALL3(SYS_connect, fd, address, size));
    path_of_address(address, size, path);
    int directory = AT_FDCWD;
    const char *actual = path;
    int error = guard_look(&directory, &actual, 1, &place);
    if (error < 0) return (int)guard_result(error);
    if (place.kind != IN_UPPER) return (int)guard_result(CALL3(SYS_connect, fd, address, size));
    return (int)guard_result(with_actual_path(SYS_connect, fd, actual));
}

/* The name of a socket as the job gave it. */
static long seen_address(long call, int fd, struct sockaddr *out, socklen_t *size) {
    struct sockaddr_un address;
    socklen_t length = sizeof address;
    long result = CALL3(call, fd, &address, &length);
    if (result < 0) return result;
    if (!is_named((struct sockaddr *)&address, length)) return CALL3(call, fd, out, size);
    char path[PATH_MAX];
    path_of_address((struct sockaddr *)&address, length, path);
    guard_as_seen(path);
    strcpy(address.sun_path, path);
    length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path) + 1);
    memcpy(out, &address, length < *size ? length : *size);
    *size = length;
    return 0;
}
EXPORT int getsockname(int fd, struct sockaddr *out, socklen_t *size) {
    return (int)guard_result(seen_address(SYS_getsockname, fd, out, size));
}
EXPORT int getpeername(int fd, struct sockaddr *out, socklen_t *size) {
    return (int)guard_result(seen_address(SYS_getpeername, fd, out, size));
}

/* --- shared memory and semaphores ------------------------------------------------------------------ */
/* libc opens these itself, without the key of `kernel.h`. */

static int shared_path(char *path, const char *prefix, const char *name) {
    while (*name == '/') name++;
    if (!*name || strchr(name, '/')) return -EINVAL;
    int length = snprintf(path, PATH_MAX, "/dev/shm/%s%s", prefix, name);
    return length < PATH_MAX ? 0 : -ENAMETOOLONG;
}

EXPORT int shm_open(const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    int error = shared_path(path, "", name);
    if (error < 0) return (int)guard_result(error);
    flags |= O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
    return (int)guard_result(guard_open(AT_FDCWD, path, flags, mode));
}
EXPORT int shm_unlink(const char *name) {
    char path[PATH_MAX];
    int error = shared_path(path, "", name);
    return (int)guard_result(error < 0 ? error : guard_unlink(AT_FDCWD, path, 0));
}

/* A new semaphore appears under its name only when it has its value. */
static int make_semaphore(const char *path, mode_t mode, unsigned value) {
    int (*init)(sem_t *, int, unsigned) = guard_libc("sem_init");
    sem_t semaphore;
    char draft[PATH_MAX];
    memset(&semaphore, 0, sizeof semaphore);
    if (init(&semaphore, 1, value) < 0) return -EINVAL;
    snprintf(draft, sizeof draft, "/dev/shm/memgate-sem-%ld", CALL0(SYS_gettid));
    int fd = k_open(draft, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0) return fd;
    CALL3(SYS_write, fd, &semaphore, sizeof semaphore);
    long result = CALL5(SYS_linkat, AT_FDCWD, draft, AT_FDCWD, path, 0);
    k_unlink(draft, 0);
    if (result == 0) return fd;
    k_close(fd);
    return (int)result;
}

EXPORT sem_t *sem_open(const char *name, int flags, ...) {
    char path[PATH_MAX];
    va_list list;
    va_start(list, flags);
    mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    unsigned value = flags & O_CREAT ? va_arg(list, unsigned) : 0;
    va_end(list);
    int fd = shared_path(path, "sem.", name);
    if (fd == 0) {
        fd = -ENOENT;
        if (!(flags & O_CREAT) || !(flags & O_EXCL))
            fd = guard_open(AT_FDCWD, path, O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0);
        if (fd == -ENOENT && (flags & O_CREAT)) fd = make_semaphore(path, mode, value);
        if (fd == -EEXIST && !(flags & O_EXCL))
            fd = guard_open(AT_FDCWD, path, O_RDWR | O_NOFOLLOW | O_CLOEXEC, 0);
    }
    if (fd < 0) return guard_result(fd), SEM_FAILED;
    void *memory = mmap(0, sizeof(sem_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    k_close(fd);
    return memory == MAP_FAILED ? SEM_FAILED : memory;
}
EXPORT int sem_close(sem_t *semaphore) { return munmap(semaphore, sizeof *semaphore); }
EXPORT int sem_unlink(const char *name) {
    char path[PATH_MAX];
    int error = shared_path(path, "sem.", name);
    return (int)guard_result(error < 0 ? error : guard_unlink(AT_FDCWD, path, 0));
}
