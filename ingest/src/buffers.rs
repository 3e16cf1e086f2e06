//! Buffers to read into, shared by all connections: only one that has something to work on holds one. So a thousand idle
//! connections hold none, and a busy thread goes on with the one that its processor has in its cache.

use parking_lot::Mutex;

/// How much is taken from a socket before what came is worked on, unless the item at the front is longer: then up to its
/// end. What is read is walked and copied next, so it should still be in the processor's cache by then.
pub(crate) const READ_BYTES: usize = 512 << 10;
/// What a buffer that is given back may have grown to.
pub(crate) const MAX_KEPT_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    max_free: usize,
}

impl Buffers {
    /// Keeps as many as the runtime's threads use at a time, and some.
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            free: Mutex::default(),
            max_free: 2 * processors,
        }
    }

    /// An empty buffer of [`READ_BYTES`] or more.
    pub(crate) fn take(&self) -> Vec<u8> {
        let free = self.free.lock().pop();
        free.unwrap_or_else(|| Vec::with_capacity(READ_BYTES))
    }

    /// Takes a buffer back, whatever is in it.
    pub(crate) fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        if (READ_BYTES..=MAX_KEPT_BYTES).contains(&buffer.capacity()) {
            let mut free = self.free.lock();
            if free.len() < self.max_free {
                free.push(buffer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_given_last_is_taken_first_and_odd_ones_are_not_kept() {
        let buffers = Buffers::new();
        let (first, mut last) = (buffers.take(), buffers.take());
        last.extend_from_slice(b"used");
        last.reserve_exact(MAX_KEPT_BYTES - last.len());
        buffers.give(first);
        buffers.give(last);
        buffers.give(Vec::with_capacity(READ_BYTES - 1));
        buffers.give(Vec::with_capacity(MAX_KEPT_BYTES + 1));
        let taken = buffers.take();
        assert_eq!((taken.len(), taken.capacity()), (0, MAX_KEPT_BYTES));
        assert_eq!(buffers.take().capacity(), READ_BYTES);
        assert!(buffers.free.lock().is_empty());
        (0..100).for_each(|_| buffers.give(Vec::with_capacity(READ_BYTES)));
        assert_eq!(buffers.free.lock().len(), buffers.max_free);
    }
}
