/* What the library and the launcher share: directories, copies, names. */
#include "kernel.h"

#include <linux/fs.h>

struct entry {
    uint64_t ino;
    int64_t off;
    uint16_t length;
    uint8_t type;
    char name[];
};

int k_list(const char *path, k_name_fn each, void *context) {
    int fd = k_open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW, 0);
    if (fd < 0) return fd;
    char buffer[16384] __attribute__((aligned(8)));
    int result = 0;
    while (result == 0) {
        long size = CALL3(SYS_getdents64, fd, buffer, sizeof buffer);
        if (size <= 0) {
            result = (int)size;
            break;
        }
        for (long at = 0; at < size && result == 0;) {
            struct entry *entry = (struct entry *)(buffer + at);
            at += entry->length;
            if (strcmp(entry->name, ".") == 0 || strcmp(entry->name, "..") == 0) continue;
            result = each(entry->name, entry->type, context);
        }
    }
    k_close(fd);
    return result;
}

static int copy_data(int from, int to, off_t size) {
    if (CALL3(SYS_ioctl, to, FICLONE, from) == 0) return 0; /* shares the blocks */
    if (CALL2(SYS_ftruncate, to, size) < 0) return -EIO;
    off_t at = 0;
    while (at < size) { /* holes stay holes: memory maps and databases are full of them */
        off_t data = CALL3(SYS_lseek, from, at, SEEK_DATA);
        if (data == -ENXIO) return 0;
        if (data < 0) data = at;
        off_t hole = CALL3(SYS_lseek, from, data, SEEK_HOLE);
        if (hole <= data) hole = size;
        CALL3(SYS_lseek, to, data, SEEK_SET);
        for (off_t offset = data; offset < hole;) {
            long sent = CALL4(SYS_sendfile, to, from, &offset, hole - offset);
            if (sent < 0) return (int)sent;
            if (sent == 0) return 0;
        }
        at = hole;
    }
    return 0;
}

int k_copy_file(const char *from, const char *to, const struct stat *info, int with_data) {
    int out = k_open(to, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (out < 0) return out;
    int result = 0;
    if (with_data && info->st_size > 0) {
        int in = k_open(from, O_RDONLY | O_CLOEXEC, 0);
        result = in < 0 ? in : copy_data(in, out, info->st_size);
        if (in >= 0) k_close(in);
    }
    struct timespec times[2] = {info->st_atim, info->st_mtim};
    CALL3(SYS_fchown, out, info->st_uid, info->st_gid); /* allowed to root only */
    CALL2(SYS_fchmod, out, info->st_mode & 07777);
    CALL4(SYS_utimensat, out, 0, times, 0);
    k_close(out);
    if (result < 0) k_unlink(to, 0);
    return result;
}

int k_join(char *out, const char *directory, const char *name) {
    size_t length = strlen(directory), more = strlen(name);
    if (length + more + 2 > PATH_MAX) return -ENAMETOOLONG;
    memmove(out, directory, length);
    if (length == 0 || out[length - 1] != '/') out[length++] = '/';
    memcpy(out + length, name, more + 1);
    return 0;
}

int k_is_beneath(const char *path, const char *prefix) {
    size_t length = strlen(prefix);
    if (length == 1 && prefix[0] == '/') return 1;
    return strncmp(path, prefix, length) == 0 && (path[length] == '/' || path[length] == 0);
}

int k_is_gpu_device(const char *name) {
    return strncmp(name, "nvidia", 6) == 0 || strcmp(name, "dri") == 0 ||
           strcmp(name, "kfd") == 0 || strcmp(name, "dxg") == 0 || strncmp(name, "nvhost", 6) == 0;
}
