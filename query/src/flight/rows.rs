//! A query's rows as Flight messages.

use std::pin::Pin;
use std::task::{Context, Poll};

use arrow_flight::FlightData;
use arrow_flight::encode::FlightDataEncoderBuilder;
use arrow_flight::error::FlightError;
use bytes::Bytes;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use tokio::sync::mpsc;
use tonic::Status;

use crate::edge::split_by_bytes;
use crate::stream::AbortOnDrop;
use crate::{QueryEngine, QueryStream};

/// Bytes of a batch that goes out in one message: below the 4 MiB that clients take by default, with room for what
/// surrounds it. A single row that is larger goes out alone.
const MESSAGE_BYTES: usize = 3 << 20;
/// Messages that wait for the connection before the query does.
const WAITING_MESSAGES: usize = 2;

/// Messages on their way to a client. Dropping it ends the query.
pub(super) struct Messages {
    messages: mpsc::Receiver<Result<FlightData, Status>>,
    _encoding: AbortOnDrop,
}

impl Stream for Messages {
    type Item = Result<FlightData, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.messages.poll_recv(context)
    }
}

/// Encodes `rows` on the engine's threads: the threads that serve producers and consumers only pass on what is ready.
pub(super) fn encoded(engine: &QueryEngine, rows: QueryStream) -> Result<Messages, Status> {
    let metadata = metadata(&rows.id(), rows.snapshot());
    let schema = rows.schema();
    let pieces = rows
        .map_err(|error| FlightError::Tonic(Box::new(error.status())))
        .map_ok(|batch| {
            let mut pieces = Vec::new();
            split_by_bytes(batch, MESSAGE_BYTES, &mut pieces);
            stream::iter(pieces.into_iter().map(Ok))
        })
        .try_flatten();
    let mut data = FlightDataEncoderBuilder::new()
        .with_schema(schema)
        .with_metadata(metadata)
        // Cut above, by what rows really hold.
        .with_max_flight_data_size(usize::MAX)
        .build(pieces)
        .map_err(Status::from);
    let (send, messages) = mpsc::channel(WAITING_MESSAGES);
    let encoding = engine.spawn(async move {
        while let Some(message) = data.next().await {
            if send.send(message).await.is_err() {
                return;
            }
        }
    });
    Ok(Messages {
        messages,
        _encoding: AbortOnDrop(encoding.map_err(|error| error.status())?),
    })
}

/// What a query's announcement and its first message say of it besides their schema, as JSON: `query`, its id, and
/// `snapshot`, once that was taken. Neither has a character that JSON would escape.
pub(super) fn metadata(id: &str, snapshot: Option<&str>) -> Bytes {
    let text = match snapshot {
        Some(snapshot) => format!(r#"{{"query":"{id}","snapshot":"{snapshot}"}}"#),
        None => format!(r#"{{"query":"{id}"}}"#),
    };
    text.into()
}
