/* A filter of system calls, put together instruction by instruction. */
#ifndef MEMGATE_FILTER_H
#define MEMGATE_FILTER_H

#include "kernel.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

#define FIELD(name) offsetof(struct seccomp_data, name)
#define LOW(index) (FIELD(args) + 8 * (index))
#define COUNT(array) (sizeof array / sizeof *array)

struct filter {
    unsigned short length;
    struct sock_filter program[512];
};

void filter_add(struct filter *filter, unsigned short code, unsigned char yes, unsigned char no,
                unsigned value);

void filter_load(struct filter *filter, size_t offset);

void filter_give(struct filter *filter, unsigned result);

/* Number of instructions of `filter_want_key`. */
#define KEY_LENGTH 6

/* Lets a call with our key pass, and hands any other over. */
void filter_want_key(struct filter *filter);

/* These look at the number, which is loaded, and go on with it. Arguments are loaded only for calls
 * that are meant, so that the kernel can see that all others always pass. */
void filter_refuse(struct filter *filter, const int *numbers, size_t count);
void filter_trap(struct filter *filter, const int *numbers, size_t count);

/* Lets all calls pass but those from an address in the range, within which its upper half is the
 * same. */
void filter_pass_unless_from(struct filter *filter, uint64_t start, uint64_t end);

/* 0, or the kernel's error. */
long filter_enter(struct filter *filter);

#endif
