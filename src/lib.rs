//! Basalt: a streaming log store whose history is a table.
//!
//! This package joins the crates below it and adds nothing of its own that is worth knowing: the command line
//! ([`cli`]), the configuration ([`config`]) and the assembly of a server ([`serve`]: log, cooling, SQL and sockets on one
//! port). Frames are in `basalt-proto`, segments in `basalt-log`, Parquet in `basalt-columnar`, SQL in `basalt-query`,
//! sockets in `basalt-ingest`, the client in `basalt-client`.
//!
//! Start with [`serve::Instance`], which is a whole server in this process, and [`config::Config`].
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod serve;
pub mod stopwatch;

mod commands;
mod http;
mod input;
mod output;
mod progress;
