//! Checking a local cold folder offline: nothing is changed, everything is read.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

use basalt_log::Finding;
use basalt_proto::{PartitionId, TopicName};
use object_store::local::LocalFileSystem;
use object_store::path::Path;

use crate::file::ColdFile;
use crate::hydrate::{read_chunk, verify_bytes, verify_footer};
use crate::manifest::{self, Manifest, PartitionKey};
use crate::object_reader::Footers;
use crate::paths::{self, Found};
use crate::store::ColdStore;

/// Checks the cold part of every partition in `partitions` (topic, topic id, number): that its newest manifests can be believed, that each
/// object they name is there, and that every frame can be rebuilt from it, with the checksum it was written with. Objects of topics that
/// are not named are reported, as are objects without any manifest; what a crash leaves behind beside a manifest is not: the next start
/// deletes it. A folder that is not there has nothing wrong with it.
pub async fn check_cold(
    cold_dir: &FsPath,
    partitions: &[(TopicName, u64, PartitionId)],
) -> Vec<Finding> {
    if !cold_dir.exists() {
        return Vec::new();
    }
    let mut check = match LocalFileSystem::new_with_prefix(cold_dir) {
        Ok(local) => Check {
            folder: cold_dir,
            store: ColdStore::remote(Arc::new(local)),
            findings: Vec::new(),
        },
        Err(error) => {
            return vec![Finding {
                path: cold_dir.to_owned(),
                position: 0,
                what: error.to_string(),
            }];
        }
    };
    let mut topics: BTreeMap<Path, Vec<PartitionKey>> = BTreeMap::new();
    for (topic, topic_id, partition) in partitions {
        let key = PartitionKey {
            topic: topic.clone(),
            topic_id: *topic_id,
            partition: *partition,
        };
        topics
            .entry(paths::topic_prefix(topic, *topic_id))
            .or_default()
            .push(key);
    }
    check.unknown_topics(&topics).await;
    for (prefix, keys) in &topics {
        check.topic(prefix, keys).await;
    }
    check.findings
}

struct Check<'a> {
    folder: &'a FsPath,
    store: ColdStore,
    findings: Vec<Finding>,
}

impl Check<'_> {
    fn report(&mut self, path: &Path, what: String) {
        let path: PathBuf = self.folder.join(path.as_ref());
        self.findings.push(Finding {
            path,
            position: 0,
            what,
        });
    }

    fn report_error(&mut self, path: &Path, error: &dyn std::error::Error) {
        self.report(path, crate::error::Chain(error).to_string());
    }

    async fn unknown_topics(&mut self, known: &BTreeMap<Path, Vec<PartitionKey>>) {
        let names = match self.store.list_folders(None).await {
            Ok(names) => names,
            Err(error) => return self.report_error(&Path::default(), &error),
        };
        for name in names {
            match self.store.list_folders(Some(&name)).await {
                Ok(ids) => {
                    for id in ids.into_iter().filter(|id| !known.contains_key(id)) {
                        if matches!(self.store.exists(&paths::tombstone(&id)).await, Ok(false)) {
                            self.report(
                                &id,
                                "cold files of a topic that the catalogue does not know".to_owned(),
                            );
                        }
                    }
                }
                Err(error) => self.report_error(&name, &error),
            }
        }
    }

    async fn topic(&mut self, prefix: &Path, keys: &[PartitionKey]) {
        let found = match self.store.list(prefix).await {
            Ok(found) => found,
            Err(error) => return self.report_error(prefix, &error),
        };
        let (mut versions, mut objects) = (
            BTreeMap::<_, BTreeSet<u64>>::new(),
            BTreeMap::<_, Vec<Path>>::new(),
        );
        for path in found {
            match paths::classify(prefix, &path) {
                Found::Manifest { partition, version } => {
                    versions.entry(partition).or_default().insert(version);
                }
                Found::Object { partition, .. } => objects.entry(partition).or_default().push(path),
                Found::Leftover | Found::Tombstone | Found::Foreign => {}
            }
        }
        for key in keys {
            match versions
                .get(&key.partition)
                .and_then(|versions| versions.last())
            {
                Some(newest) => self.partition(key, *newest).await,
                None => {
                    for path in objects.get(&key.partition).into_iter().flatten() {
                        let what = "a cold file without any manifest: left by an interrupted cooling, or its manifest was lost";
                        self.report(path, what.to_owned());
                    }
                }
            }
        }
    }

    async fn partition(&mut self, key: &PartitionKey, newest: u64) {
        let path = paths::manifest_path(&key.prefix(), newest);
        match manifest::load(&self.store, key, newest).await {
            Ok(Manifest { files, .. }) => {
                for file in files {
                    self.file(&file).await;
                }
            }
            Err(error) => self.report_error(&path, &error),
        }
    }

    async fn file(&mut self, file: &ColdFile) {
        let object_store = Arc::clone(self.store.object_store());
        if let Err(error) = verify_footer(&object_store, file).await {
            return self.report_error(&file.path, &error);
        }
        if let Err(error) = verify_bytes(&object_store, file).await {
            self.report_error(&file.path, &error);
        }
        let footers = Footers::default();
        for chunk in &file.chunks {
            let out = &mut io::sink();
            let read = read_chunk(&object_store, &footers, file, chunk, out);
            if let Err(error) = read.await {
                self.report_error(&file.path, &error);
            }
        }
    }
}
