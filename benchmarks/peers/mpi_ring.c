/* The MPI peer of benchmarks/comm: MPI_Sendrecv around a ring, or an MPI_Allreduce of float32 in place. It measures the
 * same operations as comm_benchmark.cc, in the same way, and prints the same lines.
 *
 *   mpicc -O2 benchmarks/peers/mpi_ring.c -o mpi_ring
 *   mpirun -np 2 ./mpi_ring ring|all_reduce SECONDS BYTES [BYTES ...]
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { kFewest = 5, kBatches = 20 };

static int is_ring, rank, ranks;
static float *in, *out;
static double each_s[kBatches];

static double cpu_s(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_utime.tv_sec + usage.ru_stime.tv_sec + 1e-6 * (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static int ascending(const void* a, const void* b) {
  const double left = *(const double*)a, right = *(const double*)b;
  return (left > right) - (left < right);
}

static double quantile(long batches, double share) {
  qsort(each_s, batches, sizeof *each_s, ascending);
  return each_s[lround(share * (batches - 1))];
}

static void operation(int count) {
  if (is_ring) {
    MPI_Sendrecv(in, count, MPI_FLOAT, (rank + 1) % ranks, 0, out, count, MPI_FLOAT, (rank + ranks - 1) % ranks, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  } else {
    MPI_Allreduce(MPI_IN_PLACE, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
}

static double time_s(int count, long often) {
  const double start = MPI_Wtime();
  for (long i = 0; i < often; ++i) operation(count);
  return MPI_Wtime() - start;
}

static void measure(double seconds, long bytes) {
  const int count = (int)(bytes / 4);
  in = malloc(bytes);
  out = malloc(bytes);
  for (int i = 0; i < count; ++i) in[i] = (float)rank, out[i] = 1;
  operation(count);
  const float expected = is_ring ? (float)((rank + ranks - 1) % ranks) : (float)ranks;
  for (int i = 0; i < count; ++i) {
    if (out[i] != expected) {
      fprintf(stderr, "rank %d: element %d is %g and not %g\n", rank, i, out[i], expected);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  memset(out, 0, bytes);
  long often = 0;
  for (long trial = 1; often == 0;) {
    const double trial_s = time_s(count, trial);
    const long fitting = lround(trial * seconds / fmax(trial_s, 1e-9));
    long said = trial_s < seconds / 10 ? 2 * trial : -(fitting > kFewest ? fitting : kFewest);
    MPI_Bcast(&said, 1, MPI_LONG, 0, MPI_COMM_WORLD);
    *(said > 0 ? &trial : &often) = labs(said);
  }
  const long batches = often < kBatches ? often : kBatches, size = often / batches;
  double cpu = cpu_s(), all_cpu = 0;
  for (long i = 0; i < batches; ++i) each_s[i] = time_s(count, size) / size;
  cpu = cpu_s() - cpu;
  MPI_Reduce(&cpu, &all_cpu, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
  const double sent = 1e-9 * (double)bytes * (is_ring ? ranks : 2 * (ranks - 1)) * (double)(batches * size);
  if (rank == 0) {
    printf("{\"program\": \"mpi\", \"op\": \"%s\", \"ranks\": %d, \"bytes\": %ld, \"operations\": %ld, "
           "\"median_us\": %.3f, \"p10_us\": %.3f, \"p90_us\": %.3f, \"cpu_s_per_gb\": %.4f}\n",
           is_ring ? "ring" : "all_reduce", ranks, bytes, batches * size, 1e6 * quantile(batches, 0.5),
           1e6 * quantile(batches, 0.1), 1e6 * quantile(batches, 0.9), all_cpu / sent);
    fflush(stdout);
  }
  free(in);
  free(out);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc < 4 || (strcmp(argv[1], "ring") && strcmp(argv[1], "all_reduce"))) {
    if (rank == 0) fprintf(stderr, "usage: %s ring|all_reduce SECONDS BYTES [BYTES ...]\n", argv[0]);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  is_ring = !strcmp(argv[1], "ring");
  for (int i = 3; i < argc; ++i) measure(atof(argv[2]), atol(argv[i]));
  MPI_Finalize();
  return 0;
}
