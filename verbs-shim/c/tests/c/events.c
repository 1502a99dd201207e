/* Completion channels and asynchronous events: when a descriptor is readable, and what destroying does. */
#include "check.h"
#include <sys/epoll.h>
#include <sys/time.h>

static struct side s;
static struct ibv_ah *ah;
static struct ibv_comp_channel *channel;

static bool readable(int fd, double seconds) {
    struct pollfd p = {fd, POLLIN, 0};
    int n = poll(&p, 1, seconds * 1000);
    CHECK(n >= 0);
    return n == 1;
}

static struct ibv_qp *qp_on(struct ibv_cq *cq) {
    struct ibv_qp *qp = make_qp(s.pd, cq, false, 0, 0);
    CHECK(qp);
    IS(to_init(qp), 0);
    IS(to_rtr(qp), 0);
    return qp;
}

static void deliver(struct ibv_qp *qp) {
    IS(recv_empty(qp, s.mr, 0), 0);
    IS(send_from(&s, 1, 0, 0, ah, qp->qp_num), 0);
    IS(wait_wc(s.cq).status, IBV_WC_SUCCESS);
}

static void expect_event(struct ibv_cq *cq, void *context) {
    struct ibv_cq *got;
    void *got_context;
    IS(ibv_get_cq_event(channel, &got, &got_context), 0);
    CHECK(got == cq && got_context == context);
}

/* A completion fires, the next one or one that is there already, and only one. */
static void arming(void) {
    int x, y;
    struct ibv_cq *a = ibv_create_cq(s.ctx, 50, &x, channel, 0), *b = ibv_create_cq(s.ctx, 50, &y, channel, 0);
    CHECK(a && b);
    IS(channel->refcnt, 2);
    struct ibv_qp *qa = qp_on(a), *qb = qp_on(b);
    deliver(qa);
    CHECK(!readable(channel->fd, 0.02)); /* not armed */
    IS(ibv_req_notify_cq(a, 0), 0);
    CHECK(readable(channel->fd, PATIENCE)); /* a program that did not take all misses nothing */
    deliver(qa); /* not armed any more */
    expect_event(a, &x);
    CHECK(!readable(channel->fd, 0.02));
    struct ibv_wc wc[16];
    IS(ibv_poll_cq(a, 16, wc), 2);
    IS(ibv_req_notify_cq(a, 0), 0);
    CHECK(!readable(channel->fd, 0.02));
    IS(ibv_req_notify_cq(a, 0), 0); /* twice is once */
    IS(ibv_req_notify_cq(b, 0), 0);
    deliver(qb);
    deliver(qa);
    deliver(qa);
    expect_event(b, &y);
    CHECK(readable(channel->fd, PATIENCE));
    expect_event(a, &x);
    CHECK(!readable(channel->fd, 0.02));
    IS(ibv_poll_cq(a, 16, wc), 2);
    IS(ibv_poll_cq(b, 16, wc), 1);
    ibv_ack_cq_events(a, 2);
    ibv_ack_cq_events(b, 1);
    /* An event that nobody has read goes with its queue. */
    IS(ibv_req_notify_cq(a, 0), 0);
    IS(ibv_req_notify_cq(b, 0), 0);
    deliver(qa);
    deliver(qb);
    CHECK(readable(channel->fd, PATIENCE));
    IS(ibv_destroy_qp(qa), 0);
    IS(ibv_destroy_cq(a), 0);
    CHECK(readable(channel->fd, 0)); /* that of the other */
    IS(ibv_destroy_comp_channel(channel), EBUSY);
    IS(ibv_destroy_qp(qb), 0);
    IS(ibv_destroy_cq(b), 0);
    CHECK(!readable(channel->fd, 0.02));
    IS(channel->refcnt, 0);
}

static void *sender(void *qp) {
    usleep(30000);
    deliver(qp);
    return NULL;
}

static void interrupted(int signal) {
    (void)signal;
}

/* A signal while the program waits; what it waits for comes only afterwards. */
static struct ibv_qp *signalled;

static void delivers(int signal) {
    (void)signal;
    pthread_t t;
    IS(pthread_create(&t, NULL, sender, signalled), 0);
    IS(pthread_detach(t), 0);
    signalled = NULL;
}

/* Who waits for edges gets one for each event, read or not. */
static void edges(void) {
    struct ibv_cq *cq[2], *got;
    struct ibv_qp *qp[2];
    void *context;
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    IS(epoll_ctl(epoll, EPOLL_CTL_ADD, channel->fd, &event), 0);
    for (int i = 0; i < 2; i++) {
        CHECK(cq[i] = ibv_create_cq(s.ctx, 50, NULL, channel, 0));
        qp[i] = qp_on(cq[i]);
        IS(ibv_req_notify_cq(cq[i], 0), 0);
        deliver(qp[i]);
        IS(epoll_wait(epoll, &event, 1, 1000 * PATIENCE), 1);
        IS(epoll_wait(epoll, &event, 1, 0), 0);
    }
    for (int i = 0; i < 2; i++) {
        IS(ibv_get_cq_event(channel, &got, &context), 0);
        ibv_ack_cq_events(got, 1);
        IS(readable(channel->fd, 0.02), i == 0);
    }
    for (int i = 0; i < 2; i++) {
        IS(ibv_destroy_qp(qp[i]), 0);
        IS(ibv_destroy_cq(cq[i]), 0);
    }
    IS(close(epoll), 0);
}

static void blocking(void) {
    struct ibv_cq *cq = ibv_create_cq(s.ctx, 50, NULL, channel, 0), *got;
    void *context;
    CHECK(cq);
    struct ibv_qp *qp = qp_on(cq);
    IS(ibv_req_notify_cq(cq, 0), 0);
    pthread_t t;
    IS(pthread_create(&t, NULL, sender, qp), 0);
    expect_event(cq, NULL); /* waits for it */
    ibv_ack_cq_events(cq, 1);
    IS(pthread_join(t, NULL), 0);
    IS(fcntl(channel->fd, F_SETFL, O_NONBLOCK), 0);
    MINUS_WITH(ibv_get_cq_event(channel, &got, &context), EAGAIN);
    IS(fcntl(channel->fd, F_SETFL, 0), 0);
    struct sigaction act = {.sa_handler = interrupted};
    IS(sigaction(SIGALRM, &act, NULL), 0);
    /* Again and again, since the first one may come before it waits. */
    struct itimerval often = {{0, 100000}, {0, 100000}}, never = {};
    IS(setitimer(ITIMER_REAL, &often, NULL), 0);
    MINUS_WITH(ibv_get_cq_event(channel, &got, &context), EINTR);
    IS(setitimer(ITIMER_REAL, &never, NULL), 0);
    /* A program that wants its calls to go on after a signal gets what it waits for. */
    act = (struct sigaction){.sa_handler = delivers, .sa_flags = SA_RESTART};
    IS(sigaction(SIGALRM, &act, NULL), 0);
    signalled = qp;
    IS(ibv_poll_cq(cq, 1, &(struct ibv_wc){}), 1);
    IS(ibv_req_notify_cq(cq, 0), 0);
    alarm(1);
    expect_event(cq, NULL);
    CHECK(!signalled);
    ibv_ack_cq_events(cq, 1);
    MINUS_WITH(ibv_get_cq_event(channel, NULL, &context), EINVAL);
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_destroy_cq(cq), 0);
}

static void *acker(void *cq) {
    usleep(30000);
    ibv_ack_cq_events(cq, 1);
    return NULL;
}

/* Destroying waits for acknowledgements. */
static void acknowledging(void) {
    struct ibv_cq *cq = ibv_create_cq(s.ctx, 50, NULL, channel, 0);
    CHECK(cq);
    struct ibv_qp *qp = qp_on(cq);
    IS(ibv_req_notify_cq(cq, 0), 0);
    deliver(qp);
    expect_event(cq, NULL);
    IS(ibv_destroy_qp(qp), 0);
    pthread_t t;
    double began = now();
    IS(pthread_create(&t, NULL, acker, cq), 0);
    IS(ibv_destroy_cq(cq), 0);
    CHECK(now() - began > 0.025);
    IS(pthread_join(t, NULL), 0);
}

/* A completion queue that is too small tells so, once. */
static void overrun(void) {
    struct ibv_async_event event;
    IS(fcntl(s.ctx->async_fd, F_SETFL, O_NONBLOCK), 0);
    MINUS_WITH(ibv_get_async_event(s.ctx, &event), EAGAIN);
    CHECK(!readable(s.ctx->async_fd, 0));
    struct ibv_cq *cq = ibv_create_cq(s.ctx, 4, NULL, NULL, 0);
    CHECK(cq);
    struct ibv_qp *qp = qp_on(cq);
    for (int i = 0; i < 8; i++)
        deliver(qp);
    CHECK(readable(s.ctx->async_fd, PATIENCE));
    IS(ibv_get_async_event(s.ctx, &event), 0);
    IS(event.event_type, IBV_EVENT_CQ_ERR);
    CHECK(event.element.cq == cq);
    CHECK(!readable(s.ctx->async_fd, 0.02));
    ibv_ack_async_event(&event);
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_destroy_cq(cq), 0);
    /* One that nobody has read goes with its queue. */
    CHECK(cq = ibv_create_cq(s.ctx, 4, NULL, NULL, 0));
    qp = qp_on(cq);
    for (int i = 0; i < 8; i++)
        deliver(qp);
    CHECK(readable(s.ctx->async_fd, PATIENCE));
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_destroy_cq(cq), 0);
    CHECK(!readable(s.ctx->async_fd, 0.02));
    MINUS_WITH(ibv_get_async_event(s.ctx, NULL), EINVAL);
}

int main(void) {
    s = make_side(false, 7);
    CHECK(ah = make_ah(s.pd, s.gid));
    CHECK(channel = ibv_create_comp_channel(s.ctx));
    arming();
    edges();
    blocking();
    acknowledging();
    overrun();
    IS(ibv_destroy_comp_channel(channel), 0);
    IS(ibv_destroy_ah(ah), 0);
    drop_side(&s);
    return 0;
}
