/* Data between two processes: rdma_pair OP ROUNDS [HOST]. OP is send, read, write, imm, unsolicited or overtake.
 * With a host it is the client, which does the operations; without, the server, whose memory they are about.
 * The side channel tells the server what has completed. It then looks at once whether all is there, marks its memory,
 * and looks again a round later, since nothing may be written after the completion. */
#include "check.h"
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

enum { PORT = 18600, MEMORY = 8 << 20, MARK = 0xee };
static const uint32_t sizes[] = {0, 1, 31, 64, 4096, 8192, 8928, 8929, 65536, 1 << 20, MEMORY};
static struct side s;
static struct address peer;
static struct ibv_ah *ah;
static int tcp;
static char op;

/* Seeded bytes, so that those of one round are not taken for those of another. */
static uint64_t word(uint32_t seed, size_t at) {
    uint64_t x = at * 0x9e3779b97f4a7c15u + seed;
    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9u;
}

static void fill(uint32_t seed, size_t size) {
    for (size_t at = 0; at < size; at += 8) {
        uint64_t w = word(seed, at);
        memcpy(s.mem + at, &w, size - at < 8 ? size - at : 8);
    }
}

static void check_data(uint32_t seed, size_t size) {
    for (size_t at = 0; at < size; at += 8) {
        uint64_t w = word(seed, at);
        if (memcmp(s.mem + at, &w, size - at < 8 ? size - at : 8)) {
            fprintf(stderr, "round %u: wrong data at byte %zu of %zu\n", seed, at, size);
            exit(1);
        }
    }
}

static void check_mark(size_t size) {
    for (size_t at = 0; at < size; at++)
        if ((unsigned char)s.mem[at] != MARK) {
            fprintf(stderr, "byte %zu of %zu was written after the completion, or was not to be written\n", at, size);
            exit(1);
        }
}

static void connect_side_channel(const char *host) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (host) {
        IS(inet_pton(AF_INET, host, &at.sin_addr), 1);
        IS(connect(fd, (struct sockaddr *)&at, sizeof at), 0);
        tcp = fd;
    } else {
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        IS(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
        IS(listen(fd, 1), 0);
        CHECK((tcp = accept(fd, NULL, NULL)) >= 0);
        close(fd);
    }
    setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

static void say(char c) { put(tcp, &c, 1); }

static void hear(char want) {
    char c;
    get(tcp, &c, 1);
    IS(c, want);
}

static bool takes_receives(void) { return op == 's' || op == 'i'; }

/* One round of the client. */
static void act(uint32_t round, uint32_t size) {
    if (op == 'r')
        memset(s.mem, 0, size);
    else
        fill(round, size);
    hear('g');
    if (op == 's')
        IS(send_from(&s, round, 0, size, ah, peer.qpn), 0);
    else
        IS(rdma(&s, op == 'u' ? 'i' : op, round, 0, size, ah, &peer, peer.mem, peer.rkey), 0);
    struct ibv_wc wc = wait_wc(s.cq);
    IS(wc.status, IBV_WC_SUCCESS);
    IS(wc.wr_id, round);
    if (op == 'r')
        check_data(round, size);
    say('d');
}

/* One round of the server. */
static void watch(uint32_t round, uint32_t size, uint32_t before) {
    if (round)
        check_mark(op == 'r' ? 0 : before);
    memset(s.mem, MARK, size + 8 <= MEMORY ? size + 8 : MEMORY);
    if (op == 'r')
        fill(round, size);
    if (takes_receives())
        IS(recv_at(&s, round, 0, size), 0);
    say('g');
    hear('d');
    if (op != 'r') {
        check_data(round, size);
        if (size + 8 <= MEMORY && size % 8 == 0)
            for (int k = 0; k < 8; k++)
                CHECK((unsigned char)s.mem[size + k] == MARK);
    }
    if (takes_receives() || op == 'u') {
        struct ibv_wc wc = wait_wc(s.cq);
        IS(wc.status, IBV_WC_SUCCESS);
        IS(wc.byte_len, size);
        if (op == 's')
            IS(wc.opcode, IBV_WC_RECV);
        else {
            IS(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
            IS(be32toh(wc.imm_data), 0xcafe0000 + round);
        }
    }
    memset(s.mem, MARK, size);
}

/* A long write, then a short one: how often the short one completes first. */
static int overtaken(int rounds, bool is_client) {
    int first = 0;
    for (int round = 0; round < rounds; round++) {
        if (!is_client) {
            hear('d');
            check_data(round, 1 << 20);
            say('g');
            continue;
        }
        fill(round, 1 << 20);
        IS(rdma(&s, 'w', 0, 0, 1 << 20, ah, &peer, peer.mem, peer.rkey), 0);
        IS(rdma(&s, 'w', 1, 0, 8, ah, &peer, peer.mem + MEMORY - 8, peer.rkey), 0);
        uint64_t ids[2];
        for (int k = 0; k < 2; k++) {
            struct ibv_wc wc = wait_wc(s.cq);
            IS(wc.status, IBV_WC_SUCCESS);
            ids[k] = wc.wr_id;
        }
        CHECK(ids[0] + ids[1] == 1 && ids[0] != ids[1]);
        first += ids[0] == 1;
        say('d');
        hear('g');
    }
    return first;
}

int main(int argc, char **argv) {
    CHECK(argc == 3 || argc == 4);
    op = argv[1][0];
    int rounds = atoi(argv[2]);
    bool is_client = argc == 4;
    connect_side_channel(is_client ? argv[3] : NULL);
    s = make_side_of(open_device(0), false, 7, op == 'u' ? 1 : 0);
    /* More memory than the usual. */
    char *mem = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mem != MAP_FAILED);
    IS(ibv_dereg_mr(s.mr), 0);
    IS(munmap(s.mem, SIZE), 0);
    s.mem = mem;
    CHECK(s.mr = ibv_reg_mr(s.pd, mem, MEMORY, all_access(s.ctx)));
    struct address me = address_of(&s);
    put(tcp, &me, sizeof me);
    get(tcp, &peer, sizeof peer);
    CHECK(ah = make_ah(s.pd, peer.gid));
    if (op == 'o') {
        int first = overtaken(rounds, is_client);
        if (is_client)
            printf("the short one was first in %d of %d rounds\n", first, rounds);
    } else {
        int count = sizeof sizes / sizeof *sizes;
        uint32_t before = 0;
        for (int round = 0; round < rounds; round++) {
            /* Short ones more often than long ones; a send has at most 8928 bytes. */
            uint32_t size = sizes[round % (round % 20 ? 7 : op == 's' ? 7 : count)];
            if (is_client)
                act(round, size);
            else
                watch(round, size, before);
            before = size;
        }
        if (is_client)
            printf("%d rounds of %s: ok\n", rounds, argv[1]);
    }
    /* Neither leaves before the other has everything. */
    say('e');
    hear('e');
    IS(ibv_destroy_ah(ah), 0);
    IS(ibv_destroy_qp(s.qp), 0);
    IS(ibv_dereg_mr(s.mr), 0);
    IS(ibv_destroy_cq(s.cq), 0);
    IS(ibv_dealloc_pd(s.pd), 0);
    IS(ibv_close_device(s.ctx), 0);
    return 0;
}
