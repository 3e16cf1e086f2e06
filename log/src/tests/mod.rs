//! The log as a whole, on the simulated disk; with few descriptors on the real one.

mod damage;
mod descriptors;
mod faults;
mod lifecycle;
mod reading;
mod residency;
mod simulation;
mod support;
