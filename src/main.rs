//! The `basalt` binary.
#![forbid(unsafe_code)]

/// The system's allocator (glibc's) has a pool for every few threads and keeps what they give back: memory grew for forty minutes of
/// cooling and groups before it was flat. Measured beside others: docs/BENCHMARKS.md, "Soak with Kafka's clients".
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    basalt::cli::main()
}
