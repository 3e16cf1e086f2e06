//! What the server did, as counters that only grow (and one gauge). Read by metrics and by tests.

use std::sync::atomic::{AtomicU64, Ordering};

use basalt_proto::{ErrorKind, FrameBatch};

/// One slot an [`ErrorKind`] code; codes beyond share slot 0.
const KIND_SLOTS: usize = 32;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The live counters of a server.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(pub(crate) $name: AtomicU64,)*
            refused: [AtomicU64; KIND_SLOTS],
        }

        /// [`Counters`] at one moment. Each is exact; together they are not one instant.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct CountersSnapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// Frames, requests and openings refused, by kind; kinds never used are left out.
            pub refused: Vec<(ErrorKind, u64)>,
        }

        impl Counters {
            /// The values now.
            #[must_use]
            pub fn snapshot(&self) -> CountersSnapshot {
                CountersSnapshot {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    refused: self.refused_by_kind(),
                }
            }
        }

        impl CountersSnapshot {
            /// Every plain counter by name, for an exporter.
            #[must_use]
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

counters! {
    /// Connections open now (the one gauge).
    connections_open,
    /// Connections accepted.
    connections_total,
    /// Connections closed at once because the server was full.
    connections_refused,
    /// Silent peers closed early to make room.
    connections_evicted,
    /// Connections handed to the HTTP handler.
    connections_http,
    /// Connections that speak Kafka's protocol.
    connections_kafka,
    /// Connections whose first byte nobody here speaks.
    connections_unknown,
    /// Connection tasks that panicked; anything but 0 is a defect.
    connection_panics,
    /// Failed accepts (out of descriptors, aborted by the peer).
    accept_errors,
    /// Peers that did not finish their opening in time, or did not prove who they are.
    handshake_timeouts,
    /// Peers that began a frame or request and did not finish it in time.
    frame_timeouts,
    /// Readers cut off because they took no data in time.
    send_timeouts,
    /// Frames stored.
    frames_in,
    /// Records stored; a frame may hold many.
    records_in,
    /// Bytes of frames stored.
    bytes_in,
    /// Appends; `frames_in / appends` is the batching that happened by itself.
    appends,
    /// Writes that carried acknowledgements of native producers.
    ack_writes,
    /// Bytes of frames sent by sendfile, never copied through this process.
    bytes_sendfile,
    /// Bytes of frames copied through this process: batch frames expanded for native consumers, record frames and small
    /// batches for Kafka's.
    bytes_copied,
    /// Turns of loading bytes from the disk that were not in memory.
    cold_reads,
    /// Bytes loaded from the disk before they were sent.
    bytes_read_ahead,
    /// Requests of sessions and of Kafka connections answered or refused.
    requests,
    /// Offsets committed.
    commits,
}

impl Counters {
    pub(crate) fn add(counter: &AtomicU64, count: u64) {
        counter.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn increment(counter: &AtomicU64) {
        Self::add(counter, 1);
    }

    pub(crate) fn decrement(counter: &AtomicU64) {
        counter.fetch_sub(1, Ordering::Relaxed);
    }

    /// Counts an append.
    pub(crate) fn stored(&self, batch: &FrameBatch<'_>) {
        Self::increment(&self.appends);
        Self::add(&self.frames_in, batch.frame_count() as u64);
        Self::add(&self.records_in, batch.record_count());
        Self::add(&self.bytes_in, batch.bytes().len() as u64);
    }

    pub(crate) fn refuse(&self, kind: ErrorKind, count: u64) {
        let slot = usize::from(kind.code());
        Self::add(self.refused.get(slot).unwrap_or(&self.refused[0]), count);
    }

    fn refused_by_kind(&self) -> Vec<(ErrorKind, u64)> {
        let count = |kind: ErrorKind| {
            self.refused
                .get(usize::from(kind.code()))
                .map_or(0, |slot| slot.load(Ordering::Relaxed))
        };
        ErrorKind::ALL
            .iter()
            .map(|kind| (*kind, count(*kind)))
            .filter(|(_, count)| *count > 0)
            .collect()
    }
}

impl CountersSnapshot {
    /// How often `kind` was refused.
    #[must_use]
    pub fn refused(&self, kind: ErrorKind) -> u64 {
        self.refused
            .iter()
            .find(|(found, _)| *found == kind)
            .map_or(0, |(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_counted_by_kind() {
        let counters = Counters::default();
        counters.refuse(ErrorKind::TooLarge, 2);
        counters.refuse(ErrorKind::Busy, 1);
        let snapshot = counters.snapshot();
        assert_eq!(
            snapshot.refused,
            vec![(ErrorKind::TooLarge, 2), (ErrorKind::Busy, 1)]
        );
        assert_eq!(snapshot.refused(ErrorKind::TooLarge), 2);
        assert_eq!(snapshot.refused(ErrorKind::Corrupt), 0);
    }

    #[test]
    fn every_kind_has_its_own_slot() {
        assert!(
            ErrorKind::ALL
                .iter()
                .all(|kind| usize::from(kind.code()) < KIND_SLOTS && kind.code() != 0)
        );
    }
}
