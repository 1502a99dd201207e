/* Threads with little stack, such as those of runtimes that have very many. */
#include "check.h"
#include <limits.h>

enum { STACK = 48 << 10, BATCH = 32 };

static struct side a, b;
static struct ibv_ah *to_b;

static void *work(void *unused) {
    for (int i = 0; i < 200; i++) {
        uint32_t len = 8928 >> i % 8;
        for (int k = 0; k < BATCH; k++) {
            IS(recv_at(&b, 1, 0, len), 0);
            IS(send_from(&a, 2, 0, len, to_b, b.qp->qp_num), 0);
        }
        for (int k = 0; k < BATCH; k++) {
            IS(wait_wc(b.cq).status, IBV_WC_SUCCESS);
            IS(wait_wc(a.cq).status, IBV_WC_SUCCESS);
        }
    }
    /* What is logged. */
    IS(send_from(&a, 3, 0, 64, to_b, b.qp->qp_num ^ 1), 0);
    IS(wait_wc(a.cq).vendor_err, 9);
    struct ibv_mr *mr = ibv_reg_mr(a.pd, a.mem, 100, all_access(a.ctx));
    CHECK(mr);
    IS(ibv_dereg_mr(mr), 0);
    IS(ibv_destroy_ah(to_b), 0);
    drop_side(&a);
    drop_side(&b);
    return unused;
}

int main(void) {
    a = make_side_of(open_device(0), false, 7, 0);
    b = make_side_of(open_device(1), false, 7, 0);
    CHECK(to_b = make_ah(a.pd, b.gid));
    pthread_attr_t attr;
    IS(pthread_attr_init(&attr), 0);
    /* On AArch64 none may have less than 128 KB. */
    IS(pthread_attr_setstacksize(&attr, STACK > PTHREAD_STACK_MIN ? STACK : PTHREAD_STACK_MIN), 0);
    pthread_t t;
    IS(pthread_create(&t, &attr, work, NULL), 0);
    IS(pthread_join(t, NULL), 0);
    return 0;
}
