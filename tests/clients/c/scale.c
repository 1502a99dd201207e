/* Many of everything: scale qps N, scale processes N, scale cycles N. */
#include "check.h"
#include <dirent.h>

static int count_fds(void) {
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    CHECK(dir);
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

static long resident_kb(void) {
    long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%*d %ld", &pages) == 1);
    fclose(file);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

/* N queue pairs of one process, all on one completion queue; each sends to the next. */
static void qps(int n) {
    struct side s = {.ctx = open_device(0)};
    IS(ibv_query_gid(s.ctx, 1, 0, &s.gid), 0);
    CHECK(s.pd = ibv_alloc_pd(s.ctx));
    CHECK(s.cq = ibv_create_cq(s.ctx, 4 * n, NULL, NULL, 0));
    CHECK(s.mem = calloc(n, 64));
    CHECK(s.mr = ibv_reg_mr(s.pd, s.mem, (size_t)n * 64, IBV_ACCESS_LOCAL_WRITE));
    struct ibv_ah *ah = make_ah(s.pd, s.gid);
    CHECK(ah);
    struct ibv_qp **all = calloc(n, sizeof *all);
    for (int k = 0; k < n; k++) {
        CHECK(all[k] = make_qp(s.pd, s.cq, false, 0, 0));
        IS(to_init(all[k]), 0);
        IS(to_rtr(all[k]), 0);
        IS(to_rts(all[k], 7), 0);
        for (int j = 0; j < k && k % 100 == 0; j++)
            CHECK(all[j]->qp_num != all[k]->qp_num);
    }
    for (int round = 0; round < 5; round++) {
        for (int k = 0; k < n; k++) {
            s.qp = all[k];
            IS(recv_at(&s, k, 64 * k, 32), 0);
        }
        for (int k = 0; k < n; k++) {
            s.qp = all[k];
            memset(s.mem + 64 * k + 32, k + round, 32);
            IS(send_from(&s, n + k, 64 * k + 32, 32, ah, all[(k + 1) % n]->qp_num), 0);
        }
        for (int k = 0; k < 2 * n; k++)
            IS(wait_wc(s.cq).status, IBV_WC_SUCCESS);
        for (int k = 0; k < n; k++)
            CHECK(s.mem[64 * k] == (char)((k + n - 1) % n + round) && s.mem[64 * k + 31] == s.mem[64 * k]);
    }
    for (int k = 0; k < n; k++)
        IS(ibv_destroy_qp(all[k]), 0);
    IS(ibv_destroy_ah(ah), 0);
    IS(ibv_dereg_mr(s.mr), 0);
    IS(ibv_destroy_cq(s.cq), 0);
    IS(ibv_dealloc_pd(s.pd), 0);
    IS(ibv_close_device(s.ctx), 0);
    printf("%d queue pairs: ok\n", n);
}

/* N processes, each with a device; everyone sends to everyone, through short queues. */
struct shared {
    pthread_barrier_t barrier;
    struct address at[];
};

static void one_of(struct shared *shared, int me, int n) {
    enum { EACH = 4 };
    struct side s = make_side(false, 7);
    shared->at[me] = address_of(&s);
    struct ibv_ah **ahs = calloc(n, sizeof *ahs);
    int *from = calloc(n, sizeof *from);
    for (int k = 0; k < DEPTH; k++)
        IS(recv_at(&s, k, 512 * k, 512), 0);
    pthread_barrier_wait(&shared->barrier);
    for (int k = 0; k < n; k++)
        CHECK(ahs[k] = make_ah(s.pd, shared->at[k].gid));
    int sent = 0, done = 0, got = 0, total = EACH * (n - 1);
    double end = now() + 240;
    while (done < total || got < total) {
        CHECK(now() < end);
        while (sent < total && sent - done < 16) {
            int to = (me + 1 + sent % (n - 1)) % n;
            size_t offset = SIZE / 2 + 512 * (sent % 32);
            memcpy(s.mem + offset, &me, sizeof me);
            IS(send_from(&s, 1000 + sent, offset, 512, ahs[to], shared->at[to].qpn), 0);
            sent++;
        }
        struct ibv_wc wc[16];
        int count = ibv_poll_cq(s.cq, 16, wc);
        CHECK(count >= 0);
        if (count == 0)
            sched_yield();
        for (int k = 0; k < count; k++) {
            IS(wc[k].status, IBV_WC_SUCCESS);
            if (wc[k].wr_id >= 1000) {
                done++;
                continue;
            }
            int who;
            memcpy(&who, s.mem + 512 * wc[k].wr_id, sizeof who);
            CHECK(who >= 0 && who < n && wc[k].src_qp == shared->at[who].qpn);
            from[who]++;
            got++;
            IS(recv_at(&s, wc[k].wr_id, 512 * wc[k].wr_id, 512), 0);
        }
    }
    for (int k = 0; k < n; k++)
        IS(from[k], k == me ? 0 : EACH);
    pthread_barrier_wait(&shared->barrier);
    for (int k = 0; k < n; k++)
        IS(ibv_destroy_ah(ahs[k]), 0);
    drop_side(&s);
    _exit(0);
}

static void processes(int n) {
    size_t size = sizeof(struct shared) + n * sizeof(struct address);
    struct shared *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    pthread_barrierattr_t attr;
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    IS(pthread_barrier_init(&shared->barrier, &attr, n), 0);
    for (int k = 0; k < n; k++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (!pid)
            one_of(shared, k, n);
    }
    for (int k = 0; k < n; k++) {
        int status;
        CHECK(wait(&status) > 0);
        if (!WIFEXITED(status) || WEXITSTATUS(status))
            exit(1); /* the others are of our process group, and go with it */
    }
    printf("%d processes: ok\n", n);
}

/* N times open, use, close: nothing grows after the first tenth. */
static void cycles(int n) {
    int fds = 0;
    long kb = 0;
    for (int k = 0; k < n; k++) {
        struct side s = make_side(false, 7);
        struct ibv_ah *ah = make_ah(s.pd, s.gid);
        CHECK(ah);
        pass(&s, &s, ah);
        IS(ibv_destroy_ah(ah), 0);
        drop_side(&s);
        if (k == n / 10) {
            fds = count_fds();
            kb = resident_kb();
        }
    }
    IS(count_fds(), fds);
    printf("%d cycles: resident %ld, then %ld KB\n", n, kb, resident_kb());
    CHECK(resident_kb() <= kb + kb / 10 + 512);
    printf("%d cycles: ok\n", n);
}

int main(int argc, char **argv) {
    CHECK(argc == 3);
    int n = atoi(argv[2]);
    CHECK(n > 1);
    if (!strcmp(argv[1], "qps"))
        qps(n);
    else if (!strcmp(argv[1], "processes"))
        processes(n);
    else if (!strcmp(argv[1], "cycles"))
        cycles(n);
    else
        CHECK(!"qps, processes or cycles");
    return 0;
}
