//! Where a history's decisions come from: a seed, or the bytes of a fuzzer.

use crate::disk::sim::SimRng;

pub(super) enum Choices<'a> {
    Seed(SimRng),
    Bytes(&'a [u8]),
}

impl Choices<'_> {
    /// A number below `bound`, at most 65,536; 0 once the bytes are used up.
    pub(super) fn below(&mut self, bound: usize) -> usize {
        match self {
            Self::Seed(rng) => rng.below(bound),
            Self::Bytes(bytes) => {
                let width = if bound > 256 { 2 } else { 1 };
                let (taken, rest) = bytes.split_at(width.min(bytes.len()));
                *bytes = rest;
                let number = taken
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
                number % bound.max(1)
            }
        }
    }

    /// True once in `times`.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == times - 1
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Numbers for the disk, which takes many.
    pub(super) fn rng(&mut self) -> SimRng {
        match self {
            Self::Seed(rng) => SimRng::new(rng.next_u64()),
            Self::Bytes(_) => SimRng::new(self.below(1 << 16) as u64),
        }
    }

    /// Whether there is nothing left to decide by.
    pub(super) fn is_used_up(&self) -> bool {
        matches!(self, Self::Bytes([]))
    }
}
