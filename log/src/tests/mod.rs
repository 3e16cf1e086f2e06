//! The log as a whole, on the simulated disk.

mod damage;
mod faults;
mod lifecycle;
mod reading;
mod residency;
mod simulation;
mod support;
