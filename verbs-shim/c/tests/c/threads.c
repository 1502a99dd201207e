/* Threads that share a device, a queue pair and a completion queue. */
#include "check.h"

enum { THREADS = 4, EACH = 2000 };

static struct side a, b;
static struct ibv_ah *to_b;
static struct ibv_cq_ex *shared;
static int sent, received, failed;
static bool stop;

/* Post to one queue pair, half of them the plain way. */
static void *poster(void *arg) {
    long me = (long)arg;
    for (int i = 0; i < EACH;) {
        int rc;
        if (me & 1) {
            rc = send_from(&a, me, 0, 32, to_b, b.qp->qp_num);
        } else {
            ibv_wr_start(a.ex);
            a.ex->wr_id = me;
            a.ex->wr_flags = IBV_SEND_SIGNALED;
            ibv_wr_send(a.ex);
            ibv_wr_set_ud_addr(a.ex, to_b, b.qp->qp_num, QKEY);
            ibv_wr_set_inline_data(a.ex, &me, sizeof me);
            rc = ibv_wr_complete(a.ex);
        }
        if (rc == 0) {
            i++;
            continue;
        }
        IS(rc, ENOMEM);
        struct ibv_wc wc[8];
        int n = ibv_poll_cq(a.cq, 8, wc);
        CHECK(n >= 0);
        for (int k = 0; k < n; k++)
            __atomic_add_fetch(wc[k].status ? &failed : &sent, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

/* Poll one completion queue in sessions, and post receives inside of them. */
static void *poller(void *arg) {
    (void)arg;
    struct ibv_poll_cq_attr attr = {};
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        int rc = ibv_start_poll(shared, &attr);
        if (rc == ENOENT)
            continue;
        IS(rc, 0);
        do {
            IS(shared->status, IBV_WC_SUCCESS);
            IS(ibv_wc_read_src_qp(shared), a.qp->qp_num);
            __atomic_add_fetch(&received, 1, __ATOMIC_RELAXED);
            IS(recv_at(&b, 1, 64, 64), 0);
        } while (ibv_next_poll(shared) == 0);
        ibv_end_poll(shared);
    }
    return NULL;
}

/* Make and destroy everything, meanwhile. */
static void *maker(void *arg) {
    (void)arg;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        struct side s = make_side(false, 7);
        struct ibv_ah *ah = make_ah(s.pd, s.gid);
        CHECK(ah);
        pass(&s, &s, ah);
        IS(ibv_destroy_ah(ah), 0);
        drop_side(&s);
    }
    return NULL;
}

int main(void) {
    a = make_side(false, 7);
    b = make_side(false, 7);
    IS(ibv_destroy_qp(b.qp), 0);
    struct ibv_cq_init_attr_ex attr = {.cqe = 4 * DEPTH, .wc_flags = IBV_WC_STANDARD_FLAGS};
    CHECK(shared = ibv_create_cq_ex(b.ctx, &attr));
    CHECK(b.qp = make_qp(b.pd, ibv_cq_ex_to_cq(shared), false, 0, 0));
    IS(to_init(b.qp), 0);
    IS(to_rtr(b.qp), 0);
    for (int i = 0; i < DEPTH / 2; i++)
        IS(recv_at(&b, 1, 64, 64), 0);
    CHECK(to_b = make_ah(a.pd, b.gid));
    pthread_t posters[THREADS], pollers[2], makers[1];
    for (long i = 0; i < 2; i++)
        IS(pthread_create(&pollers[i], NULL, poller, NULL), 0);
    IS(pthread_create(&makers[0], NULL, maker, NULL), 0);
    for (long i = 0; i < THREADS; i++)
        IS(pthread_create(&posters[i], NULL, poster, (void *)i), 0);
    for (int i = 0; i < THREADS; i++)
        IS(pthread_join(posters[i], NULL), 0);
    while (sent + failed < THREADS * EACH) {
        struct ibv_wc wc = wait_wc(a.cq);
        *(wc.status ? &failed : &sent) += 1;
    }
    IS(failed, 0);
    double end = now() + PATIENCE;
    while (__atomic_load_n(&received, __ATOMIC_RELAXED) < THREADS * EACH)
        CHECK(now() < end);
    stop = true;
    for (int i = 0; i < 2; i++)
        IS(pthread_join(pollers[i], NULL), 0);
    IS(pthread_join(makers[0], NULL), 0);
    IS(received, THREADS * EACH);
    IS(ibv_destroy_ah(to_b), 0);
    IS(ibv_destroy_qp(b.qp), 0);
    IS(ibv_destroy_cq(ibv_cq_ex_to_cq(shared)), 0);
    CHECK(b.qp = make_qp(b.pd, b.cq, false, 0, 0));
    drop_side(&a);
    drop_side(&b);
    return 0;
}
