//! Transactions that nobody ends: what an earlier process left, what is open for too long, ids that nobody uses.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use basalt_log::TransactionChange;
use basalt_proto::batch::Marker;
use futures::StreamExt;
use tokio::time::Instant;
use tracing::{info, warn};

use super::state::{Phase, Place, Transaction};
use super::{FAILURE_PAUSE, ID_PAUSE, ID_RETENTION, LOOK_PAUSE, LOOKS, Slot, Transactions};
use crate::ShutdownSignal;

impl Transactions {
    /// Ends what an earlier process has decided or left: before anybody reads, so that nobody finds less committed than was seen before.
    pub(crate) async fn settle_stored(self: &Arc<Self>) {
        let unsettled = self.look(|transaction| matches!(transaction.phase, Phase::Ending(_)));
        unsettled.await;
        self.abort_unknown().await;
    }

    /// Aborts transactions in partitions that no id's state knows: such a state could not be read.
    pub(super) async fn abort_unknown(&self) {
        let mut known = HashSet::new();
        let slots: Vec<_> = self.ids.lock().values().cloned().collect();
        for slot in slots {
            if let Some(transaction) = &*slot.state.lock().await {
                let places = transaction.places.iter();
                known.extend(places.map(|place| (transaction.producer_id, place.clone())));
            }
        }
        for topic in self.log.log().topics() {
            for partition in topic.used_partitions() {
                let place = Place {
                    topic: topic.name().clone(),
                    topic_id: topic.id().0,
                    partition: partition.id(),
                };
                for producer in partition.active_producers() {
                    let id = producer.producer_id;
                    if producer.transaction_start.is_none() || known.contains(&(id, place.clone()))
                    {
                        continue;
                    }
                    warn!(topic = %place.topic, partition = %place.partition, producer = id, "a transaction that nobody knows is aborted");
                    let told = self.tell(&place, (id, producer.epoch), Marker::Abort).await;
                    if let Err(code) = told {
                        warn!(topic = %place.topic, partition = %place.partition, code, "it could not be aborted yet: the next start tries again");
                    }
                }
            }
        }
    }

    /// Ends what has been open for too long, and what was not ended everywhere, for as long as the server runs.
    pub(crate) async fn run(self: &Arc<Self>, shutdown: &ShutdownSignal) {
        let mut pause = LOOK_PAUSE;
        let mut next_expiry = Instant::now() + ID_PAUSE;
        loop {
            let nothing = self.unsettled.lock().is_empty();
            tokio::select! {
                () = shutdown.wait() => return,
                () = self.wake.notified(), if nothing => {}
                () = tokio::time::sleep(pause), if !nothing => {}
                () = tokio::time::sleep_until(next_expiry) => {
                    next_expiry = Instant::now() + ID_PAUSE;
                    self.expire();
                }
            }
            let is_due = |transaction: &Transaction| {
                matches!(transaction.phase, Phase::Ending(_)) || transaction.is_over(Instant::now())
            };
            pause = match self.look(is_due).await {
                true => LOOK_PAUSE,
                false => FAILURE_PAUSE,
            };
        }
    }

    /// Ends those unsettled transactions that are due, some at a time; whether all could be.
    pub(super) async fn look(&self, is_due: impl Fn(&Transaction) -> bool) -> bool {
        let ids: Vec<_> = self.unsettled.lock().iter().cloned().collect();
        let slots = ids.iter().filter_map(|id| self.slot(id));
        let all_ended = AtomicBool::new(true);
        let look = async |slot: Arc<Slot>| {
            // One that is being used is looked at the next time.
            let Ok(mut state) = slot.state.try_lock() else {
                return;
            };
            let Some(transaction) = state.as_ref().filter(|one| is_due(one)) else {
                return;
            };
            let ended = match transaction.phase {
                Phase::Ending(_) => self.finish(&slot.id, &mut state).await,
                _ => {
                    info!(
                        id = slot.id,
                        "a transaction was open for too long: it is aborted"
                    );
                    self.fence(&slot.id, &mut state).await
                }
            };
            if let Err(code) = ended {
                warn!(id = slot.id, code, "a transaction could not be ended yet");
                all_ended.store(false, Ordering::Relaxed);
            }
        };
        let looks = futures::stream::iter(slots);
        looks.for_each_concurrent(LOOKS, look).await;
        all_ended.into_inner()
    }

    /// Forgets ids that nobody has used for long, and those that nobody was given.
    pub(super) fn expire(&self) {
        let mut ids = self.ids.lock();
        ids.retain(|id, slot| {
            // With the map locked nobody else comes by it.
            let is_used = Arc::strong_count(slot) > 1;
            let Ok(state) = slot.state.try_lock() else {
                return true;
            };
            let is_idle = slot.used.lock().elapsed() > ID_RETENTION;
            let is_over = match &*state {
                None => true,
                Some(transaction) => transaction.phase == Phase::Empty && is_idle,
            };
            if is_used || !is_over {
                return true;
            }
            if state.is_some() {
                let change = TransactionChange {
                    id: id.clone(),
                    state: None,
                };
                drop(
                    self.log
                        .log()
                        .groups()
                        .begin_transaction(change, Vec::new()),
                );
                self.count(id, state.as_ref(), None);
            }
            false
        });
    }
}
