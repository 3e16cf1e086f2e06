//! Basalt.
