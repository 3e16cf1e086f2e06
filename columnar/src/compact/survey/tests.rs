use basalt_proto::Frame;

use super::*;
use crate::tests::support::{Setup, append, topic};

#[tokio::test]
async fn keys_that_are_too_many_are_looked_at_in_shares() {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    for round in 0..3 {
        let mut frames = Vec::new();
        for key in 0..500 {
            // Each round has another third of the keys twice.
            let key = format!("{}", key + 250 * round);
            Frame::record(1, key.as_bytes(), b"v").encode_into(&mut frames);
        }
        append(&partition, &frames).await;
        fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    }
    let files = partition.snapshot().cold;
    let (sign, _waiting) = partition.stop_sign();
    let source = Source::new(&partition.shared.store, sign);
    let (whole, shared) = crate::cool::blocking(move || {
        let sweeps = vec![false; files.len()];
        let survey =
            |max_keys| survey_holding(&source, &files, 1, &sweeps, (1, 2), max_keys).unwrap();
        (survey(1000), survey(7))
    })
    .await
    .unwrap();
    let gone: u64 = whole.iter().map(RowSet::len).sum();
    assert_eq!(gone, 500);
    assert_eq!(whole, shared);
}
