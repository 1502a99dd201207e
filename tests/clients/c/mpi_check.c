// Checks MPI: messages of many sizes, many at once, collectives, and one-sided unless the argument 'two-sided' forbids it.
// Rank 0 says when all is well.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks;

#define CHECK(condition, ...)                                           \
    do {                                                                \
        if (!(condition)) {                                             \
            fprintf(stderr, "rank %d, line %d: ", rank, __LINE__);      \
            fprintf(stderr, __VA_ARGS__);                               \
            fputc('\n', stderr);                                        \
            MPI_Abort(MPI_COMM_WORLD, 1);                               \
        }                                                               \
    } while (0)

// Bytes that tell who sent them, and that none is out of its place.
static uint8_t pattern(int sender, size_t at) { return (uint8_t)(sender * 31 + at * 7 + at / 251); }

static void fill(uint8_t *to, int sender, size_t size) {
    for (size_t k = 0; k < size; k++) to[k] = pattern(sender, k);
}

static void check(const uint8_t *got, int sender, size_t size, const char *what) {
    for (size_t k = 0; k < size; k++) CHECK(got[k] == pattern(sender, k), "%s of %d: byte %zu of %zu", what, sender, k, size);
}

static void ring(size_t size) {
    uint8_t *mine = malloc(size + 1), *got = calloc(size + 1, 1);
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    fill(mine, rank, size);
    got[size] = 0xa5;
    MPI_Status status;
    MPI_Sendrecv(mine, size, MPI_BYTE, right, 5, got, size, MPI_BYTE, left, 5, MPI_COMM_WORLD, &status);
    int count;
    MPI_Get_count(&status, MPI_BYTE, &count);
    CHECK((size_t)count == size, "%d of %zu bytes", count, size);
    check(got, left, size, "message");
    CHECK(got[size] == 0xa5, "a byte after the buffer was written");
    free(mine);
    free(got);
}

static void many(void) {
    enum { COUNT = 500, SIZE = 40 };
    static uint8_t out[COUNT][SIZE], in[COUNT][SIZE];
    static MPI_Request requests[2 * COUNT];
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks;
    for (int tag = 0; tag < COUNT; tag++) MPI_Irecv(in[tag], SIZE, MPI_BYTE, left, tag, MPI_COMM_WORLD, &requests[tag]);
    for (int tag = COUNT - 1; tag >= 0; tag--) {
        fill(out[tag], rank + tag, SIZE);
        MPI_Isend(out[tag], SIZE, MPI_BYTE, right, tag, MPI_COMM_WORLD, &requests[COUNT + tag]);
    }
    MPI_Waitall(2 * COUNT, requests, MPI_STATUSES_IGNORE);
    for (int tag = 0; tag < COUNT; tag++) check(in[tag], left + tag, SIZE, "message with tag");
}

static void collectives(void) {
    enum { COUNT = 30000 };
    long sum = 0, mine = rank;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    CHECK(sum == (long)ranks * (ranks - 1) / 2, "the sum is %ld", sum);
    uint8_t *block = malloc(COUNT);
    if (rank == 0) fill(block, 77, COUNT);
    MPI_Bcast(block, COUNT, MPI_BYTE, 0, MPI_COMM_WORLD);
    check(block, 77, COUNT, "broadcast");
    free(block);
    uint8_t *out = malloc((size_t)ranks * COUNT), *in = calloc(ranks, COUNT);
    for (int peer = 0; peer < ranks; peer++) fill(out + (size_t)peer * COUNT, rank * ranks + peer, COUNT);
    MPI_Alltoall(out, COUNT, MPI_BYTE, in, COUNT, MPI_BYTE, MPI_COMM_WORLD);
    for (int peer = 0; peer < ranks; peer++) check(in + (size_t)peer * COUNT, peer * ranks + rank, COUNT, "alltoall");
    free(out);
    free(in);
    double *values = malloc(COUNT * sizeof *values), *total = malloc(COUNT * sizeof *total);
    for (int k = 0; k < COUNT; k++) values[k] = rank + k;
    MPI_Allreduce(values, total, COUNT, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (int k = 0; k < COUNT; k++) CHECK(total[k] == (double)ranks * k + ranks * (ranks - 1) / 2, "sum %d", k);
    free(values);
    free(total);
    MPI_Barrier(MPI_COMM_WORLD);
}

static void one_sided(void) {
    enum { SIZE = 100000 };
    uint8_t *memory, *mine = malloc(SIZE);
    MPI_Win window;
    MPI_Win_allocate((MPI_Aint)SIZE * ranks, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    fill(mine, rank, SIZE);
    MPI_Win_fence(0, window);
    for (int peer = 0; peer < ranks; peer++)
        MPI_Put(mine, SIZE, MPI_BYTE, peer, (MPI_Aint)SIZE * rank, SIZE, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    for (int peer = 0; peer < ranks; peer++) check(memory + (size_t)SIZE * peer, peer, SIZE, "put");
    memset(mine, 0, SIZE);
    MPI_Get(mine, SIZE, MPI_BYTE, (rank + 1) % ranks, (MPI_Aint)SIZE * rank, SIZE, MPI_BYTE, window);
    MPI_Win_fence(0, window);
    check(mine, rank, SIZE, "get");
    MPI_Win_free(&window);
    free(mine);

    int64_t *counter, one = 1, before;
    MPI_Win_allocate(sizeof *counter, sizeof *counter, MPI_INFO_NULL, MPI_COMM_WORLD, &counter, &window);
    *counter = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int k = 0; k < 20; k++) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, window);
        MPI_Win_unlock(0, window);
        CHECK(before < 20L * ranks, "the counter was %ld", (long)before);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
        CHECK(*counter == 20L * ranks, "the counter is %ld", (long)*counter);
        MPI_Win_unlock(0, window);
    }
    MPI_Win_free(&window);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    static const size_t sizes[] = {0, 1, 63, 64, 4095, 4096, 8192, 9000, 65536, 262144, 1 << 20, 4 << 20};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) ring(sizes[k]);
    many();
    collectives();
    if (argc < 2 || strcmp(argv[1], "two-sided") != 0) one_sided();
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) puts("all ranks: ok");
    MPI_Finalize();
    return 0;
}
