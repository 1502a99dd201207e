/* Devices that are opened, closed and left behind. */
#include "check.h"

static int count(const char *dir) {
    DIR *d = opendir(dir);
    CHECK(d);
    int n = 0;
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static long resident(void) {
    long size, pages;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%ld %ld", &size, &pages) == 2);
    fclose(f);
    return pages * 4;
}

/* Nothing grows. */
static void cycles(int n) {
    int fds = 0, threads = 0;
    long kib = 0;
    for (int i = 0; i < n; i++) {
        struct side s = make_side(i & 1, 7);
        drop_side(&s);
        if (i == n / 4) {
            fds = count("/proc/self/fd");
            threads = count("/proc/self/task");
            kib = resident();
        }
    }
    IS(count("/proc/self/fd"), fds);
    IS(count("/proc/self/task"), threads);
    if (resident() > kib + 2048) {
        fprintf(stderr, "resident memory grew from %ld KiB to %ld KiB\n", kib, resident());
        exit(1);
    }
}

/* A device has its address for as long as the process lives. */
static void stays(void) {
    struct side first = make_side(false, 7);
    union ibv_gid gid = first.gid;
    drop_side(&first);
    struct side second = make_side(false, 7);
    IS(memcmp(&gid, &second.gid, sizeof gid), 0);
    drop_side(&second);
}

/* A program that closes a device and never mind what it made in it. */
static void careless(void) {
    struct side keep = make_side(false, 7);
    struct side s = make_side(false, 7);
    struct ibv_ah *ah = make_ah(s.pd, s.gid), *to_s = make_ah(keep.pd, s.gid);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(s.ctx);
    struct ibv_cq *cq = ibv_create_cq(s.ctx, 10, NULL, channel, 0);
    CHECK(ah && to_s && channel && cq);
    uint32_t qpn = s.qp->qp_num;
    IS(recv_at(&s, 1, 0, 64), 0);
    IS(ibv_close_device(s.ctx), 0);
    /* They are gone, also for others. */
    IS(send_from(&keep, 1, 0, 64, to_s, qpn), 0);
    IS(wait_wc(keep.cq).vendor_err, 9);
    /* And may still be let go. */
    IS(send_from(&s, 1, 0, 64, ah, qpn), EIO);
    IS(ibv_destroy_ah(ah), 0);
    IS(ibv_destroy_cq(cq), 0);
    IS(ibv_destroy_comp_channel(channel), 0);
    IS(ibv_destroy_qp(s.qp), 0);
    IS(ibv_destroy_cq(s.cq), 0);
    IS(ibv_dereg_mr(s.mr), 0);
    IS(ibv_dealloc_pd(s.pd), 0);
    IS(ibv_destroy_ah(to_s), 0);
    drop_side(&keep);
}

/* What is closed has no descriptors any more. (A card that is open may have a file open for a moment.) */
static void descriptors(void) {
    struct side keep = make_side(false, 7);
    int before = count("/proc/self/fd");
    for (int i = 0; i < 50; i++) {
        struct ibv_context *ctx = open_device(0);
        CHECK(ibv_alloc_pd(ctx) && ibv_create_cq(ctx, 10, NULL, NULL, 0));
        IS(ibv_close_device(ctx), 0);
        struct ibv_async_event event;
        MINUS_WITH(ibv_get_async_event(ctx, &event), EIO);
    }
    CHECK(count("/proc/self/fd") < before + 50);
    drop_side(&keep);
}

/* A queue pair number is not used again soon. */
static void numbers(void) {
    struct side s = make_side(false, 7);
    uint32_t seen[200];
    for (int i = 0; i < 200; i++) {
        struct ibv_qp *qp = make_qp(s.pd, s.cq, false, 0, 0);
        CHECK(qp);
        seen[i] = qp->qp_num;
        CHECK(qp->qp_num <= 0xffff);
        for (int k = 0; k < i; k++)
            CHECK(seen[k] != seen[i]);
        IS(ibv_destroy_qp(qp), 0);
    }
    drop_side(&s);
}

/* Several devices at once, which reach each other. */
static void rails(int n) {
    struct side s[8];
    for (int i = 0; i < n; i++) {
        s[i] = make_side_of(open_device(i), false, 7, 0);
        CHECK(i == 0 || strcmp(s[i].ctx->device->name, s[i - 1].ctx->device->name));
        CHECK(i == 0 || memcmp(&s[i].gid, &s[i - 1].gid, sizeof s[i].gid));
    }
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < n; k++) {
            struct ibv_ah *ah = make_ah(s[i].pd, s[k].gid);
            CHECK(ah);
            IS(recv_at(&s[k], 1, 0, 64), 0);
            IS(send_from(&s[i], 2, 0, 64, ah, s[k].qp->qp_num), 0);
            int todo = 2;
            double end = now() + PATIENCE;
            while (todo) {
                struct ibv_wc wc;
                CHECK(now() < end);
                if (ibv_poll_cq(s[i].cq, 1, &wc) == 1 || (i != k && ibv_poll_cq(s[k].cq, 1, &wc) == 1)) {
                    IS(wc.status, IBV_WC_SUCCESS);
                    todo--;
                }
            }
            IS(ibv_destroy_ah(ah), 0);
        }
    }
    for (int i = 0; i < n; i++)
        drop_side(&s[i]);
}

/* A plug-in that uses the library comes and goes, and so does its thread. */
static void unloaded(void) {
    void *lib = dlopen("libibverbs.so", RTLD_NOW | RTLD_LOCAL);
    CHECK(lib);
    CHECK(lib == dlopen("libefa.so.1", RTLD_NOW)); /* one library under all names */
    struct side s = make_side(false, 7);
    IS(dlclose(lib), 0);
    IS(dlclose(lib), 0);
    struct ibv_wc wc;
    IS(ibv_poll_cq(s.cq, 1, &wc), 0);
    drop_side(&s);
}

/* Whether what other libraries look for is there. */
static bool has_sysfs(void) {
    char file[512];
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list);
    snprintf(file, sizeof file, "%s/class/infiniband_verbs/abi_version", getenv("SYSFS_PATH"));
    bool has = access(file, R_OK) == 0 && access(list[0]->ibdev_path, R_OK) == 0;
    ibv_free_device_list(list);
    return has;
}

/* A daemon outlives the process that was started, perhaps with nothing open of what that had. A child that ends takes nothing
   along. */
static void daemons(bool closes) {
    CHECK(has_sysfs());
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        exit(has_sysfs() ? 0 : 1);
    int status;
    IS(waitpid(child, &status, 0), child);
    IS(status, 0);
    CHECK(has_sysfs());
    int gone[2];
    IS(pipe(gone), 0);
    pid_t daemon = fork();
    CHECK(daemon >= 0);
    if (daemon > 0)
        exit(0);
    IS(close(gone[1]), 0);
    IS(read(gone[0], &status, 1), 0); /* the other end is gone with the parent */
    for (int fd = 3; closes && fd < 100; fd++)
        close(fd);
    CHECK(has_sysfs());
    struct side s = make_side(false, 7);
    drop_side(&s);
    CHECK(has_sysfs());
    puts("lives");
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    if (!strcmp(argv[1], "cycles"))
        cycles(atoi(argv[2]));
    else if (!strcmp(argv[1], "rails"))
        rails(atoi(argv[2]));
    else if (!strcmp(argv[1], "sends")) {
        struct side s = make_side(false, 7);
        struct ibv_ah *ah = make_ah(s.pd, s.gid);
        CHECK(ah);
        for (int i = 0; i < atoi(argv[2]); i++)
            pass(&s, &s, ah);
        IS(ibv_destroy_ah(ah), 0);
        drop_side(&s);
    } else if (!strcmp(argv[1], "die")) {
        struct side s = make_side(false, 7);
        CHECK(s.ctx);
        kill(getpid(), SIGKILL);
    } else if (!strcmp(argv[1], "daemons")) {
        daemons(argc > 2);
    } else if (!strcmp(argv[1], "leave")) {
        struct side s = make_side(false, 7); /* a program that just ends */
        CHECK(s.ctx);
    } else if (!strcmp(argv[1], "exec")) {
        struct side s = make_side(false, 7);
        CHECK(s.ctx);
        execl(argv[0], argv[0], "sysfs", NULL);
        CHECK(false);
    } else if (!strcmp(argv[1], "sysfs")) {
        const char *path = getenv("SYSFS_PATH");
        CHECK(path);
        printf("%s\n", path);
        char file[512], driver[4096];
        struct ibv_context *ctx = open_device(0);
        snprintf(file, sizeof file, "%s/class/infiniband_verbs/abi_version", path);
        CHECK(access(file, R_OK) == 0);
        snprintf(file, sizeof file, "%s/device/driver", ctx->device->ibdev_path);
        CHECK(realpath(file, driver) && !strcmp(strrchr(driver, '/'), "/efa"));
        snprintf(file, sizeof file, "%s/device", ctx->device->ibdev_path);
        CHECK(realpath(file, driver));
        unsigned domain, bus, slot, function;
        IS(sscanf(strrchr(driver, '/'), "/%x:%x:%x.%x", &domain, &bus, &slot, &function), 4);
        int (*read_file)(const char *, const char *, char *, size_t) = dlsym(RTLD_DEFAULT, "ibv_read_sysfs_file");
        CHECK(read_file && read_file(ctx->device->ibdev_path, "device/vendor", file, sizeof file) == 6);
        IS(strcmp(file, "0x1d0f"), 0);
        /* The address, which is not known before the device is open. */
        union ibv_gid gid;
        char text[64];
        IS(ibv_query_gid(ctx, 1, 0, &gid), 0);
        for (int i = 0; i < 8; i++)
            sprintf(text + 5 * i, "%02x%02x:", gid.raw[2 * i], gid.raw[2 * i + 1]);
        CHECK(read_file(ctx->device->ibdev_path, "ports/1/gids/0", file, sizeof file) == 39);
        IS(strncmp(file, text, 39), 0);
        uint64_t guid = be64toh(ibv_get_device_guid(ctx->device));
        CHECK(read_file(ctx->device->ibdev_path, "node_guid", file, sizeof file) == 19);
        sprintf(text, "%04x:%04x:%04x:%04x", (int)(guid >> 48), (int)(guid >> 32 & 0xffff), (int)(guid >> 16 & 0xffff),
                (int)(guid & 0xffff));
        IS(strcmp(file, text), 0);
        MINUS_WITH(read_file(ctx->device->ibdev_path, "board_id", file, sizeof file), ENOENT);
        IS(ibv_close_device(ctx), 0);
    } else {
        stays();
        careless();
        descriptors();
        numbers();
        unloaded();
    }
    return 0;
}
