/* Processes that fork while they use a device. */
#include "check.h"

/* Some milliseconds each. */
enum { POPENS = 300 };

static struct side a, b;
static struct ibv_ah *to_b;
static struct ibv_comp_channel *channel;
static struct ibv_cq *told;

/* An event, by a completion that nobody takes. */
static void event_of_told(void) {
    struct ibv_qp *qp = make_qp(a.pd, told, false, 0, 0);
    CHECK(qp);
    IS(to_init(qp), 0);
    IS(recv_empty(qp, a.mr, 1), 0);
    IS(ibv_req_notify_cq(told, 0), 0);
    IS(to_state(qp, IBV_QPS_ERR), 0); /* which flushes the receive */
    IS(ibv_destroy_qp(qp), 0);
}

/* What the parent opened is dead; what the child opens works. */
static void child(void) {
    struct ibv_wc wc;
    IS(recv_at(&b, 1, 0, 64), EIO);
    IS(send_from(&a, 2, 0, 64, to_b, b.qp->qp_num), EIO);
    IS(rdma(&a, 'r', 1, 0, 16, to_b, &(struct address){}, 0, 0), EIO);
    CHECK(ibv_poll_cq(a.cq, 1, &wc) < 0);
    NULL_WITH(ibv_alloc_pd(a.ctx), EIO);
    NULL_WITH(ibv_reg_mr(a.pd, &wc, sizeof wc, 0), EIO);
    NULL_WITH(ibv_create_cq(a.ctx, 10, NULL, NULL, 0), EIO);
    IS(to_state(a.qp, IBV_QPS_ERR), EIO);
    struct ibv_cq *cq;
    void *ctx;
    struct ibv_async_event event;
    MINUS_WITH(ibv_get_cq_event(channel, &cq, &ctx), EIO); /* though there is one */
    MINUS_WITH(ibv_get_async_event(a.ctx, &event), EIO);
    ibv_ack_cq_events(told, 1);
    IS(ibv_destroy_cq(told), 0);
    IS(ibv_destroy_comp_channel(channel), 0);
    union ibv_gid gid;
    MINUS_WITH(ibv_query_gid(a.ctx, 1, 0, &gid), EIO);
    /* Objects of the parent may be let go. */
    IS(ibv_destroy_ah(to_b), 0);
    drop_side(&b);
    struct ibv_context *old = a.ctx;
    a = make_side(false, 7);
    b = make_side(false, 7);
    CHECK(memcmp(&a.gid, &gid, sizeof gid)); /* an address of its own */
    CHECK(to_b = make_ah(a.pd, b.gid));
    for (int i = 0; i < 20; i++)
        pass(&a, &b, to_b);
    IS(ibv_destroy_ah(to_b), 0);
    drop_side(&a);
    drop_side(&b);
    /* The device of the parent, by the pointer that it left. */
    struct ibv_context *again = ibv_open_device(old->device);
    CHECK(again);
    IS(ibv_close_device(again), 0);
    IS(ibv_close_device(old), 0);
}

static void *busy(void *stop) {
    while (!__atomic_load_n((bool *)stop, __ATOMIC_RELAXED)) {
        struct ibv_wc wc;
        CHECK(ibv_poll_cq(a.cq, 1, &wc) >= 0);
    }
    return NULL;
}

int main(void) {
    a = make_side(false, 7);
    b = make_side(false, 7);
    CHECK(to_b = make_ah(a.pd, b.gid));
    pass(&a, &b, to_b);
    CHECK(channel = ibv_create_comp_channel(a.ctx));
    CHECK(told = ibv_create_cq(a.ctx, 10, NULL, channel, 0));
    for (int i = 0; i < 3; i++) {
        event_of_told();
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) {
            child();
            exit(0); /* with handlers: nothing of the parent's goes */
        }
        pass(&a, &b, to_b); /* undisturbed */
        int status;
        IS(waitpid(pid, &status, 0), pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        pass(&a, &b, to_b);
        /* The event is there still. */
        struct ibv_cq *cq;
        void *ctx;
        IS(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
        IS(ibv_get_cq_event(channel, &cq, &ctx), 0);
        CHECK(cq == told);
        ibv_ack_cq_events(told, 1);
    }
    IS(ibv_destroy_cq(told), 0);
    IS(ibv_destroy_comp_channel(channel), 0);
    /* A fork while a thread is in the library. */
    bool stop = false;
    pthread_t t;
    IS(pthread_create(&t, NULL, busy, &stop), 0);
    for (int i = 0; i < 10; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid) {
            struct side s = make_side(false, 7);
            drop_side(&s);
            _exit(0);
        }
        int status;
        IS(waitpid(pid, &status, 0), pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    __atomic_store_n(&stop, true, __ATOMIC_RELAXED);
    IS(pthread_join(t, NULL), 0);
    /* Shells, again and again, while messages go: they have no descriptor of ours. */
    for (int i = 0; i < POPENS; i++) {
        FILE *shell = popen("ls -l /proc/self/fd | grep -c socket:", "r");
        CHECK(shell);
        pass(&a, &b, to_b);
        int sockets;
        IS(fscanf(shell, "%d", &sockets), 1);
        pclose(shell);
        IS(sockets, 0);
    }
    CHECK(access(getenv("SYSFS_PATH"), R_OK) == 0);
    IS(ibv_destroy_ah(to_b), 0);
    drop_side(&a);
    drop_side(&b);
    return 0;
}
