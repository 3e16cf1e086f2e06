use basalt_proto::Frame;

use super::*;
use crate::tests::support::{Setup, append, topic};

#[tokio::test]
async fn keys_that_are_too_many_are_for_another_pass_or_looked_at_in_shares() {
    let setup = Setup {
        segment_bytes: 1 << 20,
        ..Setup::new()
    };
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
    let [all, first, shared] = crate::cool::blocking(move || {
        let sweeps = vec![false; files.len()];
        [1000, 600, 7]
            .map(|max_keys| survey_holding(&source, &files, 1, &sweeps, (1, 2), max_keys).unwrap())
    })
    .await
    .unwrap();
    let gone = |survey: &[RowSet]| survey.iter().map(RowSet::len).collect::<Vec<_>>();
    assert_eq!(gone(&all), [250, 250, 0]);
    // The keys of the last file find no room: it is for another pass.
    assert_eq!(first.len(), 2);
    assert_eq!(first[0], all[0]);
    // Not even those of one file do: they are looked at one share after the other.
    assert_eq!(gone(&shared), [250, 0]);
    assert_eq!(shared[0], all[0]);
}
