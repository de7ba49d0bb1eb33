/* The launcher's parts: what is asked, and the two ways to protect files. */
#ifndef MEMGATE_LAUNCHER_H
#define MEMGATE_LAUNCHER_H

#define MAX_WRITABLE 16
#define MAX_HINTS 64
#define MAX_COVERS 128

struct request {
    const char *scratch;                /* absolute, free of symbolic links */
    const char *writable[MAX_WRITABLE]; /* directories that stay as they are */
    int num_writable;
    const char *covered[MAX_COVERS]; /* files and directories that the job does not see */
    const char *covers[MAX_COVERS];  /* and what it sees in their place */
    int num_covers;
    int without_landlock; /* as on a kernel that has none */
    const char *hints[MAX_HINTS]; /* where the job is likely to write */
    int num_hints;
    char cwd[4096];
};

/* Writes "memgate guard: WHAT SUBJECT: REASON" to standard error and ends the process. */
void stop(const char *what, const char *subject, long error) __attribute__((noreturn));

/* Puts the process into a mount namespace in which all directories are overlays. */
void enter_overlay(const struct request *request);

/* Denies all changes of files but those our library makes. */
void confine(const struct request *request);

#endif
