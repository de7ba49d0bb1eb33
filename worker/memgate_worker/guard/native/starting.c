/* Starting programs: what a job starts keeps our libraries and settings, also when it is given
 * another environment. No memory is allocated: this runs between vfork and exec.
 */
#include "guard.h"

#include <alloca.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;
extern const char *guard_settings[];

static const char *value_of(char *const environment[], const char *name) {
    size_t length = strlen(name);
    for (; environment && *environment; environment++)
        if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
            return *environment + length + 1;
    return "";
}

static int is_in_list(const char *list, const char *item, size_t length) {
    while (*list) {
        size_t size = strcspn(list, ": ");
        if (size == length && memcmp(list, item, size) == 0) return 1;
        list += size + (list[size] != 0);
    }
    return 0;
}

/* NAME=ours:theirs into `out`, ours without what is in theirs. */
static void put_list(char *out, const char *name, const char *ours, const char *theirs) {
    char *end = stpcpy(stpcpy(out, name), "=");
    const char *start = end;
    while (*ours) {
        size_t size = strcspn(ours, ":");
        if (size && !is_in_list(theirs, ours, size)) {
            if (end != start) *end++ = ':';
            end = mempcpy(end, ours, size);
        }
        ours += size + (ours[size] == ':');
    }
    if (*theirs && end != start) *end++ = ':';
    strcpy(end, theirs);
}

static size_t room_for(const char *ours, char *const environment[], const char *name) {
    return strlen(ours) + strlen(value_of(environment, name)) + strlen(name) + 4;
}

static int is_list(const char *entry) {
    return strncmp(entry, "LD_PRELOAD=", 11) == 0 || strncmp(entry, "PYTHONPATH=", 11) == 0;
}

/* Fills `out`, which has room for what was there, our settings, two lists and the end. */
static void fill(char **out, char *const environment[], char *preload, char *python_path) {
    for (char *const *entry = environment; entry && *entry; entry++)
        if (!is_list(*entry)) *out++ = *entry;
    for (int i = 0; guard_settings[i]; i++) {
        char name[128];
        size_t length = strcspn(guard_settings[i], "=");
        if (length >= sizeof name) continue;
        memcpy(name, guard_settings[i], length);
        name[length] = 0;
        if (!*value_of(environment, name)) *out++ = (char *)guard_settings[i];
    }
    const char *ours = guard_setting("MEMGATE_GUARD_PRELOAD");
    put_list(preload, "LD_PRELOAD", ours, value_of(environment, "LD_PRELOAD"));
    put_list(python_path, "PYTHONPATH", guard_setting("MEMGATE_HOOK_DIR"),
             value_of(environment, "PYTHONPATH"));
    if (preload[11]) *out++ = preload;
    if (python_path[11]) *out++ = python_path;
    *out = 0;
}

static size_t count_of(char *const environment[]) {
    size_t count = 0;
    while (environment && environment[count]) count++;
    return count;
}

/* On the stack of the function that uses it. */
#define KEEP_ENVIRONMENT(name, given)                                                              \
    char **name = alloca(sizeof(char *) * (count_of(given) + 68));                                 \
    fill(name, given, alloca(room_for(guard_setting("MEMGATE_GUARD_PRELOAD"), given, "LD_PRELOAD")), \
         alloca(room_for(guard_setting("MEMGATE_HOOK_DIR"), given, "PYTHONPATH")))

static int execute(const char *path, char *const arguments[], char *const given[]) {
    struct place place;
    int directory = AT_FDCWD;
    int error = guard_look(&directory, &path, 1, &place);
    if (error < 0) return error;
    guard_note_program(path);
    KEEP_ENVIRONMENT(environment, given);
    return (int)CALL3(SYS_execve, path, arguments, environment);
}

/* The first executable of that name on PATH; 0 or an error. */
static int search(const char *name, char *out) {
    int result = -ENOENT;
    if (strchr(name, '/'))
        return strlen(name) < PATH_MAX ? (strcpy(out, name), 0) : -ENAMETOOLONG;
    const char *list = getenv("PATH");
    if (!list) list = "/bin:/usr/bin";
    while (*name) {
        char directory[PATH_MAX];
        size_t size = strcspn(list, ":");
        if (size < PATH_MAX) {
            memcpy(directory, list, size);
            directory[size] = 0;
            struct stat info;
            if (k_join(out, size ? directory : ".", name) == 0 && stat(out, &info) == 0 &&
                !S_ISDIR(info.st_mode)) {
                if (access(out, X_OK) == 0) return 0;
                result = -EACCES;
            }
        }
        if (!list[size]) break;
        list += size + 1;
    }
    return result;
}

static int execute_by_name(const char *name, char *const arguments[], char *const environment[]) {
    char path[PATH_MAX];
    int result = search(name, path);
    if (result == 0) result = execute(path, arguments, environment);
    if (result != -ENOEXEC) return result;
    size_t count = count_of(arguments); /* a script without its first line */
    char **shell = alloca(sizeof(char *) * (count + 3));
    shell[0] = "sh";
    shell[1] = path;
    for (size_t i = 1; i <= count; i++) shell[i + 1] = arguments[i];
    if (count == 0) shell[2] = 0;
    return execute("/bin/sh", shell, environment);
}

EXPORT int execve(const char *path, char *const arguments[], char *const environment[]) {
    return (int)guard_result(execute(path, arguments, environment));
}
EXPORT int execv(const char *path, char *const arguments[]) {
    return execve(path, arguments, environ);
}
EXPORT int execvpe(const char *name, char *const arguments[], char *const environment[]) {
    return (int)guard_result(execute_by_name(name, arguments, environment));
}
EXPORT int execvp(const char *name, char *const arguments[]) {
    return execvpe(name, arguments, environ);
}
EXPORT int fexecve(int fd, char *const arguments[], char *const given[]) {
    KEEP_ENVIRONMENT(environment, given);
    return (int)guard_result(
        CALL5(SYS_execveat, fd, "", arguments, environment, AT_EMPTY_PATH));
}
EXPORT int execveat(int directory, const char *path, char *const arguments[], char *const given[],
                    int flags) {
    struct place place;
    if (!(flags & AT_EMPTY_PATH) || *path) {
        int error = guard_look(&directory, &path, !(flags & AT_SYMLINK_NOFOLLOW), &place);
        if (error < 0) return (int)guard_result(error);
    }
    KEEP_ENVIRONMENT(environment, given);
    return (int)guard_result(CALL5(SYS_execveat, directory, path, arguments, environment, flags));
}

#define COLLECT(arguments, first, list)                                        \
    size_t count = 1;                                                          \
    va_list list, counted;                                                     \
    va_start(list, first);                                                     \
    va_copy(counted, list);                                                    \
    while (va_arg(counted, char *)) count++;                                   \
    va_end(counted);                                                           \
    char **arguments = alloca(sizeof(char *) * (count + 1));                   \
    arguments[0] = (char *)first;                                              \
    for (size_t i = 1; i <= count; i++) arguments[i] = va_arg(list, char *)

EXPORT int execl(const char *path, const char *first, ...) {
    COLLECT(arguments, first, list);
    va_end(list);
    return execve(path, arguments, environ);
}
EXPORT int execlp(const char *name, const char *first, ...) {
    COLLECT(arguments, first, list);
    va_end(list);
    return execvpe(name, arguments, environ);
}
EXPORT int execle(const char *path, const char *first, ...) {
    COLLECT(arguments, first, list);
    char **environment = va_arg(list, char **);
    va_end(list);
    return execve(path, arguments, environment);
}

typedef int (*spawn_fn)(pid_t *, const char *, const posix_spawn_file_actions_t *,
                        const posix_spawnattr_t *, char *const[], char *const[]);

static int spawn(const char *libc_name, pid_t *pid, const char *path,
                 const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                 char *const arguments[], char *const given[]) {
    spawn_fn libc = guard_libc(libc_name);
    struct place place;
    int directory = AT_FDCWD;
    int error = guard_look(&directory, &path, 1, &place);
    if (error < 0) return -error;
    guard_note_program(path);
    KEEP_ENVIRONMENT(environment, given);
    return libc(pid, path, actions, attributes, arguments, environment);
}
EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                       const posix_spawnattr_t *attributes, char *const arguments[],
                       char *const environment[]) {
    return spawn("posix_spawn", pid, path, actions, attributes, arguments, environment);
}
EXPORT int posix_spawnp(pid_t *pid, const char *name, const posix_spawn_file_actions_t *actions,
                        const posix_spawnattr_t *attributes, char *const arguments[],
                        char *const environment[]) {
    char path[PATH_MAX];
    int error = search(name, path);
    if (error < 0) return -error;
    return spawn("posix_spawnp", pid, path, actions, attributes, arguments, environment);
}

/* libc opens the file in the new process: it must be there by then, under its actual path. */
EXPORT int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t *actions, int fd,
                                            const char *path, int flags, mode_t mode) {
    int (*libc)(posix_spawn_file_actions_t *, int, const char *, int, mode_t) =
        guard_libc("posix_spawn_file_actions_addopen");
    struct place place;
    if (guard_redirects && (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))) {
        int made = guard_open(AT_FDCWD, path, flags, mode);
        if (made < 0) return -made;
        k_close(made);
        flags &= ~(O_EXCL | O_CREAT | O_TRUNC);
    }
    if (guard_redirects && guard_find(AT_FDCWD, path, 1, &place) == 0)
        return libc(actions, fd, guard_actual(&place), flags, mode);
    return libc(actions, fd, path, flags, mode);
}
EXPORT int posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t *actions,
                                                const char *path) {
    int (*libc)(posix_spawn_file_actions_t *, const char *) =
        guard_libc("posix_spawn_file_actions_addchdir_np");
    struct place place;
    if (guard_redirects && guard_find(AT_FDCWD, path, 1, &place) == 0)
        return libc(actions, guard_actual(&place));
    return libc(actions, path);
}

/* libc starts the shell of these with the process's own environment. */
static void restore_environment(void) {
    KEEP_ENVIRONMENT(kept, environ);
    for (char **entry = kept; *entry; entry++)
        if (is_list(*entry) || strncmp(*entry, "MEMGATE_", 8) == 0) {
            char name[128];
            size_t length = strcspn(*entry, "=");
            if (length >= sizeof name) continue;
            memcpy(name, *entry, length);
            name[length] = 0;
            setenv(name, *entry + length + 1, 1);
        }
}
EXPORT int system(const char *command) {
    int (*libc)(const char *) = guard_libc("system");
    restore_environment();
    int status = libc(command);
    if (guard_redirects && WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS)
        guard_report("PROGRAM_ENDED", "program", command); /* libc waits by itself */
    return status;
}
EXPORT FILE *popen(const char *command, const char *mode) {
    FILE *(*libc)(const char *, const char *) = guard_libc("popen");
    restore_environment();
    return libc(command, mode);
}
