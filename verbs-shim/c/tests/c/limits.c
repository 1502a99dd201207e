/* A process that may not have all that a device takes. */
#include "check.h"
#include <sys/resource.h>

static void limit(int what, rlim_t most) {
    struct rlimit now;
    IS(getrlimit(what, &now), 0);
    now.rlim_cur = most;
    IS(setrlimit(what, &now), 0);
}

static double used(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* The thread of a device that has nothing to do takes no core, though it may not even poll: one that spun would have as much of
   the cores as we do. */
static void idles(struct ibv_context *ctx) {
    CHECK(ibv_alloc_pd(ctx)); /* which wakes it */
    double all = used(CLOCK_PROCESS_CPUTIME_ID), own = used(CLOCK_THREAD_CPUTIME_ID), began = now();
    while (used(CLOCK_THREAD_CPUTIME_ID) - own < 0.2)
        ;
    /* It looks all the same, some thousand times a second. */
    CHECK(used(CLOCK_PROCESS_CPUTIME_ID) - all - 0.2 < 0.05 + 0.05 * (now() - began));
}

/* With one descriptor more each time, until there are enough. */
static void descriptors(struct ibv_device *device) {
    int first = dup(0);
    CHECK(first >= 0);
    IS(close(first), 0);
    struct ibv_context *ctx = NULL;
    int refused = 0;
    for (int most = first; !ctx; most++) {
        CHECK(most < first + 500);
        limit(RLIMIT_NOFILE, most);
        errno = 0;
        if (!(ctx = ibv_open_device(device))) {
            IS(errno, EMFILE);
            refused++;
        }
    }
    CHECK(refused > 3);
    limit(RLIMIT_NOFILE, 0);
    NULL_WITH(ibv_create_comp_channel(ctx), EMFILE);
    idles(ctx);
    IS(ibv_close_device(ctx), 0);
}

static void threads(struct ibv_device *device) {
    if (geteuid() == 0)
        IS(setuid(12345), 0); /* whom no limit is waived for */
    limit(RLIMIT_NPROC, 0);
    NULL_WITH(ibv_open_device(device), EAGAIN);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    struct ibv_device **list = ibv_get_device_list(NULL);
    CHECK(list);
    if (!strcmp(argv[1], "descriptors"))
        descriptors(list[0]);
    else
        threads(list[0]);
    ibv_free_device_list(list);
    return 0;
}
