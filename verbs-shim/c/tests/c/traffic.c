/* Every operation between two contexts of a process, with its data and every field of its completions. */
#include "check.h"

static struct side a, b;
static struct ibv_ah *to_a, *to_b;
static struct address at_b;

/* A handle for nobody, so that the next one in its domain has another number than 0. */
static struct ibv_ah *first_ah(struct ibv_pd *pd) {
    union ibv_gid other = a.gid;
    other.raw[13] ^= 2;
    struct ibv_ah *ah = make_ah(pd, other);
    CHECK(ah);
    return ah;
}

static void fill(char *p, size_t n, int seed) {
    for (size_t i = 0; i < n; i++)
        p[i] = seed + i * 7 + (i >> 8);
}

static void same(const char *p, size_t n, int seed) {
    for (size_t i = 0; i < n; i++) {
        if (p[i] != (char)(seed + i * 7 + (i >> 8))) {
            fprintf(stderr, "byte %zu of %zu is wrong\n", i, n);
            exit(1);
        }
    }
}

static void untouched(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        IS(p[i], 0x55);
}

static void sends(bool ud) {
    uint32_t max = 8928, prefix = ud ? 40 : 0;
    uint32_t sizes[] = {0, 1, 31, 32, 33, 500, 511, 512, 513, 4096, 8000, max};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t len = sizes[i];
        memset(b.mem, 0x55, SIZE);
        fill(a.mem, len, i);
        IS(recv_at(&b, 100 + i, 1000, prefix + len), 0);
        IS(send_from(&a, 200 + i, 0, len, to_b, b.qp->qp_num), 0);
        struct ibv_wc wc = wait_wc(b.cq);
        IS(wc.status, IBV_WC_SUCCESS);
        IS(wc.wr_id, 100 + i);
        IS(wc.opcode, IBV_WC_RECV);
        IS(wc.byte_len, prefix + len);
        IS(wc.vendor_err, 0);
        IS(wc.qp_num, b.qp->qp_num);
        IS(wc.src_qp, a.qp->qp_num);
        IS(wc.wc_flags, 0);
        struct efadv_ah_attr attr;
        IS(efadv_query_ah(to_a, &attr, sizeof attr), 0);
        CHECK(attr.ahn > 0);
        IS(wc.slid, attr.ahn);
        wc = wait_wc(a.cq);
        IS(wc.status, IBV_WC_SUCCESS);
        IS(wc.wr_id, 200 + i);
        IS(wc.opcode, IBV_WC_SEND);
        IS(wc.byte_len, 0);
        IS(wc.qp_num, a.qp->qp_num);
        untouched(b.mem, 1000);
        same(b.mem + 1000 + prefix, len, i);
        untouched(b.mem + 1000 + prefix + len, 1000);
    }
}

/* Gathered from two buffers, or inline, with immediate data, into two buffers. */
static void parts(bool ud) {
    uint32_t prefix = ud ? 40 : 0;
    for (int way = 0; way < 4; way++) {
        memset(b.mem, 0x55, SIZE);
        fill(a.mem, 30, way);
        struct ibv_sge to[2] = {{(uintptr_t)b.mem, prefix + 5, b.mr->lkey}, {(uintptr_t)b.mem + 2000, 100, b.mr->lkey}};
        struct ibv_recv_wr recv = {.wr_id = 1, .sg_list = to, .num_sge = 2}, *bad_recv;
        IS(ibv_post_recv(b.qp, &recv, &bad_recv), 0);
        struct ibv_sge from[2] = {{(uintptr_t)a.mem, 11, a.mr->lkey}, {(uintptr_t)a.mem + 11, 19, a.mr->lkey}};
        if (way < 2) {
            struct ibv_send_wr wr = {.wr_id = 2, .sg_list = from, .num_sge = 2}, *bad;
            wr.opcode = IBV_WR_SEND_WITH_IMM;
            wr.imm_data = htobe32(0x12345678);
            wr.send_flags = IBV_SEND_SIGNALED | (way ? IBV_SEND_INLINE : 0);
            wr.wr.ud.ah = to_b;
            wr.wr.ud.remote_qpn = b.qp->qp_num;
            wr.wr.ud.remote_qkey = QKEY;
            if (way)
                from[0].lkey = from[1].lkey = 0; /* not looked at */
            IS(ibv_post_send(a.qp, &wr, &bad), 0);
        } else {
            ibv_wr_start(a.ex);
            a.ex->wr_id = 2;
            a.ex->wr_flags = IBV_SEND_SIGNALED;
            ibv_wr_send_imm(a.ex, htobe32(0x12345678));
            ibv_wr_set_ud_addr(a.ex, to_b, b.qp->qp_num, QKEY);
            struct ibv_data_buf bufs[2] = {{a.mem, 11}, {a.mem + 11, 19}};
            if (way == 2)
                ibv_wr_set_sge_list(a.ex, 2, from);
            else
                ibv_wr_set_inline_data_list(a.ex, 2, bufs);
            IS(ibv_wr_complete(a.ex), 0);
        }
        if (way & 1)
            memset(a.mem, 0, 30); /* inline data was taken at once */
        struct ibv_wc wc = wait_wc(b.cq);
        IS(wc.status, IBV_WC_SUCCESS);
        IS(wc.wc_flags, IBV_WC_WITH_IMM);
        IS(wc.imm_data, htobe32(0x12345678));
        IS(wc.byte_len, prefix + 30);
        IS(wait_wc(a.cq).status, IBV_WC_SUCCESS);
        char whole[30];
        memcpy(whole, b.mem + prefix, 5);
        memcpy(whole + 5, b.mem + 2000, 25);
        same(whole, 30, way);
        untouched(b.mem + prefix + 5, 100);
        untouched(b.mem + 2025, 100);
    }
}

static void reads(void) {
    uint32_t sizes[] = {0, 1, 4096, 8929, 30000, SIZE / 2};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t len = sizes[i];
        memset(a.mem, 0x55, SIZE);
        fill(b.mem + 17, len, i);
        IS(rdma(&a, 'r', i, 100, len, to_b, &at_b, at_b.mem + 17, at_b.rkey), 0);
        struct ibv_wc wc = wait_wc(a.cq);
        IS(wc.status, IBV_WC_SUCCESS);
        IS(wc.opcode, IBV_WC_SEND); /* EFA tells reads so */
        IS(wc.wr_id, i);
        untouched(a.mem, 100);
        same(a.mem + 100, len, i);
        untouched(a.mem + 100 + len, 1000);
    }
    struct ibv_wc wc;
    IS(ibv_poll_cq(b.cq, 1, &wc), 0); /* the target notices nothing */
}

static void writes(void) {
    uint32_t sizes[] = {0, 1, 4096, 8929, 30000, SIZE / 2};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint32_t len = sizes[i];
        memset(b.mem, 0x55, SIZE);
        fill(a.mem + 5, len, i);
        IS(rdma(&a, 'w', i, 5, len, to_b, &at_b, at_b.mem + 33, at_b.rkey), 0);
        struct ibv_wc wc = wait_wc(a.cq);
        IS(wc.status, IBV_WC_SUCCESS);
        IS(wc.opcode, IBV_WC_RDMA_WRITE);
        untouched(b.mem, 33);
        same(b.mem + 33, len, i);
        untouched(b.mem + 33 + len, 1000);
        IS(ibv_poll_cq(b.cq, 1, &wc), 0);
        /* With immediate data it takes a receive, whose buffer stays as it is. */
        memset(b.mem, 0x55, SIZE);
        IS(recv_at(&b, 77, SIZE - 64, 64), 0);
        IS(rdma(&a, 'i', 3, 5, len, to_b, &at_b, at_b.mem + 33, at_b.rkey), 0);
        IS(wait_wc(a.cq).status, IBV_WC_SUCCESS);
        wc = wait_wc(b.cq);
        IS(wc.status, IBV_WC_SUCCESS);
        IS(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        IS(wc.wr_id, 77);
        IS(wc.byte_len, len);
        IS(wc.imm_data, htobe32(0xcafe0003));
        same(b.mem + 33, len, i);
        untouched(b.mem + SIZE - 64, 64);
    }
}

/* A write with immediate data that takes no receive, between queue pairs that were made for it. */
static void unsolicited(void) {
    struct side c = make_side_of(open_device(0), false, 7, 1), d = make_side_of(open_device(0), false, 7, 1);
    struct ibv_ah *to_d = make_ah(c.pd, d.gid), *to_c = make_ah(d.pd, c.gid);
    CHECK(to_c && to_d);
    struct address at_d = address_of(&d);
    fill(c.mem, 100, 9);
    IS(rdma(&c, 'i', 4, 0, 100, to_d, &at_d, at_d.mem, at_d.rkey), 0);
    IS(wait_wc(c.cq).status, IBV_WC_SUCCESS);
    struct ibv_wc wc = wait_wc(d.cq);
    IS(wc.status, IBV_WC_SUCCESS);
    IS(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
    IS(wc.byte_len, 100);
    same(d.mem, 100, 9);
    IS(ibv_destroy_ah(to_c), 0);
    IS(ibv_destroy_ah(to_d), 0);
    drop_side(&c);
    drop_side(&d);
}

/* The extended way of polling reads the same. */
static void extended_polling(bool known) {
    struct ibv_cq_init_attr_ex attr = {.cqe = 100, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct efadv_cq_init_attr efa_attr = {.wc_flags = EFADV_WC_EX_WITH_SGID};
    struct ibv_cq_ex *cq = efadv_create_cq(b.ctx, &attr, &efa_attr, sizeof efa_attr);
    CHECK(cq);
    struct ibv_pd *pd = ibv_alloc_pd(b.ctx);
    CHECK(pd);
    struct ibv_qp *qp = make_qp(pd, ibv_cq_ex_to_cq(cq), false, 0, 0);
    CHECK(qp);
    IS(to_init(qp), 0);
    IS(to_rtr(qp), 0);
    struct ibv_ah *first = first_ah(pd), *ah = known ? make_ah(pd, a.gid) : NULL;
    enum { N = 40 };
    static char mem[N][64];
    struct ibv_mr *mr = ibv_reg_mr(pd, mem, sizeof mem, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    for (int i = 0; i < N; i++) {
        struct ibv_sge sge = {(uintptr_t)mem[i], 64, mr->lkey};
        struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &sge, .num_sge = 1}, *bad;
        IS(ibv_post_recv(qp, &wr, &bad), 0);
        fill(a.mem + 64 * i, 64, i);
        ibv_wr_start(a.ex);
        a.ex->wr_flags = IBV_SEND_SIGNALED;
        if (i % 2)
            ibv_wr_send_imm(a.ex, htobe32(0x12345600 + i));
        else
            ibv_wr_send(a.ex);
        ibv_wr_set_ud_addr(a.ex, to_b, qp->qp_num, QKEY);
        ibv_wr_set_sge(a.ex, a.mr->lkey, (uintptr_t)a.mem + 64 * i, 64);
        IS(ibv_wr_complete(a.ex), 0);
    }
    for (int i = 0; i < N; i++)
        IS(wait_wc(a.cq).status, IBV_WC_SUCCESS);
    struct ibv_poll_cq_attr poll = {};
    bool seen[N] = {};
    double end = now() + PATIENCE;
    for (int got = 0; got < N;) {
        CHECK(now() < end);
        int rc = ibv_start_poll(cq, &poll);
        if (rc == ENOENT)
            continue;
        IS(rc, 0);
        IS(ibv_start_poll(cq, &poll), EINVAL); /* in a session already */
        do {
            IS(cq->status, IBV_WC_SUCCESS);
            CHECK(cq->wr_id < N && !seen[cq->wr_id]);
            seen[cq->wr_id] = true;
            IS(ibv_wc_read_opcode(cq), IBV_WC_RECV);
            IS(ibv_wc_read_byte_len(cq), 64);
            IS(ibv_wc_read_vendor_err(cq), 0);
            int i = cq->wr_id;
            IS(ibv_wc_read_wc_flags(cq), i % 2 ? IBV_WC_WITH_IMM : 0);
            if (i % 2)
                IS(ibv_wc_read_imm_data(cq), htobe32(0x12345600 + i));
            IS(ibv_wc_read_qp_num(cq), qp->qp_num);
            IS(ibv_wc_read_src_qp(cq), a.qp->qp_num);
            IS(ibv_wc_read_sl(cq), 0);
            IS(ibv_wc_read_dlid_path_bits(cq), 0);
            union ibv_gid gid;
            struct efadv_cq *efa = efadv_cq_from_ibv_cq_ex(cq);
            if (known) {
                struct efadv_ah_attr ahn;
                IS(efadv_query_ah(ah, &ahn, sizeof ahn), 0);
                CHECK(ahn.ahn > 0);
                IS(ibv_wc_read_slid(cq), ahn.ahn);
                CHECK(efadv_wc_read_sgid(efa, &gid) < 0);
            } else {
                IS(ibv_wc_read_slid(cq), 0xffff);
                IS(efadv_wc_read_sgid(efa, &gid), 0);
                IS(memcmp(&gid, &a.gid, sizeof gid), 0);
            }
            /* Posting in a session works, also to the queue pair whose completions are polled. */
            if (got++ == 0) {
                IS(recv_empty(qp, mr, 0), 0);
                char more[8];
                struct ibv_mr *mr2 = ibv_reg_mr(pd, more, sizeof more, 0);
                CHECK(mr2);
                IS(ibv_dereg_mr(mr2), 0);
            }
            rc = ibv_next_poll(cq);
        } while (rc == 0);
        IS(rc, ENOENT);
        ibv_end_poll(cq);
        ibv_end_poll(cq); /* once too often */
    }
    for (int i = 0; i < N; i++)
        same(mem[i], 64, i);
    if (ah)
        IS(ibv_destroy_ah(ah), 0);
    IS(ibv_destroy_ah(first), 0);
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
    IS(ibv_dereg_mr(mr), 0);
    IS(ibv_dealloc_pd(pd), 0);
}

/* Completions of a queue pair that goes are not told. */
static void forgotten(void) {
    struct ibv_cq_init_attr_ex attr = {.cqe = 100};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(b.ctx, &attr);
    CHECK(cq);
    struct ibv_qp *qp[2];
    for (int i = 0; i < 2; i++) {
        CHECK(qp[i] = make_qp(b.pd, ibv_cq_ex_to_cq(cq), false, 0, 0));
        IS(to_init(qp[i]), 0);
        IS(to_rtr(qp[i]), 0);
        for (int k = 0; k < 5; k++) {
            IS(recv_empty(qp[i], b.mr, i), 0);
            IS(send_from(&a, 1, 0, 0, to_b, qp[i]->qp_num), 0);
        }
    }
    for (int i = 0; i < 10; i++)
        IS(wait_wc(a.cq).status, IBV_WC_SUCCESS);
    struct ibv_poll_cq_attr poll = {};
    IS(ibv_start_poll(cq, &poll), 0);
    int first = cq->wr_id, other = 0;
    ibv_end_poll(cq);
    IS(ibv_destroy_qp(qp[first]), 0);
    while (ibv_start_poll(cq, &poll) == 0) {
        IS(cq->wr_id, 1 - first);
        other++;
        ibv_end_poll(cq);
    }
    IS(other, 5);
    IS(ibv_destroy_qp(qp[1 - first]), 0);
    IS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

int main(void) {
    for (int ud = 0; ud < 2; ud++) {
        a = make_side(ud, 7);
        b = make_side(ud, 7);
        IS(memcmp(&a.gid, &b.gid, sizeof a.gid), 0); /* one device, one address */
        CHECK(to_b = make_ah(a.pd, b.gid));
        struct ibv_ah *first = first_ah(b.pd);
        CHECK(to_a = make_ah(b.pd, a.gid));
        at_b = address_of(&b);
        sends(ud);
        parts(ud);
        if (!ud) {
            if (caps(a.ctx) & 1)
                reads();
            if (caps(a.ctx) & 8)
                writes();
            if (caps(a.ctx) & 16)
                unsolicited();
            extended_polling(true);
            extended_polling(false);
            forgotten();
        }
        IS(ibv_destroy_ah(to_a), 0);
        IS(ibv_destroy_ah(to_b), 0);
        IS(ibv_destroy_ah(first), 0);
        drop_side(&a);
        drop_side(&b);
    }
    return 0;
}
