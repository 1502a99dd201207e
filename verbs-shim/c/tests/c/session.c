/* Extended poll sessions: who ends them, and what may be done inside. */
#include "check.h"

static struct side s;
static struct ibv_ah *ah;
static struct ibv_cq_ex *cq;
static struct ibv_qp *qp;
static struct ibv_poll_cq_attr attr;

static void make_qp_on_cq(void) {
    CHECK(qp = make_qp(s.pd, ibv_cq_ex_to_cq(cq), false, 0, 0));
    IS(to_init(qp), 0);
    IS(to_rtr(qp), 0);
}

static void deliver(int n) {
    for (int i = 0; i < n; i++) {
        IS(recv_empty(qp, s.mr, i), 0);
        IS(send_from(&s, 1, 0, 0, ah, qp->qp_num), 0);
        IS(wait_wc(s.cq).status, IBV_WC_SUCCESS);
    }
}

/* The queue pair goes, or forgets everything, while one of its completions is looked at. */
static void reset_inside(void) {
    deliver(5);
    IS(ibv_start_poll(cq, &attr), 0);
    uint64_t first = cq->wr_id;
    IS(to_state(qp, IBV_QPS_RESET), 0);
    IS(cq->wr_id, first);
    IS(cq->status, IBV_WC_SUCCESS);
    IS(ibv_wc_read_opcode(cq), IBV_WC_RECV);
    IS(ibv_next_poll(cq), ENOENT);
    ibv_end_poll(cq);
    IS(to_init(qp), 0);
    IS(to_rtr(qp), 0);
    deliver(5);
    IS(ibv_start_poll(cq, &attr), 0);
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_next_poll(cq), ENOENT);
    ibv_end_poll(cq);
    make_qp_on_cq();
}

/* A work request's room is free when the session leaves its completion, not before. */
static void room(void) {
    deliver(5);
    int posted = 0, rc;
    while ((rc = recv_empty(qp, s.mr, 100)) == 0)
        posted++;
    IS(rc, ENOMEM);
    IS(posted, DEPTH - 5);
    IS(ibv_start_poll(cq, &attr), 0);
    IS(recv_empty(qp, s.mr, 101), ENOMEM);
    IS(ibv_next_poll(cq), 0);
    IS(recv_empty(qp, s.mr, 102), 0);
    IS(recv_empty(qp, s.mr, 103), ENOMEM);
    ibv_end_poll(cq);
    IS(recv_empty(qp, s.mr, 104), 0);
    IS(recv_empty(qp, s.mr, 105), ENOMEM);
    /* The plain way: as soon as the program has it. */
    struct ibv_wc wc[2];
    IS(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 2, wc), 2);
    IS(recv_empty(qp, s.mr, 106), 0);
    IS(recv_empty(qp, s.mr, 107), 0);
    IS(recv_empty(qp, s.mr, 108), ENOMEM);
    /* What was reset has all of its room, whatever the session leaves afterwards. */
    IS(ibv_start_poll(cq, &attr), 0);
    IS(to_state(qp, IBV_QPS_RESET), 0);
    ibv_end_poll(cq);
    IS(to_init(qp), 0);
    IS(to_rtr(qp), 0);
    for (int i = 0; i < DEPTH; i++)
        IS(recv_empty(qp, s.mr, i), 0);
    IS(recv_empty(qp, s.mr, DEPTH), ENOMEM);
    IS(ibv_destroy_qp(qp), 0);
    make_qp_on_cq();
}

static void *end(void *unused) {
    (void)unused;
    ibv_end_poll(cq);
    return NULL;
}

static pthread_barrier_t step;

/* One that found nothing, and ends what it did not begin. */
static void *fail_and_end(void *unused) {
    (void)unused;
    IS(ibv_start_poll(cq, &attr), ENOENT);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step); /* the other one polls now */
    ibv_end_poll(cq);
    return NULL;
}

static void run(void *(*what)(void *)) {
    pthread_t t;
    IS(pthread_create(&t, NULL, what, NULL), 0);
    IS(pthread_join(t, NULL), 0);
}

/* Threads take turns to run a coroutine: another one than began a session may end it. */
static void other_threads(void) {
    deliver(2);
    IS(ibv_start_poll(cq, &attr), 0);
    run(end);
    IS(ibv_start_poll(cq, &attr), 0);
    ibv_end_poll(cq);
    /* But not by mistake. */
    pthread_t t;
    IS(pthread_barrier_init(&step, NULL, 2), 0);
    IS(pthread_create(&t, NULL, fail_and_end, NULL), 0);
    pthread_barrier_wait(&step);
    deliver(2);
    IS(ibv_start_poll(cq, &attr), 0);
    pthread_barrier_wait(&step);
    IS(pthread_join(t, NULL), 0);
    IS(ibv_start_poll(cq, &attr), EINVAL); /* it is in one still */
    IS(ibv_next_poll(cq), 0);
    ibv_end_poll(cq);
    run(end); /* there is none */
    IS(ibv_start_poll(cq, &attr), ENOENT);
    ibv_end_poll(cq);
}

int main(void) {
    s = make_side(false, 7);
    CHECK(ah = make_ah(s.pd, s.gid));
    struct ibv_cq_init_attr_ex init = {.cqe = 100};
    CHECK(cq = ibv_create_cq_ex(s.ctx, &init));
    make_qp_on_cq();
    reset_inside();
    room();
    other_threads();
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
    IS(ibv_destroy_ah(ah), 0);
    drop_side(&s);
    return 0;
}
