//! Readers that wait at the tail: woken by the append to their own partition, and by nothing else.

use basalt_log::TopicConfig;
use basalt_proto::session::Start;

use super::session::{Session, long_poll, offsets, topic};
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn append_wakes_those_who_wait_for_its_partition_and_nobody_else() {
    const WAITING: usize = 50;
    let harness = Harness::start().await;
    for name in ["busy", "quiet"] {
        let log = Arc::clone(&harness.log);
        let name = topic(name);
        let made = move || log.create_topic(&name, 1, TopicConfig::default()).map(drop);
        tokio::task::spawn_blocking(made).await.unwrap().unwrap();
    }
    let mut session = Session::open(&harness).await;
    let mut waiting = Vec::new();
    for _ in 0..WAITING / 2 {
        waiting.push(
            session
                .send(&long_poll("busy", Start::Latest, 300_000))
                .await,
        );
        session
            .send(&long_poll("quiet", Start::Latest, 300_000))
            .await;
    }
    harness
        .until("all polls are taken", |count| {
            count.requests == WAITING as u64
        })
        .await;
    let quiet = harness.partition("quiet").subscribe();
    let busy = harness.partition("busy").subscribe();
    harness.produce("busy", &numbered_frames(1)).await;
    let mut answered = Vec::new();
    for _ in 0..WAITING / 2 {
        let response = session.receive().await;
        assert_eq!(offsets(&response.fetched().1), [0]);
        answered.push(response.id);
    }
    answered.sort_unstable();
    assert_eq!(answered, waiting);
    assert!(busy.has_changed().unwrap());
    assert!(!quiet.has_changed().unwrap(), "a wake-up for nothing");
    session
        .ask(&basalt_proto::session::Request::Ping)
        .await
        .ok::<basalt_proto::session::EmptyResponse>();
    drop(session);
    harness.stop().await;
}
