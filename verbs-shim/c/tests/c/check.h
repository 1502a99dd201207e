/* What the C programs of the tests share. Every check prints where it failed and ends the program. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/efadv.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(cond)                                                                                                   \
    do {                                                                                                              \
        if (!(cond)) {                                                                                                \
            fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #cond, errno, strerror(errno));         \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

#define IS(got, want)                                                                                                 \
    do {                                                                                                              \
        long long got_ = (long long)(got), want_ = (long long)(want);                                                 \
        if (got_ != want_) {                                                                                          \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, got_, want_);                  \
            exit(1);                                                                                                  \
        }                                                                                                             \
    } while (0)

/* A function that returns null and sets errno. */
#define NULL_WITH(call, want)                                                                                         \
    do {                                                                                                              \
        errno = 0;                                                                                                    \
        CHECK((call) == NULL);                                                                                        \
        IS(errno, want);                                                                                              \
    } while (0)

/* A function that returns -1 and sets errno. */
#define MINUS_WITH(call, want)                                                                                        \
    do {                                                                                                              \
        errno = 0;                                                                                                    \
        IS(call, -1);                                                                                                 \
        IS(errno, want);                                                                                              \
    } while (0)

enum { QKEY = 0x11111111, DEPTH = 64, SIZE = 1 << 16 };

/* Seconds that nothing takes that happens at all, on however busy a machine. */
enum { PATIENCE = 120 };

/* An open device with memory and one queue pair. */
struct side {
    struct ibv_context *ctx;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_qp_ex *ex;
    struct ibv_mr *mr;
    char *mem;
    union ibv_gid gid;
};

/* How to reach a side. */
struct address {
    union ibv_gid gid;
    uint32_t qpn;
    uint32_t rkey;
    uint64_t mem;
};

static inline double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Threads of this process. */
static inline int thread_count(void) {
    DIR *dir = opendir("/proc/self/task");
    CHECK(dir);
    int n = 0;
    for (struct dirent *entry; (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

static inline struct ibv_context *open_device(int index) {
    int n;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list && n > index);
    struct ibv_context *ctx = ibv_open_device(list[index]);
    CHECK(ctx);
    ibv_free_device_list(list);
    return ctx;
}

static inline uint32_t caps(struct ibv_context *ctx) {
    struct efadv_device_attr attr;
    IS(efadv_query_device(ctx, &attr, sizeof attr), 0);
    return attr.device_caps;
}

/* An extended queue pair, SRD or UD, with all operations that the device has; efa_flags are those of newer headers. */
static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq, bool ud, uint16_t efa_flags, int sig_all) {
    struct ibv_qp_init_attr_ex attr = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 2, .max_recv_sge = 2, .max_inline_data = 32},
        .qp_type = ud ? IBV_QPT_UD : IBV_QPT_DRIVER,
        .sq_sig_all = sig_all,
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .pd = pd,
        .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
    };
    if (!ud && caps(pd->context) & 1)
        attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_READ;
    if (!ud && caps(pd->context) & 8)
        attr.send_ops_flags |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM;
    struct efadv_qp_init_attr efa = {.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD};
    memcpy(efa.reserved, &efa_flags, sizeof efa_flags);
    return ud ? ibv_create_qp_ex(pd->context, &attr) : efadv_create_qp_ex(pd->context, &attr, &efa, sizeof efa);
}

static inline int to_init(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY);
}

static inline int to_rtr(struct ibv_qp *qp) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static inline int to_rts(struct ibv_qp *qp, int rnr_retry) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .rnr_retry = rnr_retry};
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN | (rnr_retry < 0 ? 0 : IBV_QP_RNR_RETRY);
    return ibv_modify_qp(qp, &attr, mask);
}

static inline int to_state(struct ibv_qp *qp, enum ibv_qp_state state) {
    struct ibv_qp_attr attr = {.qp_state = state};
    return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

/* Access that the device permits. */
static inline int all_access(struct ibv_context *ctx) {
    return IBV_ACCESS_LOCAL_WRITE | (caps(ctx) & 1 ? IBV_ACCESS_REMOTE_READ : 0) |
           (caps(ctx) & 8 ? IBV_ACCESS_REMOTE_WRITE : 0);
}

static inline struct side make_side_of(struct ibv_context *ctx, bool ud, int rnr_retry, uint16_t efa_flags) {
    struct side s = {.ctx = ctx};
    CHECK(s.pd = ibv_alloc_pd(ctx));
    CHECK(s.cq = ibv_create_cq(ctx, 4 * DEPTH, NULL, NULL, 0));
    CHECK(s.qp = make_qp(s.pd, s.cq, ud, efa_flags, 0));
    CHECK(s.ex = ibv_qp_to_qp_ex(s.qp));
    IS(to_init(s.qp), 0);
    IS(to_rtr(s.qp), 0);
    IS(to_rts(s.qp, ud ? -1 : rnr_retry), 0);
    s.mem = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(s.mem != MAP_FAILED);
    CHECK(s.mr = ibv_reg_mr(s.pd, s.mem, SIZE, all_access(ctx)));
    IS(ibv_query_gid(ctx, 1, 0, &s.gid), 0);
    return s;
}

static inline struct side make_side(bool ud, int rnr_retry) {
    return make_side_of(open_device(0), ud, rnr_retry, 0);
}

static inline void drop_side(struct side *s) {
    IS(ibv_destroy_qp(s->qp), 0);
    IS(ibv_destroy_cq(s->cq), 0);
    IS(ibv_dereg_mr(s->mr), 0);
    IS(ibv_dealloc_pd(s->pd), 0);
    IS(ibv_close_device(s->ctx), 0);
    IS(munmap(s->mem, SIZE), 0);
}

static inline struct address address_of(struct side *s) {
    return (struct address){s->gid, s->qp->qp_num, s->mr->rkey, (uintptr_t)s->mem};
}

static inline struct ibv_ah *make_ah(struct ibv_pd *pd, union ibv_gid gid) {
    struct ibv_ah_attr attr = {.grh.dgid = gid, .is_global = 1, .port_num = 1};
    return ibv_create_ah(pd, &attr);
}

/* Waits for one completion. */
static inline struct ibv_wc wait_wc(struct ibv_cq *cq) {
    struct ibv_wc wc;
    double end = now() + PATIENCE;
    int n;
    while ((n = ibv_poll_cq(cq, 1, &wc)) == 0) {
        if (now() > end) {
            fprintf(stderr, "no completion in %d s\n", PATIENCE);
            exit(1);
        }
    }
    IS(n, 1);
    return wc;
}

/* One for a message without payload. */
static inline int recv_empty(struct ibv_qp *qp, struct ibv_mr *mr, uint64_t wr_id) {
    struct ibv_sge sge = {(uintptr_t)mr->addr, 0, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(qp, &wr, &bad);
}

static inline int recv_at(struct side *s, uint64_t wr_id, size_t offset, uint32_t len) {
    struct ibv_sge sge = {(uintptr_t)s->mem + offset, len, s->mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
    return ibv_post_recv(s->qp, &wr, &bad);
}

static inline int send_from(struct side *s, uint64_t wr_id, size_t offset, uint32_t len, struct ibv_ah *ah, uint32_t qpn) {
    struct ibv_sge sge = {(uintptr_t)s->mem + offset, len, s->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1}, *bad;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = qpn;
    wr.wr.ud.remote_qkey = QKEY;
    return ibv_post_send(s->qp, &wr, &bad);
}

/* One message from `a` to `b`, which may be the same. */
static inline void pass(struct side *a, struct side *b, struct ibv_ah *to_b) {
    IS(recv_at(b, 1, 0, 64), 0);
    IS(send_from(a, 2, 64, 64, to_b, b->qp->qp_num), 0);
    IS(wait_wc(a->cq).status, IBV_WC_SUCCESS);
    IS(wait_wc(b->cq).status, IBV_WC_SUCCESS);
}

/* Posts one RDMA operation: 'r'ead, 'w'rite, or write with 'i'mmediate. */
static inline int rdma(struct side *s, char op, uint64_t wr_id, size_t offset, uint32_t len, struct ibv_ah *ah,
                       struct address *to, uint64_t addr, uint32_t rkey) {
    ibv_wr_start(s->ex);
    s->ex->wr_id = wr_id;
    s->ex->wr_flags = IBV_SEND_SIGNALED;
    if (op == 'r')
        ibv_wr_rdma_read(s->ex, rkey, addr);
    else if (op == 'w')
        ibv_wr_rdma_write(s->ex, rkey, addr);
    else
        ibv_wr_rdma_write_imm(s->ex, rkey, addr, htobe32(0xcafe0000 + wr_id));
    ibv_wr_set_ud_addr(s->ex, ah, to->qpn, QKEY);
    ibv_wr_set_sge(s->ex, s->mr->lkey, (uintptr_t)s->mem + offset, len);
    return ibv_wr_complete(s->ex);
}

/* Whole reads and writes between the processes of a test. */
static inline void put(int fd, const void *p, size_t n) {
    IS(write(fd, p, n), n);
}

static inline void get(int fd, void *p, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t got = read(fd, (char *)p + at, n - at);
        CHECK(got > 0);
        at += got;
    }
}
