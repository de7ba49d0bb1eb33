/* Plays NVIDIA's NVML for two GPUs, by the files of the directory that PLAYED_NVML names:
 *   processes        lines of: minor number, process, bytes, start in microseconds
 *   used0, used1     bytes in use
 *   no_accounting    if it is there, GPUs cannot count processes
 *   mig              if it is there, MIG is on
 *   accounting       made when somebody turns that mode on; without it nothing is counted
 * The order of the GPUs is not that of their minor numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, MAX = 64 };

typedef struct {
  unsigned gpu_utilization, memory_utilization;
  unsigned long long max_memory, time, start;
  unsigned is_running, reserved[5];
} stats_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned minor, pid; unsigned long long bytes, start; } process_t;

static unsigned long minors[] = {1, 0};

static const char *place(const char *name) {
  static char path[4096];
  snprintf(path, sizeof path, "%s/%s", getenv("PLAYED_NVML"), name);
  return path;
}

static int is_there(const char *name) { return access(place(name), F_OK) == 0; }

static unsigned read_processes(unsigned minor, process_t *found) {
  unsigned count = 0;
  FILE *file = fopen(place("processes"), "r");
  if (!file) return 0;
  process_t *one = found;
  while (count < MAX && fscanf(file, "%u %u %llu %llu", &one->minor, &one->pid, &one->bytes, &one->start) == 4)
    if (one->minor == minor) one = found + ++count;
  fclose(file);
  return is_there("accounting") ? count : 0;
}

int nvmlInit_v2(void) { return getenv("PLAYED_NVML") ? SUCCESS : NOT_FOUND; }
int nvmlShutdown(void) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &minors[index]; return SUCCESS; }
int nvmlDeviceGetMinorNumber(unsigned long *device, unsigned *minor) { *minor = *device; return SUCCESS; }

int nvmlDeviceGetMigMode(unsigned long *device, unsigned *now, unsigned *later) {
  (void)device;
  *now = *later = is_there("mig");
  return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(unsigned long *device, memory_t *memory) {
  char name[16];
  snprintf(name, sizeof name, "used%lu", *device);
  FILE *file = fopen(place(name), "r");
  memory->used = 0;
  if (file && fscanf(file, "%llu", &memory->used) != 1) memory->used = 0;
  if (file) fclose(file);
  return SUCCESS;
}

int nvmlDeviceGetAccountingMode(unsigned long *device, unsigned *mode) {
  (void)device;
  *mode = is_there("accounting");
  return is_there("no_accounting") ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceSetAccountingMode(unsigned long *device, unsigned mode) {
  (void)device;
  (void)mode;
  FILE *file = fopen(place("accounting"), "w");
  if (file) fclose(file);
  return SUCCESS;
}

int nvmlDeviceGetAccountingBufferSize(unsigned long *device, unsigned *size) {
  (void)device;
  *size = MAX;
  return SUCCESS;
}

int nvmlDeviceGetAccountingPids(unsigned long *device, unsigned *count, unsigned *pids) {
  process_t found[MAX + 1];
  *count = read_processes(*device, found);
  for (unsigned index = 0; index < *count; index++) pids[index] = found[index].pid;
  return SUCCESS;
}

int nvmlDeviceGetAccountingStats(unsigned long *device, unsigned pid, stats_t *stats) {
  process_t found[MAX + 1];
  unsigned count = read_processes(*device, found);
  for (unsigned index = 0; index < count; index++) {
    if (found[index].pid != pid) continue;
    stats->max_memory = found[index].bytes;
    stats->start = found[index].start;
    return SUCCESS;
  }
  return NOT_FOUND;
}
