/* A clock that fails when this thread says so: the library's own clock calls are this one, and its standard library panics. */
#include "check.h"
#include <sys/syscall.h>

static __thread bool fails;

int clock_gettime(clockid_t id, struct timespec *t) {
    if (fails) {
        errno = EINVAL;
        return -1;
    }
    return syscall(SYS_clock_gettime, id, t);
}

int main(void) {
    struct side s = make_side(false, 7);
    struct ibv_ah *ah;
    struct ibv_wc wc;
    fails = true;
    int posted = send_from(&s, 1, 0, 64, s.qp ? (ah = make_ah(s.pd, s.gid)) : NULL, s.qp->qp_num);
    int polled = ibv_poll_cq(s.cq, 1, &wc);
    int destroyed = ibv_destroy_qp(s.qp);
    fails = false;
    printf("posted %d, polled %d, destroyed %d\n", posted, polled, destroyed);
    return 0;
}
