//! How many run, how many wait (QRY-13).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{QueryConfig, QueryError};

/// Queries that only look at the server's own tables, at a time; they have places of their own.
const SYSTEM_PLACES: usize = 4;

/// Which places a query competes for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lane {
    /// Reads nothing but the server's own tables.
    System,
    /// Anything else.
    Records,
}

/// The places of both lanes.
#[derive(Debug)]
pub(crate) struct Admission {
    system: Places,
    records: Places,
}

#[derive(Debug)]
struct Places {
    free: Semaphore,
    count: usize,
    waiting: AtomicUsize,
    waiting_limit: usize,
    patience: Duration,
}

impl Admission {
    pub(crate) fn new(config: &QueryConfig) -> Self {
        let places = |count: usize| Places {
            free: Semaphore::new(count),
            count,
            waiting: AtomicUsize::new(0),
            waiting_limit: config.max_queued,
            patience: config.queue_timeout,
        };
        Self {
            system: places(SYSTEM_PLACES),
            // More than a semaphore holds is as good as no limit.
            records: places(config.max_concurrent.clamp(1, Semaphore::MAX_PERMITS)),
        }
    }

    /// Waits for a place, in the order of arrival.
    ///
    /// # Errors
    /// [`QueryError::Busy`] where too many wait already, or none became free in time.
    pub(crate) async fn enter(&self, lane: Lane) -> Result<SemaphorePermit<'_>, QueryError> {
        let places = match lane {
            Lane::System => &self.system,
            Lane::Records => &self.records,
        };
        places.enter().await
    }
}

impl Places {
    async fn enter(&self) -> Result<SemaphorePermit<'_>, QueryError> {
        if let Ok(place) = self.free.try_acquire() {
            return Ok(place);
        }
        let _waiting = Waiting::begin(self)?;
        match tokio::time::timeout(self.patience, self.free.acquire()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(_)) => Err(QueryError::Stopping),
            Err(_) => Err(QueryError::Busy {
                running: self.count,
                waiting: self.waiting.load(Ordering::Relaxed),
                waited: self.patience,
            }),
        }
    }
}

/// Counts one that waits, until it does no more, however it ends.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(places: &'a Places) -> Result<Self, QueryError> {
        let waiting = places.waiting.fetch_add(1, Ordering::Relaxed);
        let counted = Self(&places.waiting);
        match waiting < places.waiting_limit {
            true => Ok(counted),
            false => Err(QueryError::Busy {
                running: places.count,
                waiting,
                waited: Duration::ZERO,
            }),
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn admission(max_concurrent: usize, max_queued: usize) -> Admission {
        Admission::new(&QueryConfig {
            max_concurrent,
            max_queued,
            queue_timeout: Duration::from_millis(50),
            ..QueryConfig::default()
        })
    }

    #[tokio::test]
    async fn who_finds_no_place_waits_and_who_finds_too_many_waiting_is_refused() {
        let admission = admission(1, 1);
        let first = admission.enter(Lane::Records).await.unwrap();
        let mut second = Box::pin(admission.enter(Lane::Records));
        assert!((&mut second).now_or_never().is_none());
        let third = admission.enter(Lane::Records).await;
        assert!(
            matches!(third, Err(QueryError::Busy { running: 1, waiting: 1, waited }) if waited.is_zero()),
            "{third:?}"
        );
        // Whoever looks at the server does not wait for them.
        let _system = admission.enter(Lane::System).await.unwrap();
        drop(first);
        let second = second.await.unwrap();
        let late = admission.enter(Lane::Records).await;
        assert!(
            matches!(late, Err(QueryError::Busy { waited, .. }) if !waited.is_zero()),
            "{late:?}"
        );
        drop(second);
        assert!(admission.enter(Lane::Records).await.is_ok());
    }

    #[tokio::test]
    async fn who_stops_waiting_makes_room_for_another() {
        let admission = admission(1, 1);
        let first = admission.enter(Lane::Records).await.unwrap();
        for _ in 0..3 {
            let mut waiting = Box::pin(admission.enter(Lane::Records));
            assert!((&mut waiting).now_or_never().is_none());
        }
        drop(first);
        assert!(admission.enter(Lane::Records).await.is_ok());
    }
}
