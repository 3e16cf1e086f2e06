//! The `basalt` binary.
#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    basalt::cli::main()
}
