#include "filter.h"

void filter_add(struct filter *filter, unsigned short code, unsigned char yes, unsigned char no,
                unsigned value) {
    filter->program[filter->length++] = (struct sock_filter){code, yes, no, value};
}

void filter_load(struct filter *filter, size_t offset) {
    filter_add(filter, BPF_LD | BPF_W | BPF_ABS, 0, 0, (unsigned)offset);
}

void filter_give(struct filter *filter, unsigned result) {
    filter_add(filter, BPF_RET | BPF_K, 0, 0, result);
}

void filter_want_key(struct filter *filter) {
    filter_load(filter, LOW(5));
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, 3, (unsigned)GUARD_KEY);
    filter_load(filter, LOW(5) + 4);
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (unsigned)((unsigned long)GUARD_KEY >> 32));
    filter_give(filter, SECCOMP_RET_ALLOW);
    filter_give(filter, SECCOMP_RET_TRAP);
}

void filter_refuse(struct filter *filter, const int *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (unsigned)numbers[i]);
        filter_give(filter, SECCOMP_RET_ERRNO | ENOSYS);
    }
}

void filter_trap(struct filter *filter, const int *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) {
        filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, KEY_LENGTH, (unsigned)numbers[i]);
        filter_want_key(filter);
    }
}

void filter_pass_unless_from(struct filter *filter, uint64_t start, uint64_t end) {
    filter_load(filter, FIELD(instruction_pointer) + 4);
    filter_add(filter, BPF_JMP | BPF_JEQ | BPF_K, 0, 3, (unsigned)(start >> 32));
    filter_load(filter, FIELD(instruction_pointer));
    filter_add(filter, BPF_JMP | BPF_JGE | BPF_K, 0, 1, (unsigned)start);
    filter_add(filter, BPF_JMP | BPF_JGT | BPF_K, 0, 1, (unsigned)(end - 1));
    filter_give(filter, SECCOMP_RET_ALLOW);
}

long filter_enter(struct filter *filter) {
    struct sock_fprog program = {filter->length, filter->program};
    return CALL3(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
}
