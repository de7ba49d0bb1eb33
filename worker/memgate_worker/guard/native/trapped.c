/* The signal by which the filters of `confine.c` and `unaware.c` hand a call over: its handler does
 * the call as the named functions of libc do. A program without our library is ended by it.
 *
 * Programs with stacks of a few kilobytes (Go's) have a second stack for signals, which is small,
 * too; so the call is done on a stack of its own. Other signals wait until it is done: they would
 * be put on the second stack, over the frame of this one.
 */
#include "guard.h"

#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>

#define STACK_BYTES (512L << 10)
#define RESTORER 0x04000000

/* As the kernel has it; libc's is another. */
struct action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

struct call {
    long number;
    greg_t *registers;
};

__attribute__((used)) static void do_call(const struct call *call) {
    greg_t *registers = call->registers;
    long at[6] = {registers[REG_RDI], registers[REG_RSI], registers[REG_RDX],
                  registers[REG_R10], registers[REG_R8],  registers[REG_R9]};
    long result;
    if (!guard_do(call->number, at, &result)) {
        result = -EPERM;
    } else if (result < 0) {
        result = -errno;
    }
    registers[REG_RAX] = result;
}

/* do_call(call) with the stack that ends at `top`. */
void guard_on_stack(const struct call *call, char *top);
__asm__(
    ".text\n"
    "guard_on_stack:\n"
    "    push %rbp\n"
    "    mov %rsp, %rbp\n"
    "    mov %rsi, %rsp\n"
    "    call do_call\n"
    "    mov %rbp, %rsp\n"
    "    pop %rbp\n"
    "    ret\n");

static void do_instead(int signal, siginfo_t *info, void *context) {
    (void)signal;
    struct call call = {info->si_syscall, ((ucontext_t *)context)->uc_mcontext.gregs};
    int kept = errno;
    char *stack = mmap(0, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) {
        call.registers[REG_RAX] = -ENOMEM;
    } else {
        guard_on_stack(&call, stack + STACK_BYTES);
        munmap(stack, STACK_BYTES);
    }
    errno = kept;
}

void guard_restore(void);
__asm__(".text\nguard_restore:\n    mov $15, %eax\n    syscall\n");

void guard_handle_calls(void) {
    struct action action = {do_instead, SA_SIGINFO | SA_NODEFER | SA_RESTART | SA_ONSTACK | RESTORER,
                            guard_restore, ~0UL};
    CALL4(SYS_rt_sigaction, SIGSYS, &action, 0, sizeof action.mask);
}
