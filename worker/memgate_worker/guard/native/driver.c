/* NVIDIA's driver is not there for a job: notes which programs look for it, and go on without.
 *
 * torch finds our stand-ins, which are loaded before it. Any other program would use a GPU where
 * there is one, or only look whether there is, so a line says which of the two, once a process.
 * No memory is allocated: this runs between vfork and exec.
 */
#include "guard.h"

#include <elf.h>
#include <link.h>

/* --- names -------------------------------------------------------------------------------------- */

static int begins(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* What a program needs to take memory of a GPU; NVML, and files of the driver, only tell of one. */
static int is_used(const char *name) {
    return begins(name, "libcuda.so") || begins(name, "libnvcuvid.so") ||
           begins(name, "libnvidia-encode.so") || begins(name, "libnvidia-opencl.so") ||
           begins(name, "libnvoptix.so");
}

static int is_looked_at(const char *name) { return begins(name, "libnvidia-ml.so"); }

static const char *name_in(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* --- what is there already: our stand-ins, in a process that has torch ---------------------------- */

static int has_name(struct dl_phdr_info *object, size_t size, void *name) {
    (void)size;
    return object->dlpi_name && begins(name_in(object->dlpi_name), name);
}

static int is_loaded(const char *name) {
    char stem[64];
    size_t length = strcspn(name, ".") + 3; /* up to .so, whatever version follows */
    if (length >= sizeof stem || length > strlen(name)) return 0;
    memcpy(stem, name, length);
    stem[length] = 0;
    return dl_iterate_phdr(has_name, stem);
}

/* --- the line ----------------------------------------------------------------------------------- */

static void report(const char *code, const char *what) {
    static long reported_by[2];
    long *by = &reported_by[*code == 'D'];
    long pid = CALL0(SYS_getpid);
    if (*by == pid || !*guard_setting("MEMGATE_RUN_DIR")) return;
    *by = pid;
    guard_report(code, "sought", what);
}

static void note_library(const char *name) {
    if (is_used(name) && !is_loaded(name)) report("DRIVER_SOUGHT", name);
    if (is_looked_at(name) && !is_loaded(name)) report("GPU_LOOKED_FOR", name);
}

void guard_note_path(const char *path) {
    if (!path || path[0] != '/') return;
    if (begins(path, "/dev/nvidia") || begins(path, "/proc/driver/nvidia"))
        report("GPU_LOOKED_FOR", path);
}

/* --- what a file is linked with ------------------------------------------------------------------- */

struct linked {
    int fd;
    Elf64_Ehdr header;
    Elf64_Phdr parts[32];
    Elf64_Dyn entries[256];
    size_t num_entries;
};

static long read_at(int fd, void *out, size_t size, uint64_t offset) {
    return CALL4(SYS_pread64, fd, out, size, offset);
}

static int read_headers(struct linked *file) {
    Elf64_Ehdr *header = &file->header;
    if (read_at(file->fd, header, sizeof *header, 0) != sizeof *header) return 0;
    if (memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 || header->e_ident[EI_CLASS] != ELFCLASS64)
        return 0;
    if (header->e_phnum > 32 || header->e_phentsize != sizeof(Elf64_Phdr)) return 0;
    long size = (long)(header->e_phnum * sizeof(Elf64_Phdr));
    return read_at(file->fd, file->parts, (size_t)size, header->e_phoff) == size;
}

static int read_entries(struct linked *file) {
    for (int i = 0; i < file->header.e_phnum; i++) {
        if (file->parts[i].p_type != PT_DYNAMIC) continue;
        size_t size = file->parts[i].p_filesz;
        if (size > sizeof file->entries) size = sizeof file->entries;
        long got = read_at(file->fd, file->entries, size, file->parts[i].p_offset);
        file->num_entries = got > 0 ? (size_t)got / sizeof(Elf64_Dyn) : 0;
        return 1;
    }
    return 0;
}

/* Where in the file the names are; 0: nowhere. */
static uint64_t find_names(const struct linked *file) {
    for (size_t i = 0; i < file->num_entries; i++) {
        if (file->entries[i].d_tag != DT_STRTAB) continue;
        uint64_t address = file->entries[i].d_un.d_ptr;
        for (int k = 0; k < file->header.e_phnum; k++) {
            const Elf64_Phdr *part = &file->parts[k];
            if (part->p_type == PT_LOAD && address >= part->p_vaddr &&
                address - part->p_vaddr < part->p_filesz)
                return part->p_offset + (address - part->p_vaddr);
        }
    }
    return 0;
}

/* Opens a file and calls `note` with the name of each library that it is linked with. */
static void read_linked(const char *path, void (*note)(const char *name, const char *path)) {
    struct linked file = {.num_entries = 0};
    file.fd = k_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (file.fd < 0) return;
    uint64_t names = read_headers(&file) && read_entries(&file) ? find_names(&file) : 0;
    for (size_t i = 0; names && i < file.num_entries && file.entries[i].d_tag != DT_NULL; i++) {
        char name[64] = "";
        if (file.entries[i].d_tag != DT_NEEDED) continue;
        long got = read_at(file.fd, name, sizeof name - 1, names + file.entries[i].d_un.d_val);
        if (got > 0) note(name, path);
    }
    k_close(file.fd);
}

static void note_of_library(const char *name, const char *path) {
    (void)path;
    note_library(name);
}

static void note_of_program(const char *name, const char *path) {
    if (is_used(name)) guard_report("DRIVER_LINKED", "sought", path);
}

void guard_note_library(const char *path) {
    note_library(name_in(path));
    if (strchr(path, '/')) read_linked(path, note_of_library);
}

void guard_note_program(const char *path) { read_linked(path, note_of_program); }
