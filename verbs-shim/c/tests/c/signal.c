/* A signal handler that interrupts a verb, and calls verbs. */
#include "check.h"
#include <signal.h>

static struct side s;
static struct ibv_cq *sends;
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

/* A queue pair whose sends complete elsewhere. Where there are two processing units, each has one. */
static struct ibv_qp *make_pair(void) {
    struct ibv_qp_init_attr attr = {.send_cq = sends, .recv_cq = s.cq, .qp_type = IBV_QPT_DRIVER};
    attr.cap = (struct ibv_qp_cap){DEPTH, DEPTH, 1, 1, 0};
    struct ibv_qp *qp = efadv_create_driver_qp(s.pd, &attr, EFADV_QP_DRIVER_TYPE_SRD);
    CHECK(qp);
    IS(to_init(qp), 0);
    IS(to_rtr(qp), 0);
    IS(to_rts(qp, 7), 0);
    return qp;
}

static void interrupt(struct ibv_qp *quiet, struct ibv_qp *busy) {
    /* A completion that the handler must leave where it is. */
    s.qp = quiet;
    IS(recv_at(&s, 5, 0, 8), 0);
    IS(send_from(&s, 6, 0, 0, ah, quiet->qp_num), 0);
    IS(wait_wc(sends).wr_id, 6);
    s.qp = busy;
    IS(recv_at(&s, 7, 4096, 64), 0);
    memset(s.mem, 3, 64);
    IS(mprotect(s.mem, SIZE, PROT_NONE), 0);
    IS(send_from(&s, 8, 0, 64, ah, busy->qp_num), 0);
    struct ibv_wc wc = wait_wc(sends);
    IS(wc.wr_id, 8);
    IS(wc.status, IBV_WC_SUCCESS);
    IS(memcmp(s.mem, s.mem + 4096, 64), 0);
    IS(wait_wc(s.cq).wr_id + wait_wc(s.cq).wr_id, 5 + 7);
    /* What was refused was not done anywhere. */
    struct ibv_pd *pd = ibv_alloc_pd(s.ctx);
    CHECK(pd);
    IS(ibv_dealloc_pd(pd), 0);
}

int main(void) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_NODEFER};
    IS(sigaction(SIGSEGV, &action, NULL), 0);
    s = make_side(false, 7);
    CHECK(ah = make_ah(s.pd, s.gid));
    CHECK(sends = ibv_create_cq(s.ctx, DEPTH, NULL, NULL, 0));
    struct ibv_qp *qps[] = {make_pair(), make_pair()};
    /* It goes on where it was. */
    for (int i = 0; i < 2; i++) {
        interrupt(qps[i], qps[1 - i]);
        IS(interrupted, i + 1);
    }
    /* Or does not: the process ends, with verbs in what runs then. */
    leaves = true;
    interrupt(qps[0], qps[1]);
    return 1;
}
