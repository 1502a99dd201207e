/* What may be posted when, and how it is refused. */
#include "check.h"

static struct side s;
static struct ibv_ah *ah;

static struct ibv_send_wr good(uint64_t wr_id, struct ibv_sge *sge) {
    *sge = (struct ibv_sge){(uintptr_t)s.mem, 16, s.mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = sge, .num_sge = 1};
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = s.qp->qp_num;
    wr.wr.ud.remote_qkey = QKEY;
    return wr;
}

/* Refused, and named as the first that was not posted. */
static void refused(struct ibv_send_wr *wr, int errno_) {
    struct ibv_send_wr *bad = NULL;
    IS(ibv_post_send(s.qp, wr, &bad), errno_);
    CHECK(bad == wr);
}

static void old_sends(void) {
    struct ibv_sge sge, many[8];
    struct ibv_send_wr wr = good(1, &sge);
    wr.send_flags = 0;
    refused(&wr, EINVAL); /* unsignaled */
    int flags[] = {IBV_SEND_FENCE, IBV_SEND_SOLICITED, IBV_SEND_IP_CSUM};
    for (int i = 0; i < 3; i++) {
        wr.send_flags = IBV_SEND_SIGNALED | flags[i];
        refused(&wr, EINVAL);
    }
    wr = good(1, &sge);
    int opcodes[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_ATOMIC_CMP_AND_SWP,
                     IBV_WR_SEND_WITH_INV, 99};
    for (int i = 0; i < 6; i++) {
        wr.opcode = opcodes[i];
        refused(&wr, EINVAL);
    }
    wr = good(1, &sge);
    for (int i = 0; i < 8; i++)
        many[i] = sge;
    wr.sg_list = many;
    wr.num_sge = 3;
    refused(&wr, EINVAL);
    wr.num_sge = -1;
    refused(&wr, EINVAL);
    wr = good(1, &sge);
    wr.sg_list = NULL;
    refused(&wr, EINVAL);
    wr = good(1, &sge);
    wr.send_flags |= IBV_SEND_INLINE;
    sge.length = 33;
    refused(&wr, EINVAL);
    sge.length = 1u << 31;
    refused(&wr, EINVAL);
    sge = (struct ibv_sge){0, 8, 0};
    refused(&wr, EINVAL);
    wr = good(1, &sge);
    wr.wr.ud.ah = NULL;
    refused(&wr, EINVAL);
    wr = good(1, &sge);
    wr.send_flags = 0;
    IS(ibv_post_send(s.qp, &wr, NULL), EINVAL); /* nobody wants to know which */
}

/* A chain is posted up to the first that is wrong. */
static void chains(void) {
    struct ibv_sge sge[40];
    struct ibv_send_wr wr[40], *bad = NULL;
    for (int first_bad = 0; first_bad < 40; first_bad += 13) {
        for (int i = 0; i < 40; i++) {
            IS(recv_at(&s, i, 0, 64), 0);
            wr[i] = good(i, &sge[i]);
            wr[i].next = i < 39 ? &wr[i + 1] : NULL;
        }
        wr[first_bad].num_sge = 3;
        if (first_bad + 1 < 40)
            wr[first_bad + 1].opcode = 99;
        IS(ibv_post_send(s.qp, wr, &bad), EINVAL);
        IS(bad - wr, first_bad);
        for (int i = 0; i < 2 * first_bad; i++)
            IS(wait_wc(s.cq).status, IBV_WC_SUCCESS);
        struct ibv_wc wc;
        IS(ibv_poll_cq(s.cq, 1, &wc), 0);
        /* Take the rest of the receives back. */
        IS(to_state(s.qp, IBV_QPS_ERR), 0);
        for (int i = first_bad; i < 40; i++)
            IS(wait_wc(s.cq).status, IBV_WC_WR_FLUSH_ERR);
        IS(to_state(s.qp, IBV_QPS_RESET), 0);
        IS(to_init(s.qp), 0);
        IS(to_rtr(s.qp), 0);
        IS(to_rts(s.qp, 7), 0);
    }
    IS(ibv_post_send(s.qp, NULL, &bad), 0); /* nothing */
}

/* Queues are full by what was posted and not polled. */
static void full(void) {
    struct ibv_sge sge;
    struct ibv_send_wr wr = good(1, &sge), *bad = NULL;
    for (int i = 0; i < DEPTH; i++)
        IS(recv_at(&s, i, 0, 64), 0);
    IS(recv_at(&s, 0, 0, 64), ENOMEM);
    for (int i = 0; i < DEPTH; i++)
        IS(ibv_post_send(s.qp, &wr, &bad), 0);
    refused(&wr, ENOMEM);
    /* There is looked for room before opcode and buffers are, and after flags. */
    struct ibv_send_wr wrong[] = {wr, wr, wr, wr}, two = wr;
    wrong[0].opcode = IBV_WR_RDMA_WRITE;
    wrong[1].num_sge = 3;
    wrong[2].num_sge = -1;
    wrong[3].wr.ud.ah = NULL;
    for (int i = 0; i < 4; i++) {
        refused(&wrong[i], ENOMEM);
        wrong[i].next = &two;
        refused(&wrong[i], ENOMEM);
        wrong[i].send_flags = 0;
        refused(&wrong[i], EINVAL);
    }
    ibv_wr_start(s.ex);
    s.ex->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_send(s.ex);
    ibv_wr_set_ud_addr(s.ex, ah, s.qp->qp_num, QKEY);
    ibv_wr_set_sge(s.ex, s.mr->lkey, (uintptr_t)s.mem, 16);
    IS(ibv_wr_complete(s.ex), ENOMEM);
    struct ibv_sge many[4] = {sge, sge, sge, sge};
    for (int flags = 0; flags <= IBV_SEND_SIGNALED; flags += IBV_SEND_SIGNALED) {
        ibv_wr_start(s.ex);
        s.ex->wr_flags = flags;
        ibv_wr_send(s.ex);
        ibv_wr_set_ud_addr(s.ex, ah, s.qp->qp_num, QKEY);
        ibv_wr_set_sge_list(s.ex, 4, many);
        IS(ibv_wr_complete(s.ex), flags ? ENOMEM : EINVAL);
    }
    for (int i = 0; i < 2 * DEPTH; i++)
        IS(wait_wc(s.cq).status, IBV_WC_SUCCESS);
    IS(recv_at(&s, 7, 0, 64), 0);
    IS(ibv_post_send(s.qp, &wr, &bad), 0);
    wait_wc(s.cq);
    wait_wc(s.cq);
}

static void receives(void) {
    struct ibv_sge many[4] = {};
    struct ibv_recv_wr wr = {.sg_list = many, .num_sge = 3}, *bad = NULL;
    IS(ibv_post_recv(s.qp, &wr, &bad), EINVAL);
    CHECK(bad == &wr);
    wr.num_sge = -1;
    IS(ibv_post_recv(s.qp, &wr, &bad), EINVAL);
    wr.num_sge = 1;
    wr.sg_list = NULL;
    IS(ibv_post_recv(s.qp, &wr, &bad), EINVAL);
    IS(ibv_post_recv(s.qp, NULL, &bad), 0);
    struct ibv_recv_wr second = {.sg_list = many, .num_sge = 3}, first = {.next = &second, .num_sge = 0};
    IS(ibv_post_recv(s.qp, &first, &bad), EINVAL);
    CHECK(bad == &second);
    struct ibv_qp *qp = make_qp(s.pd, s.cq, false, 0, 0);
    struct ibv_recv_wr none = {};
    IS(ibv_post_recv(qp, &none, &bad), EINVAL); /* RESET */
    IS(to_init(qp), 0);
    IS(ibv_post_recv(qp, &none, &bad), 0); /* INIT */
    struct ibv_sge sge;
    struct ibv_send_wr send = good(1, &sge), *bad_send;
    IS(ibv_post_send(qp, &send, &bad_send), EINVAL);
    IS(to_rtr(qp), 0);
    IS(ibv_post_send(qp, &send, &bad_send), EINVAL);
    IS(to_state(qp, IBV_QPS_ERR), 0);
    IS(ibv_post_recv(qp, &none, &bad), EINVAL);
    IS(ibv_post_send(qp, &send, &bad_send), EINVAL);
    ibv_destroy_qp(qp);
    /* Take back what was posted above. */
    IS(to_state(s.qp, IBV_QPS_RESET), 0);
    IS(to_init(s.qp), 0);
    IS(to_rtr(s.qp), 0);
    IS(to_rts(s.qp, 7), 0);
}

static void stage(int flags, int sges, size_t inline_len, bool address) {
    s.ex->wr_id = 5;
    s.ex->wr_flags = flags;
    ibv_wr_send(s.ex);
    if (address)
        ibv_wr_set_ud_addr(s.ex, ah, s.qp->qp_num, QKEY);
    struct ibv_sge list[4];
    for (int i = 0; i < 4; i++)
        list[i] = (struct ibv_sge){(uintptr_t)s.mem, 4, s.mr->lkey};
    if (sges >= 0)
        ibv_wr_set_sge_list(s.ex, sges, list);
    else
        ibv_wr_set_inline_data(s.ex, s.mem, inline_len);
}

/* A session is posted as a whole or not at all. */
static void sessions(void) {
    struct ibv_wc wc;
    struct {
        int flags, sges;
        size_t inline_len;
        bool address;
    } wrong[] = {
        {0, 1, 0, true},
        {IBV_SEND_INLINE, -1, 8, true},
        {IBV_SEND_SIGNALED | IBV_SEND_FENCE, 1, 0, true},
        {IBV_SEND_SIGNALED, 3, 0, true},
        {IBV_SEND_SIGNALED, 4, 0, true},
        {IBV_SEND_SIGNALED, -1, 33, true},
        {IBV_SEND_SIGNALED, -1, 1 << 30, true},
        {IBV_SEND_SIGNALED, 1, 0, false},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ibv_wr_start(s.ex);
        stage(IBV_SEND_SIGNALED, 1, 0, true);
        stage(wrong[i].flags, wrong[i].sges, wrong[i].inline_len, wrong[i].address);
        stage(IBV_SEND_SIGNALED, 1, 0, true);
        IS(ibv_wr_complete(s.ex), EINVAL);
    }
    ibv_wr_start(s.ex); /* setters without a request */
    ibv_wr_set_sge(s.ex, 1, 2, 3);
    IS(ibv_wr_complete(s.ex), EINVAL);
    ibv_wr_start(s.ex); /* nothing */
    IS(ibv_wr_complete(s.ex), 0);
    ibv_wr_start(s.ex);
    stage(IBV_SEND_SIGNALED, 1, 0, true);
    ibv_wr_abort(s.ex);
    ibv_wr_start(s.ex); /* more than fit */
    for (int i = 0; i <= DEPTH; i++)
        stage(IBV_SEND_SIGNALED, 1, 0, true);
    IS(ibv_wr_complete(s.ex), ENOMEM);
    IS(ibv_wr_complete(s.ex), EINVAL); /* not started */
    for (double end = now() + 0.05; now() < end;)
        IS(ibv_poll_cq(s.cq, 1, &wc), 0); /* nothing of all that was posted */
    for (int n = 1; n <= DEPTH; n = n * 2 + 1) {
        for (int i = 0; i < n; i++)
            IS(recv_at(&s, i, 0, 64), 0);
        ibv_wr_start(s.ex);
        for (int i = 0; i < n; i++)
            stage(IBV_SEND_SIGNALED | (i & 1 ? IBV_SEND_INLINE : 0), i & 1 ? -1 : 2, 8, true);
        IS(ibv_wr_complete(s.ex), 0);
        for (int i = 0; i < 2 * n; i++)
            IS(wait_wc(s.cq).status, IBV_WC_SUCCESS);
    }
    struct ibv_qp *all = make_qp(s.pd, s.cq, false, 0, 1); /* every send is signaled */
    struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(all);
    IS(to_init(all), 0);
    IS(to_rtr(all), 0);
    IS(to_rts(all, 7), 0);
    IS(recv_at(&s, 1, 0, 64), 0);
    ibv_wr_start(ex);
    ex->wr_flags = 0;
    ibv_wr_send(ex);
    ibv_wr_set_ud_addr(ex, ah, s.qp->qp_num, QKEY);
    ibv_wr_set_inline_data(ex, s.mem, 8);
    IS(ibv_wr_complete(ex), 0);
    IS(wait_wc(s.cq).status, IBV_WC_SUCCESS);
    IS(wait_wc(s.cq).status, IBV_WC_SUCCESS);
    ibv_destroy_qp(all);
}

/* The data that is set last is that of the request. */
static void data_twice(void) {
    struct ibv_sge sge = {(uintptr_t)s.mem, 3, s.mr->lkey};
    struct ibv_data_buf parts[2] = {{s.mem + 100, 2}, {s.mem + 200, 3}};
    memset(s.mem, 'a', 100);
    memset(s.mem + 100, 'b', 100);
    memset(s.mem + 200, 'c', 100);
    const char *want[] = {"bb", "bbccc", "aaa", "aaa", "bbccc"};
    for (int way = 0; way < 5; way++) {
        memset(s.mem + 4096, 0, 64);
        IS(recv_at(&s, 2, 4096, 64), 0);
        ibv_wr_start(s.ex);
        s.ex->wr_id = 1;
        s.ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send(s.ex);
        ibv_wr_set_ud_addr(s.ex, ah, s.qp->qp_num, QKEY);
        if (way < 4)
            ibv_wr_set_inline_data(s.ex, s.mem, 8);
        else
            ibv_wr_set_sge_list(s.ex, 1, &sge);
        if (way == 0)
            ibv_wr_set_inline_data(s.ex, s.mem + 100, 2);
        else if (way == 2)
            ibv_wr_set_sge(s.ex, sge.lkey, sge.addr, sge.length);
        else if (way == 3)
            ibv_wr_set_sge_list(s.ex, 1, &sge);
        else
            ibv_wr_set_inline_data_list(s.ex, 2, parts);
        IS(ibv_wr_complete(s.ex), 0);
        for (int i = 0; i < 2; i++) {
            struct ibv_wc wc = wait_wc(s.cq);
            IS(wc.status, IBV_WC_SUCCESS);
            if (wc.wr_id == 2)
                IS(wc.byte_len, strlen(want[way]));
        }
        IS(strcmp(s.mem + 4096, want[way]), 0);
    }
}

/* Writes are inline where the queue pair was made for it. */
static void inline_writes(void) {
    if (!(caps(s.ctx) & 8))
        return;
    struct address at_s = address_of(&s);
    for (int made_for_it = 0; made_for_it < 2; made_for_it++) {
        struct ibv_qp *qp = make_qp(s.pd, s.cq, false, made_for_it ? 2 : 0, 0);
        CHECK(qp);
        struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
        IS(to_init(qp), 0);
        IS(to_rtr(qp), 0);
        IS(to_rts(qp, 7), 0);
        memcpy(s.mem, "inline", 7);
        memset(s.mem + 4096, 0, 64);
        ibv_wr_start(ex);
        ex->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_rdma_write(ex, at_s.rkey, at_s.mem + 4096);
        ibv_wr_set_ud_addr(ex, ah, s.qp->qp_num, QKEY);
        ibv_wr_set_inline_data(ex, s.mem, 7);
        IS(ibv_wr_complete(ex), made_for_it ? 0 : EINVAL);
        if (made_for_it) {
            IS(wait_wc(s.cq).status, IBV_WC_SUCCESS);
            IS(strcmp(s.mem + 4096, "inline"), 0);
        }
        IS(ibv_destroy_qp(qp), 0);
    }
}

/* What may be inline, how deep the queue is then, and that the bytes are those of the moment of posting. */
static void inline_limits(uint32_t limit) {
    struct efadv_device_attr device;
    IS(efadv_query_device(s.ctx, &device, sizeof device), 0);
    IS(device.inline_buf_size, 32); /* what more there may be is in a field that this version does not have */
    uint32_t sizes[] = {0, 32, 33, 80, 81};
    for (int i = 0; i < 5; i++) {
        uint32_t depth = sizes[i] > 32 ? device.max_sq_wr / 2 : device.max_sq_wr;
        struct ibv_qp_init_attr attr = {.send_cq = s.cq, .recv_cq = s.cq, .qp_type = IBV_QPT_DRIVER};
        attr.cap = (struct ibv_qp_cap){depth, 1, 1, 1, sizes[i]};
        if (sizes[i] > limit) {
            NULL_WITH(efadv_create_driver_qp(s.pd, &attr, EFADV_QP_DRIVER_TYPE_SRD), EINVAL);
            continue;
        }
        attr.cap.max_send_wr = depth + 1;
        NULL_WITH(efadv_create_driver_qp(s.pd, &attr, EFADV_QP_DRIVER_TYPE_SRD), EINVAL);
        attr.cap.max_send_wr = depth;
        struct ibv_qp *qp = efadv_create_driver_qp(s.pd, &attr, EFADV_QP_DRIVER_TYPE_SRD);
        CHECK(qp);
        IS(to_init(qp), 0);
        IS(to_rtr(qp), 0);
        IS(to_rts(qp, 7), 0);
        struct ibv_sge sge;
        struct ibv_send_wr wr = good(1, &sge), *bad;
        uint32_t most = sizes[i] > 32 ? 80 : 32; /* as much as fits into a work request of that size */
        wr.send_flags |= IBV_SEND_INLINE;
        sge = (struct ibv_sge){(uintptr_t)s.mem, most + 1, 0};
        IS(ibv_post_send(qp, &wr, &bad), EINVAL);
        if (sizes[i]) {
            IS(recv_at(&s, 2, 4096, 80), 0);
            memset(s.mem, 'a' + i, 80);
            sge.length = sizes[i];
            IS(ibv_post_send(qp, &wr, &bad), 0);
            memset(s.mem, '.', 80);
            IS(wait_wc(s.cq).status, IBV_WC_SUCCESS);
            IS(wait_wc(s.cq).status, IBV_WC_SUCCESS);
            for (uint32_t k = 0; k < sizes[i]; k++)
                IS(s.mem[4096 + k], 'a' + i);
        }
        IS(ibv_destroy_qp(qp), 0);
    }
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    s = make_side(false, 7);
    CHECK(ah = make_ah(s.pd, s.gid));
    old_sends();
    chains();
    full();
    receives();
    sessions();
    data_twice();
    inline_writes();
    inline_limits(atoi(argv[1]));
    IS(ibv_destroy_ah(ah), 0);
    drop_side(&s);
    return 0;
}
