//! The offline check: silent about a sound folder, precise about a damaged one.

use basalt_log::Finding;
use basalt_proto::{PartitionId, TopicName};

use super::support::{Setup, append_numbered, files_below, topic};
use crate::check::check_cold;

async fn cooled() -> (Setup, Vec<(TopicName, u64, PartitionId)>) {
    let setup = Setup::new();
    let fixture = setup.open().await;
    let partition = fixture.partition();
    append_numbered(&partition, 600).await;
    fixture.tiered.cool_topic(&topic("t"), true).await.unwrap();
    let partitions = vec![(topic("t"), partition.topic_id().0, PartitionId(0))];
    (setup, partitions)
}

#[tokio::test]
async fn a_sound_folder_has_no_findings_and_is_left_as_it_is() {
    let (setup, partitions) = cooled().await;
    let before = files_below(&setup.cold_dir());
    assert_eq!(check_cold(&setup.cold_dir(), &partitions).await, []);
    assert_eq!(files_below(&setup.cold_dir()), before);
    assert_eq!(
        check_cold(&setup.folder.path().join("nowhere"), &partitions).await,
        []
    );
}

#[tokio::test]
async fn each_damage_is_found_and_its_file_named() {
    let (setup, partitions) = cooled().await;
    let files = files_below(&setup.cold_dir());
    let objects: Vec<_> = files
        .keys()
        .filter(|name| name.ends_with(".parquet"))
        .collect();
    let newest = files.keys().rfind(|name| name.ends_with(".json")).unwrap();
    let check = |path: std::path::PathBuf| {
        let (setup, partitions) = (setup.clone(), partitions.clone());
        async move {
            let findings = check_cold(&setup.cold_dir(), &partitions).await;
            assert!(!findings.is_empty(), "{path:?}");
            assert!(
                findings
                    .iter()
                    .all(|Finding { path: named, .. }| *named == path),
                "{findings:?}"
            );
        }
    };
    for name in [objects[0], newest] {
        let path = setup.cold_dir().join(name);
        let whole = std::fs::read(&path).unwrap();
        for position in [whole.len() / 3, whole.len() - 5] {
            let mut flipped = whole.clone();
            flipped[position] ^= 4;
            std::fs::write(&path, flipped).unwrap();
            check(path.clone()).await;
        }
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        check(path.clone()).await;
        std::fs::write(&path, whole).unwrap();
    }
    std::fs::remove_file(setup.cold_dir().join(objects[1])).unwrap();
    check(setup.cold_dir().join(objects[1])).await;
}

#[tokio::test]
async fn files_that_belong_to_no_topic_or_no_manifest_are_found() {
    let (setup, partitions) = cooled().await;
    let unknown = check_cold(&setup.cold_dir(), &[]).await;
    assert_eq!(unknown.len(), 1, "{unknown:?}");
    for name in files_below(&setup.cold_dir())
        .keys()
        .filter(|name| name.ends_with(".json"))
    {
        std::fs::remove_file(setup.cold_dir().join(name)).unwrap();
    }
    let lost = check_cold(&setup.cold_dir(), &partitions).await;
    let objects = files_below(&setup.cold_dir()).len();
    assert_eq!(lost.len(), objects, "{lost:?}");
}
