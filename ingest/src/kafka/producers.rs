//! InitProducerId: a number for a producer that numbers its batches, which no other ever has.

use std::ops::Range;

use basalt_proto::ErrorKind;
use kafka_protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};

use super::error::code;
use super::request::Request;
use super::response::message;
use crate::error::Refusal;
use crate::shared::Shared;

/// So many are reserved at a time; a restart loses what is left of them.
const BLOCK_IDS: u32 = 1000;
const NO_ID: i64 = -1;
const NO_EPOCH: i16 = -1;

/// Ids that are reserved and not given yet.
#[derive(Debug, Default)]
pub(crate) struct ProducerIds {
    left: tokio::sync::Mutex<Range<i64>>,
}

/// # Errors
/// A [`Refusal`] when the request is malformed.
pub(super) async fn init(shared: &Shared, request: &Request<'_>) -> Result<Vec<u8>, Refusal> {
    let asked: InitProducerIdRequest = request.decode()?;
    let given = match asked.transactional_id.as_ref().map(|id| id.is_empty()) {
        // Whatever id it had: a new one needs no fence against the old.
        None => next(shared).await.map_err(|refusal| {
            shared.counters.refuse(refusal.kind, 1);
            // Clients ask again, for as long as they were told to.
            code::COORDINATOR_LOAD_IN_PROGRESS
        }),
        Some(true) => Err(code::INVALID_REQUEST),
        // What all clients take for final.
        Some(false) => Err(code::TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    };
    let body = match given {
        Ok(id) => InitProducerIdResponse::default()
            .with_producer_id(id.into())
            .with_producer_epoch(0),
        Err(code) => InitProducerIdResponse::default()
            .with_error_code(code)
            .with_producer_id(NO_ID.into())
            .with_producer_epoch(NO_EPOCH),
    };
    message(&request.head, &body)
}

async fn next(shared: &Shared) -> Result<i64, Refusal> {
    let mut left = shared.producer_ids.left.lock().await;
    if left.is_empty() {
        let log = std::sync::Arc::clone(&shared.log);
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
