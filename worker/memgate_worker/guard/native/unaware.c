/* Programs built by Go make system calls of their own for everything, reading and looking included:
 * W&B's is one. A second filter hands these over as well, so that such a program sees what it and
 * others of the job have made. It asks where a call comes from, and means the program alone: what it
 * starts inherits the filter, and is another program at another place.
 */
#include "filter.h"
#include "guard.h"

#include <link.h>

static const int LOOKS[] = {SYS_stat,      SYS_lstat,      SYS_newfstatat, SYS_statx,
                            SYS_statfs,    SYS_access,     SYS_faccessat,  SYS_faccessat2,
                            SYS_readlink,  SYS_readlinkat, SYS_chdir,      SYS_getcwd,
                            SYS_open,      SYS_openat,     SYS_bind,       SYS_connect};

struct code {
    int is_of_go;
    uint64_t start, end;
};

/* A note of this name has the build's number. */
static int has_note_of_go(const char *notes, size_t size) {
    const ElfW(Nhdr) *note = (const void *)notes;
    return size >= sizeof *note + 4 && note->n_namesz == 4 && memcmp(note + 1, "Go\0", 4) == 0;
}

/* The first object is the program. */
static int read_program(struct dl_phdr_info *object, size_t size, void *context) {
    (void)size;
    struct code *code = context;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uint64_t start = object->dlpi_addr + part->p_vaddr;
        if (part->p_type == PT_NOTE && has_note_of_go((const char *)start, part->p_memsz))
            code->is_of_go = 1;
        if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
            code->start = start;
            code->end = start + part->p_memsz;
        }
    }
    return 1;
}

void guard_hand_over_looks(void) {
    struct code code = {0, 0, 0};
    struct filter filter = {.length = 0};
    dl_iterate_phdr(read_program, &code);
    if (!code.is_of_go || code.start >> 32 != (code.end - 1) >> 32) return;
    filter_pass_unless_from(&filter, code.start, code.end);
    filter_load(&filter, FIELD(nr));
    filter_trap(&filter, LOOKS, COUNT(LOOKS));
    filter_give(&filter, SECCOMP_RET_ALLOW);
    filter_enter(&filter);
}
