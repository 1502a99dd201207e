/* A signal handler that interrupts a verb, and calls verbs. */
#include "check.h"
#include <signal.h>

static struct side s;
static struct ibv_ah *ah;
static bool leaves;
static volatile int interrupted;

/* The card reads a page that may not be read: so this thread is inside of a verb, which cannot be waited for. */
static void handler(int signal) {
    (void)signal;
    struct ibv_wc wc;
    struct ibv_pd *pd = ibv_alloc_pd(s.ctx);
    CHECK(!pd && errno == EBUSY);
    IS(ibv_poll_cq(s.cq, 1, &wc), -1);
    IS(recv_at(&s, 1, 0, 8), EBUSY);
    IS(send_from(&s, 1, 0, 8, ah, s.qp->qp_num), EBUSY);
    IS(ibv_destroy_qp(s.qp), EBUSY);
    IS(ibv_close_device(s.ctx), EBUSY);
    if (leaves)
        exit(0);
    interrupted++;
    IS(mprotect(s.mem, SIZE, PROT_READ | PROT_WRITE), 0);
}

static void interrupt(void) {
    IS(recv_at(&s, 7, 4096, 64), 0);
    memset(s.mem, 3, 64);
    IS(mprotect(s.mem, SIZE, PROT_NONE), 0);
    IS(send_from(&s, 8, 0, 64, ah, s.qp->qp_num), 0);
    IS(wait_wc(s.cq, 10).status, IBV_WC_SUCCESS);
    IS(wait_wc(s.cq, 10).status, IBV_WC_SUCCESS);
    IS(memcmp(s.mem, s.mem + 4096, 64), 0);
}

int main(void) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_NODEFER};
    IS(sigaction(SIGSEGV, &action, NULL), 0);
    s = make_side(false, 7);
    CHECK(ah = make_ah(s.pd, s.gid));
    /* It goes on where it was. */
    interrupt();
    IS(interrupted, 1);
    /* Or does not: the process ends, with verbs in what runs then. */
    leaves = true;
    interrupt();
    return 1;
}
