//! The `basalt` binary.
#![forbid(unsafe_code)]

/// The system's allocator (glibc's) has a pool for every few threads and keeps what they give back: after forty minutes of cooling and
/// groups a server held 500 MB, with this one 14 to 60 (docs/BENCHMARKS.md, "A soak").
#[cfg(not(target_env = "msvc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    basalt::cli::main()
}
