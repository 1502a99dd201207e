/* What processes owe when they end without closing anything. */
#include "check.h"

enum { MESSAGES = 20 };

/* By which the two processes talk. */
static int here[2], there[2];

/* Makes a child, a side in each process, and receives in one of them; the two tell each other where they are. Returns 0 in the
   child. */
static pid_t begin(bool ud, bool child_receives, struct side *s, struct address *other) {
    pid_t child = fork();
    *s = make_side(ud, 7);
    for (int i = 0; (child == 0) == child_receives && i < MESSAGES; i++)
        IS(recv_at(s, i, 0, 128), 0);
    struct address mine = address_of(s);
    put(child ? there[1] : here[1], &mine, sizeof mine);
    get(child ? here[0] : there[0], other, sizeof *other);
    return child;
}

static void join(pid_t child) {
    int status;
    IS(waitpid(child, &status, 0), child);
    IS(status, 0);
}

static struct ibv_ah *send_all(struct side *s, struct address *to) {
    struct ibv_ah *ah = make_ah(s->pd, to->gid);
    CHECK(ah);
    for (int i = 0; i < MESSAGES; i++)
        IS(send_from(s, i, 0, 64, ah, to->qpn), 0);
    return ah;
}

static void all_succeed(struct side *s) {
    for (int i = 0; i < MESSAGES; i++)
        IS(wait_wc(s->cq).status, IBV_WC_SUCCESS);
}

/* A receiver takes messages and exits: they were delivered, and so their sender hears. */
static void taken(void) {
    struct side s;
    struct address other;
    pid_t child = begin(false, true, &s, &other);
    if (!child) {
        all_succeed(&s);
        exit(0);
    }
    struct ibv_ah *ah = send_all(&s, &other);
    all_succeed(&s);
    join(child);
    /* And nobody is there any more, which it has said. */
    IS(send_from(&s, 1, 0, 64, ah, other.qpn), 0);
    IS(wait_wc(s.cq).vendor_err, 9);
    IS(ibv_destroy_ah(ah), 0);
    drop_side(&s);
}

/* Stops a process, which goes on after a while. */
static void put_to_sleep(pid_t pid) {
    IS(kill(pid, SIGSTOP), 0);
    pid_t waker = fork();
    CHECK(waker >= 0);
    if (!waker) {
        usleep(300000);
        kill(pid, SIGCONT);
        _exit(0);
    }
}

/* A sender of datagrams exits, or closes the device, as soon as they count as sent; to a peer that it had never met, which may
   have no core just then. */
static void sent(bool close, bool asleep) {
    struct side s;
    struct address other;
    pid_t child = begin(true, false, &s, &other);
    if (!child) {
        if (asleep)
            put_to_sleep(getppid());
        struct ibv_ah *ah = send_all(&s, &other);
        all_succeed(&s);
        if (close) {
            IS(ibv_destroy_ah(ah), 0);
            drop_side(&s);
        }
        exit(0);
    }
    all_succeed(&s);
    join(child);
    drop_side(&s);
}

static struct side worker;
static struct address target;

/* Sends without end, and has the process fail for the first error. */
static void *work(void *ah) {
    for (int i = 0; i < MESSAGES; i++)
        IS(send_from(&worker, i, 0, 64, ah, target.qpn), 0);
    for (;;) {
        struct ibv_wc wc;
        int n = ibv_poll_cq(worker.cq, 1, &wc);
        if (n < 0 || (n > 0 && wc.status != IBV_WC_SUCCESS))
            _exit(1);
        if (n > 0 && send_from(&worker, wc.wr_id, 0, 64, ah, target.qpn))
            _exit(2);
    }
}

/* A process exits while a thread of it works, which sees no error of that. */
static void works_on(void) {
    struct side s;
    pid_t child = begin(false, false, &s, &target);
    if (!child) {
        worker = s;
        pthread_t t;
        IS(pthread_create(&t, NULL, work, make_ah(s.pd, target.gid)), 0);
        usleep(20000);
        exit(0);
    }
    int status;
    struct ibv_wc wc;
    while (waitpid(child, &status, WNOHANG) == 0) {
        int n = ibv_poll_cq(s.cq, 1, &wc);
        CHECK(n >= 0);
        if (n > 0)
            IS(recv_at(&s, wc.wr_id, 0, 128), 0);
    }
    IS(status, 0);
    drop_side(&s);
}

int main(void) {
    IS(pipe(here), 0);
    IS(pipe(there), 0);
    taken();
    for (int i = 0; i < 4; i++)
        sent(i & 1, i & 2);
    for (int i = 0; i < 60; i++)
        works_on();
    return 0;
}
