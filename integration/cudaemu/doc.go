// Package cudaemu is an emulated CUDA driver library for tests.
//
// # What it is
//
// C sources of a libcuda.so.1 (csrc), which Build compiles with $CC or cc. It exports the functions that Callboard's
// GPU layer binds, with CUDA's ABI, and no GPU is behind it: memory of a device is a memfd, a stream is a thread. A
// program that loads it in place of the driver's works across real processes, with real 64-byte handles, real
// asynchrony and real crashes. It is recognised by the symbol callboard_cudaemu_version.
//
// # Its place in the data's way
//
//	broker ═▶ libcuda.so.1 (this one) ◀═ clients     one memfd an allocation, one more a process for its events
//	test ─▶ Build, Library; Report reads what each process holds
//
// Settings are environment variables of the process that loads the library, read at cuInit:
//
//	CUDAEMU_DIR=path          directory of one "machine": each process keeps its counts there, and all share
//	                          CUDAEMU_MEMORY. Without it a process is a machine of its own
//	CUDAEMU_DEVICES=n         how many GPUs there are, 0 to 8; 1 if not set. CUDA_VISIBLE_DEVICES hides and reorders
//	                          them, by index or GPU-uuid; names keep the machine's number
//	CUDAEMU_MEMORY=bytes      memory of each device; 8 GiB if not set. More gives CUDA_ERROR_OUT_OF_MEMORY
//	CUDAEMU_DELAY_US=n        sleep before each operation of a stream, so that a missing wait shows
//	CUDAEMU_HOLD=path         operations of a stream wait while a file of this path exists: work that is under way until
//	                          the test removes the file
//	CUDAEMU_FAIL=f:n:code;…   the nth call of function f in this process returns code and does nothing; n 0 is every
//	                          call. 700 and 719 also lose the thread's context. Names with and without _v2
//	CUDAEMU_STALL_EVENTS=1    events that this process records never complete
//	CUDAEMU_SLOW_OPEN_US=n    sleep in cuIpcOpenMemHandle and cuIpcOpenEventHandle
//	CUDAEMU_ATTRIBUTE=a:v;…   attributes of all devices; the value "none" makes the driver not know it. 18:1 is a
//	                          Tegra (handles of memory: NOT_SUPPORTED), 125:0 has no interprocess events, 20:3 says
//	                          exclusive mode, which nothing enforces
//	CUDAEMU_PITCH=n           cuMemcpy2DAsync from device to device gives CUDA_ERROR_INVALID_VALUE for pitches that are no
//	                          multiple of n, as a driver may for those that cuMemAllocPitch did not give
//	CUDAEMU_NO_DEVICE=1       cuInit gives CUDA_ERROR_NO_DEVICE, as a driver without a GPU
//	CUDAEMU_STUB=1            cuInit gives CUDA_ERROR_STUB_LIBRARY, as the toolkit's stub
//	CUDAEMU_PIDNS=1           handles cannot be opened (201), as between PID namespaces
//
// # Invariants
//
//	E1 Every rule that is enforced names its source beside it: NVIDIA's cuda.h, its documentation, a public report, or
//	   "inferred" where a real GPU has yet to confirm it. Where sources leave a choice, the stricter one is taken.
//	E2 What is undefined in CUDA is loud here: freeing memory that a living process has open, and using an imported
//	   event that its exporter destroyed, print a line and abort the process that does it.
//	E3 Host code cannot touch device memory: the addresses that the API hands out crash when they are dereferenced, and
//	   are never the same in two processes. They are not used again after a free.
//	E4 An operation reads its memory when it runs, not when it is called, and new memory (up to 16 MiB) is not zero.
//	E5 Nothing is left when processes are gone, however they went: no file outside CUDAEMU_DIR, no shared memory.
//
// # When a peer dies or lies
//
// The kernel takes the memory of a killed process when the last importer closed it; imports that exist keep working,
// new opens fail. What it had queued vanishes, and the events that it recorded there never complete. A handle is
// checked against the file that it names, so a stale or forged one gives an error code.
//
// # Not here
//
// Kernels, graphs, pools, virtual memory management, managed memory, arrays; peer access between devices; what small
// allocations share; the limits and speeds of drivers; anything about a container but CUDAEMU_PIDNS. A test that
// passes here says nothing about a real GPU's memory model. The binding of the driver is package cudaipc.
package cudaemu
