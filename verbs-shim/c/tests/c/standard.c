/* A program that has closed standard input, output and error: nobody gives it others. The exit status tells what went wrong. */
#include "check.h"

static void are_nobodys(int status) {
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            _exit(status);
}

int main(void) {
    are_nobodys(2); /* after the library was loaded */
    struct side a = make_side_of(open_device(0), false, 7, 0), b = make_side_of(open_device(1), false, 7, 0);
    are_nobodys(3);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(a.ctx);
    CHECK(channel);
    are_nobodys(4);
    /* What a message opens on its way. */
    struct ibv_ah *to_b = make_ah(a.pd, b.gid);
    CHECK(to_b);
    pass(&a, &b, to_b);
    are_nobodys(5);
    IS(ibv_destroy_comp_channel(channel), 0);
    IS(ibv_destroy_ah(to_b), 0);
    drop_side(&a);
    drop_side(&b);
    return 0;
}
