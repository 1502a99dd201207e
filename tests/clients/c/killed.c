/* A peer that is killed in the middle of each operation. All that was posted to it completes, once each, with success or
 * a status that says that it is gone, in bounded time; and the queue pair goes on with another peer. */
#include "check.h"

enum { LONG = 4 << 20, COUNT = 32, LATE = 8 };

struct child {
    pid_t pid;
    int to, from;
    struct address at;
};

/* The peer: it shows its memory, posts receives, and is there until it is killed. As 'R', 'W' it is the one that reads
 * from and writes to its parent, all the time. */
static void serve(int in, int out, char op) {
    struct side s = make_side_of(open_device(0), false, 7, op == 'u' ? 1 : 0);
    char *mem = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mem != MAP_FAILED);
    struct ibv_mr *mr = ibv_reg_mr(s.pd, mem, LONG, all_access(s.ctx));
    CHECK(mr);
    struct address me = {s.gid, s.qp->qp_num, mr->rkey, (uintptr_t)mem}, to;
    put(out, &me, sizeof me);
    get(in, &to, sizeof to);
    struct ibv_ah *ah = make_ah(s.pd, to.gid);
    CHECK(ah);
    for (int k = 0; k < DEPTH; k++)
        IS(recv_at(&s, k, 0, SIZE), 0);
    put(out, "r", 1);
    s.mr = mr;
    s.mem = mem;
    struct ibv_wc wc;
    for (;;) {
        if (op == 'R' || op == 'W') {
            IS(rdma(&s, op == 'R' ? 'r' : 'w', 1, 0, LONG, ah, &to, to.mem, to.rkey), 0);
            while (ibv_poll_cq(s.cq, 1, &wc) == 0)
                ;
            put(out, "1", 1);
        } else if (ibv_poll_cq(s.cq, 1, &wc) == 0 && getppid() == 1)
            exit(1);
    }
}

static struct child start(char op) {
    int down[2], up[2];
    IS(pipe2(down, O_CLOEXEC), 0);
    IS(pipe2(up, O_CLOEXEC), 0);
    struct child c = {.to = down[1], .from = up[0]};
    CHECK((c.pid = fork()) >= 0);
    if (!c.pid) {
        close(down[1]);
        close(up[0]);
        serve(down[0], up[1], op);
    }
    close(down[0]);
    close(up[1]);
    get(c.from, &c.at, sizeof c.at);
    return c;
}

static void bury(struct child *c) {
    int status;
    IS(kill(c->pid, SIGKILL), 0);
    IS(waitpid(c->pid, &status, 0), c->pid);
    close(c->to);
    close(c->from);
}

static void post(struct side *s, char op, int k, uint32_t size, struct ibv_ah *ah, struct address *to) {
    IS(op == 's' ? send_from(s, k, 0, size, ah, to->qpn)
                 : rdma(s, op == 'u' ? 'i' : op, k, 0, size, ah, to, to->mem, to->rkey),
       0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    char op = argv[1][0], byte;
    /* Before this process has a device, so that the children have none of it. */
    struct child victim = start(op), other = start('s');
    struct side s = make_side_of(open_device(0), false, 7, op == 'u' ? 1 : 0);
    char *mem = mmap(NULL, LONG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mem != MAP_FAILED);
    struct side wide = s;
    CHECK(wide.mr = ibv_reg_mr(s.pd, mem, LONG, all_access(s.ctx)));
    wide.mem = mem;
    struct address me = {s.gid, s.qp->qp_num, wide.mr->rkey, (uintptr_t)mem};
    struct ibv_ah *to_victim = make_ah(s.pd, victim.at.gid), *to_other = make_ah(s.pd, other.at.gid);
    CHECK(to_victim && to_other);
    put(victim.to, &me, sizeof me);
    put(other.to, &me, sizeof me);
    get(victim.from, &byte, 1);
    get(other.from, &byte, 1);

    double killed;
    if (op == 'R' || op == 'W') {
        /* It works on our memory. Two have completed, another is under way. */
        get(victim.from, &byte, 1);
        get(victim.from, &byte, 1);
        bury(&victim);
        killed = now();
    } else {
        bool seen[COUNT + LATE] = {0};
        uint32_t size = op == 's' ? 8192 : LONG;
        for (int k = 0; k < COUNT; k++)
            post(&wide, op, k, size, to_victim, &victim.at);
        /* Some have completed, and mostly others are under way. But this process may lose its core here until the peer has
         * acknowledged all of them, so some are posted after its end, too: these cannot succeed. */
        int done = 0, failed = 0, completed = 0;
        for (; completed < 2; completed++) {
            struct ibv_wc wc = wait_wc(s.cq);
            IS(wc.status, IBV_WC_SUCCESS);
            CHECK(wc.wr_id < COUNT && !seen[wc.wr_id]);
            seen[wc.wr_id] = true;
            done++;
        }
        bury(&victim);
        killed = now();
        int posted = COUNT;
        for (; posted < COUNT + LATE; posted++)
            post(&wide, op, posted, size, to_victim, &victim.at);
        for (; completed < posted; completed++) {
            struct ibv_wc wc = wait_wc(s.cq);
            CHECK(wc.wr_id < (uint64_t)posted && !seen[wc.wr_id]);
            seen[wc.wr_id] = true;
            if (wc.status == IBV_WC_SUCCESS) {
                CHECK(wc.wr_id < COUNT);
                done++;
            } else {
                IS(wc.status, IBV_WC_RESP_TIMEOUT_ERR);
                IS(wc.vendor_err, 13);
                failed++;
            }
        }
        printf("killed during %s: %d done, %d failed with status 13 in %.1f s\n", argv[1], done, failed, now() - killed);
        CHECK(failed >= LATE);
        struct ibv_wc none;
        IS(ibv_poll_cq(s.cq, 1, &none), 0);
    }
    /* The other peer, the same queue pair. */
    IS(s.qp->state, IBV_QPS_RTS);
    IS(send_from(&s, 77, 0, 64, to_other, other.at.qpn), 0);
    struct ibv_wc wc = wait_wc(s.cq);
    IS(wc.status, IBV_WC_SUCCESS);
    IS(wc.wr_id, 77);
    /* What the dead one worked on can go; nothing waits for it. */
    double began = now();
    IS(ibv_dereg_mr(wide.mr), 0);
    IS(ibv_destroy_ah(to_victim), 0);
    IS(ibv_destroy_ah(to_other), 0);
    drop_side(&s);
    CHECK(now() - began < 5);
    bury(&other);
    printf("%s: ok\n", argv[1]);
    return 0;
}
