//! The log as a whole, on the simulated disk; with few descriptors on the real one.
#![allow(clippy::unwrap_used)]

#[cfg(test)]
mod commits;
#[cfg(test)]
mod damage;
#[cfg(test)]
mod descriptors;
#[cfg(test)]
mod faults;
#[cfg(test)]
mod groups;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod maps;
#[cfg(test)]
mod producers;
#[cfg(test)]
mod reading;
#[cfg(test)]
mod residency;
pub mod simulation;
#[cfg(test)]
mod starts;
mod support;
#[cfg(test)]
mod transactions;
