// Replaces mpi_transport.cpp in a build without MPI.
#include "holdfast/mpi/mpi_transport.h"

namespace holdfast {

Result<std::unique_ptr<Transport>> start_mpi_transport(Env&, Instant,
                                                       const MpiOptions&) {
  return unsupported(
      "mpi: this build has no MPI; expected one with the option HOLDFAST_MPI=ON and an "
      "MPI library");
}

}  // namespace holdfast
