/* Every completion status that one or two processes can provoke, and that the queue pair is usable afterwards. */
#include "check.h"

static struct side a, b;
static struct ibv_ah *to_a, *to_b;
static struct address at_b;
static uint64_t next_id = 1;

/* The completion of a send with an error; then one that works, where that should be so. */
static void ends(int vendor_err, enum ibv_wc_status status) {
    struct ibv_wc wc = wait_wc(a.cq);
    if (wc.vendor_err != (uint32_t)vendor_err || wc.status != status) {
        fprintf(stderr, "ended with %u (%s), not %d (%s)\n", wc.vendor_err, ibv_wc_status_str(wc.status), vendor_err,
                ibv_wc_status_str(status));
        exit(1);
    }
    IS(wc.qp_num, a.qp->qp_num);
}

static void still_works(void) {
    IS(a.qp->state, IBV_QPS_RTS);
    IS(recv_at(&b, 1, 0, 64), 0);
    IS(send_from(&a, next_id++, 0, 64, to_b, b.qp->qp_num), 0);
    ends(0, IBV_WC_SUCCESS);
    IS(wait_wc(b.cq).status, IBV_WC_SUCCESS);
}

static int send_to(uint32_t qpn, uint32_t qkey, uint32_t lkey, uint32_t len, struct ibv_ah *ah) {
    struct ibv_sge sge = {(uintptr_t)a.mem, len, lkey};
    struct ibv_send_wr wr = {.wr_id = next_id++, .sg_list = &sge, .num_sge = 1}, *bad;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = qkey;
    return ibv_post_send(a.qp, &wr, &bad);
}

static void local_errors(void) {
    IS(send_to(b.qp->qp_num, QKEY, a.mr->lkey ^ 0x40000, 16, to_b), 0);
    ends(5, IBV_WC_LOC_PROT_ERR);
    IS(send_from(&a, next_id++, SIZE - 8, 16, to_b, b.qp->qp_num), 0); /* leaves the region */
    ends(5, IBV_WC_LOC_PROT_ERR);
    IS(send_from(&a, next_id++, 0, 8929, to_b, b.qp->qp_num), 0);
    ends(6, IBV_WC_LOC_LEN_ERR);
    /* Address handles of another domain, of the same context or another one, whether this domain has their number or not. */
    struct ibv_context *others[] = {a.ctx, open_device(0)};
    for (int k = 0; k < 2; k++) {
        struct ibv_pd *pd = ibv_alloc_pd(others[k]);
        CHECK(pd);
        struct ibv_ah *ahs[8];
        for (int i = 0; i < 8; i++) {
            union ibv_gid gid = a.gid;
            gid.raw[15] ^= i;
            CHECK(ahs[i] = make_ah(pd, gid));
        }
        for (int i = 0; i < 8; i++) {
            IS(send_to(b.qp->qp_num, QKEY, a.mr->lkey, 16, ahs[i]), 0);
            ends(4, IBV_WC_LOC_QP_OP_ERR);
            ibv_wr_start(a.ex);
            a.ex->wr_flags = IBV_SEND_SIGNALED;
            ibv_wr_send(a.ex);
            ibv_wr_set_ud_addr(a.ex, ahs[i], b.qp->qp_num, QKEY);
            IS(ibv_wr_complete(a.ex), 0);
            ends(4, IBV_WC_LOC_QP_OP_ERR);
            IS(ibv_destroy_ah(ahs[i]), 0);
        }
        IS(ibv_dealloc_pd(pd), 0);
    }
    IS(ibv_close_device(others[1]), 0);
    still_works();
}

static void remote_errors(bool same_process) {
    uint32_t qpn = at_b.qpn;
    IS(send_to((qpn + 5) & 0xffff, QKEY, a.mr->lkey, 16, to_b), 0);
    ends(9, IBV_WC_REM_INV_RD_REQ_ERR);
    IS(send_to(qpn, QKEY + 1, a.mr->lkey, 16, to_b), 0);
    ends(9, IBV_WC_REM_INV_RD_REQ_ERR);
    if (caps(a.ctx) & 1) {
        uint64_t addr = at_b.mem;
        IS(rdma(&a, 'r', 1, 0, 16, to_b, &at_b, addr, at_b.rkey ^ 0x40000000), 0);
        ends(7, IBV_WC_REM_ACCESS_ERR);
        IS(rdma(&a, 'r', 1, 0, 16, to_b, &at_b, addr + SIZE - 8, at_b.rkey), 0);
        ends(7, IBV_WC_REM_ACCESS_ERR);
        IS(rdma(&a, 'r', 1, 0, 16, to_b, &at_b, addr - 8, at_b.rkey), 0);
        ends(7, IBV_WC_REM_ACCESS_ERR);
        IS(rdma(&a, 'r', 1, SIZE - 8, 16, to_b, &at_b, addr, at_b.rkey), 0);
        ends(5, IBV_WC_LOC_PROT_ERR);
    }
    if (caps(a.ctx) & 8) {
        IS(rdma(&a, 'w', 1, 0, 16, to_b, &at_b, at_b.mem, at_b.rkey ^ 0x40000000), 0);
        ends(7, IBV_WC_REM_ACCESS_ERR);
        IS(rdma(&a, 'i', 1, 0, 16, to_b, &at_b, at_b.mem + SIZE, at_b.rkey), 0);
        ends(7, IBV_WC_REM_ACCESS_ERR);
    }
    if (!same_process)
        return;
    IS(send_to(qpn, QKEY, a.mr->lkey, 16, to_b), 0); /* nobody receives, and a was told not to try again */
    ends(10, IBV_WC_RNR_RETRY_EXC_ERR);
    IS(recv_at(&b, 1, 0, 15), 0);
    IS(send_to(qpn, QKEY, a.mr->lkey, 16, to_b), 0);
    ends(11, IBV_WC_REM_INV_REQ_ERR);
    IS(send_to(qpn, QKEY, a.mr->lkey, 15, to_b), 0); /* the buffer was kept, or is gone: see which */
    struct ibv_wc wc = wait_wc(a.cq);
    if (wc.status == IBV_WC_SUCCESS)
        IS(wait_wc(b.cq).status, IBV_WC_SUCCESS);
    else
        IS(wc.vendor_err, 10);
    /* A receive buffer that is not covered by its key. */
    struct ibv_sge sge = {(uintptr_t)b.mem, 64, b.mr->lkey ^ 0x40000};
    struct ibv_recv_wr recv = {.wr_id = 9, .sg_list = &sge, .num_sge = 1}, *bad;
    IS(ibv_post_recv(b.qp, &recv, &bad), 0);
    IS(send_to(qpn, QKEY, a.mr->lkey, 16, to_b), 0);
    ends(12, IBV_WC_BAD_RESP_ERR);
    wc = wait_wc(b.cq);
    IS(wc.vendor_err, 5);
    IS(wc.wr_id, 9);
    /* The other queue pair is in the error state. */
    IS(recv_at(&b, 10, 0, 64), 0);
    IS(to_state(b.qp, IBV_QPS_ERR), 0);
    wc = wait_wc(b.cq);
    IS(wc.status, IBV_WC_WR_FLUSH_ERR);
    IS(wc.vendor_err, 1);
    IS(wc.wr_id, 10);
    IS(send_to(qpn, QKEY, a.mr->lkey, 16, to_b), 0);
    ends(9, IBV_WC_REM_INV_RD_REQ_ERR);
    IS(to_state(b.qp, IBV_QPS_RESET), 0);
    IS(to_init(b.qp), 0);
    IS(to_rtr(b.qp), 0);
    still_works();
}

/* A write with immediate data between queue pairs that do not agree on whether it takes a receive. */
static void mismatch(void) {
    struct side c = make_side_of(open_device(0), false, 0, 1);
    struct ibv_ah *to_c = make_ah(a.pd, c.gid), *back = make_ah(c.pd, a.gid);
    CHECK(to_c && back);
    struct address at_c = address_of(&c);
    IS(rdma(&a, 'i', 1, 0, 16, to_c, &at_c, at_c.mem, at_c.rkey), 0);
    ends(18, IBV_WC_REM_INV_REQ_ERR);
    IS(ibv_destroy_ah(to_c), 0);
    IS(ibv_destroy_ah(back), 0);
    drop_side(&c);
}

/* What is under way ends as flushed, or silently. */
static void flushed(struct ibv_ah *silent) {
    struct side c = make_side(false, 7);
    struct ibv_ah *to_silent = make_ah(c.pd, silent ? c.gid : c.gid);
    CHECK(to_silent);
    /* Nobody receives, and it is tried for ever. */
    for (int i = 0; i < 5; i++)
        IS(send_from(&c, i, 0, 16, to_silent, c.qp->qp_num), 0);
    IS(to_state(c.qp, IBV_QPS_ERR), 0);
    for (int i = 0; i < 5; i++) {
        struct ibv_wc wc = wait_wc(c.cq);
        IS(wc.status, IBV_WC_WR_FLUSH_ERR);
        IS(wc.vendor_err, 1);
    }
    IS(to_state(c.qp, IBV_QPS_RESET), 0);
    IS(to_init(c.qp), 0);
    IS(to_rtr(c.qp), 0);
    IS(to_rts(c.qp, 7), 0);
    IS(send_from(&c, 7, 0, 16, to_silent, c.qp->qp_num), 0);
    IS(ibv_destroy_ah(to_silent), 0); /* under a work request */
    IS(wait_wc(c.cq).vendor_err, 1);
    CHECK(to_silent = make_ah(c.pd, c.gid));
    IS(send_from(&c, 8, 0, 16, to_silent, c.qp->qp_num), 0);
    IS(ibv_destroy_qp(c.qp), 0);
    struct ibv_wc wc;
    IS(ibv_poll_cq(c.cq, 1, &wc), 0); /* silently */
    IS(ibv_destroy_ah(to_silent), 0);
    IS(ibv_destroy_cq(c.cq), 0);
    IS(ibv_dereg_mr(c.mr), 0);
    IS(ibv_dealloc_pd(c.pd), 0);
    IS(ibv_close_device(c.ctx), 0);
}

static void one_process(void) {
    a = make_side(false, 0);
    b = make_side(false, 0);
    CHECK(to_b = make_ah(a.pd, b.gid));
    CHECK(to_a = make_ah(b.pd, a.gid));
    at_b = address_of(&b);
    local_errors();
    remote_errors(true);
    if (caps(a.ctx) & 16)
        mismatch();
    flushed(NULL);
    IS(ibv_destroy_ah(to_a), 0);
    IS(ibv_destroy_ah(to_b), 0);
    drop_side(&a);
    drop_side(&b);
}

/* The other process: makes a side, says where it is, and does as it is told. */
static void other(int in, int out) {
    char what;
    struct ibv_ah *back = NULL;
    struct address to;
    b = make_side(false, 0);
    struct address me = address_of(&b);
    put(out, &me, sizeof me);
    while (read(in, &what, 1) == 1) {
        switch (what) {
        case 'h': /* an address handle */
            get(in, &to, sizeof to);
            CHECK(back = make_ah(b.pd, to.gid));
            break;
        case 'r': /* a receive */
            IS(recv_at(&b, 1, 0, 64), 0);
            break;
        case 'q': /* away with the queue pair */
            IS(ibv_destroy_qp(b.qp), 0);
            break;
        case 'c': /* away with everything */
            if (back)
                IS(ibv_destroy_ah(back), 0);
            drop_side(&b);
            break;
        }
        put(out, "k", 1);
    }
    _exit(0);
}

struct child {
    pid_t pid;
    int to, from;
    struct address at;
};

/* With `waits`, the other process opens its device only when it is told the address. */
static struct child start_with(bool waits) {
    int down[2], up[2];
    IS(pipe(down), 0);
    IS(pipe(up), 0);
    struct child c = {.to = down[1], .from = up[0]};
    CHECK((c.pid = fork()) >= 0);
    if (!c.pid) {
        close(down[1]);
        close(up[0]);
        if (waits) {
            char addr[32], in[16], out[16];
            union ibv_gid gid;
            get(down[0], &gid, sizeof gid);
            const uint8_t *ip = gid.raw + 10; /* and then the port */
            snprintf(addr, sizeof addr, "%u.%u.%u.%u:%u", ip[0], ip[1], ip[2], ip[3], ip[4] << 8 | ip[5]);
            snprintf(in, sizeof in, "%d", down[0]);
            snprintf(out, sizeof out, "%d", up[1]);
            IS(setenv("SRD_ADDR", addr, 1), 0);
            /* The library has read its environment when it was loaded. */
            execl("/proc/self/exe", "status", "other", in, out, NULL);
            CHECK(!"executed");
        }
        other(down[0], up[1]);
    }
    close(down[0]);
    close(up[1]);
    if (!waits)
        get(c.from, &c.at, sizeof c.at);
    return c;
}

static struct child start(void) {
    return start_with(false);
}

static void tell(struct child *c, char what, const void *more, size_t n) {
    char k;
    put(c->to, &what, 1);
    if (n)
        put(c->to, more, n);
    get(c->from, &k, 1);
}

static void end(struct child *c, int signal) {
    if (signal)
        kill(c->pid, signal);
    close(c->to);
    int status;
    IS(waitpid(c->pid, &status, 0), c->pid);
    CHECK(signal ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(c->from);
}

static void two_processes(void) {
    /* Before this process has a context, so that the children have none of it. */
    struct child first = start(), second = start(), third = start();
    a = make_side(false, 0);
    struct address me = address_of(&a);

    CHECK(to_b = make_ah(a.pd, first.at.gid));
    at_b = first.at;
    tell(&first, 'r', NULL, 0);
    IS(send_to(at_b.qpn, QKEY, a.mr->lkey, 16, to_b), 0);
    ends(0, IBV_WC_SUCCESS);
    if (caps(a.ctx) & 1) {
        IS(rdma(&a, 'r', 1, 0, 16, to_b, &at_b, at_b.mem, at_b.rkey), 0);
        ends(14, IBV_WC_REM_OP_ERR);
    }
    tell(&first, 'h', &me, sizeof me);
    if (caps(a.ctx) & 1) {
        IS(rdma(&a, 'r', 1, 0, 16, to_b, &at_b, at_b.mem, at_b.rkey), 0);
        ends(0, IBV_WC_SUCCESS);
    }
    remote_errors(false);
    IS(send_to(at_b.qpn, QKEY, a.mr->lkey, 16, to_b), 0);
    ends(10, IBV_WC_RNR_RETRY_EXC_ERR);
    tell(&first, 'q', NULL, 0);
    IS(send_to(at_b.qpn, QKEY, a.mr->lkey, 16, to_b), 0);
    ends(9, IBV_WC_REM_INV_RD_REQ_ERR);

    /* A peer that dies. */
    struct ibv_ah *to_second;
    CHECK(to_second = make_ah(a.pd, second.at.gid));
    tell(&second, 'r', NULL, 0);
    IS(send_to(second.at.qpn, QKEY, a.mr->lkey, 16, to_second), 0);
    ends(0, IBV_WC_SUCCESS);
    end(&second, SIGKILL);
    IS(send_to(second.at.qpn, QKEY, a.mr->lkey, 16, to_second), 0);
    ends(13, IBV_WC_RESP_TIMEOUT_ERR);
    IS(ibv_destroy_ah(to_second), 0);

    /* A peer that closes its device says good-bye. */
    struct ibv_ah *to_third;
    CHECK(to_third = make_ah(a.pd, third.at.gid));
    tell(&third, 'r', NULL, 0);
    IS(send_to(third.at.qpn, QKEY, a.mr->lkey, 16, to_third), 0);
    ends(0, IBV_WC_SUCCESS);
    tell(&third, 'c', NULL, 0);
    for (int i = 0; i < 3; i++) {
        double before = now();
        IS(send_to(third.at.qpn, QKEY, a.mr->lkey, 16, to_third), 0);
        ends(9, IBV_WC_REM_INV_RD_REQ_ERR);
        CHECK(i == 0 || now() - before < 2); /* the peer timeout */
    }
    IS(ibv_destroy_ah(to_third), 0);
    end(&third, 0);

    /* Nobody is there. */
    union ibv_gid nobody = third.at.gid;
    struct ibv_ah *to_nobody;
    nobody.raw[14] = 0;
    nobody.raw[15] = 1;
    CHECK(to_nobody = make_ah(a.pd, nobody));
    IS(send_to(1, QKEY, a.mr->lkey, 16, to_nobody), 0);
    ends(15, IBV_WC_RESP_TIMEOUT_ERR);
    IS(ibv_destroy_ah(to_nobody), 0);
    IS(ibv_destroy_ah(to_b), 0);
    drop_side(&a);
    end(&first, 0);
}

/* A process that dies in the middle, and one that takes its address: it says that it knows nothing of this. */
static void restart(void) {
    struct child first = start(), second = start_with(true);
    a = make_side(false, 7);
    CHECK(to_b = make_ah(a.pd, first.at.gid));
    tell(&first, 'r', NULL, 0);
    IS(send_to(first.at.qpn, QKEY, a.mr->lkey, 16, to_b), 0);
    ends(0, IBV_WC_SUCCESS);
    end(&first, SIGKILL);
    IS(send_to(first.at.qpn, QKEY, a.mr->lkey, 16, to_b), 0);
    put(second.to, &first.at.gid, sizeof first.at.gid);
    get(second.from, &second.at, sizeof second.at);
    IS(memcmp(&first.at.gid, &second.at.gid, sizeof first.at.gid), 0);
    ends(8, IBV_WC_REM_ABORT_ERR);
    tell(&second, 'r', NULL, 0);
    IS(send_to(second.at.qpn, QKEY, a.mr->lkey, 16, to_b), 0);
    ends(0, IBV_WC_SUCCESS);
    IS(ibv_destroy_ah(to_b), 0);
    drop_side(&a);
    end(&second, 0);
}

/* Every send ends with the status that was asked for. */
static void forced(int vendor_err, enum ibv_wc_status status) {
    a = make_side(false, 7);
    CHECK(to_b = make_ah(a.pd, a.gid));
    struct address me = address_of(&a);
    IS(send_to(a.qp->qp_num, QKEY, a.mr->lkey, 16, to_b), 0);
    ends(vendor_err, status);
    IS(rdma(&a, 'w', 1, 0, 16, to_b, &me, me.mem, me.rkey), 0);
    ends(vendor_err, status);
    IS(a.qp->state, IBV_QPS_RTS);
    IS(ibv_destroy_ah(to_b), 0);
    drop_side(&a);
}

int main(int argc, char **argv) {
    if (argc > 3 && !strcmp(argv[1], "other"))
        other(atoi(argv[2]), atoi(argv[3]));
    else if (argc > 3 && !strcmp(argv[1], "forced"))
        forced(atoi(argv[2]), atoi(argv[3]));
    else if (argc > 1 && !strcmp(argv[1], "restart"))
        restart();
    else if (argc > 1 && !strcmp(argv[1], "two"))
        two_processes();
    else
        one_process();
    return 0;
}
