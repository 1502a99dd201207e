/* Every function that makes, changes, queries and destroys: what it gives, and how it refuses. */
#include "check.h"

static struct ibv_context *ctx;

static void devices(void) {
    int n = -1;
    struct ibv_device **list = ibv_get_device_list(&n);
    CHECK(list && n >= 1 && list[n] == NULL);
    struct ibv_device *dev = list[0];
    CHECK(!strcmp(ibv_get_device_name(dev), dev->name) && strlen(dev->name) > 0);
    IS(dev->node_type, IBV_NODE_UNSPECIFIED);
    IS(dev->transport_type, IBV_TRANSPORT_UNSPECIFIED);
    CHECK(ibv_get_device_guid(dev) != 0);
    IS(ibv_get_device_index(dev), 0);
    CHECK(access(dev->ibdev_path, R_OK) == 0 && access(dev->dev_path, R_OK) == 0);
    ibv_free_device_list(list);
    ibv_free_device_list(NULL);
    CHECK(ibv_get_device_name(NULL) == NULL);
    IS(ibv_get_device_guid(NULL), 0);
    CHECK((list = ibv_get_device_list(NULL)));
    CHECK(list[0] == dev); /* devices outlive lists */
    ibv_free_device_list(list);
    CHECK(ctx = ibv_open_device(dev));
    CHECK(ctx->device == dev && ctx->num_comp_vectors == 1 && ctx->async_fd >= 0 && ctx->cmd_fd >= 0);
    CHECK(ctx->abi_compat == __VERBS_ABI_IS_EXTENDED);
    NULL_WITH(ibv_open_device(NULL), EINVAL);
    IS(ibv_close_device(NULL), EINVAL);
}

static void queries(void) {
    struct ibv_device_attr dev;
    IS(ibv_query_device(ctx, &dev), 0);
    IS(dev.vendor_id, 0x1d0f);
    IS(dev.vendor_part_id & ~0xf, 0xefa0);
    IS(dev.phys_port_cnt, 1);
    CHECK(dev.max_qp > 0 && dev.max_mr_size > 4096 && dev.page_size_cap & 4096 && strlen(dev.fw_ver) >= 7);
    IS(ibv_query_device(ctx, NULL), EINVAL);
    struct ibv_device_attr_ex ex;
    memset(&ex, 0xff, sizeof ex);
    IS(ibv_query_device_ex(ctx, NULL, &ex), 0);
    IS(ex.phys_port_cnt_ex, 1);
    IS(memcmp(&ex.orig_attr, &dev, sizeof dev), 0);
    /* A shorter structure of an older program: nothing is written beyond it. */
    struct verbs_context *vctx = verbs_get_ctx(ctx);
    memset(&ex, 0xff, sizeof ex);
    IS(vctx->query_device_ex(ctx, NULL, &ex, sizeof dev), 0);
    IS(ex.comp_mask, 0xffffffff);
    IS(vctx->query_device_ex(ctx, NULL, &ex, sizeof dev - 1), EINVAL);
    struct ibv_query_device_ex_input input = {1};
    IS(vctx->query_device_ex(ctx, &input, &ex, sizeof ex), EINVAL);

    struct ibv_port_attr port[2];
    memset(port, 0xff, sizeof port);
    IS(ibv_query_port(ctx, 1, port), 0);
    IS(port[0].state, IBV_PORT_ACTIVE);
    IS(port[0].gid_tbl_len, 1);
    IS(port[0].pkey_tbl_len, 1);
    IS(port[0].active_mtu, IBV_MTU_4096);
    CHECK(port[0].max_msg_sz > 0x1000);
    IS((int)port[1].state, -1);
    IS(vctx->query_port(ctx, 1, port, 60), 0); /* a newer program, with four bytes more than ours */
    IS(((uint32_t *)port)[13], port->active_speed);
    IS(((uint32_t *)port)[14], 0);
    IS(((uint32_t *)port)[15], 0xffffffff);
    IS((ibv_query_port)(ctx, 1, (void *)port), 0); /* the function behind the macro */
    IS(ibv_query_port(ctx, 0, port), EINVAL);
    IS(ibv_query_port(ctx, 2, port), EINVAL);
    IS(ibv_query_port(ctx, 1, NULL), EINVAL);

    union ibv_gid gid;
    IS(ibv_query_gid(ctx, 1, 0, &gid), 0);
    CHECK(gid.global.subnet_prefix != 0 && gid.global.interface_id != 0);
    MINUS_WITH(ibv_query_gid(ctx, 1, 1, &gid), EINVAL);
    MINUS_WITH(ibv_query_gid(ctx, 2, 0, &gid), EINVAL);
    MINUS_WITH(ibv_query_gid(ctx, 1, -1, &gid), EINVAL);
    struct ibv_gid_entry entry, table[2];
    IS(ibv_query_gid_ex(ctx, 1, 0, &entry, 0), 0);
    IS(memcmp(&entry.gid, &gid, sizeof gid), 0);
    IS(entry.port_num, 1);
    IS(ibv_query_gid_ex(ctx, 1, 1, &entry, 0), EINVAL);
    IS(ibv_query_gid_ex(ctx, 1, 0, &entry, 1), EINVAL);
    IS(ibv_query_gid_table(ctx, table, 2, 0), 1);
    IS(memcmp(&table[0].gid, &gid, sizeof gid), 0);
    IS(ibv_query_gid_table(ctx, table, 0, 0), -EINVAL);
    IS(ibv_query_gid_table(ctx, table, 2, 1), -EINVAL);
    /* Entries of another size, as programs of another time would have: a longer one ends with zeros. */
    memset(table, 0xff, sizeof table);
    IS(_ibv_query_gid_ex(ctx, 1, 0, table, 0, sizeof *table + 4), 0);
    IS(memcmp(&table[0].gid, &gid, sizeof gid), 0);
    IS(*(uint32_t *)&table[1], 0);
    IS(_ibv_query_gid_ex(ctx, 1, 0, table, 0, sizeof *table - 4), EINVAL);
    IS(_ibv_query_gid_ex(ctx, 1, 0, table, 0, 0), EINVAL);
    memset(table, 0xff, sizeof table);
    IS(_ibv_query_gid_table(ctx, table, 2, 0, 20), 1);
    IS(memcmp(&table[0].gid, &gid, sizeof gid), 0);
    IS(table[0].port_num, 0xffffffff);
    IS(_ibv_query_gid_table(ctx, table, 2, 0, 0), -EINVAL);
    __be16 pkey;
    IS(ibv_query_pkey(ctx, 1, 0, &pkey), 0);
    IS(pkey, htobe16(0xffff));
    MINUS_WITH(ibv_query_pkey(ctx, 1, 1, &pkey), EINVAL);
    IS(ibv_get_pkey_index(ctx, 1, htobe16(0xffff)), 0);
    IS(ibv_get_pkey_index(ctx, 1, htobe16(1)), -1);

    struct efadv_device_attr efa[2];
    memset(efa, 0xff, sizeof efa);
    IS(efadv_query_device(ctx, efa, sizeof *efa), 0);
    CHECK(efa->max_sq_wr && efa->max_rq_wr && efa->max_sq_sge && efa->max_rq_sge && efa->inline_buf_size);
    IS(efa[1].comp_mask, -1);
    IS(efadv_query_device(ctx, efa, sizeof efa), 0); /* a structure of the future: zeros */
    IS(efa[1].comp_mask, 0);
    memset(efa, 0xff, sizeof efa);
    IS(efadv_query_device(ctx, efa, 24), 0);
    IS(efa->device_caps, -1u);
    IS(efadv_query_device(ctx, efa, 8), EINVAL);
    IS(efadv_query_device(ctx, NULL, sizeof *efa), EINVAL);
}

static void regions(struct ibv_pd *pd) {
    char *mem = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mem != MAP_FAILED);
    bool read = caps(ctx) & 1, write = caps(ctx) & 8;
    struct ibv_mr *a, *b;
    CHECK(a = ibv_reg_mr(pd, mem, 1 << 16, IBV_ACCESS_LOCAL_WRITE));
    CHECK(a->addr == mem && a->length == 1 << 16 && a->pd == pd && a->context == ctx);
    CHECK(a->lkey >> 24 == 0 && a->lkey != a->rkey && (a->rkey & 0xffffff) == a->lkey);
    CHECK(b = ibv_reg_mr(pd, mem + 1, 7, 0)); /* overlapping, odd */
    CHECK(a->lkey != b->lkey && a->rkey != b->rkey);
    IS(ibv_dereg_mr(b), 0);
    CHECK(b = ibv_reg_mr(pd, mem, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING));
    IS(ibv_dereg_mr(b), 0);
    CHECK(b = ibv_reg_mr_iova(pd, mem, 4096, 0x1000, IBV_ACCESS_LOCAL_WRITE));
    IS(ibv_dereg_mr(b), 0);
    CHECK(b = ibv_reg_mr_iova2(pd, mem + 5, 7, 0x1005, IBV_ACCESS_LOCAL_WRITE));
    IS(ibv_dereg_mr(b), 0);
    /* Pages are translated as a whole. */
    NULL_WITH(ibv_reg_mr_iova(pd, mem, 4096, 0x1004, IBV_ACCESS_LOCAL_WRITE), EINVAL);
    NULL_WITH(ibv_reg_mr_iova2(pd, mem + 5, 7, 0x1000, IBV_ACCESS_LOCAL_WRITE), EINVAL);
    b = ibv_reg_mr(pd, mem, 4096, IBV_ACCESS_REMOTE_READ);
    CHECK(read ? b != NULL : errno == EOPNOTSUPP);
    if (b)
        IS(ibv_dereg_mr(b), 0);
    b = ibv_reg_mr(pd, mem, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    CHECK(write ? b != NULL : errno == EOPNOTSUPP);
    if (b)
        IS(ibv_dereg_mr(b), 0);
    NULL_WITH(ibv_reg_mr(pd, mem, 4096, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    NULL_WITH(ibv_reg_mr(pd, mem, 4096, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
    NULL_WITH(ibv_reg_mr(pd, mem, 4096, IBV_ACCESS_LOCAL_WRITE | 1 << 10), EINVAL); /* no such access */
    int unsupported[] = {IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_MW_BIND, IBV_ACCESS_ZERO_BASED, IBV_ACCESS_ON_DEMAND,
                         IBV_ACCESS_HUGETLB, 1 << 9};
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        NULL_WITH(ibv_reg_mr(pd, mem, 4096, IBV_ACCESS_LOCAL_WRITE | unsupported[i]), EOPNOTSUPP);
    NULL_WITH(ibv_reg_mr(pd, mem, 0, IBV_ACCESS_LOCAL_WRITE), EINVAL);
    NULL_WITH(ibv_reg_mr(pd, mem, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE), EINVAL);
    NULL_WITH(ibv_reg_mr(NULL, mem, 4096, IBV_ACCESS_LOCAL_WRITE), EINVAL);
    NULL_WITH(ibv_reg_mr(pd, NULL, 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    IS(munmap(mem + 4096, 4096), 0);
    NULL_WITH(ibv_reg_mr(pd, mem, 3 * 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT); /* a hole */
    NULL_WITH(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
    errno = 0;
    IS(ibv_rereg_mr(a, IBV_REREG_MR_CHANGE_ACCESS, pd, mem, 4096, 0), IBV_REREG_MR_ERR_CMD);
    IS(errno, EOPNOTSUPP);
    struct {
        int flags, access;
        void *addr;
    } wrong[] = {{64, 0, mem}, {IBV_REREG_MR_CHANGE_TRANSLATION, 0, NULL}, {IBV_REREG_MR_CHANGE_PD, 1, mem}};
    for (int i = 0; i < 3; i++) {
        errno = 0;
        IS(ibv_rereg_mr(a, wrong[i].flags, pd, wrong[i].addr, 4096, wrong[i].access), IBV_REREG_MR_ERR_INPUT);
        IS(errno, EINVAL);
    }
    IS(ibv_dealloc_pd(pd), EBUSY);
    IS(ibv_dereg_mr(a), 0);
    IS(ibv_dereg_mr(NULL), EINVAL);
    /* Memory that may only be read is a source. */
    char *read_only = mmap(NULL, 3 * 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(read_only != MAP_FAILED);
    IS(mprotect(read_only, 4096, PROT_READ | PROT_WRITE), 0);
    CHECK(a = ibv_reg_mr(pd, read_only, 3 * 4096, 0));
    IS(ibv_dereg_mr(a), 0);
    if (caps(pd->context) & 1) {
        CHECK(a = ibv_reg_mr(pd, read_only, 3 * 4096, IBV_ACCESS_REMOTE_READ));
        IS(ibv_dereg_mr(a), 0);
    }
    CHECK(a = ibv_reg_mr(pd, read_only, 4096, IBV_ACCESS_LOCAL_WRITE));
    IS(ibv_dereg_mr(a), 0);
    NULL_WITH(ibv_reg_mr(pd, read_only, 4097, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    NULL_WITH(ibv_reg_mr(pd, read_only + 8192, 1, IBV_ACCESS_LOCAL_WRITE), EFAULT);
    if (caps(pd->context) & 8)
        NULL_WITH(ibv_reg_mr(pd, read_only + 4096, 1, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE), EFAULT);
    /* Memory that may not even be read is none. */
    IS(mprotect(read_only + 4096, 4096, PROT_NONE), 0);
    NULL_WITH(ibv_reg_mr(pd, read_only, 3 * 4096, 0), EFAULT);
    NULL_WITH(ibv_reg_mr(pd, read_only + 4096, 1, 0), EFAULT);
    CHECK(a = ibv_reg_mr(pd, read_only + 8192, 4096, 0));
    IS(ibv_dereg_mr(a), 0);
    IS(munmap(read_only, 3 * 4096), 0);
    /* A file that ends before its mapping does: beyond, there is nothing. */
    int file = memfd_create("short", MFD_CLOEXEC);
    CHECK(file >= 0);
    int ways[] = {MAP_SHARED, MAP_PRIVATE};
    for (int i = 0; i < 2; i++) {
        IS(ftruncate(file, 4097), 0);
        char *mapped = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, ways[i], file, 0);
        CHECK(mapped != MAP_FAILED);
        CHECK(a = ibv_reg_mr(pd, mapped, 2 * 4096, IBV_ACCESS_LOCAL_WRITE));
        IS(ibv_dereg_mr(a), 0);
        NULL_WITH(ibv_reg_mr(pd, mapped, 2 * 4096 + 1, IBV_ACCESS_LOCAL_WRITE), EFAULT);
        NULL_WITH(ibv_reg_mr(pd, mapped, 4 * 4096, IBV_ACCESS_LOCAL_WRITE), EFAULT);
        NULL_WITH(ibv_reg_mr(pd, mapped + 3 * 4096, 1, 0), EFAULT);
        IS(ftruncate(file, 3 * 4096 + 1), 0);
        CHECK(a = ibv_reg_mr(pd, mapped, 4 * 4096, IBV_ACCESS_LOCAL_WRITE));
        IS(ibv_dereg_mr(a), 0);
        IS(munmap(mapped, 4 * 4096), 0);
    }
    IS(close(file), 0);
}

static void handles(struct ibv_pd *pd) {
    union ibv_gid gid;
    IS(ibv_query_gid(ctx, 1, 0, &gid), 0);
    struct ibv_ah *a, *b, *c;
    CHECK(a = make_ah(pd, gid));
    CHECK(b = make_ah(pd, gid));
    struct efadv_ah_attr x, y;
    IS(efadv_query_ah(a, &x, sizeof x), 0);
    IS(efadv_query_ah(b, &y, sizeof y), 0);
    IS(x.ahn, y.ahn); /* one address, one number */
    gid.raw[15] ^= 1;
    CHECK(c = make_ah(pd, gid));
    IS(efadv_query_ah(c, &y, sizeof y), 0);
    CHECK(x.ahn != y.ahn);
    IS(efadv_query_ah(c, &y, 8), EINVAL);
    IS(efadv_query_ah(NULL, &y, sizeof y), EINVAL);
    IS(ibv_dealloc_pd(pd), EBUSY);
    struct ibv_ah_attr attr = {.grh.dgid = gid, .is_global = 1, .port_num = 2};
    NULL_WITH(ibv_create_ah(pd, &attr), EINVAL);
    attr.port_num = 1;
    struct ibv_ah_attr bad = attr;
    memset(&bad.grh.dgid, 0, 16);
    NULL_WITH(ibv_create_ah(pd, &bad), EINVAL);
    bad.grh.dgid.raw[0] = 0xff; /* multicast */
    NULL_WITH(ibv_create_ah(pd, &bad), EINVAL);
    bad = attr;
    bad.grh.sgid_index = 1;
    NULL_WITH(ibv_create_ah(pd, &bad), EINVAL);
    bad = attr;
    bad.is_global = 0;
    NULL_WITH(ibv_create_ah(pd, &bad), EINVAL);
    NULL_WITH(ibv_create_ah(NULL, &attr), EINVAL);
    NULL_WITH(ibv_create_ah(pd, NULL), EINVAL);
    struct ibv_wc wc = {.slid = 7};
    struct ibv_grh grh = {.sgid = gid};
    IS(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &attr), 0);
    IS(attr.is_global, 0);
    IS(attr.dlid, 7);
    wc.wc_flags = IBV_WC_GRH;
    MINUS_WITH(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &attr), EINVAL); /* it was for somebody else */
    NULL_WITH(ibv_create_ah_from_wc(pd, &wc, &grh, 1), EINVAL);
    IS(ibv_query_gid(ctx, 1, 0, &grh.dgid), 0);
    MINUS_WITH(ibv_init_ah_from_wc(ctx, 2, &wc, &grh, &attr), EINVAL);
    MINUS_WITH(ibv_init_ah_from_wc(ctx, 1, &wc, NULL, &attr), EINVAL);
    MINUS_WITH(ibv_init_ah_from_wc(ctx, 1, NULL, &grh, &attr), EINVAL);
    IS(ibv_init_ah_from_wc(ctx, 1, &wc, &grh, &attr), 0);
    CHECK(attr.is_global == 1 && attr.port_num == 1 && attr.grh.sgid_index == 0);
    IS(memcmp(&attr.grh.dgid, &gid, sizeof gid), 0);
    struct ibv_ah *d = ibv_create_ah_from_wc(pd, &wc, &grh, 1);
    CHECK(d);
    IS(ibv_destroy_ah(d), 0);
    IS(ibv_destroy_ah(a), 0);
    IS(ibv_destroy_ah(b), 0);
    IS(ibv_destroy_ah(c), 0);
    IS(ibv_destroy_ah(NULL), EINVAL);
}

static void completion_queues(void) {
    struct ibv_device_attr dev;
    IS(ibv_query_device(ctx, &dev), 0);
    struct ibv_cq *cq;
    CHECK(cq = ibv_create_cq(ctx, 100, &dev, NULL, 0));
    CHECK(cq->cqe >= 100 && cq->cq_context == &dev && cq->context == ctx && cq->channel == NULL);
    struct ibv_wc wc;
    IS(ibv_poll_cq(cq, 1, &wc), 0);
    IS(ibv_poll_cq(cq, 0, NULL), 0);
    CHECK(ibv_poll_cq(cq, -1, &wc) < 0);
    CHECK(ibv_poll_cq(cq, 1, NULL) < 0);
    IS(ibv_req_notify_cq(cq, 0), 0); /* no channel: nothing comes of it */
    IS(ibv_req_notify_cq(cq, 1), EOPNOTSUPP); /* solicited only */
    IS(ibv_resize_cq(cq, 200), EOPNOTSUPP);
    IS(ibv_destroy_cq(cq), 0);
    CHECK(cq = ibv_create_cq(ctx, dev.max_cqe, NULL, NULL, 0));
    IS(ibv_destroy_cq(cq), 0);
    NULL_WITH(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL);
    NULL_WITH(ibv_create_cq(ctx, -1, NULL, NULL, 0), EINVAL);
    NULL_WITH(ibv_create_cq(ctx, dev.max_cqe + 1, NULL, NULL, 0), EINVAL);
    NULL_WITH(ibv_create_cq(ctx, 10, NULL, NULL, 1), EINVAL);
    NULL_WITH(ibv_create_cq(ctx, 10, NULL, NULL, -1), EINVAL);
    NULL_WITH(ibv_create_cq(NULL, 10, NULL, NULL, 0), EINVAL);
    IS(ibv_destroy_cq(NULL), EINVAL);

    struct ibv_cq_init_attr_ex attr = {.cqe = 10, .wc_flags = IBV_WC_STANDARD_FLAGS};
    struct ibv_cq_ex *ex;
    CHECK(ex = ibv_create_cq_ex(ctx, &attr));
    struct ibv_poll_cq_attr poll = {};
    IS(ibv_start_poll(ex, &poll), ENOENT);
    ibv_end_poll(ex); /* pyverbs does */
    poll.comp_mask = 1;
    IS(ibv_start_poll(ex, &poll), EINVAL);
    struct efadv_cq *efa = efadv_cq_from_ibv_cq_ex(ex);
    CHECK(efa && efa->wc_read_sgid == NULL); /* not asked for */
    IS(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
    attr.wc_flags = IBV_WC_EX_WITH_BYTE_LEN;
    CHECK(ex = ibv_create_cq_ex(ctx, &attr));
    CHECK(ex->read_byte_len && !ex->read_slid && ex->read_opcode && ex->read_vendor_err && ex->read_wc_flags);
    IS(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
    attr.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    NULL_WITH(ibv_create_cq_ex(ctx, &attr), EOPNOTSUPP);
    attr.wc_flags = 0;
    attr.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    uint32_t flags[] = {0, IBV_CREATE_CQ_ATTR_SINGLE_THREADED};
    for (int i = 0; i < 2; i++) {
        attr.flags = flags[i];
        CHECK(ex = ibv_create_cq_ex(ctx, &attr));
        IS(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
    }
    attr.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
    NULL_WITH(ibv_create_cq_ex(ctx, &attr), EOPNOTSUPP);
    attr.comp_mask = 0;
    NULL_WITH(ibv_create_cq_ex(ctx, NULL), EINVAL);

    struct efadv_cq_init_attr efa_attr = {.wc_flags = EFADV_WC_EX_WITH_SGID};
    char longer[64] = {};
    CHECK(ex = efadv_create_cq(ctx, &attr, &efa_attr, sizeof efa_attr));
    CHECK(efadv_cq_from_ibv_cq_ex(ex)->wc_read_sgid);
    IS(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
    CHECK(ex = efadv_create_cq(ctx, &attr, (void *)longer, sizeof longer)); /* more, but zero */
    IS(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)), 0);
    longer[60] = 1;
    NULL_WITH(efadv_create_cq(ctx, &attr, (void *)longer, sizeof longer), EINVAL);
    NULL_WITH(efadv_create_cq(ctx, &attr, &efa_attr, 8), EINVAL);
    NULL_WITH(efadv_create_cq(ctx, &attr, NULL, 0), EINVAL);
    efa_attr.wc_flags = 1 << 7;
    NULL_WITH(efadv_create_cq(ctx, &attr, &efa_attr, sizeof efa_attr), EOPNOTSUPP);
    efa_attr.wc_flags = 0;
    efa_attr.comp_mask = 1;
    NULL_WITH(efadv_create_cq(ctx, &attr, &efa_attr, sizeof efa_attr), EINVAL);

    struct ibv_comp_channel *channel;
    CHECK(channel = ibv_create_comp_channel(ctx));
    CHECK(channel->fd >= 0 && channel->refcnt == 0);
    CHECK(cq = ibv_create_cq(ctx, 10, NULL, channel, 0));
    IS(channel->refcnt, 1);
    IS(ibv_destroy_comp_channel(channel), EBUSY);
    IS(ibv_req_notify_cq(cq, 1), EOPNOTSUPP); /* solicited only */
    IS(ibv_req_notify_cq(cq, 0), 0);
    IS(ibv_destroy_cq(cq), 0);
    IS(ibv_destroy_comp_channel(channel), 0);
    NULL_WITH(ibv_create_comp_channel(NULL), EINVAL);
    IS(ibv_destroy_comp_channel(NULL), EINVAL);
}

static void queue_pairs(struct ibv_pd *pd) {
    struct efadv_device_attr efa;
    IS(efadv_query_device(ctx, &efa, sizeof efa), 0);
    struct ibv_cq *cq, *other;
    CHECK(cq = ibv_create_cq(ctx, 100, NULL, NULL, 0));
    struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD};
    attr.cap = (struct ibv_qp_cap){100, 100, 1, 1, 16};
    struct ibv_qp *qp;
    CHECK(qp = ibv_create_qp(pd, &attr));
    IS(attr.cap.max_send_wr, 128); /* rounded up */
    IS(attr.cap.max_recv_wr, 128);
    CHECK(qp->qp_num > 0 || qp->qp_num == 0);
    CHECK(qp->pd == pd && qp->send_cq == cq && qp->qp_type == IBV_QPT_UD && qp->state == IBV_QPS_RESET);
    CHECK(ibv_qp_to_qp_ex(qp) == NULL);
    IS(ibv_destroy_cq(cq), EBUSY);
    IS(ibv_dealloc_pd(pd), EBUSY);
    IS(ibv_destroy_qp(qp), 0);
    int types[] = {IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_RAW_PACKET, IBV_QPT_XRC_SEND, IBV_QPT_DRIVER, 0, 77};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        attr.qp_type = types[i];
        NULL_WITH(ibv_create_qp(pd, &attr), EOPNOTSUPP);
    }
    attr.qp_type = IBV_QPT_UD;
    NULL_WITH(efadv_create_driver_qp(pd, &attr, EFADV_QP_DRIVER_TYPE_SRD), EINVAL);
    attr.qp_type = IBV_QPT_RC;
    NULL_WITH(efadv_create_driver_qp(pd, &attr, EFADV_QP_DRIVER_TYPE_SRD), EINVAL);
    attr.qp_type = IBV_QPT_DRIVER;
    CHECK(qp = efadv_create_driver_qp(pd, &attr, EFADV_QP_DRIVER_TYPE_SRD));
    CHECK(ibv_qp_to_qp_ex(qp) == NULL);
    IS(ibv_destroy_qp(qp), 0);
    NULL_WITH(efadv_create_driver_qp(pd, &attr, 1), EOPNOTSUPP);
    struct ibv_qp_cap over[] = {
        {efa.max_sq_wr + 1, 1, 1, 1, 0}, {1, efa.max_rq_wr + 1, 1, 1, 0},       {1, 1, efa.max_sq_sge + 1, 1, 0},
        {1, 1, 1, efa.max_rq_sge + 1, 0}, {1, 1, 1, 1, efa.inline_buf_size + 100}, {1, 1, 1 << 16, 1, 0},
    };
    for (size_t i = 0; i < sizeof over / sizeof *over; i++) {
        attr.cap = over[i];
        NULL_WITH(efadv_create_driver_qp(pd, &attr, EFADV_QP_DRIVER_TYPE_SRD), EINVAL);
    }
    attr.cap = (struct ibv_qp_cap){1, 1, 1, 1, 0};
    attr.send_cq = NULL;
    NULL_WITH(efadv_create_driver_qp(pd, &attr, EFADV_QP_DRIVER_TYPE_SRD), EINVAL);
    attr.send_cq = cq;
    attr.srq = (void *)&attr;
    NULL_WITH(efadv_create_driver_qp(pd, &attr, EFADV_QP_DRIVER_TYPE_SRD), EINVAL);
    attr.srq = NULL;
    NULL_WITH(efadv_create_driver_qp(NULL, &attr, EFADV_QP_DRIVER_TYPE_SRD), EINVAL);
    NULL_WITH(efadv_create_driver_qp(pd, NULL, EFADV_QP_DRIVER_TYPE_SRD), EINVAL);
    struct ibv_context *ctx2 = open_device(0);
    CHECK(other = ibv_create_cq(ctx2, 10, NULL, NULL, 0));
    attr.recv_cq = other;
    NULL_WITH(efadv_create_driver_qp(pd, &attr, EFADV_QP_DRIVER_TYPE_SRD), EINVAL); /* another context's */
    IS(ibv_destroy_cq(other), 0);
    IS(ibv_close_device(ctx2), 0);

    struct ibv_qp_init_attr_ex ex = {.send_cq = cq, .recv_cq = cq, .pd = pd, .qp_type = IBV_QPT_DRIVER};
    ex.cap = (struct ibv_qp_cap){1, 1, 1, 1, 0};
    ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    ex.send_ops_flags = IBV_QP_EX_WITH_SEND;
    struct efadv_qp_init_attr efa_attr = {};
    CHECK(qp = efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr));
    struct ibv_qp_ex *qpx = ibv_qp_to_qp_ex(qp);
    CHECK(qpx && qpx->wr_send && !qpx->wr_send_imm && !qpx->wr_rdma_read && qpx->wr_start && qpx->wr_abort);
    IS(ibv_destroy_qp(qp), 0);
    ex.send_ops_flags = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP;
    NULL_WITH(efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr), EOPNOTSUPP);
    ex.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
    qp = efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr);
    CHECK(caps(ctx) & 1 ? qp != NULL : errno == EOPNOTSUPP);
    if (qp)
        IS(ibv_destroy_qp(qp), 0);
    ex.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
    qp = efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr);
    CHECK(caps(ctx) & 8 ? qp != NULL : errno == EOPNOTSUPP);
    if (qp)
        IS(ibv_destroy_qp(qp), 0);
    ex.send_ops_flags = IBV_QP_EX_WITH_SEND;
    efa_attr.reserved[0] = 2; /* inline writes, whose requests take twice the room */
    uint32_t depths[] = {efa.max_sq_wr / 2, efa.max_sq_wr / 2 + 1};
    for (int i = 0; i < 2; i++) {
        ex.cap = (struct ibv_qp_cap){depths[i], 1, 1, 1, 32};
        errno = 0;
        qp = efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr);
        CHECK(caps(ctx) & 8 ? i ? !qp && errno == EINVAL : qp != NULL : errno == EOPNOTSUPP);
        if (qp)
            IS(ibv_destroy_qp(qp), 0);
    }
    efa_attr.reserved[0] = 0;
    ex.cap = (struct ibv_qp_cap){1, 1, 1, 1, 0};
    efa_attr.reserved[3] = 1;
    NULL_WITH(efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr), EINVAL);
    efa_attr.reserved[3] = 0;
    efa_attr.comp_mask = 1;
    NULL_WITH(efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr), EINVAL);
    efa_attr.comp_mask = 0;
    NULL_WITH(efadv_create_qp_ex(ctx, &ex, &efa_attr, 8), EINVAL);
    for (uint32_t len = 9; len <= 15; len += 3) { /* a structure of before the flags */
        CHECK(qp = efadv_create_qp_ex(ctx, &ex, &efa_attr, len));
        IS(ibv_destroy_qp(qp), 0);
    }
    efa_attr.driver_qp_type = 1;
    NULL_WITH(efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr), EOPNOTSUPP);
    efa_attr.driver_qp_type = EFADV_QP_DRIVER_TYPE_SRD;
    NULL_WITH(efadv_create_qp_ex(ctx, &ex, NULL, sizeof efa_attr), EINVAL);
    ex.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    NULL_WITH(efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr), EINVAL);
    ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
    NULL_WITH(efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr), EOPNOTSUPP);
    ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    ex.qp_type = IBV_QPT_RC;
    NULL_WITH(efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr), EINVAL);
    ex.qp_type = IBV_QPT_UD;
    NULL_WITH(efadv_create_qp_ex(ctx, &ex, &efa_attr, sizeof efa_attr), EINVAL);
    CHECK(qp = ibv_create_qp_ex(ctx, &ex));
    IS(ibv_destroy_qp(qp), 0);
    ex.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
    NULL_WITH(ibv_create_qp_ex(ctx, &ex), EOPNOTSUPP); /* not for datagrams */
    IS(ibv_destroy_qp(NULL), EINVAL);
    IS(ibv_destroy_cq(cq), 0);
}

static void states(struct ibv_pd *pd) {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    CHECK(cq = ibv_create_cq(ctx, 100, NULL, NULL, 0));
    CHECK(qp = make_qp(pd, cq, false, 0, 0));
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x123};
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL); /* attributes are missing */
    int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY;
    IS(ibv_modify_qp(qp, &attr, mask | IBV_QP_PATH_MTU), EOPNOTSUPP);
    IS(ibv_modify_qp(qp, &attr, mask | IBV_QP_SQ_PSN), EINVAL);
    IS(ibv_modify_qp(qp, &attr, mask | IBV_QP_EN_SQD_ASYNC_NOTIFY), EINVAL); /* not even to say no */
    for (attr.port_num = 0; attr.port_num <= 2; attr.port_num += 2) {
        IS(ibv_modify_qp(qp, &attr, mask), EINVAL);
        IS(ibv_modify_qp(qp, &attr, mask | IBV_QP_PATH_MTU), EINVAL);
    }
    attr.port_num = 1;
    attr.pkey_index = 1;
    IS(ibv_modify_qp(qp, &attr, mask), EOPNOTSUPP);
    attr.qp_state = IBV_QPS_RTR;
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX), EINVAL); /* there is no such transition */
    attr.qp_state = IBV_QPS_INIT;
    attr.pkey_index = 0;
    IS(qp->state, IBV_QPS_RESET);
    IS(to_rtr(qp), EINVAL);
    IS(to_rts(qp, -1), EINVAL);
    IS(to_state(qp, IBV_QPS_ERR), EINVAL);
    IS(to_state(qp, 17), EINVAL);
    IS(ibv_modify_qp(qp, &attr, mask), 0);
    IS(qp->state, IBV_QPS_INIT);
    IS(to_rtr(qp), 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.sq_psn = 0x45;
    attr.rnr_retry = 8;
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY), EINVAL);
    attr.rnr_retry = 3;
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
    attr.cur_qp_state = IBV_QPS_RTS;
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CUR_STATE | IBV_QP_SQ_PSN), EINVAL);
    IS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RNR_RETRY), 0);
    IS(qp->state, IBV_QPS_RTS);
    struct ibv_qp_init_attr init;
    memset(&attr, 0xff, sizeof attr);
    mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY | IBV_QP_SQ_PSN | IBV_QP_CAP | IBV_QP_RNR_RETRY;
    IS(ibv_query_qp(qp, &attr, mask, &init), 0);
    IS(attr.qp_state, IBV_QPS_RTS);
    IS(attr.qkey, 0x123);
    IS(attr.sq_psn, 0x45);
    IS(attr.rnr_retry, 3);
    IS(attr.port_num, 1);
    IS(attr.cap.max_send_wr, DEPTH);
    CHECK(init.send_cq == cq && init.recv_cq == cq && init.qp_type == IBV_QPT_DRIVER);
    /* What EFA's driver leaves as it is. */
    IS(attr.cur_qp_state, 0);
    IS(init.sq_sig_all, 1);
    IS(ibv_query_qp(qp, &attr, mask | IBV_QP_AV, &init), EOPNOTSUPP);
    IS(ibv_query_qp(qp, NULL, mask, &init), EINVAL);
    IS(ibv_query_qp(NULL, &attr, mask, &init), EINVAL);
    IS(to_state(qp, IBV_QPS_SQD), 0);
    IS(to_state(qp, IBV_QPS_RTS), 0);
    IS(to_state(qp, IBV_QPS_ERR), 0);
    IS(to_state(qp, IBV_QPS_ERR), 0);
    IS(to_state(qp, IBV_QPS_RTS), EINVAL);
    IS(to_state(qp, IBV_QPS_RESET), 0);
    IS(to_state(qp, IBV_QPS_RESET), 0);
    IS(to_init(qp), 0);
    IS(ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL);
    IS(ibv_modify_qp(NULL, &attr, IBV_QP_STATE), EINVAL);
    struct ibv_ece ece = {1, 1, 1};
    IS(ibv_query_ece(qp, &ece), EOPNOTSUPP);
    IS(ece.vendor_id, 0);
    IS(ibv_set_ece(qp, &ece), EOPNOTSUPP);
    IS(ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0), 0);
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_destroy_cq(cq), 0);
}

static void what_there_is_not(struct ibv_pd *pd) {
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 1, .max_sge = 1}};
    NULL_WITH(ibv_create_srq(pd, &srq), EOPNOTSUPP);
    struct ibv_alloc_dm_attr dm = {.length = 1};
    NULL_WITH(ibv_alloc_dm(ctx, &dm), EOPNOTSUPP);
    NULL_WITH(ibv_alloc_mw(pd, IBV_MW_TYPE_1), EOPNOTSUPP);
    struct ibv_xrcd_init_attr xrcd = {};
    NULL_WITH(ibv_open_xrcd(ctx, &xrcd), EOPNOTSUPP);
    struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
    IS(ibv_query_rt_values_ex(ctx, &values), EOPNOTSUPP);
    NULL_WITH(ibv_import_device(0), EOPNOTSUPP);
    NULL_WITH(ibv_import_pd(ctx, 0), EOPNOTSUPP);
    NULL_WITH(ibv_import_mr(pd, 0), EOPNOTSUPP);
    NULL_WITH(ibv_import_dm(ctx, 0), EOPNOTSUPP);
    IS(ibv_advise_mr(pd, 0, 0, NULL, 0), EOPNOTSUPP);
    IS(ibv_attach_mcast(NULL, NULL, 0), EOPNOTSUPP);
    IS(ibv_detach_mcast(NULL, NULL, 0), EOPNOTSUPP);
    IS(ibv_fork_init(), 0);
    IS(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
}

static void domains(struct ibv_pd *pd) {
    struct ibv_td_init_attr td_attr = {};
    struct ibv_td *td = ibv_alloc_td(ctx, &td_attr);
    CHECK(td);
    struct ibv_parent_domain_init_attr attr = {.pd = pd, .td = td};
    struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &attr);
    CHECK(parent);
    IS(ibv_dealloc_pd(pd), EBUSY);
    IS(ibv_dealloc_td(td), EBUSY);
    /* It is another name for the domain. */
    char mem[64];
    struct ibv_mr *mr = ibv_reg_mr(parent, mem, sizeof mem, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    IS(ibv_dereg_mr(mr), 0);
    /* As long as something is made with it, it stays. */
    struct ibv_cq_init_attr_ex cq_attr = {.cqe = 10, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent};
    struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &cq_attr);
    CHECK(cq);
    IS(ibv_dealloc_pd(parent), EBUSY);
    struct ibv_qp *qp = make_qp(parent, ibv_cq_ex_to_cq(cq), true, 0, 0);
    CHECK(qp && qp->pd == parent);
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
    cq_attr.parent_domain = pd;
    NULL_WITH(ibv_create_cq_ex(ctx, &cq_attr), EINVAL);
    cq_attr.comp_mask = 0;
    CHECK(cq = ibv_create_cq_ex(ctx, &cq_attr));
    CHECK(qp = make_qp(parent, ibv_cq_ex_to_cq(cq), true, 0, 0));
    IS(ibv_dealloc_pd(parent), EBUSY);
    IS(ibv_destroy_qp(qp), 0);
    IS(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
    IS(ibv_dealloc_pd(parent), 0);
    attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    attr.pd_context = &attr;
    CHECK(parent = ibv_alloc_parent_domain(ctx, &attr));
    IS(ibv_dealloc_pd(parent), 0);
    IS(ibv_dealloc_td(td), 0);
    /* It lives where the domain does, whatever context it was asked of. */
    struct ibv_context *other = open_device(0);
    attr.comp_mask = 0;
    attr.td = NULL;
    CHECK(parent = ibv_alloc_parent_domain(other, &attr));
    CHECK(parent->context == ctx);
    IS(ibv_close_device(other), 0);
    CHECK(mr = ibv_reg_mr(parent, mem, sizeof mem, IBV_ACCESS_LOCAL_WRITE));
    IS(ibv_dereg_mr(mr), 0);
    IS(ibv_dealloc_pd(pd), EBUSY);
    IS(ibv_dealloc_pd(parent), 0);
    td_attr.comp_mask = 1;
    NULL_WITH(ibv_alloc_td(ctx, &td_attr), EOPNOTSUPP);
    attr.td = NULL;
    attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    NULL_WITH(ibv_alloc_parent_domain(ctx, &attr), EOPNOTSUPP);
    attr.comp_mask = 0;
    attr.pd = NULL;
    NULL_WITH(ibv_alloc_parent_domain(ctx, &attr), EINVAL);
}

/* The names that only newer headers have. */
static void newer(struct ibv_pd *pd) {
    int (*query_mr)(struct ibv_mr *, void *, uint32_t);
    int (*sq_depth)(struct ibv_context *, void *, uint32_t);
    int (*rq_depth)(struct ibv_context *, void *, uint32_t);
    void *lib = dlopen("libefa.so.1", RTLD_NOW);
    CHECK(lib);
    CHECK(query_mr = dlvsym(lib, "efadv_query_mr", "EFA_1.3"));
    CHECK(sq_depth = dlvsym(lib, "efadv_get_max_sq_depth", "EFA_1.5"));
    CHECK(rq_depth = dlvsym(lib, "efadv_get_max_rq_depth", "EFA_1.5"));
    char mem[64];
    struct ibv_mr *mr = ibv_reg_mr(pd, mem, sizeof mem, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    struct {
        uint64_t comp_mask;
        uint16_t id[4];
    } ids;
    memset(&ids, 0xff, sizeof ids);
    IS(query_mr(mr, &ids, sizeof ids), 0);
    IS(ids.id[0], 0);
    IS(query_mr(mr, &ids, 8), EINVAL);
    IS(ibv_dereg_mr(mr), 0);
    struct efadv_device_attr efa;
    IS(efadv_query_device(ctx, &efa, sizeof efa), 0);
    struct {
        uint64_t comp_mask;
        uint32_t flags, send_sge, rdma_sge, inline_data;
    } sq = {0, 0, 1, 1, 32};
    IS(sq_depth(ctx, &sq, sizeof sq), efa.max_sq_wr);
    sq.flags = 1; /* with inline writes; the flag of queue pairs for them is another */
    IS(sq_depth(ctx, &sq, sizeof sq), efa.max_sq_wr / 2);
    sq.flags = 2;
    IS(sq_depth(ctx, &sq, sizeof sq), efa.max_sq_wr);
    sq.inline_data = 1000;
    IS(sq_depth(ctx, &sq, sizeof sq), -EINVAL);
    struct {
        uint64_t comp_mask;
        uint32_t recv_sge, reserved;
    } rq = {0, 2, 0};
    IS(rq_depth(ctx, &rq, sizeof rq), efa.max_rq_wr / 2);
    rq.recv_sge = 1000;
    IS(rq_depth(ctx, &rq, sizeof rq), -EINVAL);
    CHECK(dlvsym(lib, "ibv_open_device", "IBVERBS_1.1") && !dlvsym(lib, "ibv_open_device", "IBVERBS_9.9"));
    IS(dlclose(lib), 0);
}

int main(void) {
    devices();
    queries();
    struct ibv_pd *pd = ibv_alloc_pd(ctx);
    CHECK(pd && pd->context == ctx);
    NULL_WITH(ibv_alloc_pd(NULL), EINVAL);
    IS(ibv_dealloc_pd(NULL), EINVAL);
    regions(pd);
    handles(pd);
    completion_queues();
    queue_pairs(pd);
    states(pd);
    what_there_is_not(pd);
    domains(pd);
    newer(pd);
    IS(ibv_dealloc_pd(pd), 0);
    IS(ibv_close_device(ctx), 0);
    return 0;
}
