/* memgate-guard --overlay|--preload|--none --scratch DIR [--writable DIR]...
 *               [--cover PATH OTHER]... [--without-landlock] -- COMMAND...
 *
 * Turns itself into COMMAND, in a place where files that exist cannot be changed: `overlay.c` or
 * `confine.c`. The environment is the caller's work. Has no libc start-up code of its own, whose
 * symbol would bind it to the libc it was built with.
 */
#include "kernel.h"
#include "launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>

#define FAILED 87

static void say(const char *text) { CALL3(SYS_write, 2, text, strlen(text)); }

void stop(const char *what, const char *subject, long error) {
    say("memgate guard: ");
    say(what);
    say(" ");
    say(subject);
    if (error < 0) {
        say(": ");
        say(strerror((int)-error));
    }
    say("\n");
    CALL1(SYS_exit_group, FAILED);
    __builtin_unreachable();
}

/* As execvp does it, with the caller's PATH. */
static void execute(char **command, char **environment) {
    long error = -ENOENT;
    if (strchr(command[0], '/')) {
        error = CALL3(SYS_execve, command[0], command, environment);
        stop("cannot run", command[0], error);
    }
    const char *path = "/usr/local/bin:/usr/bin:/bin";
    for (char **entry = environment; *entry; entry++)
        if (strncmp(*entry, "PATH=", 5) == 0) path = *entry + 5;
    char candidate[PATH_MAX], directory[PATH_MAX];
    while (1) {
        size_t length = strcspn(path, ":");
        if (length < sizeof directory) {
            memcpy(directory, path, length);
            directory[length] = 0;
            if (k_join(candidate, length ? directory : ".", command[0]) == 0) {
                long result = CALL3(SYS_execve, candidate, command, environment);
                if (result != -ENOENT && result != -ENOTDIR) error = result;
            }
        }
        if (path[length] == 0) break;
        path += length + 1;
    }
    stop("cannot run", command[0], error);
}

static char **read_arguments(char **argument, struct request *request, const char **way) {
    for (; *argument && strcmp(*argument, "--") != 0; argument++) {
        if (strcmp(*argument, "--scratch") == 0 && argument[1]) {
            request->scratch = *++argument;
        } else if (strcmp(*argument, "--writable") == 0 && argument[1]) {
            if (request->num_writable == MAX_WRITABLE) stop("too many", *argument, 0);
            request->writable[request->num_writable++] = *++argument;
        } else if (strcmp(*argument, "--cover") == 0 && argument[1] && argument[2]) {
            if (request->num_covers == MAX_COVERS) stop("too many", *argument, 0);
            request->covered[request->num_covers] = *++argument;
            request->covers[request->num_covers++] = *++argument;
        } else if (strcmp(*argument, "--without-landlock") == 0) {
            request->without_landlock = 1;
        } else {
            *way = *argument;
        }
    }
    if (!*argument || !argument[1]) stop("no command:", "give it after --", 0);
    return argument + 1;
}

static void add_hint(struct request *request, const char *path) {
    if (path && path[0] == '/' && request->num_hints < MAX_HINTS)
        request->hints[request->num_hints++] = path;
}

/* The working directory, the home and temporary directories, and paths on the command line. */
static void add_hints(struct request *request, char **command, char **environment) {
    add_hint(request, request->cwd);
    for (char **entry = environment; *entry; entry++) {
        if (strncmp(*entry, "HOME=", 5) == 0) add_hint(request, *entry + 5);
        if (strncmp(*entry, "TMPDIR=", 7) == 0) add_hint(request, *entry + 7);
    }
    for (char **argument = command; *argument; argument++) {
        const char *value = strstr(*argument, "=/");
        add_hint(request, value ? value + 1 : *argument);
    }
}

__attribute__((used, noreturn)) static void run(long *stack) {
    char **arguments = (char **)(stack + 1);
    char **environment = arguments + stack[0] + 1;
    struct request request;
    memset(&request, 0, sizeof request);
    const char *way = "";
    char **command = read_arguments(arguments + 1, &request, &way);
    if (CALL2(SYS_getcwd, request.cwd, sizeof request.cwd) < 0) strcpy(request.cwd, "/");
    if (strcmp(way, "--none") != 0 && (!request.scratch || request.scratch[0] != '/'))
        stop("an absolute path is needed:", "--scratch", 0);
    if (request.num_covers && strcmp(way, "--overlay") != 0)
        stop("only an overlay can", "--cover", 0);
    add_hints(&request, command, environment);
    if (strcmp(way, "--overlay") == 0) {
        enter_overlay(&request);
    } else if (strcmp(way, "--preload") == 0) {
        confine(&request);
    } else if (strcmp(way, "--none") != 0) {
        stop("not a way to protect files:", way, 0);
    }
    /* a program with other rights than the user's would not load our library */
    CALL5(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    execute(command, environment);
    __builtin_unreachable();
}

__asm__(
    ".globl _start\n"
    "_start:\n"
    "    xor %ebp, %ebp\n"
    "    mov %rsp, %rdi\n"
    "    and $-16, %rsp\n"
    "    call run\n"
    "    hlt\n");
