use super::*;
use crate::file::tests::file;
use object_store::memory::InMemory;

fn key() -> PartitionKey {
    PartitionKey {
        topic: TopicName::new("t").unwrap(),
        topic_id: 1,
        partition: PartitionId(0),
    }
}

fn manifest(version: u64, writer: &str) -> Manifest {
    Manifest {
        version,
        epoch: 3,
        writer: writer.to_owned(),
        log_start_offset: Offset(0),
        cold_end_offset: Offset(200),
        files: vec![
            Arc::new(file(0, 100, &[(0, 50), (50, 90)])),
            Arc::new(ColdFile {
                max_timestamp_ns: u64::MAX,
                ..file(100, 200, &[(100, 200)])
            }),
        ],
        compacted_end_offset: Offset::ZERO,
        cleaned: Vec::new(),
    }
}

#[test]
fn passes_of_compaction_are_kept_and_only_with_them_the_format_is_the_fourth() {
    let cleaned = |end| Cleaned {
        end_offset: Offset(end),
        at_ns: u64::MAX,
        is_swept: end == 90,
    };
    let written = Manifest {
        compacted_end_offset: Offset(90),
        cleaned: vec![cleaned(90), cleaned(200)],
        ..manifest(7, "w")
    };
    let bytes = encode(&key(), &written);
    assert!(String::from_utf8_lossy(&bytes).contains("\"format\":4,"));
    assert_eq!(decode(&key(), 7, &bytes).unwrap(), written);
    let plain = encode(&key(), &manifest(7, "w"));
    assert!(!String::from_utf8_lossy(&plain).contains("clean"));
    for ends in [[200, 90], [90, 201]] {
        let bad = Manifest {
            cleaned: ends.map(cleaned).to_vec(),
            ..written.clone()
        };
        let decoded = decode(&key(), 7, &encode(&key(), &bad));
        assert!(matches!(decoded, Err(ManifestError::Damaged { .. })));
    }
}

#[test]
fn a_manifest_survives_its_json_with_every_u64() {
    let written = manifest(7, "w");
    let bytes = encode(&key(), &written);
    assert_eq!(decode(&key(), 7, &bytes).unwrap(), written);
    serde_json::from_slice::<serde_json::Value>(&bytes).unwrap();
}

#[test]
fn shredded_columns_are_named_once_and_only_with_them_the_format_is_the_second() {
    let plain = encode(&key(), &manifest(7, "w"));
    let columns = |name: &str| -> Arc<[ShreddedColumn]> {
        let column = ShreddedColumn {
            name: format!("payload.{name}"),
            path: vec![name.to_owned()],
            form: crate::shred::Form::Int,
        };
        vec![column].into()
    };
    let shredded = |base, end, name: &str| {
        Arc::new(ColdFile {
            shredded: Some(columns(name)),
            ..file(base, end, &[(base, end)])
        })
    };
    let mut written = manifest(7, "w");
    written.cold_end_offset = Offset(500);
    written.files.extend([
        shredded(200, 300, "first"),
        shredded(300, 400, "second"),
        shredded(400, 500, "first"),
    ]);
    let bytes = encode(&key(), &written);
    assert_eq!(decode(&key(), 7, &bytes).unwrap(), written);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    assert!(text(&plain).contains("\"format\":1,") && !text(&plain).contains("shredded"));
    assert!(text(&bytes).contains("\"format\":2,"));
    assert_eq!(text(&bytes).matches("payload.first").count(), 1);

    let body = text(&bytes).replace("\"shredded\":1", "\"shredded\":2");
    let body = &body[CHECKSUM_BYTES..];
    let head = format!(
        "{{\"crc32c\":\"{:08x}\",\n",
        crc_fast::crc32_iscsi(body.as_bytes())
    );
    let refused = decode(&key(), 7, (head + body).as_bytes());
    assert!(
        matches!(refused, Err(ManifestError::Damaged { .. })),
        "a set that is not there: {refused:?}"
    );
}

#[test]
fn every_truncation_and_every_flipped_bit_is_refused() {
    let bytes = encode(&key(), &manifest(7, "w")).to_vec();
    for length in 0..bytes.len() {
        assert!(
            decode(&key(), 7, &bytes[..length]).is_err(),
            "cut at {length}"
        );
    }
    for position in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[position] ^= 1 << bit;
            assert!(
                decode(&key(), 7, &flipped).is_err(),
                "bit {bit} of byte {position}"
            );
        }
    }
}

#[test]
fn a_manifest_of_another_version_topic_or_partition_is_refused() {
    let bytes = encode(&key(), &manifest(7, "w"));
    assert!(decode(&key(), 8, &bytes).is_err());
    assert!(
        decode(
            &PartitionKey {
                topic_id: 2,
                ..key()
            },
            7,
            &bytes
        )
        .is_err()
    );
    assert!(
        decode(
            &PartitionKey {
                partition: PartitionId(1),
                ..key()
            },
            7,
            &bytes
        )
        .is_err()
    );
}

#[test]
fn files_that_overlap_or_pass_the_cold_end_are_refused() {
    let good = manifest(7, "w");
    for bad in [
        Manifest {
            cold_end_offset: Offset(150),
            ..good.clone()
        },
        Manifest {
            log_start_offset: Offset(201),
            ..good.clone()
        },
        Manifest {
            files: vec![Arc::clone(&good.files[1]), Arc::clone(&good.files[0])],
            ..good.clone()
        },
        Manifest {
            files: vec![Arc::new(file(0, 100, &[(0, 50), (40, 90)]))],
            ..good.clone()
        },
        Manifest {
            files: vec![Arc::new(file(0, 100, &[(0, 101)]))],
            ..good.clone()
        },
        Manifest {
            files: vec![Arc::new(file(0, 100, &[]))],
            ..good.clone()
        },
    ] {
        let decoded = decode(&key(), 7, &encode(&key(), &bad));
        assert!(
            matches!(decoded, Err(ManifestError::Damaged { .. })),
            "{bad:?}"
        );
    }
}

#[tokio::test]
async fn the_second_of_two_writers_is_refused() {
    let store = ColdStore::remote(Arc::new(InMemory::new()));
    assert!(matches!(
        commit(&store, &key(), &manifest(1, "a")).await.unwrap(),
        Committed::New
    ));
    let refused = commit(&store, &key(), &manifest(1, "b")).await;
    assert!(
        matches!(
            refused,
            Err(ManifestError::AnotherWriter {
                found_version: 1,
                ..
            })
        ),
        "{refused:?}"
    );
}

#[tokio::test]
async fn an_earlier_commit_of_ours_whose_answer_was_lost_is_found() {
    let store = ColdStore::remote(Arc::new(InMemory::new()));
    let lost = Manifest {
        cold_end_offset: Offset(500),
        ..manifest(1, "a")
    };
    commit(&store, &key(), &lost).await.unwrap();
    match commit(&store, &key(), &manifest(1, "a")).await.unwrap() {
        Committed::Earlier(found) => assert_eq!(found, lost),
        Committed::New => panic!("two commits of one version"),
    }
}

#[tokio::test]
async fn a_writer_that_fell_behind_is_refused_although_its_version_was_trimmed() {
    let store = ColdStore::remote(Arc::new(InMemory::new()));
    for version in 1..=4 {
        commit(&store, &key(), &manifest(version, "ahead"))
            .await
            .unwrap();
    }
    store
        .delete(&paths::manifest_path(&key().prefix(), 2))
        .await
        .unwrap();
    let refused = commit(&store, &key(), &manifest(2, "behind")).await;
    assert!(
        matches!(
            refused,
            Err(ManifestError::AnotherWriter {
                found_version: 4,
                ..
            })
        ),
        "{refused:?}"
    );
}
