//! InitProducerId: a number for a producer that numbers its batches, which no other ever has; and for one with transactions the right to
//! its transactional id.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use basalt_columnar::TieredLog;
use basalt_proto::ErrorKind;
use futures::FutureExt;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};

use super::error::code;
use super::request::Request;
use super::response::message;
use super::transactional::is_sound;
use crate::error::Refusal;
use crate::shared::Shared;
use crate::topics::detached;

/// So many are reserved at a time; a restart loses what is left of them.
const BLOCK_IDS: u32 = 1000;
const NO_ID: i64 = -1;
const NO_EPOCH: i16 = -1;
/// From here on fenced producers have a code of their own.
const FENCED_FROM: i16 = 4;

/// Ids that are reserved and not given yet.
#[derive(Debug)]
pub(crate) struct ProducerIds {
    left: tokio::sync::Mutex<Range<i64>>,
    log: Arc<TieredLog>,
}

impl ProducerIds {
    pub(crate) fn new(log: Arc<TieredLog>) -> Arc<Self> {
        Arc::new(Self {
            left: tokio::sync::Mutex::default(),
            log,
        })
    }

    async fn next(self: Arc<Self>) -> Result<i64, Refusal> {
        let mut left = self.left.lock().await;
        if left.is_empty() {
            let log = Arc::clone(&self.log);
            // Writes and syncs the catalogue: not on a thread that serves sockets.
            let reserved =
                tokio::task::spawn_blocking(move || log.log().reserve_producer_ids(BLOCK_IDS));
            *left = reserved
                .await
                .map_err(|_| Refusal::new(ErrorKind::Internal, "reserving ids failed"))??;
        }
        left.next()
            .ok_or_else(|| Refusal::new(ErrorKind::Internal, "no id was reserved"))
    }
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn init(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: InitProducerIdRequest = request.decode()?;
    let ids = Arc::clone(&shared.producer_ids);
    let counters = Arc::clone(&shared.counters);
    let new_id = move || {
        let (ids, counters) = (Arc::clone(&ids), Arc::clone(&counters));
        async move {
            ids.next().await.map_err(|refusal| {
                counters.refuse(refusal.kind, 1);
                // Clients ask again, for as long as they were told to.
                code::COORDINATOR_LOAD_IN_PROGRESS
            })
        }
        .boxed()
    };
    let given = match asked.transactional_id.as_deref().map(|id| id.to_string()) {
        // Whatever id it had: a new one needs no fence against the old.
        None => new_id().await.map(|id| (id, 0)),
        Some(id) if !is_sound(&id) => Err(code::INVALID_REQUEST),
        Some(id) => {
            let timeout = u64::try_from(asked.transaction_timeout_ms).unwrap_or(0);
            let timeout = Duration::from_millis(timeout);
            let current = (asked.producer_id.0, asked.producer_epoch);
            let current = (current.0 >= 0 && current.1 >= 0).then_some(current);
            let transactions = Arc::clone(&shared.transactions);
            // To its end, whether the client waits or not: what is written down has to count.
            let init = async move { transactions.init(&id, timeout, current, new_id).await };
            let given = detached(init).await?;
            given.map_err(|error| match error {
                code::PRODUCER_FENCED if request.head.version < FENCED_FROM => {
                    code::INVALID_PRODUCER_EPOCH
                }
                error => error,
            })
        }
    };
    let body = match given {
        Ok((id, epoch)) => InitProducerIdResponse::default()
            .with_producer_id(id.into())
            .with_producer_epoch(epoch),
        Err(code) => InitProducerIdResponse::default()
            .with_error_code(code)
            .with_producer_id(NO_ID.into())
            .with_producer_epoch(NO_EPOCH),
    };
    message(&request.head, &body)
}
