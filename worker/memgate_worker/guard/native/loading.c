/* Loading libraries: no real driver, and no torch without the hook.
 *
 * libc's dlopen looks at the address it will return to, to learn whose search path applies, so ours
 * looks at the name and then jumps to it.
 */
#include "guard.h"

#include <link.h>
#include <stdio.h>
#include <stdlib.h>

#define HOOK_MISSING_STATUS 86
#define HIDDEN "/memgate-hides-the-real-driver/libcuda.so.1"

static int hook_is_present;

/* Called by the hook before torch is imported. */
EXPORT void memgate_guard_hook_present(void) { hook_is_present = 1; }

static const char *name_in(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int begins(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* torch's libraries, and the extension module by which Python loads them */
static int is_torch(const char *path) {
    const char *name = name_in(path);
    if (begins(name, "libtorch_python.so") || begins(name, "libtorch_cuda.so") ||
        begins(name, "libc10_cuda.so") || begins(name, "libtorch_global_deps.so"))
        return 1;
    return begins(name, "_C.") && name - path >= 7 && begins(name - 7, "/torch/");
}

/* --- the line about it ---------------------------------------------------------------------------- */

struct text {
    char bytes[8192];
    size_t size;
};

static void put(struct text *text, const char *more) {
    while (*more && text->size + 8 < sizeof text->bytes) text->bytes[text->size++] = *more++;
}

static void put_string(struct text *text, const char *value, size_t length) {
    put(text, "\"");
    for (size_t i = 0; i < length && text->size + 64 < sizeof text->bytes; i++) {
        unsigned char byte = (unsigned char)value[i];
        char escaped[8] = {(char)byte, 0};
        if (byte == '"' || byte == '\\') snprintf(escaped, sizeof escaped, "\\%c", byte);
        /* what is not ASCII is given byte by byte, so that the line is valid whatever it is */
        if (byte < 0x20 || byte >= 0x7f) snprintf(escaped, sizeof escaped, "\\u%04x", byte);
        put(text, escaped);
    }
    put(text, "\"");
}

static void put_command(struct text *text) {
    char command[4096];
    int fd = k_open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC, 0);
    long size = fd < 0 ? 0 : CALL3(SYS_read, fd, command, sizeof command - 1);
    if (fd >= 0) k_close(fd);
    if (size < 0) size = 0;
    command[size] = 0;
    put(text, "[");
    for (long at = 0; at < size;) {
        size_t length = strlen(command + at);
        if (at) put(text, ", ");
        put_string(text, command + at, length);
        at += (long)length + 1;
    }
    put(text, "]");
}

void guard_report(const char *code, const char *field, const char *value) {
    struct text text;
    char path[PATH_MAX], executable[PATH_MAX], number[32];
    text.size = 0;
    long length = k_readlink("/proc/self/exe", executable, PATH_MAX);
    snprintf(number, sizeof number, "%ld", CALL0(SYS_getpid));
    put(&text, "{\"code\": ");
    put_string(&text, code, strlen(code));
    put(&text, ", \"pid\": ");
    put(&text, number);
    put(&text, ", \"executable\": ");
    put_string(&text, executable, length > 0 ? (size_t)length : 0);
    put(&text, ", ");
    put_string(&text, field, strlen(field));
    put(&text, ": ");
    put_string(&text, value, strlen(value));
    put(&text, ", \"command\": ");
    put_command(&text);
    put(&text, "}\n");
    const char *directory = guard_setting("MEMGATE_RUN_DIR");
    if (!*directory || k_join(path, directory, "problems") < 0) return;
    int fd = k_open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return;
    CALL3(SYS_write, fd, text.bytes, text.size);
    k_close(fd);
}

/* --- the rules ------------------------------------------------------------------------------------ */

static void require_hook(const char *library) {
    if (hook_is_present || !*guard_setting("MEMGATE_HOOK_DIR")) return;
    guard_report("HOOK_MISSING", "library", library);
    CALL1(SYS_exit_group, HOOK_MISSING_STATUS);
}

static int check_object(struct dl_phdr_info *object, size_t size, void *context) {
    (void)size, (void)context;
    if (object->dlpi_name && is_torch(object->dlpi_name)) require_hook(object->dlpi_name);
    return 0;
}

void guard_check_loaded(void) { dl_iterate_phdr(check_object, 0); }

/* The setting has several directories, as a search path has. */
static int is_ours(const char *path) {
    char actual[PATH_MAX], directory[PATH_MAX];
    const char *standins = guard_setting("MEMGATE_STANDINS_DIR");
    if (!*standins || !realpath(path, actual)) return 0;
    for (const char *at = standins; *at;) {
        size_t length = strcspn(at, ":");
        if (length > 0 && length < PATH_MAX) {
            memcpy(directory, at, length);
            directory[length] = 0;
            if (k_is_beneath(actual, directory)) return 1;
        }
        at += length + (at[length] == ':');
    }
    return 0;
}

static int find_ours(struct dl_phdr_info *object, size_t size, void *context) {
    (void)size;
    const char *path = object->dlpi_name;
    if (!path || !begins(name_in(path), "libcuda.so") || !is_ours(path)) return 0;
    return strlen(path) < PATH_MAX ? (strcpy(context, path), 1) : 0;
}

static const char *driver_for(const char *path) {
    static __thread char ours[PATH_MAX];
    if (strchr(path, '/')) return is_ours(path) ? path : HIDDEN;
    if (dl_iterate_phdr(find_ours, ours)) return ours; /* already loaded */
    const char *standins = guard_setting("MEMGATE_STANDINS_DIR");
    if (*standins && k_join(ours, standins, "libcuda.so.1") == 0 && access(ours, R_OK) == 0)
        return ours;
    return HIDDEN;
}

/* The name that libc shall load instead. */
__attribute__((used)) static const char *guard_library(const char *path) {
    static __thread struct place place;
    if (!path || !*path) return path;
    int kept = errno;
    guard_check_loaded();
    if (is_torch(path)) require_hook(path);
    if (begins(name_in(path), "libcuda.so")) {
        const char *driver = driver_for(path);
        if (!strcmp(driver, HIDDEN)) guard_note_library(name_in(path));
        path = driver;
    } else {
        if (guard_redirects && strchr(path, '/') && guard_find(AT_FDCWD, path, 1, &place) == 0 &&
            place.kind == IN_UPPER)
            path = place.upper;
        if (!strchr(path, '/') || !is_ours(path)) guard_note_library(path);
    }
    errno = kept;
    return path;
}

__attribute__((used)) static void *libc_dlopen, *libc_dlmopen;

__attribute__((constructor, used)) static void find_libc(void) {
    if (!libc_dlopen) libc_dlopen = guard_libc("dlopen");
    if (!libc_dlmopen) libc_dlmopen = guard_libc("dlmopen");
}

__asm__(
    ".text\n"
    ".globl dlopen\n"
    ".type dlopen, @function\n"
    "dlopen:\n"
    "    push %rdi\n"
    "    push %rsi\n"
    "    sub $8, %rsp\n"
    "    call find_libc\n"
    "    mov 16(%rsp), %rdi\n"
    "    call guard_library\n"
    "    add $8, %rsp\n"
    "    pop %rsi\n"
    "    pop %rdi\n"
    "    mov %rax, %rdi\n"
    "    jmp *libc_dlopen(%rip)\n"
    ".size dlopen, . - dlopen\n"
    ".globl dlmopen\n"
    ".type dlmopen, @function\n"
    "dlmopen:\n"
    "    push %rdi\n"
    "    push %rsi\n"
    "    push %rdx\n"
    "    call find_libc\n"
    "    mov 8(%rsp), %rdi\n"
    "    call guard_library\n"
    "    pop %rdx\n"
    "    pop %rsi\n"
    "    pop %rdi\n"
    "    mov %rax, %rsi\n"
    "    jmp *libc_dlmopen(%rip)\n"
    ".size dlmopen, . - dlmopen\n");
