/* Threads that are cancelled: the verbs are no place to be unwound from, except where they wait for events. */
#include "check.h"

static struct side s;
static struct ibv_ah *ah;

/* With a cancellation pending from the start. */
static void *all_calls(void *done) {
    IS(pthread_cancel(pthread_self()), 0);
    struct side t = make_side(false, 7);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(t.ctx);
    struct ibv_cq *cq = ibv_create_cq(t.ctx, 10, NULL, channel, 0);
    CHECK(channel && cq);
    IS(ibv_req_notify_cq(cq, 0), 0);
    IS(recv_at(&t, 1, 0, 64), 0);
    struct ibv_ah *to_t = make_ah(t.pd, t.gid);
    CHECK(to_t);
    IS(send_from(&t, 2, 64, 64, to_t, t.qp->qp_num), 0);
    IS(send_from(&t, 3, 64, 64, to_t, 0xffff), 0); /* which is logged */
    struct ibv_recv_wr nothing = {.wr_id = 4}, *bad;
    IS(ibv_post_recv(t.qp, &nothing, &bad), 0); /* and this */
    for (int i = 0; i < 3; i++)
        wait_wc(t.cq);
    /* To another device, for which there are sockets to be opened. */
    struct side far = make_side_of(open_device(1), false, 7, 0);
    struct ibv_ah *to_far = make_ah(t.pd, far.gid);
    CHECK(to_far);
    for (int i = 0; i < 100; i++)
        pass(&t, &far, to_far);
    IS(ibv_destroy_ah(to_far), 0);
    drop_side(&far);
    IS(ibv_destroy_ah(to_t), 0);
    IS(ibv_destroy_cq(cq), 0);
    IS(ibv_destroy_comp_channel(channel), 0);
    drop_side(&t);
    *(bool *)done = true;
    pthread_testcancel();
    return NULL;
}

/* At any moment. */
static void *traffic(void *unused) {
    (void)unused;
    for (;;) {
        struct ibv_wc wc[4];
        recv_at(&s, 1, 0, 64);
        send_from(&s, 2, 64, 64, ah, s.qp->qp_num);
        for (int i = 0; i < 50; i++)
            CHECK(ibv_poll_cq(s.cq, 4, wc) >= 0);
        pthread_testcancel();
    }
}

static void *wait_for_completion(void *channel) {
    struct ibv_cq *cq;
    void *context;
    ibv_get_cq_event(channel, &cq, &context);
    return NULL;
}

static void *wait_for_error(void *ctx) {
    struct ibv_async_event event;
    ibv_get_async_event(ctx, &event);
    return NULL;
}

static void cancel(void *(*run)(void *), void *arg, int after_us) {
    pthread_t t;
    void *end;
    IS(pthread_create(&t, NULL, run, arg), 0);
    usleep(after_us);
    IS(pthread_cancel(t), 0);
    IS(pthread_join(t, &end), 0);
    CHECK(end == PTHREAD_CANCELED);
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "child")) {
        CHECK(ibv_get_device_list(NULL)); /* which begins to log */
        pid_t pid = fork();
        CHECK(pid >= 0);
        int status;
        if (pid > 0) {
            IS(waitpid(pid, &status, 0), pid);
            return status != 0;
        }
    }
    bool done = false;
    pthread_t t;
    void *end;
    IS(pthread_create(&t, NULL, all_calls, &done), 0);
    IS(pthread_join(t, &end), 0);
    CHECK(end == PTHREAD_CANCELED && done);
    s = make_side(false, 7);
    CHECK(ah = make_ah(s.pd, s.gid));
    for (int i = 0; i < 200; i++)
        cancel(traffic, NULL, i * 10);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(s.ctx);
    CHECK(channel);
    for (int i = 0; i < 20; i++) {
        cancel(wait_for_completion, channel, i * 100);
        cancel(wait_for_error, s.ctx, i * 100);
    }
    /* Everything is as it was. */
    struct ibv_wc wc;
    IS(to_state(s.qp, IBV_QPS_ERR), 0);
    for (double end = now() + 0.05; now() < end;)
        CHECK(ibv_poll_cq(s.cq, 1, &wc) >= 0);
    IS(ibv_destroy_comp_channel(channel), 0);
    IS(ibv_destroy_ah(ah), 0);
    drop_side(&s);
    return 0;
}
