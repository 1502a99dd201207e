/* What processes owe when they end without closing anything. */
#include "check.h"

enum { MESSAGES = 20 };

/* The two processes tell each other where they are. */
static int here[2], there[2];

static struct address meet(struct side *s, bool child) {
    struct address mine = address_of(s), other;
    put(child ? here[1] : there[1], &mine, sizeof mine);
    get(child ? there[0] : here[0], &other, sizeof other);
    return other;
}

static void join(pid_t child) {
    int status;
    IS(waitpid(child, &status, 0), child);
    IS(status, 0);
}

/* A receiver takes messages and exits: they were delivered, and so their sender hears. */
static void taken(void) {
    pid_t child = fork();
    struct side s = make_side(false, 7);
    for (int i = 0; !child && i < MESSAGES; i++)
        IS(recv_at(&s, i, 0, 64), 0);
    struct address other = meet(&s, !child);
    if (!child) {
        for (int i = 0; i < MESSAGES; i++)
            IS(wait_wc(s.cq, 30).status, IBV_WC_SUCCESS);
        exit(0);
    }
    struct ibv_ah *ah = make_ah(s.pd, other.gid);
    CHECK(ah);
    for (int i = 0; i < MESSAGES; i++)
        IS(send_from(&s, i, 0, 64, ah, other.qpn), 0);
    for (int i = 0; i < MESSAGES; i++)
        IS(wait_wc(s.cq, 30).status, IBV_WC_SUCCESS);
    join(child);
    /* And nobody is there any more, which it has said. */
    IS(send_from(&s, 1, 0, 64, ah, other.qpn), 0);
    IS(wait_wc(s.cq, 30).vendor_err, 9);
    IS(ibv_destroy_ah(ah), 0);
    drop_side(&s);
}

/* A sender of datagrams exits, or closes the device, as soon as they count as sent; to a peer that it had never met. */
static void sent(bool close) {
    pid_t child = fork();
    struct side s = make_side(true, 7);
    for (int i = 0; child && i < MESSAGES; i++)
        IS(recv_at(&s, i, 0, 128), 0);
    struct address other = meet(&s, !child);
    if (!child) {
        struct ibv_ah *ah = make_ah(s.pd, other.gid);
        CHECK(ah);
        for (int i = 0; i < MESSAGES; i++)
            IS(send_from(&s, i, 0, 64, ah, other.qpn), 0);
        for (int i = 0; i < MESSAGES; i++)
            IS(wait_wc(s.cq, 30).status, IBV_WC_SUCCESS);
        if (close) {
            IS(ibv_destroy_ah(ah), 0);
            drop_side(&s);
        }
        exit(0);
    }
    for (int i = 0; i < MESSAGES; i++)
        IS(wait_wc(s.cq, 30).status, IBV_WC_SUCCESS);
    join(child);
    drop_side(&s);
}

int main(void) {
    IS(pipe(here), 0);
    IS(pipe(there), 0);
    taken();
    sent(false);
    sent(true);
    return 0;
}
