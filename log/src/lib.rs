//! Partitions of memory-mapped segments, durable and recoverable.
