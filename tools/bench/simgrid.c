/* The programs of tests/algorithms.py in MPI, for SimGrid's SMPI: what the virtual cluster is compared with. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, n;

static void ring(float *x, int length) {
    int chunk = length / n;
    float *incoming = malloc(sizeof(float) * (chunk + 1));
    for (int step = 0; step < 2 * (n - 1); step++) {
        float *give = x + chunk * ((rank - 1 + step + 2 * n) % n), *keep = x + chunk * ((rank + step) % n);
        MPI_Request request;
        MPI_Isend(give, chunk, MPI_FLOAT, (rank - 1 + n) % n, 0, MPI_COMM_WORLD, &request);
        MPI_Recv(incoming, chunk, MPI_FLOAT, (rank + 1) % n, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        for (int i = 0; i < chunk; i++) keep[i] = step < n - 1 ? keep[i] + incoming[i] : incoming[i];
    }
    free(incoming);
}

static void tree(float *x, int length) {
    float *incoming = malloc(sizeof(float) * (length + 1));
    int distance = 1;
    for (; distance < n; distance *= 2) {
        if (rank % (2 * distance) == distance) {
            MPI_Send(x, length, MPI_FLOAT, rank - distance, 0, MPI_COMM_WORLD);
        } else if (rank % (2 * distance) == 0 && rank + distance < n) {
            MPI_Recv(incoming, length, MPI_FLOAT, rank + distance, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (int i = 0; i < length; i++) x[i] += incoming[i];
        }
    }
    while (distance > 1) {
        distance /= 2;
        if (rank % (2 * distance) == 0 && rank + distance < n)
            MPI_Send(x, length, MPI_FLOAT, rank + distance, 0, MPI_COMM_WORLD);
        else if (rank % (2 * distance) == distance)
            MPI_Recv(x, length, MPI_FLOAT, rank - distance, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    free(incoming);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    int length = atoi(argv[2]);
    float *x = malloc(sizeof(float) * (length + 1));
    for (int i = 0; i < length; i++) x[i] = rank;
    double start = MPI_Wtime();
    if (!strcmp(argv[1], "ring")) ring(x, length);
    if (!strcmp(argv[1], "tree")) tree(x, length);
    printf("seconds %.12g\n", MPI_Wtime() - start);
    free(x);
    MPI_Finalize();
    return 0;
}
