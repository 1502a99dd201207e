/* A program whose standard error is a pipe that nobody reads any more, or a file that may not grow. */
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

int main(int argc, char **argv) {
    CHECK(argc > 1);
    bool is_pipe = !strcmp(argv[1], "pipe");
    int signal = is_pipe ? SIGPIPE : SIGXFSZ;
    if (argc > 2) {
        is_pipe ? broken_pipe() : full_file();
        CHECK(!ibv_get_device_list(NULL)); /* since the options make no sense */
        return 0;
    }
    struct ibv_context *ctx = open_device(0);
    is_pipe ? broken_pipe() : full_file();
    NULL_WITH(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL); /* which is logged */
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, signal);
    IS(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    NULL_WITH(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL);
    CHECK(!waits(signal));
    IS(raise(signal), 0);
    NULL_WITH(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL);
    CHECK(waits(signal));
    IS(ibv_close_device(ctx), 0);
    return 0;
}
