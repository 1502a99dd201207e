/* A program that goes where there are no files any more, as servers do, once it has its devices. */
#include "check.h"

static void use(void) {
    struct side a = make_side_of(open_device(0), false, 7, 0), b = make_side_of(open_device(1), false, 7, 0);
    struct ibv_ah *to_b = make_ah(a.pd, b.gid);
    CHECK(to_b);
    pass(&a, &b, to_b);
    NULL_WITH(ibv_create_cq(a.ctx, 0, NULL, NULL, 0), EINVAL); /* which is logged */
    IS(ibv_destroy_ah(to_b), 0);
    drop_side(&a);
    drop_side(&b);
}

int main(int argc, char **argv) {
    CHECK(argc > 1);
    struct ibv_context *ctx = open_device(0);
    IS(chroot(argv[1]), 0);
    IS(chdir("/"), 0);
    use();
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
        use();
        exit(0);
    }
    int status;
    IS(waitpid(pid, &status, 0), pid);
    IS(status, 0);
    IS(ibv_close_device(ctx), 0);
    return 0;
}
