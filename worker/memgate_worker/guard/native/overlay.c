/* The overlay way: a mount namespace in which every directory of the machine is the lower layer of
 * an overlay, so that the kernel itself keeps changes in the scratch directory.
 *
 *  - As root with the right to mount, only the mounts are private; otherwise a user namespace is
 *    made in which the user keeps his own number.
 *  - The kernel makes no overlay of a directory with other mounts beneath it, or with the scratch
 *    directory in it. Such a directory becomes a frame: a fresh directory with the same names, each
 *    of them an overlay, a link or a copy.
 *  - /proc and /sys stay what they are. /dev is rebuilt without the GPUs, and /dev/shm is an
 *    overlay in memory.
 *  - What the job must not see, such as programs that submit jobs, is covered by something else.
 */
#include "kernel.h"
#include "launcher.h"

#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/prctl.h>

#define MAX_MOUNTS 2048
#define MAX_FRAME_ENTRIES 5000
#define MAX_COPY_BYTES (64L << 20)
#define OTHER_SCRATCH "memgate-scratch-" /* of other jobs, next to ours */

static const char *const PSEUDO[] = {
    "proc",   "sysfs",     "devpts",   "cgroup",     "cgroup2", "mqueue",     "securityfs",
    "bpf",    "debugfs",   "tracefs",  "configfs",   "pstore",  "hugetlbfs",  "autofs",
    "fusectl", "efivarfs", "devtmpfs", "binfmt_misc", "nsfs",   "rpc_pipefs", 0};

/* the rights by which a job could undo what is done here, or reach disks beside it */
static const int DROPPED[] = {
    CAP_SYS_ADMIN, CAP_MKNOD,     CAP_SYS_RAWIO, CAP_SYS_PTRACE,      CAP_DAC_READ_SEARCH,
    CAP_SYS_CHROOT, CAP_SYS_MODULE, CAP_SETFCAP, CAP_LINUX_IMMUTABLE, CAP_SYS_BOOT,
    CAP_MAC_ADMIN, CAP_MAC_OVERRIDE, CAP_SYS_RESOURCE};

struct point {
    char path[512];
    int is_pseudo;
};

static struct point mounts[MAX_MOUNTS];
static int num_mounts;
static const struct request *asked;
static int is_privileged;
static int num_overlays;
static char new_root[PATH_MAX];

static void make(const char *path, const char *destination, unsigned char type);

static int mount_at(const char *from, const char *to, const char *type, long flags,
                    const char *data) {
    return (int)CALL5(SYS_mount, from, to, type, flags, data);
}

static void make_directory(const char *path) {
    long result = k_mkdir(path, 0755);
    if (result < 0 && result != -EEXIST) stop("cannot make", path, result);
}

static void make_file(const char *path) {
    int fd = k_open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) stop("cannot make", path, fd);
    k_close(fd);
}

static void write_text(const char *path, const char *text) {
    int fd = k_open(path, O_WRONLY, 0);
    long result = fd < 0 ? fd : CALL3(SYS_write, fd, text, strlen(text));
    if (result < 0) stop("cannot write", path, result);
    k_close(fd);
}

static void enter_namespaces(void) {
    long uid = CALL0(SYS_getuid), gid = CALL0(SYS_getgid);
    is_privileged = CALL1(SYS_unshare, CLONE_NEWNS) == 0;
    if (!is_privileged) {
        long result = CALL1(SYS_unshare, CLONE_NEWUSER | CLONE_NEWNS);
        if (result < 0) stop("no user namespace:", "unshare", result);
        char text[64];
        write_text("/proc/self/setgroups", "deny");
        snprintf(text, sizeof text, "%ld %ld 1", uid, uid);
        write_text("/proc/self/uid_map", text);
        snprintf(text, sizeof text, "%ld %ld 1", gid, gid);
        write_text("/proc/self/gid_map", text);
    }
    long result = mount_at("none", "/", 0, MS_REC | MS_PRIVATE, 0);
    if (result < 0) stop("cannot make mounts private:", "/", result);
}

/* Undoes the \040 of mountinfo. */
static void unescape(char *text) {
    char *out = text;
    for (; *text; text++) {
        if (text[0] == '\\' && text[1] >= '0' && text[1] <= '3') {
            *out++ = (char)((text[1] - '0') * 64 + (text[2] - '0') * 8 + (text[3] - '0'));
            text += 3;
        } else {
            *out++ = *text;
        }
    }
    *out = 0;
}

static void add_mount(char *line) {
    char *path = line;
    for (int field = 0; field < 4 && path; field++) path = strchr(path + 1, ' ');
    char *type = path ? strstr(path, " - ") : 0;
    if (!type) return;
    path++;
    type += 3;
    path[strcspn(path, " ")] = 0;
    type[strcspn(type, " ")] = 0;
    unescape(path);
    if (num_mounts == MAX_MOUNTS || strlen(path) >= sizeof mounts[0].path)
        stop("too many mounts, or too long a name:", path, 0);
    struct point *point = &mounts[num_mounts++];
    strcpy(point->path, path);
    point->is_pseudo = 0;
    for (int i = 0; PSEUDO[i]; i++) point->is_pseudo |= strcmp(type, PSEUDO[i]) == 0;
}

static void read_mounts(void) {
    static char text[1 << 20];
    int fd = k_open("/proc/self/mountinfo", O_RDONLY, 0);
    if (fd < 0) stop("cannot read", "/proc/self/mountinfo", fd);
    long size = 0, got;
    while ((got = CALL3(SYS_read, fd, text + size, sizeof text - 1 - size)) > 0) size += got;
    k_close(fd);
    text[size] = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        *end = 0;
        add_mount(line);
    }
}

static int is_pseudo_mount(const char *path) {
    for (int i = num_mounts - 1; i >= 0; i--)
        if (strcmp(mounts[i].path, path) == 0) return mounts[i].is_pseudo;
    return 0;
}

static int needs_frame(const char *path) {
    if (k_is_beneath(asked->scratch, path)) return 1;
    for (int i = 0; i < num_mounts; i++)
        if (strcmp(mounts[i].path, path) != 0 && k_is_beneath(mounts[i].path, path)) return 1;
    return 0;
}

static void bind(const char *path, const char *destination, int read_only) {
    long result = mount_at(path, destination, 0, MS_BIND | MS_REC, 0);
    if (result < 0) stop("cannot bind", path, result);
    if (!read_only) return;
    struct { uint64_t set, clear, propagation, userns; } attributes = {1 /* RDONLY */, 0, 0, 0};
    result = CALL5(442 /* mount_setattr */, AT_FDCWD, destination, 0x8000 /* AT_RECURSIVE */,
                   &attributes, sizeof attributes);
    if (result < 0) stop("cannot make read-only", path, result);
}

/* Paths stand in a list of options: commas, colons and backslashes are escaped. */
static char *add_option(char *out, const char *name, const char *path) {
    out = stpcpy(out, name);
    for (; *path; path++) {
        if (strchr(",:\\", *path)) *out++ = '\\';
        *out++ = *path;
    }
    *out = 0;
    return out;
}

/* Makes the directories that lead to a path beneath `base`, and the last one. */
static void make_directories(const char *base, const char *path, char *out) {
    if (k_join(out, base, path + (path[0] == '/')) < 0) stop("too long:", path, 0);
    for (char *slash = out + strlen(base) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        k_mkdir(out, 0755);
        *slash = '/';
    }
    k_mkdir(out, 0755);
}

/* A user namespace knows one user, and the kernel cannot copy a directory of another into the upper
 * layer. The directories on the way to where the job is likely to write are put there beforehand. */
static void lead_to(const char *hint, const char *lower, const char *upper) {
    char from[PATH_MAX], to[PATH_MAX];
    struct stat info;
    if (is_privileged || strcmp(hint, lower) == 0 || !k_is_beneath(hint, lower)) return;
    if (strlen(hint) >= PATH_MAX / 2) return;
    for (size_t at = strlen(lower) + 1; at <= strlen(hint); at++) {
        if (hint[at] != '/' && hint[at] != 0) continue;
        memcpy(from, hint, at);
        from[at] = 0;
        if (strstr(from, "/.") || k_lstat(from, &info) < 0 || !S_ISDIR(info.st_mode)) return;
        if (k_join(to, upper, from + strlen(lower) + 1) < 0 || k_mkdir(to, 0700) < 0) continue;
        struct timespec times[2] = {info.st_atim, info.st_mtim};
        k_chmod(to, info.st_mode & 07777);
        k_utimes(to, times, 0);
    }
}

/* BASE/files/PATH is the upper layer: the changes of a job are found under the paths it knows. */
static int mount_overlay(const char *lower, const char *base, const char *destination) {
    char upper[PATH_MAX], work[PATH_MAX], files[PATH_MAX], options[3 * PATH_MAX], name[32];
    if (strlen(lower) + strlen(base) > PATH_MAX / 4) return -ENAMETOOLONG;
    k_join(files, base, "files");
    make_directory(files);
    make_directories(files, lower, upper);
    snprintf(name, sizeof name, "work/%ld-%d", CALL0(SYS_getpid), num_overlays++);
    make_directories(base, name, work);
    struct stat info;
    if (k_stat(lower, &info) == 0) {
        CALL3(SYS_chown, upper, info.st_uid, info.st_gid); /* allowed to root only */
        k_chmod(upper, info.st_mode & 07777);
        struct timespec times[2] = {info.st_atim, info.st_mtim};
        k_utimes(upper, times, 0);
    }
    for (int i = 0; i < asked->num_hints; i++) lead_to(asked->hints[i], lower, upper);
    char *end = add_option(options, "lowerdir=", lower);
    end = add_option(end, ",upperdir=", upper);
    end = add_option(end, ",workdir=", work);
    end = stpcpy(end, is_privileged ? ",redirect_dir=on" : ",userxattr");
    /* nothing of it need survive a crash: without this the disk is synchronised at the end */
    strcpy(end, ",volatile");
    int result = mount_at("overlay", destination, "overlay", 0, options);
    if (result != -EINVAL) return result;
    *end = 0; /* before Linux 5.10 */
    return mount_at("overlay", destination, "overlay", 0, options);
}

/* A job lives in its working directory, its home and /tmp: these must be writable. */
static int is_needed(const char *path) {
    return k_is_beneath(asked->cwd, path) || strcmp(path, "/tmp") == 0 ||
           strcmp(path, "/home") == 0 || strcmp(path, "/root") == 0;
}

static void make_overlay(const char *path, const char *destination) {
    make_directory(destination);
    int result = mount_overlay(path, asked->scratch, destination);
    struct stat info;
    if (result == 0 || k_lstat(path, &info) == -ENOENT) return;
    if (is_needed(path)) stop("the kernel makes no overlay of", path, result);
    bind(path, destination, 1);
}

struct frame {
    const char *path, *destination;
    int num_entries;
};

static int make_entry(const char *name, unsigned char type, void *context) {
    struct frame *frame = context;
    char path[PATH_MAX], destination[PATH_MAX];
    if (strncmp(name, OTHER_SCRATCH, strlen(OTHER_SCRATCH)) == 0) return 0;
    if (++frame->num_entries > MAX_FRAME_ENTRIES) stop("too many files in", frame->path, 0);
    if (k_join(path, frame->path, name) < 0 || k_join(destination, frame->destination, name) < 0)
        return 0;
    make(path, destination, type);
    return 0;
}

static void make_frame(const char *path, const char *destination) {
    struct frame frame = {path, destination, 0};
    make_directory(destination);
    int result = k_list(path, make_entry, &frame);
    if (result < 0 && result != -EACCES) stop("cannot list", path, result);
    struct stat info;
    if (k_stat(path, &info) < 0) return;
    struct timespec times[2] = {info.st_atim, info.st_mtim};
    CALL3(SYS_chown, destination, info.st_uid, info.st_gid);
    k_chmod(destination, info.st_mode & 07777);
    k_utimes(destination, times, 0);
}

/* /dev without GPUs, on a file system of its own. */
static int make_device(const char *name, unsigned char type, void *context) {
    (void)context;
    char path[PATH_MAX], destination[PATH_MAX], target[PATH_MAX];
    if (k_is_gpu_device(name)) return 0;
    k_join(path, "/dev", name);
    k_join(destination, new_root, "dev");
    k_join(destination, destination, name);
    if (strcmp(name, "shm") == 0) {
        char memory[PATH_MAX];
        k_join(memory, asked->scratch, "shm");
        make_directory(memory);
        make_directory(destination);
        mount_at("tmpfs", memory, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
        if (mount_overlay(path, memory, destination) < 0)
            mount_at("tmpfs", destination, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777");
    } else if (type == 10 /* DT_LNK */) {
        long size = k_readlink(path, target, sizeof target - 1);
        if (size > 0) {
            target[size] = 0;
            k_symlink(target, destination);
        }
    } else if (type == 4 /* DT_DIR */) {
        make_directory(destination);
        bind(path, destination, 0);
    } else {
        make_file(destination);
        bind(path, destination, 0);
    }
    return 0;
}

static void make_devices(const char *destination) {
    make_directory(destination);
    long result = mount_at("tmpfs", destination, "tmpfs", MS_NOSUID, "mode=755");
    if (result < 0) stop("cannot rebuild", "/dev", result);
    k_list("/dev", make_device, 0);
}

static void make_file_entry(const char *path, const char *destination, const struct stat *info) {
    if (S_ISREG(info->st_mode) && info->st_size <= MAX_COPY_BYTES) {
        int result = k_copy_file(path, destination, info, 1);
        if (result == 0 || result == -EEXIST) return; /* from an earlier command */
    }
    make_file(destination);
    bind(path, destination, S_ISREG(info->st_mode));
}

static void make(const char *path, const char *destination, unsigned char type) {
    struct stat info;
    (void)type;
    if (strcmp(path, asked->scratch) == 0 || k_lstat(path, &info) < 0) return;
    if (S_ISLNK(info.st_mode)) {
        char target[PATH_MAX];
        long size = k_readlink(path, target, sizeof target - 1);
        target[size > 0 ? size : 0] = 0;
        k_symlink(target, destination);
    } else if (!S_ISDIR(info.st_mode)) {
        make_file_entry(path, destination, &info);
    } else if (strcmp(path, "/dev") == 0) {
        make_devices(destination);
    } else if (is_pseudo_mount(path)) {
        make_directory(destination);
        bind(path, destination, 0);
    } else if (needs_frame(path)) {
        make_frame(path, destination);
    } else {
        make_overlay(path, destination);
    }
}

static void open_writable(const char *path) {
    char destination[PATH_MAX];
    make_directories(new_root, path, destination);
    bind(path, destination, 0);
}

/* Puts something else where a file or a directory is; both are free of symbolic links. */
static void cover(const char *path, const char *other) {
    char destination[PATH_MAX];
    struct stat info;
    if (k_join(destination, new_root, path + 1) < 0) stop("too long:", path, 0);
    if (k_stat(destination, &info) == 0) bind(other, destination, 1);
}

static void drop_rights(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct data[2];
    if (CALL2(SYS_capget, &header, data) < 0) stop("cannot read", "capabilities", 0);
    for (size_t i = 0; i < sizeof DROPPED / sizeof *DROPPED; i++) {
        int right = DROPPED[i];
        CALL5(SYS_prctl, PR_CAPBSET_DROP, right, 0, 0, 0);
        data[right / 32].permitted &= ~(1u << (right % 32));
    }
    CALL5(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    for (int i = 0; i < 2; i++) {
        data[i].inheritable = 0;
        data[i].effective &= data[i].permitted;
    }
    long result = CALL2(SYS_capset, &header, data);
    if (result < 0) stop("cannot drop", "capabilities", result);
}

void enter_overlay(const struct request *request) {
    asked = request;
    long mask = CALL1(SYS_umask, 0);
    enter_namespaces();
    read_mounts();
    k_join(new_root, request->scratch, "root");
    make_directory(new_root);
    bind(new_root, new_root, 0);
    make_frame("/", new_root);
    for (int i = 0; i < request->num_writable; i++) open_writable(request->writable[i]);
    for (int i = 0; i < request->num_covers; i++) cover(request->covered[i], request->covers[i]);
    long result = CALL1(SYS_chdir, new_root);
    if (result == 0) result = CALL2(SYS_pivot_root, ".", ".");
    if (result == 0) result = CALL2(SYS_umount2, ".", MNT_DETACH);
    if (result == 0) result = CALL1(SYS_chdir, request->cwd);
    if (result < 0) stop("cannot enter", request->cwd, result);
    drop_rights();
    CALL1(SYS_umask, mask);
}
