/* Runs a program that is denied the system calls that devices can do without. */
#include "check.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static const int CALLS[] = {SYS_msync,     SYS_membarrier, SYS_process_vm_readv, SYS_madvise, SYS_getrusage,
                            SYS_getrandom, SYS_sendmmsg,   SYS_statx,            SYS_flock};

int main(int argc, char **argv) {
    CHECK(argc > 1);
    struct sock_filter deny[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    int n = 1;
    for (size_t i = 0; i < sizeof CALLS / sizeof *CALLS; i++) {
        deny[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CALLS[i], 0, 1);
        deny[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
    }
    deny[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog filter = {n, deny};
    IS(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    IS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    execv(argv[1], argv + 1);
    CHECK(false);
}
