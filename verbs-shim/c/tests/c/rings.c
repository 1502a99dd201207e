/* Queues that a program writes and reads itself, without calling the library. The layouts are written down here once more,
 * byte by byte, so that a mistake would have to be made twice. Argument: bytes of a send request, 64 or
 * 128; with another one it ends in the middle. */
#include "check.h"
#include <sched.h>
#include <stdatomic.h>

/* Newer than the headers of Debian 12. */
struct cq_attr {
    uint64_t comp_mask;
    uint8_t *buffer;
    uint32_t entry_size, num_entries;
    uint32_t *doorbell;
};
struct wq_attr {
    uint64_t comp_mask;
    uint8_t *buffer;
    uint32_t entry_size, num_entries;
    uint32_t *doorbell;
    uint32_t max_batch;
    uint16_t caps;
    uint8_t reserved[2];
};
int efadv_query_cq(struct ibv_cq *cq, struct cq_attr *attr, uint32_t inlen);
int efadv_query_qp_wqs(struct ibv_qp *qp, struct wq_attr *sq, struct wq_attr *rq, uint32_t inlen);

enum { OP_SEND, OP_READ, OP_WRITE };
enum { IMM = 0x10, INLINE = 0x20 };
enum { FLUSHED = 1, INTERNAL = 2, UNSUPPORTED = 3, BAD_LENGTH = 6 };

struct wq {
    struct wq_attr attr;
    uint16_t produced;
};

struct ring_cq {
    struct ibv_cq *cq;
    struct cq_attr attr;
    uint32_t consumed;
    int sn;
};

/* A queue pair and its completion queue, used by their rings. */
struct end {
    struct side s;
    struct ibv_comp_channel *channel;
    struct ring_cq cq;
    struct wq sq, rq;
};

/* A completion. */
struct done {
    uint64_t id;
    int status, queue, op;
    bool has_imm, unsolicited;
    uint16_t qpn, src_qpn, ah;
    uint32_t length, imm;
};

static void put_at(uint8_t *p, int at, uint64_t value, int bytes) {
    memcpy(p + at, &value, bytes);
}

static uint64_t get_at(const uint8_t *p, int at, int bytes) {
    uint64_t value = 0;
    memcpy(&value, p + at, bytes);
    return value;
}

static void ring(struct wq *wq) {
    __atomic_store_n(wq->attr.doorbell, wq->produced, __ATOMIC_RELEASE);
}

/* Writes a send request as it is, and rings if asked to. */
static void write_request(struct wq *sq, const uint8_t *wqe, bool and_ring) {
    uint8_t *at = sq->attr.buffer + (size_t)(sq->produced % sq->attr.num_entries) * sq->attr.entry_size;
    memcpy(at, wqe, sq->attr.entry_size);
    sq->produced++;
    if (and_ring)
        ring(sq);
}

/* The head of a request. */
static void head(struct end *e, uint8_t *wqe, int op, int flags, uint64_t id, uint16_t ahn, uint32_t qpn, uint32_t imm) {
    int phase = e->sq.produced / e->sq.attr.num_entries % 2;
    memset(wqe, 0, 128);
    put_at(wqe, 0, id, 2);
    wqe[2] = 0x80 | op | flags;
    wqe[3] = 0x10 | 0x08 | 0x04 | phase;
    put_at(wqe, 4, qpn, 2);
    put_at(wqe, 8, imm, 4);
    put_at(wqe, 12, ahn, 2);
    put_at(wqe, 16, QKEY, 4);
    if (e->sq.attr.caps & 1)
        put_at(wqe, 26, id >> 16, 6);
}

static void buffer(uint8_t *wqe, int at, uint64_t addr, uint32_t key, uint32_t length) {
    put_at(wqe, at, length, 4);
    put_at(wqe, at + 4, key, 4);
    put_at(wqe, at + 8, addr & 0xffffffff, 4);
    put_at(wqe, at + 12, addr >> 32, 4);
}

/* A receive of one or two buffers. The second entry is like EFA's library writes it, without an id, or like libfabric does, which
 * marks it as the first once more. */
static void post_receive(struct end *e, uint16_t id, size_t offset, uint16_t first, int second) {
    struct wq *rq = &e->rq;
    int parts = second < 0 ? 1 : 2;
    for (int k = 0; k < parts; k++) {
        uint8_t *at = rq->attr.buffer + (size_t)(rq->produced % rq->attr.num_entries) * 16;
        uint64_t addr = (uintptr_t)e->s.mem + offset + (k ? first : 0);
        put_at(at, 0, addr & 0xffffffff, 4);
        put_at(at, 4, addr >> 32, 4);
        bool as_libfabric = id % 2;
        put_at(at, 8, k == 0 || as_libfabric ? id : 0, 2);
        put_at(at, 10, k ? second : first, 2);
        put_at(at, 12, e->s.mr->lkey | (k == 0 || as_libfabric ? 1u << 30 : 0) | (k == parts - 1 ? 1u << 31 : 0), 4);
        rq->produced++;
    }
    ring(rq);
}

static void post_ring_send(struct end *e, uint64_t id, size_t offset, uint32_t length, uint16_t ahn, uint32_t qpn,
                           int flags, uint32_t imm) {
    uint8_t wqe[128];
    head(e, wqe, OP_SEND, flags, id, ahn, qpn, imm);
    if (flags & INLINE) {
        put_at(wqe, 6, length, 2);
        memcpy(wqe + 32, e->s.mem + offset, length);
    } else {
        put_at(wqe, 6, 1, 2);
        buffer(wqe, 32, (uintptr_t)e->s.mem + offset, e->s.mr->lkey, length);
    }
    write_request(&e->sq, wqe, true);
}

static void post_ring_rdma(struct end *e, int op, uint64_t id, size_t offset, uint32_t length, uint16_t ahn,
                           struct address *to, size_t there, int flags, uint32_t imm) {
    uint8_t wqe[128];
    head(e, wqe, op, flags, id, ahn, to->qpn, imm);
    buffer(wqe, 32, to->mem + there, to->rkey, length);
    if (flags & INLINE) {
        put_at(wqe, 6, length, 2);
        memcpy(wqe + 48, e->s.mem + offset, length);
    } else {
        put_at(wqe, 6, 1, 2);
        buffer(wqe, 48, (uintptr_t)e->s.mem + offset, e->s.mr->lkey, length);
    }
    write_request(&e->sq, wqe, true);
}

/* The next completion, if there is one. */
static bool look(struct ring_cq *q, bool long_ids, struct done *d) {
    const uint8_t *at = q->attr.buffer + (size_t)(q->consumed % q->attr.num_entries) * q->attr.entry_size;
    int phase = q->consumed / q->attr.num_entries % 2 == 0;
    uint8_t flags = __atomic_load_n(at + 3, __ATOMIC_ACQUIRE);
    if ((flags & 1) != phase)
        return false;
    q->consumed++;
    *d = (struct done){
        .id = get_at(at, 0, 2),
        .status = at[2],
        .queue = flags >> 1 & 3,
        .op = flags >> 4 & 7,
        .has_imm = flags & 8,
        .unsolicited = flags & 0x80,
        .qpn = get_at(at, 4, 2),
    };
    if (d->queue == 1) {
        if (long_ids)
            d->id |= get_at(at, 6, 6) << 16;
        return true;
    }
    d->length = get_at(at, 6, 2);
    d->ah = get_at(at, 8, 2);
    d->src_qpn = get_at(at, 10, 2);
    d->imm = get_at(at, 12, 4);
    if (d->op == OP_WRITE)
        d->length |= get_at(at, 16, 2) << 16;
    return true;
}

static struct done await(struct end *e) {
    struct done d;
    double end = now() + PATIENCE;
    while (!look(&e->cq, e->sq.attr.caps & 1, &d)) {
        sched_yield();
        if (now() > end) {
            fprintf(stderr, "no completion in the ring\n");
            exit(1);
        }
    }
    return d;
}

/* Says what was consumed, and asks for an event when there is more. */
static void arm_ring(struct ring_cq *q) {
    __atomic_store_n(q->attr.doorbell, (q->consumed & 0xffff) | (uint32_t)(q->sn & 3) << 29 | 1u << 31, __ATOMIC_RELEASE);
}

static struct ibv_qp *make_ring_qp(struct side *s, struct ibv_cq *cq, int request, bool unsolicited) {
    bool writes = caps(s->ctx) & 8;
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 2,
                .max_inline_data = request == 128 ? 80 : 32},
        .qp_type = IBV_QPT_DRIVER,
        .sq_sig_all = 1,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = s->pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_RDMA_READ,
    };
    if (writes)
        attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    struct efadv_qp_init_attr efa = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
    uint16_t flags = (request == 128 ? 2 : 0) | unsolicited; /* inline writes, unsolicited write receive */
    memcpy(efa.reserved, &flags, sizeof flags);
    return efadv_create_qp_ex(s->ctx, &attr, &efa, sizeof efa);
}

static void to_work(struct ibv_qp *qp) {
    IS(to_init(qp), 0);
    IS(to_rtr(qp), 0);
    IS(to_rts(qp, 7), 0);
}

static struct end make_end(int request) {
    struct end e = {0};
    struct side *s = &e.s;
    s->ctx = open_device(0);
    CHECK(s->pd = ibv_alloc_pd(s->ctx));
    CHECK(e.channel = ibv_create_comp_channel(s->ctx));
    CHECK(s->cq = ibv_create_cq(s->ctx, 4 * DEPTH, &e, e.channel, 0));
    e.cq.cq = s->cq;
    CHECK(s->qp = make_ring_qp(s, s->cq, request, false));
    IS(efadv_query_cq(s->cq, &e.cq.attr, sizeof e.cq.attr), 0);
    IS(efadv_query_qp_wqs(s->qp, &e.sq.attr, &e.rq.attr, sizeof e.sq.attr), 0);
    to_work(s->qp);
    s->mem = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(s->mem != MAP_FAILED);
    CHECK(s->mr = ibv_reg_mr(s->pd, s->mem, SIZE, all_access(s->ctx)));
    IS(ibv_query_gid(s->ctx, 1, 0, &s->gid), 0);
    return e;
}

static void drop_end(struct end *e) {
    IS(ibv_destroy_qp(e->s.qp), 0);
    IS(ibv_destroy_cq(e->s.cq), 0);
    IS(ibv_destroy_comp_channel(e->channel), 0);
    IS(ibv_dereg_mr(e->s.mr), 0);
    IS(ibv_dealloc_pd(e->s.pd), 0);
    IS(ibv_close_device(e->s.ctx), 0);
    IS(munmap(e->s.mem, SIZE), 0);
}

static uint16_t number_of(struct ibv_ah *ah) {
    struct efadv_ah_attr attr;
    IS(efadv_query_ah(ah, &attr, sizeof attr), 0);
    return attr.ahn;
}

static void attributes(struct end *e, int request) {
    IS(e->cq.attr.num_entries, 4 * DEPTH);
    IS(e->cq.attr.entry_size, caps(e->s.ctx) & 8 ? 32 : 16);
    CHECK(e->cq.attr.doorbell);
    IS(e->sq.attr.entry_size, request);
    IS(e->sq.attr.num_entries, DEPTH);
    IS(e->rq.attr.entry_size, 16);
    IS(e->rq.attr.num_entries, 2 * DEPTH);
    CHECK(e->sq.attr.max_batch > 0 && e->rq.attr.max_batch > 0);
    IS(e->rq.attr.caps, 0);
    /* Once more: the same. A program with older headers knows less of it. */
    struct cq_attr cq;
    memset(&cq, 0xee, sizeof cq);
    IS(efadv_query_cq(e->s.cq, &cq, 24), 0);
    CHECK(cq.buffer == e->cq.attr.buffer && cq.comp_mask == 0);
    IS((uintptr_t)cq.doorbell, 0xeeeeeeeeeeeeeeee);
    struct wq_attr sq, rq;
    IS(efadv_query_qp_wqs(e->s.qp, &sq, &rq, sizeof sq), 0);
    CHECK(sq.buffer == e->sq.attr.buffer && rq.doorbell == e->rq.attr.doorbell);
    IS(efadv_query_cq(NULL, &cq, sizeof cq), EINVAL);
    IS(efadv_query_cq(e->s.cq, NULL, sizeof cq), EINVAL);
    IS(efadv_query_cq(e->s.cq, &cq, 16), EINVAL);
    IS(efadv_query_qp_wqs(e->s.qp, NULL, &rq, sizeof rq), EINVAL);
    IS(efadv_query_qp_wqs(e->s.qp, &sq, NULL, sizeof sq), EINVAL);
    IS(efadv_query_qp_wqs(e->s.qp, &sq, &rq, 24), EINVAL);
}

/* Functions work until a doorbell is rung. */
static void functions_first(struct end *a, struct end *b, struct ibv_ah *ah) {
    IS(recv_at(&b->s, 7, 0, 64), 0);
    IS(send_from(&a->s, 8, 0, 5, ah, b->s.qp->qp_num), 0);
    IS(wait_wc(b->s.cq).wr_id, 7);
    IS(wait_wc(a->s.cq).wr_id, 8);
}

/* Slots of memory that nothing under way uses. */
struct slots {
    int n, free[DEPTH / 2];
};

static struct slots all_free(void) {
    struct slots s = {DEPTH / 2, {0}};
    for (int k = 0; k < s.n; k++)
        s.free[k] = k;
    return s;
}

/* Far more than there is room for at a time, in both queues, so that all indices and phases wrap. */
static void messages(struct end *a, struct end *b, uint16_t ahn, uint16_t back, int count) {
    /* Ids are slots, and where there is room for more, it comes back. */
    uint64_t high = a->sq.attr.caps & 1 ? 0xabcd000012340000 : 0;
    struct slots sends = all_free(), receives = all_free();
    int sent = 0, posted = 0, done = 0, received = 0;
    bool *seen = calloc(count, sizeof *seen);
    CHECK(seen);
    while (done < count || received < count) {
        while (posted < count && receives.n > 0) {
            int slot = receives.free[--receives.n];
            post_receive(b, slot, SIZE / 2 + slot * 64, posted % 2 ? 40 : 64, posted % 2 ? 24 : -1);
            posted++;
        }
        while (sent < posted && sends.n > 0) {
            int slot = sends.free[--sends.n];
            memset(a->s.mem + slot * 64, sent, 64);
            memcpy(a->s.mem + slot * 64, &sent, sizeof sent);
            int flags = (sent % 3 == 0 ? INLINE : 0) | (sent % 5 == 0 ? IMM : 0);
            post_ring_send(a, high | slot, slot * 64, sent % 3 == 0 ? 4 + sent % 28 : 4 + sent % 60, ahn,
                           b->s.qp->qp_num, flags, 1000 + sent);
            sent++;
        }
        struct done d;
        while (look(&a->cq, a->sq.attr.caps & 1, &d)) {
            IS(d.status, 0);
            IS(d.queue, 1);
            IS(d.op, OP_SEND);
            IS(d.qpn, a->s.qp->qp_num);
            CHECK((d.id & ~(uint64_t)0xffff) == high && (d.id & 0xffff) < DEPTH / 2);
            sends.free[sends.n++] = d.id & 0xffff;
            done++;
        }
        while (look(&b->cq, false, &d)) {
            IS(d.status, 0);
            IS(d.queue, 2);
            IS(d.op, OP_SEND);
            IS(d.ah, back);
            IS(d.src_qpn, a->s.qp->qp_num);
            CHECK(d.id < DEPTH / 2);
            const char *got = b->s.mem + SIZE / 2 + d.id * 64;
            int which;
            memcpy(&which, got, sizeof which);
            CHECK(which >= 0 && which < sent && !seen[which]);
            seen[which] = true;
            IS(d.length, which % 3 == 0 ? 4 + which % 28 : 4 + which % 60);
            for (uint32_t k = 4; k < d.length; k++)
                IS((uint8_t)got[k], (uint8_t)which);
            IS(d.has_imm, which % 5 == 0);
            if (d.has_imm)
                IS(d.imm, 1000 + which);
            receives.free[receives.n++] = d.id;
            received++;
        }
        sched_yield();
    }
    free(seen);
}

static void remote(struct end *a, struct end *b, uint16_t ahn, int request) {
    struct address to = address_of(&b->s);
    for (int k = 0; k < 4096; k++)
        b->s.mem[k] = k * 7;
    memset(a->s.mem, 0, 8192);
    post_ring_rdma(a, OP_READ, 11, 4096, 4096, ahn, &to, 0, 0, 0);
    struct done d = await(a);
    IS(d.status, 0);
    IS(d.id, 11);
    IS(d.op, OP_READ);
    CHECK(memcmp(a->s.mem + 4096, b->s.mem, 4096) == 0);
    if (!(caps(a->s.ctx) & 8)) {
        /* The queue pair has not asked for writes. */
        post_ring_rdma(a, OP_WRITE, 12, 0, 16, ahn, &to, 0, 0, 0);
        d = await(a);
        IS(d.status, UNSUPPORTED);
        IS(d.op, OP_WRITE);
        return;
    }
    memset(a->s.mem, 0x5a, SIZE / 2);
    post_ring_rdma(a, OP_WRITE, 12, 0, 30000, ahn, &to, 100, 0, 0);
    d = await(a);
    IS(d.status, 0);
    IS(d.op, OP_WRITE);
    CHECK((uint8_t)b->s.mem[99] == (uint8_t)(99 * 7) && b->s.mem[100] == 0x5a && b->s.mem[30099] == 0x5a);
    CHECK(b->s.mem[30100] != 0x5a);
    /* With immediate data, longer than 16 bits can say, over itself. */
    post_receive(b, 13, 0, 0, -1);
    post_ring_rdma(a, OP_WRITE, 14, 0, SIZE, ahn, &to, 0, IMM, 0xfeed);
    IS(await(a).status, 0);
    d = await(b);
    IS(d.status, 0);
    IS(d.id, 13);
    IS(d.queue, 2);
    IS(d.op, OP_WRITE);
    IS(d.length, SIZE);
    CHECK(d.has_imm && d.imm == 0xfeed && !d.unsolicited);
    if (request == 128) {
        memcpy(a->s.mem, "inline, in eighty bytes", 24);
        post_ring_rdma(a, OP_WRITE, 15, 0, 80, ahn, &to, 200, INLINE, 0);
        memset(a->s.mem, 0, 24);
        IS(await(a).status, 0);
        CHECK(memcmp(b->s.mem + 200, "inline, in eighty bytes", 24) == 0);
    }
}

/* What a peer writes unsolicited is told in the ring, though its program has rung for nothing, and whichever ring it asked for
 * first. */
static void unsolicited(struct end *a, struct end *b, uint16_t ahn, int request) {
    if (!(caps(a->s.ctx) & 0x10))
        return;
    struct end from = *a;
    CHECK(from.s.qp = make_ring_qp(&from.s, from.s.cq, request, true));
    IS(efadv_query_qp_wqs(from.s.qp, &from.sq.attr, &from.rq.attr, sizeof from.sq.attr), 0);
    from.sq.produced = 0;
    to_work(from.s.qp);
    for (int cq_first = 0; cq_first < 2; cq_first++) {
        struct end to = *b;
        CHECK(to.s.cq = ibv_create_cq(to.s.ctx, DEPTH, NULL, NULL, 0));
        CHECK(to.s.qp = make_ring_qp(&to.s, to.s.cq, request, true));
        to.cq = (struct ring_cq){.cq = to.s.cq};
        if (cq_first)
            IS(efadv_query_cq(to.s.cq, &to.cq.attr, sizeof to.cq.attr), 0);
        IS(efadv_query_qp_wqs(to.s.qp, &to.sq.attr, &to.rq.attr, sizeof to.sq.attr), 0);
        if (!cq_first)
            IS(efadv_query_cq(to.s.cq, &to.cq.attr, sizeof to.cq.attr), 0);
        to_work(to.s.qp);
        struct address target = address_of(&to.s);
        post_ring_rdma(&from, OP_WRITE, 70, 0, 10, ahn, &target, 300, IMM, 0xbeef);
        IS(await(&from).status, 0);
        struct done d = await(&to);
        CHECK(d.unsolicited && d.has_imm && d.imm == 0xbeef && d.status == 0 && d.length == 10);
        IS(ibv_destroy_qp(to.s.qp), 0);
        IS(ibv_destroy_cq(to.s.cq), 0);
    }
    IS(ibv_destroy_qp(from.s.qp), 0);
    a->cq = from.cq;
}

/* A request that makes no sense fails, and nothing else does. */
static void faults(struct end *a, struct end *b, uint16_t ahn) {
    struct {
        int at, value, status;
    } wrong[] = {
        {2, 0x80 | 9, UNSUPPORTED},         {2, OP_SEND, INTERNAL},         {2, 0xc0 | OP_SEND, INTERNAL},
        {3, 0x10 | 0x08, INTERNAL},         {3, 0x08 | 0x04, INTERNAL},     {3, 0x40 | 0x10 | 0x08 | 0x04, INTERNAL},
        {6, 3, BAD_LENGTH},                 {2, 0x80 | OP_READ | IMM, UNSUPPORTED},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        uint8_t wqe[128];
        /* A good one, the bad one, and a good one, with one doorbell. */
        for (int which = 0; which < 3; which++) {
            head(a, wqe, OP_SEND, 0, 20 + which, ahn, b->s.qp->qp_num, 0);
            put_at(wqe, 6, 1, 2);
            buffer(wqe, 32, (uintptr_t)a->s.mem, a->s.mr->lkey, 10);
            if (which == 1)
                wqe[wrong[k].at] = wrong[k].value | (wrong[k].at == 3 ? wqe[3] & 1 : 0);
            write_request(&a->sq, wqe, which == 2);
        }
        post_receive(b, 1, 0, 64, -1);
        post_receive(b, 2, 64, 64, -1);
        int good = 0, bad = 0;
        while (good + bad < 3) {
            struct done d = await(a);
            if (d.id == 21) {
                IS(d.status, wrong[k].status);
                bad++;
            } else {
                IS(d.status, 0);
                good++;
            }
        }
        IS(bad, 1);
        IS(await(b).status, 0);
        IS(await(b).status, 0);
    }
    /* An entry of the round before. */
    uint8_t wqe[128];
    head(a, wqe, OP_SEND, 0, 30, ahn, b->s.qp->qp_num, 0);
    wqe[3] ^= 1;
    write_request(&a->sq, wqe, true);
    IS(await(a).status, INTERNAL);
    /* What the card finds is told like always: an unknown address handle, a bad key. */
    post_ring_send(a, 31, 0, 4, 4000, b->s.qp->qp_num, 0, 0);
    IS(await(a).status, 4);
    head(a, wqe, OP_SEND, 0, 32, ahn, b->s.qp->qp_num, 0);
    put_at(wqe, 6, 1, 2);
    buffer(wqe, 32, (uintptr_t)a->s.mem, 0xabcdef, 10);
    write_request(&a->sq, wqe, true);
    IS(await(a).status, 5);
}

/* Events come for what came after arming, by the doorbell or by the function, and can be taken by the function or read. */
static void events(struct end *a, struct end *b, uint16_t ahn) {
    int taken = 0;
    for (int k = 0; k < 8; k++) {
        post_receive(b, k, 0, 64, -1);
        if (k % 2)
            arm_ring(&b->cq);
        else
            IS(ibv_req_notify_cq(b->s.cq, 0), 0);
        struct done d;
        CHECK(!look(&b->cq, false, &d));
        post_ring_send(a, 40, 0, 4, ahn, b->s.qp->qp_num, 0, 0);
        if (k & 2) {
            uint64_t handle;
            IS(read(b->channel->fd, &handle, sizeof handle), sizeof handle);
            CHECK((struct ibv_cq *)(uintptr_t)handle == b->s.cq);
        } else {
            struct ibv_cq *cq;
            void *context;
            IS(ibv_get_cq_event(b->channel, &cq, &context), 0);
            CHECK(cq == b->s.cq);
        }
        b->cq.sn++;
        taken++;
        CHECK(look(&b->cq, false, &d));
        IS(await(a).status, 0);
    }
    /* What came before it was armed: at once. */
    post_receive(b, 9, 0, 64, -1);
    post_ring_send(a, 41, 0, 4, ahn, b->s.qp->qp_num, 0, 0);
    IS(await(a).status, 0);
    struct done d = await(b);
    IS(d.id, 9);
    b->cq.consumed--;
    arm_ring(&b->cq);
    b->cq.consumed++;
    struct ibv_cq *cq;
    void *context;
    IS(ibv_get_cq_event(b->channel, &cq, &context), 0);
    taken++;
    struct pollfd fd = {.fd = b->channel->fd, .events = POLLIN};
    IS(poll(&fd, 1, 0), 0);
    /* Who arms, looks once more and says that it has, is armed. */
    post_receive(b, 10, 0, 64, -1);
    b->cq.sn++;
    arm_ring(&b->cq);
    __atomic_store_n(b->cq.attr.doorbell, (b->cq.consumed & 0xffff) | (uint32_t)(b->cq.sn & 3) << 29, __ATOMIC_RELEASE);
    post_ring_send(a, 42, 0, 4, ahn, b->s.qp->qp_num, 0, 0);
    IS(await(a).status, 0);
    IS(await(b).id, 10);
    IS(poll(&fd, 1, 1000 * PATIENCE), 1);
    IS(ibv_get_cq_event(b->channel, &cq, &context), 0);
    taken++;
    IS(poll(&fd, 1, 0), 0);
    ibv_ack_cq_events(b->s.cq, taken);
}

/* Rings of a queue pair that begins anew do so, too. */
static void reset(struct end *a, struct end *b, uint16_t ahn) {
    IS(to_state(a->s.qp, IBV_QPS_RESET), 0);
    to_work(a->s.qp);
    IS(*a->sq.attr.doorbell, 0);
    a->sq.produced = a->rq.produced = 0;
    post_receive(b, 50, 0, 64, -1);
    post_ring_send(a, 51, 0, 4, ahn, b->s.qp->qp_num, 0, 0);
    IS(await(a).status, 0);
    IS(await(b).id, 50);
}

struct churn {
    struct end *e;
    int request;
    atomic_bool *has_ended;
};

/* Makes and destroys queue pairs with rings while others are used. */
static void *churn(void *arg) {
    struct churn *c = arg;
    for (int k = 0; k < 200; k++) {
        struct wq_attr sq, rq;
        struct cq_attr attr;
        struct ibv_cq *cq = ibv_create_cq(c->e->s.ctx, DEPTH, NULL, NULL, 0);
        CHECK(cq);
        struct ibv_qp *qp = make_ring_qp(&c->e->s, cq, c->request, false);
        CHECK(qp);
        IS(efadv_query_cq(cq, &attr, sizeof attr), 0);
        CHECK(!attr.doorbell);
        IS(efadv_query_qp_wqs(qp, &sq, &rq, sizeof sq), 0);
        if (k == 0)
            IS(ibv_destroy_cq(cq), EBUSY);
        IS(ibv_destroy_qp(qp), 0);
        IS(ibv_destroy_cq(cq), 0);
    }
    *c->has_ended = true;
    return NULL;
}

/* A doorbell for more than there is: the queue pair is lost, its receives are flushed. */
static void overrun(struct end *a, struct end *b) {
    post_receive(b, 60, 0, 64, -1);
    b->sq.produced += DEPTH + 1;
    ring(&b->sq);
    struct done d = await(b);
    IS(d.status, FLUSHED);
    IS(d.id, 60);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    IS(ibv_query_qp(b->s.qp, &attr, IBV_QP_STATE, &init), 0);
    IS(attr.qp_state, IBV_QPS_ERR);
    /* In the error state everything is flushed. */
    IS(to_state(a->s.qp, IBV_QPS_ERR), 0);
    post_ring_send(a, 61, 0, 4, 0, 0, 0, 0);
    d = await(a);
    IS(d.status, FLUSHED);
    IS(d.id, 61);
    post_receive(a, 62, 0, 64, -1);
    d = await(a);
    IS(d.status, FLUSHED);
    IS(d.id, 62);
    IS(d.queue, 2);
}

int main(int argc, char **argv) {
    CHECK(argc == 2 || argc == 3);
    int request = atoi(argv[1]);
    if (request == 0) {
        /* They are not offered. */
        struct side s = make_side(false, 7);
        struct cq_attr cq;
        struct wq_attr sq, rq;
        IS(efadv_query_cq(s.cq, &cq, sizeof cq), EOPNOTSUPP);
        IS(efadv_query_qp_wqs(s.qp, &sq, &rq, sizeof sq), EOPNOTSUPP);
        drop_side(&s);
        return 0;
    }
    struct end a = make_end(request), b = make_end(request);
    struct ibv_ah *to_b = make_ah(a.s.pd, b.s.gid), *to_a = make_ah(b.s.pd, a.s.gid);
    CHECK(to_a && to_b);
    uint16_t ahn = number_of(to_b), back = number_of(to_a);
    attributes(&a, request);
    functions_first(&a, &b, to_b);
    messages(&a, &b, ahn, back, 3000);
    if (argc == 3) {
        /* It ends with everything open, and something under way. */
        post_ring_send(&a, 1, 0, 4, ahn, b.s.qp->qp_num, 0, 0);
        return 0;
    }
    remote(&a, &b, ahn, request);
    unsolicited(&a, &b, ahn, request);
    faults(&a, &b, ahn);
    events(&a, &b, ahn);
    reset(&a, &b, ahn);

    atomic_bool has_ended = false;
    struct churn c = {&b, request, &has_ended};
    pthread_t thread;
    IS(pthread_create(&thread, NULL, churn, &c), 0);
    do
        messages(&a, &b, ahn, back, 100);
    while (!has_ended);
    IS(pthread_join(thread, NULL), 0);

    overrun(&a, &b);
    IS(ibv_destroy_ah(to_a), 0);
    IS(ibv_destroy_ah(to_b), 0);
    drop_end(&a);
    drop_end(&b);
    return 0;
}
