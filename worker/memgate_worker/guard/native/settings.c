/* What the environment says, kept as it was when the process started: a program may clear its
 * environment and go on opening files.
 */
#include "guard.h"

#include <dlfcn.h>
#include <stdlib.h>

extern char **environ;

__asm__(".symver dlsym, dlsym@GLIBC_2.2.5"); /* the one that a glibc before 2.34 has as well */

#define MAX_SETTINGS 64
#define PREFIX "MEMGATE_"

int guard_redirects;
char guard_upper[PATH_MAX];
char guard_work[PATH_MAX];
long guard_start_ns;
const char *guard_scratch = "", *guard_writable = "";

const char *guard_settings[MAX_SETTINGS + 1];

void *guard_libc(const char *name) { return dlsym(RTLD_NEXT, name); }

long guard_result(long result) {
    if (result >= 0) return result;
    errno = (int)-result;
    return -1;
}

const char *guard_setting(const char *name) {
    size_t length = strlen(name);
    for (int i = 0; guard_settings[i]; i++)
        if (strncmp(guard_settings[i], name, length) == 0 && guard_settings[i][length] == '=')
            return guard_settings[i] + length + 1;
    return "";
}

__attribute__((constructor)) void guard_load_settings(void) {
    static int is_loaded;
    if (is_loaded || !environ) return;
    is_loaded = 1;
    int count = 0;
    for (char **entry = environ; *entry && count < MAX_SETTINGS; entry++)
        if (strncmp(*entry, PREFIX, strlen(PREFIX)) == 0) guard_settings[count++] = strdup(*entry);
    guard_scratch = guard_setting("MEMGATE_GUARD_SCRATCH");
    guard_writable = guard_setting("MEMGATE_GUARD_WRITABLE");
    guard_start_ns = atol(guard_setting("MEMGATE_GUARD_START_NS"));
    if (*guard_scratch) {
        k_join(guard_upper, guard_scratch, "files");
        k_join(guard_work, guard_scratch, "work");
        guard_redirects = 1;
        guard_handle_calls();
        guard_hand_over_looks();
    }
    guard_check_loaded();
}
