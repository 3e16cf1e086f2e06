//! The async client of the native protocol.
