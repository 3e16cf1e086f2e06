//! A replay compared with what was produced: byte by byte as it comes, and by SHA-256 as a whole.

use anyhow::{Context as _, bail, ensure};
use basalt_client::{Client, ConsumerConfig, Start};
use basalt_proto::{Offset, PartitionId, TopicName};
use sha2::{Digest as _, Sha256};

use crate::commands::consume::Out;
use crate::commands::position::offset_of;

/// Consumes all of a partition and demands that it is `expected`. Returns what to tell.
pub(super) async fn replay(
    client: &Client,
    topic: &TopicName,
    partition: PartitionId,
    expected: &[u8],
) -> anyhow::Result<String> {
    let end = offset_of(client, topic, partition, Start::Latest).await?;
    let config = ConsumerConfig {
        end_offset: Some(end),
        ..ConsumerConfig::default()
    };
    let mut consumer = client.consumer(topic.clone(), partition, Start::Earliest, config);
    let mut found = Sha256::new();
    let mut position = 0;
    let mut next = Offset::ZERO;
    while let Some(fetched) = consumer.next().await? {
        let mut out = Out::raw(Vec::new());
        for frame in fetched.frames() {
            let frame = frame?;
            ensure!(
                frame.header.offset == next,
                "offset {} came where {next} should be",
                frame.header.offset
            );
            next = frame.header.end_offset();
            out.frame(&frame, &(Offset::ZERO..end))?;
        }
        let bytes = out.out;
        let wanted = expected
            .get(position..position + bytes.len())
            .context("more came back than was produced")?;
        if let Some(at) = bytes
            .iter()
            .zip(wanted)
            .position(|(found, wanted)| found != wanted)
        {
            bail!(
                "byte {} came back as {:#04x}, produced was {:#04x}",
                position + at,
                bytes[at],
                wanted[at]
            );
        }
        found.update(&bytes);
        position += bytes.len();
    }
    ensure!(
        position == expected.len(),
        "{position} bytes came back, {} were produced",
        expected.len()
    );
    ensure!(
        next == end,
        "the replay ended at offset {next}, not at {end}"
    );
    let (found, wanted) = (found.finalize(), Sha256::digest(expected));
    ensure!(
        found == wanted,
        "the SHA-256 of what came back is {}, of what was produced {}",
        hex(&found),
        hex(&wanted)
    );
    Ok(format!(
        "{next} records, {position} bytes, every one equal (SHA-256 {}...)",
        &hex(&found)[..12]
    ))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
