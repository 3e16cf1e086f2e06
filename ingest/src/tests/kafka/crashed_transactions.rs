//! TXN-1 at every step: a server that dies while a transaction ends leaves all of it or nothing, for records and offsets alike, and a start
//! ends what it had begun.

use kafka_protocol::messages::{
    AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, TxnOffsetCommitResponse,
};

use super::transactions::{offsets_request, text, topics};
use super::*;
use crate::tests::durability::{Gate, start_gated_with};

/// Servers that die at a time.
const TOGETHER: u64 = 8;

/// Opens a transaction over two topics and a group's offset, and lets the server die so many changes of its disk after it is asked to end
/// it. Whether the end came before death.
async fn dies_after(changes: u64, committed: bool, durability: &str) -> bool {
    let gate: Arc<Gate> = Arc::default();
    // What waits for the disk is cut at once.
    let grace = |config: &mut ServerConfig| config.shutdown_grace = Duration::from_millis(10);
    let harness = start_gated_with(&gate, grace).await;
    let mut client = Client::connect(&harness).await;
    topics(&mut client, &["in"]).await;
    for topic in ["a", "b"] {
        let name = TopicName::new(topic).unwrap();
        let config = vec![("durability".to_owned(), durability.to_owned())];
        let topics = &harness.shared.topics;
        topics.create(name, Some(1), config).await.unwrap();
    }
    let mut producer = client.init("id", 4).await;
    assert_eq!(client.add(&producer, 3, &["a", "b"]).await, [0, 0]);
    for topic in ["a", "b"] {
        assert_eq!(client.write(&mut producer, topic, &["x", "y"]).await, 0);
    }
    let request = AddOffsetsToTxnRequest::default()
        .with_transactional_id(text("id").into())
        .with_producer_id(producer.producer_id().into())
        .with_producer_epoch(producer.epoch())
        .with_group_id(text("g").into());
    let told: AddOffsetsToTxnResponse = client.call(ApiKey::AddOffsetsToTxn, 3, &request).await;
    assert_eq!(told.error_code, 0);
    let request = offsets_request(&producer, 7);
    let _: TxnOffsetCommitResponse = client.call(ApiKey::TxnOffsetCommit, 3, &request).await;

    gate.die_after(changes);
    let code = client.end(&producer, 3, committed).await;
    let survived = !gate.is_dead();
    drop(client);
    let dir = harness.die().await;

    let harness = Harness::start_in(dir, Arc::new(RealDisk::new()), |_| {}, None).await;
    let mut client = Client::connect(&harness).await;
    // A transaction that was not decided is open until its producer comes back.
    client.init("id", 4).await;
    let [a, b] = [
        client.seen(12, "a").await[0].clone(),
        client.seen(12, "b").await[0].clone(),
    ];
    let (offset, error) = client.handled(true).await;
    assert_eq!(error, 0);
    let all = a == ["x", "y"] && b == ["x", "y"] && offset == 7;
    let nothing = a.is_empty() && b.is_empty() && offset == -1;
    assert!(all || nothing, "{changes}: {a:?} {b:?} {offset}");
    if !committed {
        assert!(nothing, "{changes}: what was aborted is seen");
    } else if code == 0 {
        assert!(all, "{changes}: what was acknowledged is lost");
    }
    for topic in ["a", "b"] {
        let end = client.latest(topic, 0).await;
        assert_eq!(client.latest(topic, 1).await, end, "nothing is left open");
    }
    harness.stop().await;
    survived
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_dies_while_a_transaction_ends_leaves_all_or_nothing() {
    for durability in ["fsync", "os"] {
        for committed in [true, false] {
            let mut changes = 0;
            loop {
                // Each has a server of its own, and waits most of its time.
                let runs = changes..changes + TOGETHER;
                let runs = runs.map(|changes| dies_after(changes, committed, durability));
                let survived = futures::future::join_all(runs).await;
                let died = survived.iter().take_while(|survived| !**survived).count();
                changes += u64::try_from(died).unwrap();
                if died < survived.len() {
                    break;
                }
                assert!(changes < 200, "it does not end");
            }
            println!("{durability}, committed {committed}: died at each of {changes} changes");
            assert!(changes > 2, "an end changes the disk");
        }
    }
}
