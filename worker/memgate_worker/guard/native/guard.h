/* The parts of the preloaded library. Names that a program can see are those of libc's functions
 * it stands in for, and `memgate_guard_hook_present`.
 */
#ifndef MEMGATE_GUARD_H
#define MEMGATE_GUARD_H

#include "kernel.h"

#define EXPORT __attribute__((visibility("default")))

/* --- settings.c: what the environment says, read once --------------------------------------- */

/* Are files to be redirected? Not under an overlay, where the kernel does it. */
extern int guard_redirects;
extern char guard_upper[PATH_MAX]; /* the directory of private copies, SCRATCH/files */
extern char guard_work[PATH_MAX];  /* files on their way into it, SCRATCH/work */
extern const char *guard_scratch;  /* where both are */
extern const char *guard_writable; /* directories that are not redirected, joined by colons */
extern long guard_start_ns;        /* when the job began */

void guard_load_settings(void);
const char *guard_setting(const char *name); /* one of our variables, as it was at the start */

/* What libc itself has under this name. */
void *guard_libc(const char *name);

/* Sets errno from a kernel result. */
long guard_result(long result);

/* --- places.c: where a path leads -------------------------------------------------------- */

enum kind {
    MISSING,  /* the directory is there, the name is not */
    IN_LOWER, /* as it was when the job started: `path` */
    IN_UPPER, /* changed or made by the job: `upper` */
    OUTSIDE,  /* not redirected: devices, /proc, our own directories: `path` */
};

struct place {
    enum kind kind;
    int is_directory;      /* known for directories that were walked through */
    int has_slash;         /* the path ends in one */
    int num_dots;          /* the path ends in "." or "..": there is no name to change */
    char path[PATH_MAX];   /* as the job knows it, absolute, no links in it */
    char upper[PATH_MAX];  /* where the private copy is or will be */
};

/* Directories that are not wholly copied, and files that are not copied, have these mode bits. */
#define UNCHANGED_BITS 05000
#define IS_UNCHANGED(mode) (((mode) & UNCHANGED_BITS) == UNCHANGED_BITS)

enum follow {
    AS_IT_IS, /* a link at the end is the thing itself, unless a slash follows */
    FOLLOW,
    NAME_ONLY, /* for what makes, removes and renames names: as the kernel looks these up */
};

/* Finds the place of a path; 0 or an error. */
int guard_find(int directory, const char *path, enum follow follow, struct place *place);

/* For calls that only look: puts the actual path in place of the job's; 0 or an error. */
int guard_look(int *directory, const char **path, enum follow follow, struct place *place);

/* The path at which the kernel finds what is there now. */
const char *guard_actual(const struct place *place);

/* From a path of the kernel's to one of the job's, in place. */
void guard_as_seen(char *path);

/* The job's name for what a descriptor is open on; 0 or an error. */
int guard_path_of(int fd, char *path);

/* --- copies.c: private copies; the caller holds the lock ------------------------------------ */

int guard_lock(void);
void guard_unlock(int lock);

/* Makes the copy of a directory complete: all names are there, so names can be added or removed. */
int guard_complete(const char *path);

/* The same for the directory that a place is in, if the job may write there. */
int guard_complete_parent(const struct place *place);

/* Brings a file or directory up, with all beneath it if `whole`; afterwards it is IN_UPPER. */
int guard_copy_up(struct place *place, int with_data, int whole);

/* --- opening.c ---------------------------------------------------------------------------- */

int guard_open(int directory, const char *path, int flags, mode_t mode);

/* May the job change this file in shared memory? 0 or -EACCES: it was there before. */
int guard_may_change_outside(const struct place *place);

/* --- changing.c ----------------------------------------------------------------------------- */

int guard_unlink(int directory, const char *path, int flags);
int guard_mkdir(int directory, const char *path, mode_t mode);
int guard_rename(int from_dir, const char *from, int to_dir, const char *to, unsigned flags);

/* --- moving.c ----------------------------------------------------------------------------- */

/* rename() by copying, for directories that an overlay cannot rename. */
int guard_move(int from_dir, const char *from, int to_dir, const char *to);

/* --- direct.c, trapped.c, unaware.c ------------------------------------------------------- */

/* Does a system call that changes a file or looks at one, as libc's functions do: -1 and errno.
 * Returns 0 if it is another call. */
int guard_do(long number, const long *arguments, long *result);

/* Has calls that the filters hand over done by us. */
void guard_handle_calls(void);

/* Has all calls of a program that uses no libc for them handed over. */
void guard_hand_over_looks(void);

/* --- loading.c ------------------------------------------------------------------------------ */

/* Writes a line about this process to the run directory, with a field of the caller's. */
void guard_report(const char *code, const char *field, const char *value);

/* Stops this process if torch is there and the hook is not. */
void guard_check_loaded(void);

/* --- driver.c ------------------------------------------------------------------------------- */

/* Note that this process looks for NVIDIA's driver where it is not: by a library that it loads, by a
 * program that it starts and that is linked with it, by a file of the driver's own. */
void guard_note_library(const char *path);
void guard_note_program(const char *path);
void guard_note_path(const char *path);

#endif
