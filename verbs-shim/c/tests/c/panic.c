/* A clock that fails once when this thread says so: the library's own clock calls are this one, and it panics. Once, since unlocking
   a lock that somebody waits for reads the clock, too, and a panic on the way out of a panic ends the program. */
#include "check.h"
#include <sys/syscall.h>

static __thread bool fails;

int clock_gettime(clockid_t id, struct timespec *t) {
    if (fails) {
        fails = false;
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_clock_gettime, id, t);
}

int main(void) {
    struct side s = make_side(false, 7);
    struct ibv_ah *ah = make_ah(s.pd, s.gid);
    struct ibv_wc wc;
    CHECK(ah);
    fails = true;
    int posted = send_from(&s, 1, 0, 64, ah, s.qp->qp_num);
    CHECK(!fails);
    fails = true;
    int polled = ibv_poll_cq(s.cq, 1, &wc);
    CHECK(!fails);
    IS(posted, EIO);
    CHECK(polled < 0);
    /* No lock is held, and the device is as good as before. */
    struct side t = make_side_of(open_device(0), false, 7, 0);
    IS(recv_at(&t, 2, 0, 64), 0);
    IS(ibv_destroy_ah(ah), 0);
    CHECK(ah = make_ah(t.pd, t.gid));
    IS(send_from(&t, 3, 0, 64, ah, t.qp->qp_num), 0);
    for (int i = 0; i < 2; i++)
        IS(wait_wc(t.cq).status, IBV_WC_SUCCESS);
    IS(ibv_poll_cq(s.cq, 1, &wc) < 0, 0);
    IS(ibv_destroy_ah(ah), 0);
    drop_side(&t);
    return 0;
}
