//! The formats seen from outside: golden vectors, properties, and another implementation of the record batch.
#![allow(clippy::unwrap_used, missing_docs)]

mod golden;
mod kafka_crate;
mod lean;
mod properties;
mod support;
