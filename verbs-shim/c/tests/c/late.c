/* Verbs that have something for the log when nothing of a thread is left but the thread: in destructors of its data, and in exit
   handlers, before which the data of the main thread goes. */
#include "check.h"

static struct ibv_context *ctx;

static void refused(void) {
    NULL_WITH(ibv_create_cq(ctx, 0, NULL, NULL, 0), EINVAL); /* which is logged */
}

static void destructor(void *value) {
    (void)value;
    refused();
}

static void *thread(void *key) {
    refused();
    IS(pthread_setspecific(*(pthread_key_t *)key, key), 0);
    return NULL;
}

static void at_exit(void) {
    refused();
    /* A request that fails: one line more, and one completion. */
    struct side s = make_side(false, 7);
    struct ibv_ah *ah = make_ah(s.pd, s.gid);
    CHECK(ah);
    IS(send_from(&s, 1, 0, 64, ah, s.qp->qp_num ^ 1), 0);
    IS(wait_wc(s.cq).vendor_err, 9);
    IS(ibv_destroy_ah(ah), 0);
    drop_side(&s);
    IS(ibv_close_device(ctx), 0);
}

int main(void) {
    IS(atexit(at_exit), 0);
    ctx = open_device(0);
    pthread_key_t key;
    IS(pthread_key_create(&key, destructor), 0);
    pthread_t t;
    IS(pthread_create(&t, NULL, thread, &key), 0);
    IS(pthread_join(t, NULL), 0);
    refused();
    return 0;
}
