// Data-parallel training in several processes: who takes part, and the sums they exchange.
//
// Every process runs the same program on its own share of the data; their gradients are summed before each step. On
// CPUs the exchange goes over TCP (Gloo), on CUDA devices over NCCL where LibTorch has it. The network must be a trusted
// one: nothing of it is encrypted or authenticated.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tensorcache/status.h"
#include "train/torch.h"

namespace tensorcache::train {

class ProcessGroup;

struct WorldOptions {
  int rank = 0;
  int size = 1;
  int local_rank = 0;                        // among the processes of this machine: picks the CUDA device
  std::string master_address = "127.0.0.1";  // where rank 0 listens for the others
  int master_port = 29500;
  // How long Join waits for the others, and how long an exchange waits for one of them. A process that is alone at work
  // for longer (writing a checkpoint, say) is taken for lost.
  double timeout_seconds = 30;
};

// The place of this process as its launcher tells it in environment variables; the first of
//   RANK, WORLD_SIZE                            torchrun, or set by hand
//   OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE  mpirun of Open MPI
//   PMI_RANK, PMI_SIZE                          mpirun of MPICH and its relatives
//   SLURM_PROCID, SLURM_NTASKS                  srun; only if MASTER_ADDR is set, as they are there without srun too
// and MASTER_ADDR, MASTER_PORT. Without any of them: the only process.
Result<WorldOptions> WorldFromEnvironment();

// False if LibTorch came without what World needs; then Join works for one process alone.
bool HasDistributedTraining();

// The processes that train together. All of them must make the same calls in the same order, with tensors of the same
// shapes and types. A call that fails leaves the tensors in an unknown state and the world unusable: each later call
// returns the same error at once. Not thread-safe. With size 1 all calls do nothing.
class World {
 public:
  // Returns when all processes have come, or after the timeout. The exchanges on CUDA tensors need `device`.
  static Result<std::unique_ptr<World>> Join(const WorldOptions& options, at::Device device);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }

  // Each tensor becomes its sum over all ranks, with the same bits on every rank. The terms are added in an order that
  // depends on the sizes alone. Needs up to 50 MB beside the tensors.
  Status AllReduceSum(const std::vector<at::Tensor>& tensors);
  Status AllReduceSum(std::span<double> values);

 private:
  World(const WorldOptions& options, at::Device device, std::unique_ptr<ProcessGroup> group);

  template <class Start>
  Status Exchange(const std::vector<at::Tensor>& tensors, std::string_view what, Start start);
  Status Failed(std::string_view what, const std::exception& error);

  WorldOptions options_;
  at::Device device_;
  std::unique_ptr<ProcessGroup> group_;  // none if size is 1
  Status failure_;                       // of the first call that failed
};

}  // namespace tensorcache::train
