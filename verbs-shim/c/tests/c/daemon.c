/* A program that closes all descriptors, as those do that become daemons, has closed those of its devices, too. */
#include "check.h"

int main(int argc, char **argv) {
    CHECK(argc == 2);
    struct side s = make_side(false, 7);
    for (int i = 0; i < 3; i++)
        IS(recv_at(&s, i, 0, 128), 0);
    /* Nobody is at that address: 127.0.0.3. */
    union ibv_gid nobody = s.gid;
    nobody.raw[13] ^= 2;
    struct ibv_ah *ah = make_ah(s.pd, nobody);
    CHECK(ah);
    for (int i = 3; i < 5; i++)
        IS(send_from(&s, i, 0, 64, ah, s.qp->qp_num), 0);
    close_range(3, ~0u, 0);
    /* Either it polls, or its thread has to find out. */
    double end = now() + PATIENCE;
    if (!strcmp(argv[1], "sleeps"))
        while (thread_count() > 1) {
            CHECK(now() < end);
            usleep(1000);
        }
    for (int i = 0; i < 5; i++)
        IS(wait_wc(s.cq).status, IBV_WC_WR_FLUSH_ERR);
    struct ibv_wc wc;
    for (int i = 0; i < 1000; i++)
        IS(ibv_poll_cq(s.cq, 1, &wc), 0);
    while (thread_count() > 1)
        CHECK(now() < end);
    IS(send_from(&s, 6, 0, 64, ah, s.qp->qp_num), EINVAL);
    IS(recv_at(&s, 7, 0, 128), EINVAL);
    IS(to_state(s.qp, IBV_QPS_RESET), 0);
    IS(to_init(s.qp), EIO);
    /* The numbers are free for files of the program, which the device does not touch. */
    int files[64];
    for (int i = 0; i < 64; i++)
        CHECK((files[i] = memfd_create("mine", 0)) >= 0);
    IS(ibv_destroy_ah(ah), 0);
    IS(ibv_destroy_qp(s.qp), 0);
    IS(ibv_destroy_cq(s.cq), 0);
    for (int i = 0; i < 64; i++)
        IS(lseek(files[i], 0, SEEK_END), 0);
    return 0;
}
