/* A program whose standard error is a pipe that nobody reads any more, or a file that may not grow; and one whose log is a file. */
#include "check.h"
#include <sys/resource.h>

static void broken_pipe(void) {
    int ends[2];
    IS(pipe(ends), 0);
    IS(dup2(ends[1], 2), 2);
    IS(close(ends[0]), 0);
    IS(close(ends[1]), 0);
}

static void full_file(void) {
    int file = memfd_create("log", MFD_CLOEXEC);
    CHECK(file >= 0);
    IS(dup2(file, 2), 2);
    struct rlimit nothing = {0, RLIM_INFINITY};
    IS(setrlimit(RLIMIT_FSIZE, &nothing), 0);
}

/* What waited before is left, and nothing is added. */
static bool waits(int signal) {
    sigset_t set;
    IS(sigpending(&set), 0);
    return sigismember(&set, signal);
}

static void refused(struct ibv_context *ctx) {
    NULL_WITH(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL); /* which is logged */
}

/* Like a daemon, it goes elsewhere and closes all descriptors. What it opens after that gets their numbers, and no lines. */
static void closes(void) {
    struct side s = make_side(false, 7);
    IS(recv_at(&s, 1, 0, 64), 0);
    IS(chdir("/"), 0);
    close_range(3, ~0u, 0);
    IS(wait_wc(s.cq).status, IBV_WC_WR_FLUSH_ERR); /* since the device has failed, which is logged */
    for (double end = now() + 60; thread_count() > 1;)
        CHECK(now() < end);
    int files[64];
    for (int i = 0; i < 64; i++)
        CHECK((files[i] = memfd_create("mine", 0)) >= 0);
    refused(s.ctx);
    for (int i = 0; i < 64; i++)
        IS(lseek(files[i], 0, SEEK_END), 0);
}

/* A child has a device of its own, and a log. */
static void forks(void) {
    refused(open_device(0));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        refused(open_device(0));
        exit(0);
    }
    int status;
    IS(waitpid(pid, &status, 0), pid);
    IS(status, 0);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    if (!strcmp(argv[1], "closes")) {
        closes();
        return 0;
    }
    if (!strcmp(argv[1], "forks")) {
        forks();
        return 0;
    }
    bool is_pipe = !strcmp(argv[1], "pipe");
    int signal = is_pipe ? SIGPIPE : SIGXFSZ;
    if (argc > 2) {
        is_pipe ? broken_pipe() : full_file();
        CHECK(!ibv_get_device_list(NULL)); /* since the options make no sense */
        return 0;
    }
    struct ibv_context *ctx = open_device(0);
    is_pipe ? broken_pipe() : full_file();
    refused(ctx);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    IS(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    refused(ctx);
    CHECK(!waits(signal));
    IS(raise(signal), 0);
    refused(ctx);
    CHECK(waits(signal));
    IS(ibv_close_device(ctx), 0);
    return 0;
}
